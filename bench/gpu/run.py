#!/usr/bin/env python3
"""Measures training on GPUs beside PyTorch on the same GPU, and appends rows to a file.

usage: run.py BENCH [--rows NAME ...] [--first-gpu N] [--out results.jsonl] [--commit SHA]

BENCH is the program that `make build-cuda` builds from trainer/learner/benches/gpu.rs. Ours and the
peer run one after another on the same GPU. A row has name, ratio, aim, whether it holds, gpu,
command, commit and figures; a row without an aim is for information. The rows `fsdp`, `seven` and
`half_seven` need two GPUs, `fsdp_four` and `seven_four` four, which only --rows selects.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import results

FOLDER = Path(__file__).resolve().parent
TIMEOUT = 180


class Failed(Exception):
    """A program that did not measure, for example because memory did not suffice."""


def wait_for(process):
    """Output and errors of a process, which is killed if it takes too long."""
    try:
        return process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        end(process)
        raise


def end(process):
    """Kills a process with its descendants, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def result(process):
    """The last line of JSON that the process prints."""
    out, errors = wait_for(process)
    found = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not found:
        memory = "out of memory; " if "out of memory" in errors else ""
        tail = errors[-1500:]
        raise Failed(f"{memory}{process.args} ended with {process.returncode}: {tail}")
    return json.loads(found[-1])


def rl_batch():
    """[prompt, completion] of 16 groups of 8 samples; lengths of completions have a long tail."""
    draw = random.Random(7)

    def completion():
        return min(1024, max(64, round(220 * math.exp(0.8 * draw.gauss(0, 1)))))

    return [[256, completion()] for _ in range(128)]


def mixed_batch():
    """[prompt, completion] of 8 groups of 8 samples of 64 to 4,096 tokens, evenly spread in their
    logarithm."""
    draw = random.Random(11)
    lengths = [round(64 * 64 ** (index / 63)) for index in range(64)]
    draw.shuffle(lengths)
    batch = []
    for group in range(8):
        own = lengths[8 * group : 8 * group + 8]
        prompt = min(draw.randint(32, 256), min(own) - 16)
        batch.extend([prompt, length - prompt] for length in own)
    return batch


