#!/usr/bin/env python3
"""Measures the weight sync of a job by phase beside a raw broadcast, and appends a row to a file.

usage: weights.py RLJOB [--job FILE] [--set PATH=VALUE ...] [--steps N] [--out results.jsonl]

Needs two GPUs, SGLang, and the model and data of loop.py in /opt/loop. Runs the job of loop.yaml
with few samples, so that a step is short, on GPUs 0 and 1, and then broadcasts as many bytes as the
model has between the same GPUs (`broadcast_peer.py`). Figures are medians over the steps after the
first two. `ratio` is the raw broadcast divided by the phase `transfer`, in which SGLang also loads
the weights.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import results

FOLDER = Path(__file__).resolve().parent
WORK = Path("/opt/loop")
SECONDS = 300
PHASES = ("sync", "syncStage", "syncJoin", "syncPause", "syncTransfer", "syncResume")
SMALL = ("spec.rollout.batchSize=4", "spec.rollout.maxNewTokens=64")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob")
    parser.add_argument("--job", type=Path, default=FOLDER / "loop.yaml")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--dir", type=Path, default=WORK / "runs-weights")
    parser.add_argument("--engine", default=f"{sys.executable} -m sglang.launch_server")
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


def steps(folder):
    """Lines of metrics, without one that is being written."""
    for file in folder.glob("**/metrics.jsonl"):
        return [json.loads(line) for line in file.read_text().rpartition("\n")[0].splitlines()]
    return []


def measure(settings):
    """Metrics of a job that is killed after its steps."""
    shutil.rmtree(settings.dir, ignore_errors=True)
    command = [settings.rljob, "run", "-f", str(settings.job), "--dir", str(settings.dir)]
    command += ["--engine-command", settings.engine]
    command += [argument for each in (*SMALL, *settings.set) for argument in ("--set", each)]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + SECONDS
    try:
        while len(steps(settings.dir)) < settings.steps:
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the job trained {len(steps(settings.dir))} of {settings.steps} steps")
            time.sleep(0.2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(5)  # its engine and learner end after it
    return steps(settings.dir)[2 : settings.steps]


def raw(size):
    """Seconds of raw broadcasts of this many bytes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc_per_node=2", str(FOLDER / "broadcast_peer.py"), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not found:
        sys.exit(f"broadcast_peer.py ended with {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(found[-1])


def main():
    settings = arguments()
    os.environ["NCCL_CUMEM_ENABLE"] = "0"
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    measured = measure(settings)
    # The learner trains and sends in bf16: two bytes of a parameter.
    files = list((WORK / "model").glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    other = raw(size)
    ours = {}
    for phase in PHASES:
        values = [step[f"{phase}Seconds"] for step in measured if f"{phase}Seconds" in step]
        if values:
            ours[f"{phase}_s"] = round(statistics.median(values), 4)
    broadcast = statistics.median(other["seconds"])
    ours["gb_per_s"] = round(size / ours["syncTransfer_s"] / 1e9, 1)
    row = dict(
        name="weights-1.5b-phases",
        ratio=round(broadcast / ours["syncTransfer_s"], 3),
        aim=None,
        holds=None,
        gpu=f"2 x {results.gpus()[0]}",
        command="bench/gpu/weights.py",
        commit=settings.commit,
        note="weights to SGLang over NCCL by phase, medians; a raw broadcast of as many bytes",
        figures=dict(ours=ours, other=dict(bytes=size, broadcast_s=round(broadcast, 4))),
    )
    results.append(settings.out, row)
    print(f"bench {row['name']} {row['ratio']} {ours} {row['figures']['other']}", flush=True)


main()
