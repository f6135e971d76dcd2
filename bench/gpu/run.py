#!/usr/bin/env python3
"""Measures training on GPUs beside PyTorch on the same GPU, and appends rows to a file.

usage: run.py BENCH [--out results.jsonl] [--commit SHA]

BENCH is the program that `make build-cuda` builds from trainer/learner/benches/gpu.rs. Ours and the
peer run one after another. A row has name, ratio, aim, whether it holds, gpu, command, commit and
figures; a row without an aim is for information. With two GPUs, rows of FSDP are added.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TIMEOUT = 180


def lines(command, rank=0, world=1):
    environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world))
    environment["CUDA_VISIBLE_DEVICES"] = str(rank)
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def result(process):
    """The last line of JSON that the process prints."""
    out, errors = process.communicate(timeout=TIMEOUT)
    found = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not found:
        sys.exit(f"{process.args} ended with {process.returncode}: {errors[-2000:]}")
    return json.loads(found[-1])


def rl_batch():
    """[prompt, completion] of 16 groups of 8 samples; lengths of completions have a long tail."""
    draw = random.Random(7)

    def completion():
        return min(1024, max(64, round(220 * math.exp(0.8 * draw.gauss(0, 1)))))

    return [[256, completion()] for _ in range(128)]


class Rows:
    def __init__(self, settings):
        self.settings = settings
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        self.gpus = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()

    def ours(self, flags, gpus=1):
        command = [self.settings.bench, "--shape", "1.5b", "--grpo", *flags]
        processes = [lines(command, rank, gpus) for rank in range(gpus)]
        for process in processes[1:]:
            process.communicate(timeout=TIMEOUT)
        return result(processes[0])

    def peer(self, flags):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, "--nproc_per_node=1", str(FOLDER / "peer.py"), *flags]
        return result(lines(command))

    def packed_peer(self, lengths):
        return result(lines([sys.executable, str(FOLDER / "packed_peer.py"), lengths]))

    def packed(self, name, lengths, note):
        """Ours and the packed peer on the same lengths."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(lengths, file)
            file.flush()
            ours = self.ours(["--lengths", file.name, "--group", "8"])
            theirs = self.packed_peer(file.name)
        self.write(name, ours, theirs, 1.1, note)

    def write(self, name, ours, theirs, aim, note):
        ratio = ours["tok_per_s_per_gpu"] / theirs["tok_per_s_per_gpu"]
        row = dict(
            name=name,
            ratio=round(ratio, 3),
            aim=aim,
            holds=None if aim is None else ratio >= aim,
            gpu=self.gpus[0],
            command="bench/gpu/run.py",
            commit=self.settings.commit,
            note=note,
            figures=dict(ours=ours, other=theirs),
        )
        with self.settings.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"bench {name} {ratio:.2f} {aim} {row['holds']}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench")
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    rows = Rows(parser.parse_args())
    plain = rows.ours([])
    recomputed = rows.ours(["--recompute"])
    eager, compiled = rows.peer([]), rows.peer(["--compile"])
    note = "8 x 2048 tokens; the peer recomputes activations, ours are kept"
    rows.write("training-eager", plain, eager, 2.0, note)
    rows.write("training-compiled", rows.ours([]), compiled, 1.5, note)
    note = "8 x 2048 tokens; both recompute activations"
    rows.write("training-compiled-recomputed", recomputed, compiled, None, note)
    note = "10 sequences of 64 to 4096 tokens against 8 of 2048"
    rows.write("training-mixed-lengths", rows.ours(["--mixed"]), plain, None, note)
    note = "training.deterministic against not"
    rows.write("training-deterministic", rows.ours(["--deterministic"]), plain, None, note)
    note = "packed, compiled layers, activations kept; 8 x 2048 tokens"
    rows.packed("training-packed", [[1, 2047]] * 8, note)
    note = "packed, compiled layers, activations kept; 128 samples in groups of 8 with one prompt"
    rows.packed("training-packed-groups", rl_batch(), note)
    if len(rows.gpus) > 1:
        note = "FSDP on two GPUs against one, tokens per GPU"
        rows.write("fsdp-2-gpus", rows.ours([], gpus=2), plain, 0.985, note)


main()
