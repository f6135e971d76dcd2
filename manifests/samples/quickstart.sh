#!/bin/sh
# Generates the data of the quick start and runs quickstart.yaml. Requires its programs and
# Python 3.
#
#   quickstart.sh [PROGRAMS]      PROGRAMS: folder of the binaries, default target/quick
#
# An interrupted run resumes; a finished one is repeated from the start. The last output line is
#
#   quickstart: accuracy FIRST -> LAST, STEPS steps, SECONDS s
#
# with the accuracy of sampled answers before the first and after the last GRPO step, and the
# duration of both jobs.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
samples=$root/manifests/samples
programs=${1:-$root/target/quick}
runs=$root/runs
job=$runs/default/quickstart

echo "quickstart: data in $samples/quickstart/data"
python3 "$samples/quickstart/make_data.py" "$samples/quickstart/data"

if [ -f "$job/export/complete.json" ]; then
    echo "quickstart: removing the finished run in $runs/default"
    rm -rf "$job" "$job-sft"
fi

start=$(date +%s.%N)
"$programs/rljob" run -f "$samples/quickstart.yaml" --dir "$runs"
end=$(date +%s.%N)

python3 - "$job/evaluations.jsonl" "$start" "$end" <<'PYTHON'
import json
import sys

path, start, end = sys.argv[1:]
with open(path, encoding="utf-8") as lines:
    evaluations = [json.loads(line) for line in lines]
first, last = evaluations[0], evaluations[-1]
seconds = float(end) - float(start)
print(
    f"quickstart: accuracy {first['sampled']:.3f} -> {last['sampled']:.3f},"
    f" {last['step']} steps, {seconds:.1f} s"
)
PYTHON
