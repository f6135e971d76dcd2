#!/usr/bin/env bash
# Runs cargo-deny, which it builds from crates.io into the user's cache first (a minute on 2 cores;
# without optimization, which saves minutes and costs a second per run).
#
# usage: cargo_deny.sh CHECK ...
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.20.2
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/cargo-deny-$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # serializes concurrent builds
if [ ! -x "$folder/bin/cargo-deny" ]; then
    echo "setup: building cargo-deny $version" >&2
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$build cargo install --quiet --locked --debug \
        --no-default-features --version "$version" --root "$folder" cargo-deny
    rm -rf "$build"
fi
exec 9>&-
# Only problems are printed: warnings are errors.
exec "$folder/bin/cargo-deny" --log-level warn --locked check --deny warnings "$@"
