#!/bin/sh
# Archive of the kubectl plugin and its krew manifest: krew.sh PROGRAM FOLDER [URI]
# URI is where the archive will be published; default: a release of the repository.
# The platform is that of the program: linux-amd64, or linux-arm64 on a machine of that kind.
set -eu
root=$(dirname "$0")/..
program=$1
folder=$2
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
machine=$(LC_ALL=C readelf --file-header "$program" | sed -n 's/ *Machine: *//p')
case $machine in
*X86-64) arch=amd64 ;;
AArch64) arch=arm64 ;;
*)
    echo "krew.sh: $program is a program for $machine; use one for X86-64 or AArch64" >&2
    exit 2
    ;;
esac
name=rljob-$version-linux-$arch.tar.gz
uri=${3:-https://github.com/rljob/rljob/releases/download/v$version/$name}
mkdir -p "$folder/content"
strip --strip-debug -o "$folder/content/rljob" "$program"
cp "$root/LICENSE" "$folder/content/"
# Equal contents give an equal archive.
tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner \
    --directory "$folder/content" rljob LICENSE | gzip --no-name >"$folder/$name"
rm -r "$folder/content"
sum=$(sha256sum "$folder/$name" | cut -d ' ' -f 1)
sed -e "s|@VERSION@|$version|" -e "s|@URI@|$uri|" -e "s|@SHA256@|$sum|" -e "s|@ARCH@|$arch|" \
    -e '/^#/d' "$root/manifests/krew/rljob.yaml" >"$folder/rljob.yaml"
echo "$folder/rljob.yaml"
