#!/usr/bin/env bash
# Puts axe-core, which checks the accessibility of pages, into the user's cache as `axe.min.js`
# (500 kB). Prints the folder. An existing one is left unchanged.
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")"
version=4.14.0 # as in pins.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
folder=$cache/axe-$version
../../scripts/packages.sh python3=python3 flock=util-linux \
    /usr/share/python-wheels=python3-venv >&2
mkdir -p "$cache"
exec 9>"$cache/.axe.lock"
flock 9 # serializes concurrent installations
if [ ! -e "$folder/axe.min.js" ]; then
    echo "setup: fetching axe-core $version" >&2
    part=$(mktemp -d "$cache/axe.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    python3 -m venv "$part/venv"
    # Nothing of the wheel runs, whose programs need another Python.
    "$part/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --no-compile --only-binary=:all: --ignore-requires-python --require-hashes \
        --target "$part/site" --requirement pins.txt
    mkdir -p "$folder"
    mv "$part/site/pytest_playwright_axe/resources/axe.min.js" "$folder/.axe.part"
    mv "$folder/.axe.part" "$folder/axe.min.js" # renamed only when it is complete
fi
echo "$folder"
