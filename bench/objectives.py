#!/usr/bin/env python3
"""Trains the tiny model of the quick start with every objective and prints what each has learned.

usage: objectives.py RLJOB FOLDER [--seed N] [--only NAME ...] [--gpu]

RLJOB is the command line program, FOLDER receives the runs. The quick start comes first: its first
job is the SFT from whose weights every objective starts, its second one is GRPO. The others are the
files of manifests/samples/algorithms. A line per objective: accuracy of sampled answers to 512
held-out sums before and after, with standard errors, or, of a reward model, the share of 512
held-out pairs that it orders correctly; it has learned if the two differ by more than four errors.
Exit status 1 if an objective has not. With --gpu, learners of the objectives have a GPU and compute
in bfloat16; engines stay on CPUs.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "manifests/samples"
GPU = json.dumps({"limits": {"nvidia.com/gpu": "1"}})
NAMES = sorted(path.stem for path in SAMPLES.glob("algorithms/*.yaml"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--gpu", action="store_true")
    return parser.parse_args()


def run(settings, file, jobs):
    """The evaluations of the last of the file's jobs."""
    command = [settings.rljob, "run", "-f", file, "--dir", settings.folder]
    for job in jobs:
        command += ["--set", f"{job}:spec.training.seed={settings.seed}"]
    if settings.gpu and "quickstart" not in jobs:
        command += ["--set", f"spec.trainer.resources={GPU}"]
        command += ["--set", "spec.training.precision=BF16"]
    if jobs[-1].endswith("distillation") or jobs[-1] == "teacher-engines":
        of = "grpo." if jobs[-1] == "joint-distillation" else ""
        teacher = settings.folder.resolve() / "default/quickstart/export"
        command += ["--set", f"spec.algorithm.{of}distillation.teacher.path={teacher}"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        sys.exit(f"{file}: {ended.stdout[-2000:]}")
    lines = (settings.folder / "default" / jobs[-1] / "evaluations.jsonl").read_text()
    return [json.loads(line) for line in lines.splitlines()]


def measured(evaluation):
    """Accuracy of sampled answers or of pairs, and its standard error."""
    if "sampled" in evaluation:
        return evaluation["sampled"], evaluation["sampledStandardError"]
    share = evaluation["pairAccuracy"]
    return share, math.sqrt(share * (1 - share) / evaluation["prompts"])


def learned(name, evaluations):
    """Prints a line about an objective; returns whether it has learned."""
    (first, first_error), (last, last_error) = measured(evaluations[0]), measured(evaluations[-1])
    has = last - first > 4 * math.hypot(first_error, last_error)
    print(
        f"objective {name:20} {first:.3f} -> {last:.3f} ± {last_error:.3f}"
        f" {'learned' if has else 'NOT LEARNED'}",
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
