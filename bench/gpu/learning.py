#!/usr/bin/env python3
"""Runs word_problems.yaml with several values of maxStaleness and seeds, and appends a row for each
value to a file.

usage: learning.py RLJOB [--staleness N ...] [--seeds N ...] [--gpus N,N ...] [--steps N]
                   [--set PATH=VALUE ...] [--share-gpus PERCENT] [--kill-at STEP]
                   [--out results.jsonl] [--commit SHA]

Runs are shared out over the pairs of GPUs of --gpus, and run at the same time: each engine gets a
part of its GPU's memory. A row has pass@1 on the held-out problems before and after, with standard
errors, of each seed. It holds if the intervals of 95 % before and after do not overlap for any
seed. A run that does not end within --limit seconds has failed. With --share-gpus, a learner uses
the GPU of its engine, and weights go by disk; with --kill-at, learners are killed after that step.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import results

FOLDER = Path(__file__).resolve().parent
PARTS = ("rolloutSeconds", "trainSeconds", "syncSeconds", "waitSeconds", "mismatchMean", "reward")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob")
    parser.add_argument("--staleness", nargs="+", type=int, default=[0, 1, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--gpus", nargs="+", default=["0,1"])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--share-gpus", type=int, metavar="PERCENT")
    parser.add_argument("--kill-at", type=int, metavar="STEP")
    parser.add_argument("--dir", type=Path, default=Path("/opt/learning"))
    parser.add_argument("--limit", type=int, default=900)
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


class Run:
    def __init__(self, settings, staleness, seed, gpus, share):
        self.staleness, self.seed, self.steps = staleness, seed, settings.steps
        self.dir = settings.dir / f"staleness-{staleness}-seed-{seed}"
        self.kill_at = settings.kill_at
        flags = ["--attention-backend=triton"]
        if settings.share_gpus is None:
            flags += [f"--mem-fraction-static={round(0.5 / share, 2)}"]
        flags += ["--max-running-requests=512", "--cuda-graph-max-bs=512"]
        flags += ["--disable-piecewise-cuda-graph"]
        values = {
            "spec.training.seed": seed,
            "words:spec.rollout.maxStaleness": staleness,
            "words:spec.training.steps": settings.steps,
            "words:spec.dataset.evaluation.everySteps": settings.steps,
            "words:spec.inference.sglang.extraArgs": json.dumps(flags),
        }
        command = [settings.rljob, "run", "-f", str(FOLDER / "word_problems.yaml")]
        command += ["--dir", str(self.dir)]
        command += ["--engine-command", f"{sys.executable} -m sglang.launch_server"]
        if settings.share_gpus is not None:
            command += [f"--share-gpus={settings.share_gpus}"]
            values["words:spec.weightSync.method"] = "Disk"
        sets = [f"{path}={value}" for path, value in values.items()] + settings.set
        command += [argument for each in sets for argument in ("--set", each)]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpus, "NCCL_CUMEM_ENABLE": "0"}
        self.dir.mkdir(parents=True)
        with (self.dir / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def lines(self, name):
        for file in self.dir.glob(f"*/words/{name}"):
            # The last line may be incomplete.
            return list(map(json.loads, file.read_text().rpartition("\n")[0].splitlines()))
        return []

    def kill_when_due(self):
        """Kills the learners once the step is done."""
        steps = self.lines("metrics.jsonl") if self.kill_at else []
        if steps and steps[-1]["step"] >= self.kill_at:
            session = str(self.process.pid)
            ended = subprocess.run(["pkill", "-KILL", "-s", session, "-x", "rljob-learner"])
            self.kill_at = None if ended.returncode == 0 else self.kill_at

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def figures(self):
        """Figures of the run, or None if it did not succeed."""
        evaluations, steps = self.lines("evaluations.jsonl"), self.lines("metrics.jsonl")
        last = steps[-1]["step"] if steps else None
        is_complete = self.process.returncode == 0 and last == self.steps and not self.kill_at
        if not is_complete or len(evaluations) < 2:
            return None
        measured = lambda one: {
            "step": one["step"],
            "pass_at_1": round(one["sampled"], 4),
            "standard_error": round(one["sampledStandardError"], 4),
            "greedy": round(one["greedy"], 4),
        }
        mean = lambda values: round(sum(values) / len(values), 4)
        parts = {part: mean([step.get(part, 0.0) for step in steps]) for part in PARTS}
        mismatches = [step.get("mismatchMean", 0.0) for step in steps]
        fifth = max(1, len(mismatches) // 5)
        return {
            "seed": self.seed,
            "before": measured(evaluations[0]),
            "after": measured(evaluations[-1]),
            "mismatch_first_last": [mean(mismatches[:fifth]), mean(mismatches[-fifth:])],
            **parts,
        }


def rises(figures):
    """Whether the intervals of 95 % before and after are apart."""
    before, after = figures["before"], figures["after"]
    upper = before["pass_at_1"] + 1.96 * before["standard_error"]
    return upper < after["pass_at_1"] - 1.96 * after["standard_error"]


def row(settings, staleness, runs, gpu):
    figures = [run.figures() for run in runs]
    complete = [each for each in figures if each]
    name, note = f"learning-staleness-{staleness}", ""
    if settings.share_gpus is not None:
        name, note = f"{name}-shared-gpu", "; engines and learners share a GPU"
    if settings.kill_at:
        name, note = f"{name}-killed", f"{note}; learners killed after step {settings.kill_at}"
    return dict(
        name=name,
        ratio=None,
        aim=None,
        holds=len(complete) == len(figures) and all(map(rises, complete)),
        gpu=gpu,
        command=" ".join(["bench/gpu/learning.py", *sys.argv[2:]]),
        commit=settings.commit,
        note=f"word_problems.yaml, maxStaleness {staleness}, {settings.steps} steps{note}",
        figures=complete,
    )


def main():
    settings = arguments()
    gpu = results.gpus()[0]
    cases = list(itertools.product(settings.staleness, settings.seeds))
    share = -(-len(cases) // len(settings.gpus))
    pairs = itertools.cycle(settings.gpus)
    runs, deadline = [], time.monotonic() + settings.limit
    try:
        for staleness, seed in cases:
            runs.append(Run(settings, staleness, seed, next(pairs), share))
        while time.monotonic() < deadline and any(run.process.poll() is None for run in runs):
            for run in runs:
                run.kill_when_due()
            time.sleep(1)
    finally:
        for run in runs:
            run.stop()
    failed = False
    for staleness in settings.staleness:
        of_value = [run for run in runs if run.staleness == staleness]
        count = len(set(",".join(settings.gpus).split(",")))
        line = row(settings, staleness, of_value, f"{count} x {gpu}")
        results.append(settings.out, line)
        print(f"bench {line['name']} {line['holds']} {json.dumps(line['figures'])}", flush=True)
        failed |= len(line["figures"]) < len(of_value)
    sys.exit("runs did not end: see the files log" if failed else 0)


if __name__ == "__main__":
    main()
