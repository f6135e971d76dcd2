#!/usr/bin/env bash
# Packs the programs, tests and benchmarks of `make build-cuda`, without symbols, for a machine with
# GPUs and without this checkout: 45 MB. Tests and benchmarks are named test-NAME and bench-NAME.
#
# usage: programs_bundle.sh OUT.tar.xz
set -euo pipefail
out=$(realpath -m "${1:?usage: programs_bundle.sh OUT.tar.xz}")
cd "$(dirname "$0")/../.."
make build-cuda
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Lines of cargo's JSON that name an executable.
executables() {
    cargo "$1" --profile quick --locked --features rljob-learner/cuda --no-run --quiet \
        --message-format json --package rljob-kernels --package rljob-learner \
        "--$1" cuda "--$1" gpu |
        python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] in ("cuda", "gpu"):
        print(message["target"]["name"], message["executable"])'
}

for kind in test bench; do
    executables "$kind" | while read -r name path; do
        cp "$path" "$folder/$kind-$name"
    done
done
for name in rljob rljob-{coordinator,engine,learner,reward-runner,sandbox,supervisor}; do
    cp "target/quick/$name" "$folder/$name"
done
strip "$folder"/*
tar --create --directory "$folder" . | xz --threads 2 -1 >"$out"
ls -l "$folder" "$out"
