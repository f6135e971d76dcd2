#!/usr/bin/env bash
# Builds an image as an OCI archive, from Debian's packages and programs of this checkout, without a
# container runtime or a registry, and prints its digest, which equal packages and programs repeat.
# Installs mmdebstrap and umoci.
#
# usage: image.sh IMAGE PROGRAMS FOLDER
#
# Writes FOLDER/IMAGE.tar. Packages come from the sources of this machine; DEBIAN_SOURCES names
# another file in the format of sources.list.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
image=$1 programs=$2 folder=$3
suite=bookworm
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} # of all files: the digest depends on contents only
export SOURCE_DATE_EPOCH
created=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%FT%TZ)
sources=${DEBIAN_SOURCES:-/etc/apt/sources.list.d/debian.sources}

"$root/scripts/packages.sh" mmdebstrap=mmdebstrap umoci=umoci strip=binutils
mkdir -p "$folder"
work=$(mktemp -d "$folder/.$image.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Without documentation and translations.
debian() {
    local packages
    packages=$(bash "$root/scripts/image_files.sh" packages "$image")
    mmdebstrap --quiet --variant=essential --include="${packages// /,}" \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf"' \
        --customize-hook='rm -rf "$1/etc/apt/sources.list" "$1/etc/apt/sources.list.d"' \
        --customize-hook='echo "rljob:x:65532:65532:rljob:/tmp:/sbin/nologin" >>"$1/etc/passwd"' \
        --customize-hook='echo "rljob:x:65532:" >>"$1/etc/group"' \
        "$suite" "$work/debian.tar" "$sources"
}

# The programs and their libraries as a layer of /usr/local.
programs() {
    bash "$root/scripts/image_files.sh" local "$image" "$programs" "$root/.libtorch/lib" \
        "$work/usr/local"
    tar --create --file "$work/local.tar" --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
        --owner=0 --group=0 --numeric-owner --directory "$work" usr
}

debian
programs
layout=$work/layout
umoci init --layout "$layout"
umoci new --image "$layout:$version"
for layer in debian local; do
    umoci raw add-layer --image "$layout:$version" --history.created "$created" \
        --history.created_by "image.sh: $layer" "$work/$layer.tar"
done
umoci config --image "$layout:$version" --history.created "$created" --created "$created" \
    --architecture amd64 --os linux --config.user 65532:65532 \
    --config.env PATH=/usr/local/bin:/usr/bin:/bin \
    --config.label org.opencontainers.image.title="rljob $image" \
    --config.label org.opencontainers.image.version="$version"
umoci gc --layout "$layout"
tar --create --file "$folder/$image.tar" --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner --directory "$layout" oci-layout index.json blobs
digest=$(sed -n 's/.*"digest":"\([^"]*\)".*/\1/p' "$layout/index.json")
echo "$image $digest"
