#!/usr/bin/env bash
# Builds the S3 server that the tests run against, versitygw, from Go modules into the user's cache. Prints the folder.   usage: build.sh
# Cold: 3 minutes on 2 cores; nothing is done when the folder is complete. Needs Go; another version than go.mod's is fetched by Go itself.
set -euo pipefail
cd "$(dirname "$0")"
version=1.8.0 # as in go.mod
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/versitygw-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # two builds at once would only slow each other down
if [ ! -x "$folder/versitygw" ]; then
    echo "setup: building versitygw $version, an S3 server (some minutes the first time)" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.versitygw.part" github.com/versity/versitygw/cmd/versitygw
    mv "$folder/.versitygw.part" "$folder/versitygw" # under its final name only when it is whole
fi
echo "$folder"
