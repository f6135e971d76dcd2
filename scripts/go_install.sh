#!/usr/bin/env bash
# Builds a program of the Go module in the current folder into the user's cache (minutes on 2 cores)
# and prints its folder. An existing one is left unchanged. Requires Go, which downloads the version
# of go.mod.
#
# usage: go_install.sh NAME VERSION PACKAGE
set -euo pipefail
name=$1 version=$2 package=$3
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/$name-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
if [ ! -x "$folder/$name" ]; then
    echo "setup: building $name $version (some minutes the first time)" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.$name.part" "$package"
    mv "$folder/.$name.part" "$folder/$name" # renamed only after a complete build
fi
echo "$folder"
