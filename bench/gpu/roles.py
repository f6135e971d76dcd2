#!/usr/bin/env python3
"""Runs roles.yaml on one GPU: three SGLang engines (rollouts, evaluation, reward model) and two
learners (policy, reference). Appends a row with what each role did to a file.

usage: roles.py RLJOB [--data FOLDER] [--dir FOLDER] [--limit SECONDS] [--out results.jsonl]
                [--commit SHA]

FOLDER of --data has the files of word_problems.py and gets pairs: a right answer and one whose
result is wrong. The row holds if the reward model does better than guesses on held-out pairs, each
evaluation is there, and the policy has moved away from the reference.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import results

FOLDER = Path(__file__).resolve().parent
GPU_PERCENT = 25  # of each engine
STEPS, EVERY = 8, 4  # of roles.yaml
KEPT = ("step", "reward", "reward/correct", "reward/scored", "kl", "referenceKl", "mismatchMean",
        "rolloutSeconds", "trainSeconds", "referenceSeconds", "syncSeconds")
GUESSED = 0.544  # 2 standard errors of 512 guesses above one half


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob")
    parser.add_argument("--data", type=Path, default=Path("/opt/data"))
    parser.add_argument("--dir", type=Path, default=Path("/opt/roles"))
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


def write_pairs(folder):
    """Pairs of each problem: the wrong answer has another last sum and result."""
    for source, name in (("train", "pairs"), ("test", "pairs-test")):
        rows = map(json.loads, (folder / f"words-{source}.jsonl").read_text().splitlines())
        with (folder / f"words-{name}.jsonl").open("w") as out:
            for number, row in enumerate(rows):
                head, _, result = row["answer"].rpartition("\n#### ")
                before, equals, rest = head.rpartition(f"= {result}")
                wrong = str(int(result) + 1 + number % 9)
                row["wrong"] = f"{before}{equals[:2]}{wrong}{rest}\n#### {wrong}"
                if equals:
                    out.write(json.dumps(row) + "\n")


def run(settings):
    """Exit status and seconds of the run, which is ended at the limit."""
    command = [settings.rljob, "run", "-f", str(FOLDER / "roles.yaml"), "--dir", str(settings.dir)]
    command += ["--engine-command", f"{sys.executable} -m sglang.launch_server"]
    command += [f"--share-gpus={GPU_PERCENT}"]
    # One GPU under three names: one for each engine.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0,0,0"}
    started = time.monotonic()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        process.wait(settings.limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, round(time.monotonic() - started, 1)


def lines(file):
    return list(map(json.loads, file.read_text().splitlines())) if file.exists() else []


def figures(settings, seconds):
    jobs = settings.dir / "default"
    pairs = lines(jobs / "roles-reward/evaluations.jsonl")
    steps = lines(jobs / "roles/metrics.jsonl")
    keep = lambda row, *keys: {key: row[key] for key in keys if key in row}
    return {
        "seconds": seconds,
        "pairs": [keep(each, "step", "pairAccuracy", "pairMargin", "loss") for each in pairs],
        "evaluations": [keep(each, "step", "greedy", "prompts")
                        for each in lines(jobs / "roles/evaluations.jsonl")],
        "steps": [keep(each, *KEPT) for each in steps],
    }


def holds(found):
    is_evaluated = [each["step"] for each in found["evaluations"]] == [*range(0, STEPS + 1, EVERY)]
    accurate = found["pairs"] and found["pairs"][-1]["pairAccuracy"] > GUESSED
    moved = len(found["steps"]) == STEPS and found["steps"][-1]["kl"] != 0
    return bool(is_evaluated and accurate and moved)


def main():
    settings = arguments()
    write_pairs(settings.data)
    status, seconds = run(settings)
    found = figures(settings, seconds)
    row = dict(
        name="roles-shared-gpu",
        ratio=None,
        aim=None,
        holds=status == 0 and holds(found),
        gpu=f"1 x {results.gpus()[0]}",
        command="bench/gpu/roles.py",
        commit=settings.commit,
        note="SGLang engines for rollouts, evaluation and a reward model, and learners of policy "
        "and reference, on one GPU",
        figures=found,
    )
    results.append(settings.out, row)
    print(json.dumps(row), flush=True)
    sys.exit(status != 0)


if __name__ == "__main__":
    main()