class Rows:
    def __init__(self, settings):
        self.settings, self.measured = settings, {}
        self.gpus = results.gpus()

    def start(self, command, rank=0, world=1, gpu=None, visible=1):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world))
        first = self.settings.first_gpu + (rank if gpu is None else gpu)
        # Ranks of one model share a port, and models side by side have their own.
        own = self.settings.first_gpu if gpu is None else first
        environment["MASTER_PORT"] = str(29_511 + own)
        gpus = range(first, first + visible)
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in gpus)
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ours(self, *flags, gpus=1, shape="1.5b"):
        """Figures of ours with these flags, measured once."""
        if (flags, gpus, shape) not in self.measured:
            command = [self.settings.bench, "--shape", shape, "--grpo", *flags]
            processes = [self.start(command, rank, gpus) for rank in range(gpus)]
            try:
                for process in processes[1:]:
                    wait_for(process)
                self.measured[flags, gpus, shape] = result(processes[0])
            finally:
                for process in processes:
                    end(process)
        return self.measured[flags, gpus, shape]

    def slowest(self, *flags, gpus):
        """Figures of the slowest of several GPUs, each with a model of its own: GPUs of one model
        differ by some percent, and the slowest one bounds all."""
        command = [self.settings.bench, "--shape", "1.5b", "--grpo", *flags]
        processes = [self.start(command, gpu=gpu) for gpu in range(gpus)]
        try:
            alone = [result(process) for process in processes]
        finally:
            for process in processes:
                end(process)
        return min(alone, key=lambda figures: figures["tok_per_s_per_gpu"])

    def peer(self, *flags, gpus=1):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc_per_node={gpus}", str(FOLDER / "peer.py"), *flags]
        return result(self.start(command, visible=gpus))

    def packed(self, name, lengths, note):
        """Ours and the packed peer on the same lengths; ours also with repeated prompts."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(lengths, file)
            file.flush()
            ours = self.ours("--lengths", file.name, "--group", "8")
            repeated = self.ours("--lengths", file.name, "--group", "8", "--own-prompts")
            peer = [sys.executable, str(FOLDER / "packed_peer.py"), file.name]
            theirs = result(self.start(peer))
        self.write(name, ours, theirs, 1.1, note)
        self.write(f"{name}-repeated-prompts", repeated, theirs, 1.1, note)

    def write(self, name, ours, theirs, aim, note):
        """A row; without `theirs`, one of a peer that does not fit into the memory."""
        ratio = theirs and ours["tok_per_s_per_gpu"] / theirs["tok_per_s_per_gpu"]
        row = dict(
            name=name,
            ratio=ratio and round(ratio, 3),
            aim=aim,
            holds=None if aim is None or ratio is None else ratio >= aim,
            gpu=self.gpus[self.settings.first_gpu],
            command="bench/gpu/run.py",
            commit=self.settings.commit,
            note=note,
            figures=dict(ours=ours, other=theirs),
        )
        results.append(self.settings.out, row)
        print(f"bench {name} {row['ratio']} {aim} {row['holds']}", flush=True)


def eager(rows):
    note = "8 x 2048 tokens; the peer recomputes activations, ours are kept"
    rows.write("training-eager", rows.ours(), rows.peer(), 2.0, note)


def compiled(rows):
    peer = rows.peer("--compile")
    note = "8 x 2048 tokens; the peer recomputes activations, ours are kept"
    rows.write("training-compiled", rows.ours(), peer, 1.5, note)
    note = "8 x 2048 tokens; both recompute activations"
    rows.write("training-compiled-recomputed", rows.ours("--recompute"), peer, None, note)


def kept(rows):
    note = "8 x 2048 tokens; both keep activations, the peer in two micro-batches"
    rows.write("training-compiled-kept", rows.ours(), rows.peer("--compile", "--keep"), None, note)


def variants(rows):
    note = "10 sequences of 64 to 4096 tokens against 8 of 2048"
    rows.write("training-mixed-lengths", rows.ours("--mixed"), rows.ours(), None, note)
    note = "training.deterministic against not"
    rows.write("training-deterministic", rows.ours("--deterministic"), rows.ours(), None, note)


def logprobs(rows):
    """Log-probabilities of 8 x 2048 tokens without gradients, the best of the peer's batches."""
    peers = [rows.peer("--compile", "--keep", "--logprobs", "--micro", micro) for micro in "248"]
    best = max(peers, key=lambda peer: peer["tok_per_s_per_gpu"])
    note = "log-probabilities without gradients, 8 x 2048 tokens; the peer's best micro-batch"
    rows.write("logprobs", rows.ours("--logprobs"), best, 1.5, note)


def packed(rows):
    note = "packed, compiled layers, activations kept; 8 x 2048 tokens"
    rows.packed("training-packed", [[1, 2047]] * 8, note)


def groups(rows):
    note = "packed, compiled layers, activations kept; 128 samples in groups of 8 with one prompt"
    rows.packed("training-packed-groups", rl_batch(), note)


