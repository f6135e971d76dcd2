#!/usr/bin/env bash
# Builds the site of docs/ into target/site with mdBook, which it builds from crates.io into the
# user's cache first (minutes on 2 cores).
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.5.4
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/mdbook-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
if [ ! -x "$folder/bin/mdbook" ]; then
    echo "setup: building mdBook $version" >&2
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$build cargo install --quiet --locked --debug \
        --no-default-features --features search --version "$version" --root "$folder" mdbook
    rm -rf "$build"
fi
exec 9>&-
rm -rf target/site
"$folder/bin/mdbook" build
