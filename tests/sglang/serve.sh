#!/usr/bin/env bash
# Serves a model folder with this SGLang installation on the loopback interface. Pass --dtype: by
# default SGLang serves fp32 models as fp16. OMP_NUM_THREADS sets the number of threads (default 1).
#
# usage: serve.sh MODEL PORT [SGLANG_FLAGS]
here=$(cd "$(dirname "$0")" && pwd)
export SGLANG_USE_CPU_ENGINE=1 CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$here/venv/bin/python" -m sglang.launch_server --model-path "$1" --port "$2" \
    --host 127.0.0.1 --device cpu --attention-backend torch_native --sampling-backend pytorch \
    --mem-fraction-static 0.1 --max-total-tokens 16384 --disable-overlap-schedule \
    --enable-metrics "${@:3}"
