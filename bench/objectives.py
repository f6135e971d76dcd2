#!/usr/bin/env python3
"""Trains the tiny model of the quick start with every objective and prints what each has learned.

usage: objectives.py RLJOB FOLDER [--seed N] [--only NAME ...]

RLJOB is the command line program, FOLDER receives the runs. The quick start comes first: its first
job is the SFT from whose weights every objective starts, its second one is GRPO. The others are the
files of manifests/samples/algorithms. A line per objective: accuracy of sampled answers to 512
held-out sums before and after, with standard errors; it has learned if the two differ by more than
four of them. Exit status 1 if an objective has not.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "manifests/samples"
NAMES = sorted(path.stem for path in SAMPLES.glob("algorithms/*.yaml"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    return parser.parse_args()


def run(settings, file, jobs):
    """The evaluations of the last of the file's jobs."""
    command = [settings.rljob, "run", "-f", file, "--dir", settings.folder]
    for job in jobs:
        command += ["--set", f"{job}:spec.training.seed={settings.seed}"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        sys.exit(f"{file}: {ended.stdout[-2000:]}")
    lines = (settings.folder / "default" / jobs[-1] / "evaluations.jsonl").read_text()
    return [json.loads(line) for line in lines.splitlines()]


def learned(name, evaluations):
    """Prints a line about an objective; returns whether it has learned."""
    first, last = evaluations[0], evaluations[-1]
    error = math.hypot(first["sampledStandardError"], last["sampledStandardError"])
    has = last["sampled"] - first["sampled"] > 4 * error
    print(
        f"objective {name:20} {first['sampled']:.3f} -> {last['sampled']:.3f}"
        f" ± {last['sampledStandardError']:.3f} {'learned' if has else 'NOT LEARNED'}",
        flush=True,
    )
    return has


def main():
    settings = arguments()
    if settings.folder.exists():
        sys.exit(f"{settings.folder} exists: name a new folder")
    data = SAMPLES / "quickstart"
    subprocess.run([sys.executable, data / "make_data.py", data / "data"], check=True)
    first = run(settings, SAMPLES / "quickstart.yaml", ["quickstart-sft", "quickstart"])
    results = [learned("grpo", first)]
    for name in settings.only:
        evaluations = run(settings, SAMPLES / f"algorithms/{name}.yaml", [name])
        results.append(learned(name, evaluations))
    sys.exit(not all(results))


main()
