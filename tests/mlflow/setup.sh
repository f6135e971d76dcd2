#!/usr/bin/env bash
# Installs MLflow's tracking server in the user's cache, without the libraries for models that it
# does not need (pins.txt). Uses 400 MB of disk. An existing installation is left unchanged. Prints
# the path of the program.
#
# usage: setup.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
version=3.17.2 # as in pins.txt
folder=$cache/mlflow-$version

"$here/../../scripts/packages.sh" python3=python3 flock=util-linux \
    /usr/share/python-wheels=python3-venv >&2
if [ "$(uname -m)" != x86_64 ] ||
    ! python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
    echo "setup: skipping MLflow $version: its wheels require x86_64 and Python 3.11 to 3.13; its" \
        "test is skipped" >&2
    exit
fi
mkdir -p "$cache"
exec 9>"$cache/.mlflow.lock"
flock 9 # serializes concurrent installations
if [ ! -e "$folder/complete" ]; then
    echo "setup: installing MLflow $version (100 MB)" >&2
    rm -rf "$folder" # an incomplete one
    python3 -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --require-hashes -r "$here/pins.txt" >&2
    touch "$folder/complete"
fi
echo "$folder/bin/mlflow"
