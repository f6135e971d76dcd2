#!/usr/bin/env python3
"""Trains the tiny model of the quick start with every objective and prints what each has learned.

usage: objectives.py RLJOB FOLDER [--seed N] [--only NAME ...]

RLJOB is the command line program, FOLDER receives the runs. One job of SFT comes first; every
objective starts from its weights and has the prompts, the steps and the learning rate of the quick
start, unless SETTINGS says otherwise. A line per objective: accuracy of sampled answers to 512
held-out sums before and after, with standard errors; it has learned if the two differ by more than
four of them. Exit status 1 if an objective has not.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "manifests/samples"

RAW = {"mean": "None", "scale": "None"}

# Settings of `algorithm.grpo` (of `algorithm.ppo` for ppo), and of the rest of the spec by path.
SETTINGS = {
    "grpo": ({}, {}),
    "dapo": ({"clipHigh": 0.28}, {"rollout.dynamicSampling": {}}),
    "dr-grpo": ({"rewardNormalization": {"scale": "None"}, "lossAggregation": "Constant"}, {}),
    "rloo": ({"rewardNormalization": {"scale": "None", "leaveOneOut": True}}, {}),
    "reinforce-plus-plus": (
        {
            "groupSize": 1,
            "rewardNormalization": RAW,
            "advantageNormalization": {"mean": "Batch", "scaleLevel": "Batch"},
            "klCoefficient": 0.001,
        },
        {"rollout.batchSize": 512},
    ),
    "gspo": ({"ratioLevel": "Sequence", "clipLow": 0.0003, "clipHigh": 0.0004}, {}),
    "gspo-token": (
        {
            "ratioLevel": "SequenceToken",
            "clipLow": 0.0003,
            "clipHigh": 0.0004,
            "klCoefficient": 0.001,
        },
        {},
    ),
    "cispo": ({"surrogate": "CISPO", "clipLow": 1.0, "clipHigh": 4.0}, {}),
    "sapo": ({"surrogate": "SAPO", "sapo": {"tauPositive": 1.0, "tauNegative": 1.05}}, {}),
    "gpg": (
        {"surrogate": "GPG", "rewardNormalization": {"scale": "None"}},
        {"training.minibatches": 1},
    ),
    "decoupled": ({}, {"rollout.maxStaleness": 2}),
    "icepop": ({"behaviorWeight": {"lower": 0.5, "upper": 5}}, {"rollout.maxStaleness": 2}),
    "kpop": (
        {"behaviorWeight": {"metric": "BinaryKL", "upper": 2}},
        {"rollout.maxStaleness": 2},
    ),
    "m2po": ({"secondMomentLimit": 0.04}, {"rollout.maxStaleness": 4}),
    "ppo": (
        {
            "groupSize": 1,
            "epochs": 2,
            "gaeLambda": 0.95,
            "criticWarmupSteps": 5,
            "criticOptimizer": {"learningRate": 2e-3, "warmupSteps": 5, "schedule": "Linear"},
        },
        {"rollout.batchSize": 512},
    ),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    return parser.parse_args()


def sets(name, seed):
    """Values of `--set` that make the quick start's second job train with the objective."""
    own, others = SETTINGS[name]
    kind = "ppo" if name == "ppo" else "grpo"
    values = {"spec.algorithm": {kind: {"groupSize": 8, **own}}, "spec.training.seed": seed}
    values.update({f"spec.{path}": value for path, value in others.items()})
    return [f"quickstart:{path}={json.dumps(value)}" for path, value in values.items()]


def run(settings, name, first):
    """The evaluations of a run that trains with the objective, from the SFT of the first."""
    sft = "default/quickstart-sft"
    if name != first:
        shutil.copytree(settings.folder / first / sft, settings.folder / name / sft, symlinks=True)
    command = [settings.rljob, "run", "-f", SAMPLES / "quickstart.yaml"]
    command += ["--dir", settings.folder / name]
    for value in sets(name, settings.seed) + [f"quickstart-sft:spec.training.seed={settings.seed}"]:
        command += ["--set", value]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        sys.exit(f"{name}: {ended.stdout[-2000:]}")
    lines = (settings.folder / name / "default/quickstart/evaluations.jsonl").read_text()
    return [json.loads(line) for line in lines.splitlines()]


def main():
    settings = arguments()
    if settings.folder.exists():
        sys.exit(f"{settings.folder} exists: name a new folder")
    data = SAMPLES / "quickstart"
    subprocess.run([sys.executable, data / "make_data.py", data / "data"], check=True)
    unlearned = []
    for name in settings.only:
        evaluations = run(settings, name, settings.only[0])
        first, last = evaluations[0], evaluations[-1]
        error = math.hypot(first["sampledStandardError"], last["sampledStandardError"])
        learned = last["sampled"] - first["sampled"] > 4 * error
        if not learned:
            unlearned.append(name)
        print(
            f"objective {name:20} {first['sampled']:.3f} -> {last['sampled']:.3f}"
            f" ± {last['sampledStandardError']:.3f} {'learned' if learned else 'NOT LEARNED'}",
            flush=True,
        )
    sys.exit(bool(unlearned))


main()
