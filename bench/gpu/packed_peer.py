#!/usr/bin/env python3
"""Training step of PyTorch for comparison: packed sequences on one GPU, random weights.

Reads a JSON list of [prompt tokens, completion tokens], one pair per sequence; completions are
trained with the clipped surrogate of GRPO. Prints one line of JSON: tokens per second (median
step), peak memory, share of the bins that is filled. packed.py has the trainer.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch
from packed import Limits, Sample, Trainer, random_model
from shapes import SHAPES

UNIFORM = 11.9  # -log of the probability of a token at random weights


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lengths", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1.5b")
    parser.add_argument("--bin", type=int, default=16_384, help="tokens of a bin")
    parser.add_argument("--chunk", type=int, default=8_192, help="rows of a chunk of logits")
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def samples(lengths, vocabulary):
    draw = random.Random(1)
    for prompt, completion in lengths:
        tokens = [draw.randrange(vocabulary) for _ in range(prompt + completion)]
        logprobs = [-UNIFORM] * completion
        yield Sample(tokens[:prompt], tokens[prompt:], logprobs, draw.choice([-1.0, 1.0]))


def main():
    settings = arguments()
    lengths = json.loads(settings.lengths.read_text())
    totals = [sum(length) for length in lengths]
    limits = Limits(settings.bin, settings.chunk, max(totals), min(totals))
    device = torch.device("cuda")
    shape = SHAPES[settings.shape]
    trainer = Trainer(random_model(shape, device), limits, device)
    batch = list(samples(lengths, shape["vocab_size"]))
    seconds = []
    for _ in range(settings.steps):
        torch.cuda.synchronize()
        started = time.perf_counter()
        loss, filled = trainer.step(batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[2:])
    figures = dict(
        torch=torch.__version__,
        shape=settings.shape,
        tokens=sum(totals),
        step_s=round(median, 4),
        tok_per_s_per_gpu=round(sum(totals) / median),
        filled=round(filled, 3),
        loss=loss,
        peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1),
    )
    print(json.dumps(figures), flush=True)


main()
