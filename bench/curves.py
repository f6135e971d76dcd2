#!/usr/bin/env python3
"""Draws what objectives learn, from runs of objectives.py with several seeds.

usage: curves.py FOLDER FIGURE

FOLDER has a folder of runs for each seed. FIGURE is an SVG file: for each objective the accuracy of
sampled answers to held-out sums over the steps, as the mean of the seeds with the range between the
lowest and the highest. Prints a line for each objective with the accuracy of each seed before and
after. Exit status 1 unless every run begins below 0.5 and ends above 0.9.
"""

import json
import math
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "rljob", "svg.fonttype": "none", "font.size": 9})
import matplotlib.pyplot as plt  # noqa: E402

TITLES = {
    "quickstart": "GRPO",
    "gspo": "GSPO",
    "reinforce-plus-plus": "REINFORCE++",
    "ppo": "PPO, separate critic",
    "ppo-value-head": "PPO, value head",
    "lora": "GRPO of adapters (LoRA)",
}
BEFORE, AFTER = 0.5, 0.9
COLUMNS = 3


def curve(folder):
    """Steps and accuracies of a run."""
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    evaluations = [json.loads(line) for line in lines]
    return [each["step"] for each in evaluations], [each["sampled"] for each in evaluations]


def curves(folder, name):
    """Steps, and the accuracies of each seed."""
    found = [curve(seed / "default" / name) for seed in sorted(folder.iterdir())]
    steps = found[0][0]
    if any(each != steps for each, _ in found):
        sys.exit(f"{name}: runs were evaluated at different steps")
    return steps, [accuracies for _, accuracies in found]


def draw(axes, name, steps, seeds):
    mean = [statistics.fmean(values) for values in zip(*seeds)]
    low, high = [min(values) for values in zip(*seeds)], [max(values) for values in zip(*seeds)]
    axes.fill_between(steps, low, high, alpha=0.25, linewidth=0, color="tab:blue")
    axes.plot(steps, mean, color="tab:blue", marker="o", markersize=3)
    axes.set_title(TITLES[name], fontsize=10)
    axes.set_ylim(0.4, 1.0)
    axes.grid(alpha=0.3)
    axes.annotate(f"{mean[-1]:.3f}", (steps[-1], mean[-1]), (0, -14), ha="right",
                  textcoords="offset points")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    folder, figure = map(Path, sys.argv[1:])
    count = len(list(folder.iterdir()))
    rows = math.ceil(len(TITLES) / COLUMNS)
    plot, grid = plt.subplots(rows, COLUMNS, figsize=(8, 2.4 * rows + 0.4), sharex=True, sharey=True)
    holds = True
    for axes, name in zip(grid.flat, TITLES):
        steps, seeds = curves(folder, name)
        draw(axes, name, steps, seeds)
        ends = [(values[0], values[-1]) for values in seeds]
        has = all(first < BEFORE and last > AFTER for first, last in ends)
        holds = holds and has
        shown = ", ".join(f"{first:.3f} -> {last:.3f}" for first, last in ends)
        print(f"curve {name:20} {shown} {'holds' if has else 'SHORT'}")
    plot.supxlabel("step")
    plot.supylabel(f"accuracy of sampled answers, mean and range of {count} seeds", fontsize=9)
    plot.tight_layout()
    plot.savefig(figure, metadata={"Date": None})
    sys.exit(not holds)


main()
