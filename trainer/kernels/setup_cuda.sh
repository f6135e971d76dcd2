#!/usr/bin/env bash
# Installs nvcc 13.0 and the headers and import libraries of CUDA, NCCL and cuDNN in the user's
# cache, to build for GPUs on a machine without one, and links `.cuda` in the checkout to them.
# Downloads 820 MB of PyPI wheels; uses 600 MB of disk. An existing installation is left unchanged.
#
# usage: setup_cuda.sh      (after trainer/collective/setup.sh)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
folder=$cache/cuda-13.0
libtorch=$cache/libtorch-2.11.0

# A folder for each wheel, since several wheels have the same paths. Libraries without a GPU's
# code are kept to link with; the others would be loaded from the machine that has a GPU.
install_cuda() {
    local wheel
    python3 -m venv "$part/venv"
    "$part/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --require-hashes --dest "$part/wheels" \
        --requirement "$root/trainer/kernels/wheels.txt"
    mkdir -p "$part/cuda/lib"
    for wheel in "$part"/wheels/*.whl; do
        rm -rf "$part/one"
        "$part/venv/bin/python" -m zipfile -e "$wheel" "$part/one"
        for one in "$part"/one/nvidia/{cu13,nccl,cudnn} "$part"/one; do
            if [ -d "$one/include" ]; then cp -r "$one/include" "$part/cuda/"; fi
            if [ -d "$one/bin" ]; then cp -r "$one/bin" "$part/cuda/"; fi
            if [ -d "$one/nvvm" ]; then cp -r "$one/nvvm" "$part/cuda/"; fi
        done
        for library in libnccl.so.2 libcudnn.so.9 libnvrtc.so.13; do
            find "$part/one" -name "$library" -exec cp {} "$part/cuda/lib/" \;
        done
        find "$part/one" -name 'libcudadevrt.a' -exec cp {} "$part/cuda/lib/" \;
        find "$part/one" -name 'libcudart_static.a' -exec cp {} "$part/cuda/lib/" \;
    done
    cp -rn "$libtorch"/site/nvidia/cu13/include "$part/cuda/"
    chmod +x "$part"/cuda/bin/* "$part"/cuda/nvvm/bin/*
    ln -s "$libtorch/lib/libcudart.so.13" "$part/cuda/lib/libcudart.so"
    ln -s libnccl.so.2 "$part/cuda/lib/libnccl.so"
    ln -s libcudnn.so.9 "$part/cuda/lib/libcudnn.so"
    ln -s libnvrtc.so.13 "$part/cuda/lib/libnvrtc.so"
    for library in libtorch_cuda.so libc10_cuda.so; do
        ln -s "$libtorch/site/torch/lib/$library" "$part/cuda/lib/$library"
    done
}

mkdir -p "$cache"
exec 9>"$cache/.cuda.lock"
flock 9
if [ ! -x "$folder/bin/nvcc" ]; then
    echo "setup: fetching CUDA 13.0 (820 MB)" >&2
    part=$(mktemp -d "$cache/cuda.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    install_cuda
    rm -rf "$folder"
    mv "$part/cuda" "$folder"
fi
ln -sfn "$folder" "$root/.cuda"
