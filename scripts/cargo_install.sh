#!/usr/bin/env bash
# Builds a program from crates.io into the user's cache (minutes on 2 cores; without optimization,
# which saves minutes and costs a second per run) and prints its path. An existing one is left
# unchanged.
#
# usage: cargo_install.sh NAME VERSION [FEATURE ...]
set -euo pipefail
name=$1 version=$2
shift 2
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/$name-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
if [ ! -x "$folder/bin/$name" ]; then
    echo "setup: building $name $version (minutes the first time)" >&2
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$build cargo install --quiet --locked --debug \
        --no-default-features --features "$*" --version "$version" --root "$folder" "$name" >&2
fi
echo "$folder/bin/$name"
