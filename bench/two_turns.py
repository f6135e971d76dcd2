#!/usr/bin/env python3
"""Trains the tiny model on a task that only a second turn can solve, and with one turn alone.

usage: two_turns.py RLJOB FOLDER [--seed N]

RLJOB is the command line program, FOLDER receives the runs; the data of the samples are generated
beside them (manifests/samples/quickstart/data). The first job of the quick start and
the first job of manifests/samples/two-turns.yaml are the model from which both runs start. A line
per run: accuracy of sampled answers to 512 held-out sums before and after, with the standard error.
Exit status 1 unless two turns end above 0.8, and one turn, which can only guess, below 0.05.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

SAMPLES = Path(__file__).resolve().parent.parent / "manifests/samples"
MAX_TURNS = "two-turns:spec.rollout.workflow.environment.maxTurns"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def run(settings, folder, file, jobs, sets=()):
    """Runs a file, of which `jobs` get the seed."""
    command = [settings.rljob, "run", "-f", file, "--dir", folder]
    for value in [*sets, *(f"{job}:spec.training.seed={settings.seed}" for job in jobs)]:
        command += ["--set", value]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        sys.exit(f"{file}: {ended.stdout[-2000:]}")


def first_job(file, folder):
    """A file with the first job only, whose paths start at the folder of the samples."""
    text = (SAMPLES / file).read_text(encoding="utf-8").split("\n---\n")[0]
    copy = folder / file
    copy.write_text(text.replace("path: quickstart/", f"path: {SAMPLES}/quickstart/"), "utf-8")
    return copy


def last_accuracy(name, folder):
    """Prints a line about a run; returns its last accuracy."""
    lines = (folder / "default/two-turns/evaluations.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    print(
        f"two-turns {name:9} {first['sampled']:.3f} -> {last['sampled']:.3f}"
        f" ± {last['sampledStandardError']:.3f} after {last['step']} steps",
        flush=True,
    )
    return last["sampled"]


def main():
    settings = arguments()
    if settings.folder.exists():
        sys.exit(f"{settings.folder} exists: name a new folder")
    settings.folder.mkdir(parents=True)
    data = SAMPLES / "quickstart"
    subprocess.run([sys.executable, data / "make_data.py", data / "data"], check=True)
    two, one = settings.folder / "two", settings.folder / "one"
    run(settings, two, first_job("quickstart.yaml", settings.folder), ["quickstart-sft"])
    jobs = ["two-turns-sft", "two-turns"]
    run(settings, two, SAMPLES / "two-turns.yaml", jobs)
    for job in ("quickstart-sft", "two-turns-sft"):
        shutil.copytree(two / "default" / job, one / "default" / job, symlinks=True)
    run(settings, one, SAMPLES / "two-turns.yaml", jobs, [f"{MAX_TURNS}=1"])
    is_learned = last_accuracy("two turns", two) > 0.8
    is_guessed = last_accuracy("one turn", one) < 0.05
    sys.exit(not (is_learned and is_guessed))


main()
