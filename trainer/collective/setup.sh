#!/usr/bin/env bash
# Installs libtorch 2.11.0 for Rust (tch) and C++ (c10d with Gloo) in the user's cache, and links
# `.libtorch` in the checkout to it. Downloads 550 MB of PyPI wheels; uses 1.2 GB of disk. An
# existing installation is left unchanged. Python is not needed at run time.
#
# usage: setup.sh
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
folder=$cache/libtorch-2.11.0

"$root/scripts/packages.sh" g++=g++ make=make python3=python3 flock=util-linux \
    /usr/include/gloo/context.h=libgloo-dev # the wheel has Gloo without its headers

# Runs the system's pip, or that of a temporary environment.
pip() {
    local python=python3
    if ! python3 -m pip --version >/dev/null 2>&1; then
        python3 -c 'import ensurepip' 2>/dev/null ||
            "$root/scripts/packages.sh" /usr/share/python-wheels=python3-venv
        python3 -m venv "$part/venv"
        python=$part/venv/bin/python
    fi
    "$python" -m pip "$@"
}

# Links are relative, because the folder is renamed after it is built.
install_libtorch() {
    local library
    pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: \
        --require-hashes --target "$part/site" --requirement "$root/trainer/collective/wheels.txt"
    rm -rf "$part/venv"
    mkdir -p "$part/lib"
    ln -s site/torch/include "$part/include"
    for library in libtorch_cpu.so libc10.so libgomp.so.1; do
        ln -s "../site/torch/lib/$library" "$part/lib/$library"
    done
    for library in "$part"/site/nvidia/cu13/lib/lib*.so.*; do
        library=${library##*/}
        ln -s "../site/nvidia/cu13/lib/$library" "$part/lib/$library"
    done
    # tch links libtorch.so; that of the wheel would load libtorch_cuda.so.
    echo 'void rljob_no_symbols(void) {}' | cc -shared -x c - -o "$part/lib/libtorch.so"
}

mkdir -p "$cache"
exec 9>"$cache/.libtorch.lock"
flock 9
if [ ! -e "$folder/lib/libtorch.so" ]; then
    echo "setup: fetching libtorch 2.11.0 (550 MB)" >&2
    part=$(mktemp -d "$cache/libtorch.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    install_libtorch
    chmod 755 "$part"
    rm -rf "$folder"
    mv "$part" "$folder"
fi
ln -sfn "$folder" "$root/.libtorch"
