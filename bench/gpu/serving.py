#!/usr/bin/env python3
"""Measures SGLang's own benchmark beside a run of loop.py, and appends a row to a file.

usage: serving.py MODEL METRICS [--attention-backend NAME] [--out results.jsonl] [--commit SHA]

MODEL is the model folder of loop.py and METRICS the metrics.jsonl of its case `loop-sync`, whose
steps sample 64 prompts of 256 tokens 8 times. `sglang.bench_serving` sends the same number of
requests to a server with the same settings: 64 groups of 8 prompts that share their first 256
tokens, 512 tokens each, with log-probabilities, without streaming. Ours is the sampled tokens of a
step by the seconds from its first request until its batch is written.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import engine
import results

FOLDER = Path(__file__).resolve().parent
PORT, GROUPS, SAMPLES, LENGTH = 30_100, 64, 8, 512
SERVER_SECONDS, BENCH_SECONDS = 150, 90
# bench_serving imports the package `datasets` for datasets of the Hugging Face Hub, which are not
# used here.
PROGRAM = """
import runpy, sys, types
sys.modules["datasets"] = types.ModuleType("datasets")
sys.modules["datasets"].load_dataset = None
runpy.run_module("sglang.bench_serving", run_name="__main__")
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("metrics", type=Path)
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--attention-backend", default="triton")
    return parser.parse_args()


def wait_until_up(server):
    deadline = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"SGLang ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/model_info", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"SGLang is not up after {SERVER_SECONDS} s")


def measured(settings, output):
    """Output tokens a second of a run of bench_serving."""
    command = [sys.executable, "-c", PROGRAM, "--backend=sglang", "--host=127.0.0.1"]
    command += [f"--port={PORT}", f"--model={settings.model}", f"--tokenizer={settings.model}"]
    command += ["--dataset-name=generated-shared-prefix", f"--gsp-num-groups={GROUPS}"]
    command += [f"--gsp-prompts-per-group={SAMPLES}", "--gsp-system-prompt-len=256"]
    command += ["--gsp-question-len=1", f"--gsp-output-len={LENGTH}", "--disable-stream"]
    command += [f"--max-concurrency={GROUPS * SAMPLES}", f"--output-file={output}"]
    command += [f"--num-prompts={GROUPS * SAMPLES}"]
    command += ['--extra-request-body={"return_logprob": true}']
    output.unlink(missing_ok=True)
    subprocess.run(command, check=True, timeout=BENCH_SECONDS, stdout=subprocess.DEVNULL)
    figures = json.loads(output.read_text().splitlines()[-1])
    return {name: figures[name] for name in ("output_throughput", "completed", "duration")}


def main():
    settings = arguments()
    lines = [json.loads(line) for line in settings.metrics.read_text().splitlines()][1:]
    rates = [line["completionTokens"] * GROUPS * SAMPLES / line["rolloutSeconds"] for line in lines]
    command = [sys.executable, "-m", "sglang.launch_server", f"--model-path={settings.model}"]
    command += [f"--port={PORT}", "--host=127.0.0.1", *engine.flags(settings.attention_backend)]
    command += ["--stream-interval=32", "--log-level=warning", "--dtype=bfloat16"]
    server = subprocess.Popen(command, start_new_session=True)
    try:
        wait_until_up(server)
        output = Path(f"/tmp/serving-{os.getpid()}.jsonl")
        theirs = [measured(settings, output) for _ in range(3)][1:]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    ours = statistics.fmean(rates)
    other = max(each["output_throughput"] for each in theirs)
    row = dict(
        name="engine-throughput",
        ratio=round(ours / other, 3),
        aim=0.97,
        holds=ours / other >= 0.97,
        gpu=results.gpus()[0],
        command="bench/gpu/serving.py",
        commit=settings.commit,
        note=f"sampled tokens a second, 512 requests at once, {settings.attention_backend}",
        figures=dict(ours=round(ours), steps=[round(rate) for rate in rates], other=theirs),
    )
    results.append(settings.out, row)
    print(f"bench engine-throughput {row['ratio']} 0.97 {row['holds']}", flush=True)


main()
