#!/usr/bin/env python3
"""Runs tests and measurements on GPUs, one phase after another, and keeps the output of each.

usage: all.py PROGRAMS MODEL OUT [--phases NAME ...] [--rows NAME ...] [--cases NAME ...]
              [--first-gpu N] [--commit SHA]

PROGRAMS is a folder with the contents of programs_bundle.sh, MODEL a folder of a causal language
model with its tokenizer. OUT gets PHASE.log, results.jsonl with the rows, and phases.jsonl with the
exit status and the seconds of each phase; a phase that takes longer than its limit is killed with
all that it started. --rows are rows of run.py, --cases those of loop.py. Phases of different GPUs
run at the same time in two calls with --first-gpu and folders of their own.

Phases with the number of their GPUs and their limit in seconds: see PHASES.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
Phase = namedtuple("Phase", "gpus seconds")
PHASES = {
    "test-cuda": Phase(1, 120),  # kernels against their plain versions
    "test-gpu": Phase(2, 300),  # training steps against the CPU and, if there are two, two GPUs
    "bench-cuda": Phase(1, 90),  # single kernels
    "run": Phase(1, 600),  # training steps beside PyTorch
    "exact": Phase(1, 240),  # losses in bf16, bits after a kill
    "objectives": Phase(1, 600),  # every objective on the tiny model
    "loop": Phase(2, 1200),  # whole GRPO steps with SGLang
    "weights": Phase(2, 360),  # a weight sync by phase, with the model of `loop`
    "faults": Phase(2, 600),  # seconds from a fault to the next step, with the model of `loop`
    "serving": Phase(1, 300),  # tokens per second beside SGLang's own benchmark, after `loop`
    "learning": Phase(2, 1200),  # what a job learns
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--rows", nargs="+", default=[])
    parser.add_argument("--cases", nargs="+", default=[])
    parser.add_argument("--first-gpu", type=int, default=0)
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


def environment(settings, phase):
    """With the libraries of the installed PyTorch, and as many GPUs as the phase uses."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    libraries = [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    gpus = range(settings.first_gpu, settings.first_gpu + PHASES[phase].gpus)
    values = {
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "NCCL_CUMEM_ENABLE": "0",
        "PYTHONUNBUFFERED": "1",
    }
    if phase.startswith(("test", "bench")):
        # They name no symbol of this library.
        values["LD_PRELOAD"] = str(torch / "lib/libtorch_cuda.so")
    if phase == "run":
        # Its own --first-gpu selects, and some of its rows use two.
        del values["CUDA_VISIBLE_DEVICES"]
    return os.environ | values


def command(settings, phase):
    programs, rljob = settings.programs.resolve(), settings.programs.resolve() / "rljob"
    common = ["--out", settings.out / "results.jsonl", "--commit", settings.commit]
    script = [sys.executable, FOLDER / f"{phase}.py"]
    rows = ["--rows", *settings.rows] if settings.rows else []
    cases = ["--cases", *settings.cases] if settings.cases else []
    metrics = Path("/opt/loop/runs-loop-sync/default/loop/metrics.jsonl")
    checkpoints = ["--set", "spec.checkpoint.everySteps=4"]
    first = ["--first-gpu", str(settings.first_gpu)]
    objectives = FOLDER.parent / "objectives.py"
    return {
        "test-cuda": [programs / "test-cuda", "--test-threads=1"],
        "test-gpu": [programs / "test-gpu", "--test-threads=1"],
        "bench-cuda": [programs / "bench-cuda"],
        "run": [*script, programs / "bench-gpu", *rows, *first, *common],
        "exact": [*script, rljob, settings.model, *common],
        "objectives": [sys.executable, objectives, rljob, settings.out / "objectives", "--gpu"],
        "loop": [*script, rljob, settings.model, *cases, *common],
        "weights": [*script, rljob, *common],
        "faults": [*script, rljob, FOLDER / "loop.yaml", *checkpoints, *common],
        "serving": [*script, settings.model, metrics, *common],
        "learning": [*script, rljob, *common],
    }[phase]


def run(settings, phase):
    """Exit status and seconds of a phase."""
    started = time.monotonic()
    with (settings.out / f"{phase}.log").open("w") as log:
        process = subprocess.Popen(
            list(map(str, command(settings, phase))),
            stdout=log,
            stderr=log,
            env=environment(settings, phase),
            start_new_session=True,
        )
        try:
            process.wait(timeout=PHASES[phase].seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {
        "phase": phase,
        "status": process.returncode,
        "seconds": round(time.monotonic() - started, 1),
    }


def main():
    settings = arguments()
    settings.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for phase in settings.phases:
        ended = run(settings, phase)
        failed |= ended["status"] != 0
        line = json.dumps(ended)
        print(line, flush=True)
        with (settings.out / "phases.jsonl").open("a") as out:
            out.write(line + "\n")
    sys.exit(failed)


main()
