#!/usr/bin/env bash
# Builds versitygw, the S3 server of the tests, from Go modules into the user's cache. Prints the
# folder. A first build takes 3 minutes on 2 cores; a complete folder is left unchanged. Requires
# Go, which downloads the version of go.mod.
#
# usage: build.sh
set -euo pipefail
cd "$(dirname "$0")"
version=1.8.0 # as in go.mod
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/versitygw-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
if [ ! -x "$folder/versitygw" ]; then
    echo "setup: building versitygw $version, an S3 server (some minutes the first time)" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.versitygw.part" \
        github.com/versity/versitygw/cmd/versitygw
    mv "$folder/.versitygw.part" "$folder/versitygw" # renamed only after a complete build
fi
echo "$folder"