def mixed(rows):
    """Sequences of 64 to 4,096 tokens in groups of 8, beside the peer with padding and packed."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(mixed_batch(), file)
        file.flush()
        lengths = ("--lengths", file.name)
        ours = rows.ours(*lengths, "--group", "8")
        longer = rows.ours(*lengths, "--group", "8", "--micro", "24576")
        padded = [rows.peer(*lengths), rows.peer(*lengths, "--compile")]
        packed = result(rows.start([sys.executable, str(FOLDER / "packed_peer.py"), file.name]))
    best = max(padded, key=lambda peer: peer["tok_per_s_per_gpu"])
    note = "64 samples of 64 to 4,096 tokens in groups of 8 with one prompt"
    text = f"{note}; the peer pads, the better of eager and compiled"
    rows.write("training-mixed-padded", ours, best, 2.0, text)
    text = f"{note}; the peer packs; ours in micro-batches of 24,576 tokens"
    rows.write("training-mixed-packed", longer, packed, 1.3, text)
    rows.write("training-mixed-packed-16384", ours, packed, None, f"{note}; the peer packs")


def fsdp(rows):
    note = "FSDP on two GPUs against the slower one alone, tokens per GPU"
    rows.write("fsdp-2-gpus", rows.ours(gpus=2), rows.slowest(gpus=2), 0.985, note)
    four = ("--micro", "4096")
    alone = rows.slowest(*four, gpus=2)
    note = "the same in four micro-batches with training.sharding Gradients"
    rows.write("fsdp-2-gpus-hold", rows.ours(*four, "--hold", gpus=2), alone, 0.985, note)
    note = "the same in four micro-batches with training.sharding Full"
    rows.write("fsdp-2-gpus-full", rows.ours(*four, gpus=2), alone, None, note)


def fsdp_four(rows):
    note = "FSDP on four GPUs against the slowest one alone, tokens per GPU"
    rows.write("fsdp-4-gpus", rows.ours(gpus=4), rows.slowest(gpus=4), 0.985, note)
    peer = rows.peer("--compile", gpus=4)
    rows.write("fsdp-4-gpus-compiled", rows.ours(gpus=4), peer, None, "the same against FSDP2")


def seven_four(rows):
    """The 7B shape on four GPUs, in the memory of GPUs alone."""
    ours = rows.ours("--recompute", "--sequences", "8", gpus=4, shape="7b")
    note = "7B shape on four GPUs, 8 x 2048 tokens each, activations recomputed"
    for flags, name, aim in (((), "7b-4-eager", 1.4), (("--compile",), "7b-4-compiled", 1.1)):
        peer = rows.peer("--shape", "7b", "--micro", "1", *flags, gpus=4)
        rows.write(name, ours, peer, aim, note)


def seven(rows):
    """The 7B shape on two GPUs: with 80 GB each, ours needs its moments on the host."""
    flags, note = ("--recompute",), "7B shape on two GPUs, 8 x 2048 tokens each, recomputed"
    if results.gigabytes() < 100:
        flags, note = (*flags, "--offload"), f"{note}, ours with offload"
    ours = rows.ours(*flags, "--sequences", "8", gpus=2, shape="7b")
    for flags, name, aim in (((), "7b-eager", 1.4), (("--compile",), "7b-compiled", 1.1)):
        try:
            peer = rows.peer("--shape", "7b", "--micro", "1", *flags, gpus=2)
        except Failed as error:
            if not str(error).startswith("out of memory"):
                raise
            peer = None
        outcome = "" if peer else "; the peer runs out of memory"
        rows.write(name, ours, peer, aim, note + outcome)


def seven_one(rows):
    """The 7B shape on one GPU, with moments and fp32 weights in memory of the host."""
    flags = ("--recompute", "--offload", "--offload-weights", "--micro", "8192")
    ours = rows.ours(*flags, "--sequences", "8", shape="7b")
    note = "7B shape on one GPU, 8 x 2048 tokens, recomputed, ours with moments and weights on host"
    try:
        peer = rows.peer("--shape", "7b", "--micro", "1")
    except Failed as error:
        if not str(error).startswith("out of memory"):
            raise
        peer, note = None, f"{note}; the peer runs out of memory"
    rows.write("7b-one-gpu", ours, peer, None, note)


def half_seven(rows):
    """Half of the layers of the 7B shape, which fit on two GPUs of 80 GB with PyTorch too. As the
    peer, ours gets 4 x 2048 tokens in several micro-batches."""
    half = ("--layers", "14")
    micro = ("--micro", "4096", "--hold")
    ours = rows.ours("--recompute", "--sequences", "8", *micro, *half, gpus=2, shape="7b")
    note = "14 of the 28 layers of the 7B shape on two GPUs, 8 x 2048 tokens each, recomputed"
    for flags, name, aim in (((), "half-7b-eager", 1.4), (("--compile",), "half-7b-compiled", 1.1)):
        peer = rows.peer("--shape", "7b", "--micro", "1", *half, *flags, gpus=2)
        rows.write(name, ours, peer, aim, note)


PACKED = (packed, groups, mixed)
ON_TWO = (fsdp, seven, half_seven)
MEASURED = (eager, compiled, kept, variants, logprobs, *PACKED, seven_one, *ON_TWO)
ON_FOUR = (fsdp_four, seven_four)
ROWS = {row.__name__: row for row in MEASURED + ON_FOUR}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench")
    default = [row.__name__ for row in MEASURED]
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=default)
    parser.add_argument("--first-gpu", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    rows = Rows(parser.parse_args())
    failed = False
    for name in rows.settings.rows:
        try:
            ROWS[name](rows)
        except (Failed, subprocess.TimeoutExpired) as error:
            failed = True
            print(f"row {name}: {error}", file=sys.stderr, flush=True)
    sys.exit(failed)


main()
