#!/usr/bin/env bash
# Installs pinned wheels in a Python environment in the user's cache and prints its folder. An
# existing one is left unchanged. Prints nothing on machines for which the wheels do not exist,
# whose tests are skipped.
#
# usage: python_environment.sh NAME VERSION PINS
set -euo pipefail
name=$1 version=$2 pins=$3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
folder=$cache/$name-$version

"$(dirname "$0")/packages.sh" python3=python3 flock=util-linux \
    /usr/share/python-wheels=python3-venv >&2
if [ "$(uname -m)" != x86_64 ] ||
    ! python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
    echo "setup: skipping $name $version: its wheels require x86_64 and Python 3.11 to 3.13; its" \
        "tests are skipped" >&2
    exit
fi
mkdir -p "$cache"
exec 9>"$cache/.$name.lock"
flock 9 # serializes concurrent installations
if [ ! -e "$folder/complete" ]; then
    echo "setup: installing $name $version" >&2
    rm -rf "$folder" # an incomplete one
    python3 -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --require-hashes -r "$pins" >&2
    touch "$folder/complete"
fi
echo "$folder"
