#!/usr/bin/env bash
# Installs OpenAI's client for Python in the user's cache (pins.txt). Uses 60 MB of disk. An existing
# installation is left unchanged. Prints the path of its Python.
#
# usage: setup.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
version=3.57.0 # as in pins.txt
folder=$cache/openai-$version

"$here/../../scripts/packages.sh" python3=python3 flock=util-linux \
    /usr/share/python-wheels=python3-venv >&2
if [ "$(uname -m)" != x86_64 ] ||
    ! python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
    echo "setup: skipping the OpenAI client $version: its wheels require x86_64 and Python 3.11 to" \
        "3.13; its tests are skipped" >&2
    exit
fi
mkdir -p "$cache"
exec 9>"$cache/.openai.lock"
flock 9 # serializes concurrent installations
if [ ! -e "$folder/complete" ]; then
    echo "setup: installing the OpenAI client $version (10 MB)" >&2
    rm -rf "$folder" # an incomplete one
    python3 -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --require-hashes -r "$here/pins.txt" >&2
    touch "$folder/complete"
fi
echo "$folder/bin/python"
