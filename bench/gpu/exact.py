#!/usr/bin/env python3
"""Compares fine-tuning with PyTorch and with itself after a kill, and appends rows to a file.

usage: exact.py RLJOB MODEL [--gpus N] [--out results.jsonl] [--commit SHA]

MODEL is a folder of a causal language model with its tokenizer. 50 steps train the same 64 rows.

`loss-curve`: losses in bf16 against transformers with autocast and torch.optim.AdamW. The ratio is
the largest difference of ours from PyTorch in fp32, divided by that of PyTorch in bf16.
`resume-deterministic`: a run whose learner is killed after step 20 against one that is not: the
losses of all steps and the bytes of the exported weights are equal.
"""

import argparse
import hashlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import results

FOLDER = Path(__file__).resolve().parent
STEPS, ROWS, KILLED_AFTER = 50, 64, 20
RATE = 1e-6
WORDS = [" time", " people", " water", " school", " number", " house", " river", " music"]
SECONDS = 180


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob")
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


def rows():
    draw = random.Random(3)
    text = lambda count: "".join(draw.choice(WORDS) for _ in range(count))
    return [
        dict(question="Say:" + text(draw.randrange(8, 64)), answer=text(draw.randrange(16, 192)))
        for _ in range(ROWS)
    ]


def job(settings, folder):
    limits = {"nvidia.com/gpu": settings.gpus} if settings.gpus else {}
    return dict(
        apiVersion="rljob.dev/v1alpha1",
        kind="RLJob",
        metadata=dict(name="curve"),
        spec=dict(
            model=dict(path=str(settings.model.resolve())),
            storage=dict(hostPath=dict(path=str(folder))),
            dataset=dict(
                train=dict(
                    path=str(folder / "train.jsonl"),
                    prompt="{{question}}",
                    completion="{{answer}}",
                    format="Text",
                )
            ),
            algorithm=dict(sft=dict(batchSize=ROWS)),
            optimizer=dict(learningRate=RATE),
            training=dict(steps=STEPS, deterministic=True),
            inference=dict(replicas=0),
            trainer=dict(resources=dict(limits=limits)),
            checkpoint=dict(everySteps=8),
        ),
    )


def learners():
    found = subprocess.run(["pgrep", "-x", "rljob-learner"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def steps(folder):
    for file in folder.glob("**/metrics.jsonl"):
        return [json.loads(line) for line in file.read_text().rpartition("\n")[0].splitlines()]
    return []


def trained(settings, folder, kills):
    """Steps of a run and the hash of its exported weights."""
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (folder / "job.json").write_text(json.dumps(job(settings, folder)))
    before = set(learners())
    command = [settings.rljob, "run", "-f", str(folder / "job.json"), "--dir", str(folder / "runs")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + SECONDS
    killed = False
    while process.poll() is None:
        if kills and not killed and len(steps(folder)) >= KILLED_AFTER:
            for pid in sorted(set(learners()) - before)[:1]:
                os.kill(pid, signal.SIGKILL)
            killed = True
        if time.monotonic() > deadline:
            process.kill()
            sys.exit(f"the run takes more than {SECONDS} s: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.02)
    if process.returncode != 0:
        sys.exit(f"the run ended with {process.returncode}: {(folder / 'log').read_text()[-2000:]}")
    (export,) = folder.glob("runs/*/*/export")
    digest = hashlib.sha256()
    for file in sorted(export.glob("*.safetensors")):
        digest.update(file.read_bytes())
    by_step = {line["step"]: line for line in steps(folder)}
    return [by_step[step] for step in sorted(by_step)], digest.hexdigest(), killed


def encoded(settings, device):
    """Token ids [rows, tokens], and which of them are trained, both padded."""
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    stops = GenerationConfig.from_pretrained(settings.model).eos_token_id
    end = stops[0] if isinstance(stops, list) else stops
    ids, masks = [], []
    for row in rows():
        prompt = tokenizer(row["question"])["input_ids"]
        completion = tokenizer(row["answer"], add_special_tokens=False)["input_ids"]
        completion.append(end)
        ids.append(prompt + completion)
        masks.append([0] * len(prompt) + [1] * len(completion))
    longest = max(len(row) for row in ids)
    padded = lambda rows: torch.tensor(
        [row + [0] * (longest - len(row)) for row in rows], device=device
    )
    return padded(ids), padded(masks)


def peer(settings, device, kind):
    """Losses of PyTorch with passes of this kind."""
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    ids, masks = encoded(settings, device)
    trained = masks[:, 1:].sum()
    losses = []
    for _ in range(STEPS):
        total = 0.0
        for part, mask in zip(ids.split(16), masks.split(16)):
            with torch.autocast(device.type, dtype=kind, enabled=kind != torch.float32):
                logits = model(input_ids=part).logits
            each = torch.nn.functional.cross_entropy(
                logits[:, :-1].float().transpose(1, 2), part[:, 1:], reduction="none"
            )
            loss = (each * mask[:, 1:]).sum() / trained
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, int(trained)


def write(settings, **row):
    row = dict(row, gpu=settings.gpu, command="bench/gpu/exact.py", commit=settings.commit)
    results.append(settings.out, row)
    print(f"bench {row['name']} {row['ratio']} {row['aim']} {row['holds']}", flush=True)


def main():
    settings = arguments()
    device = torch.device("cuda" if settings.gpus else "cpu")
    settings.gpu = torch.cuda.get_device_name(0) if settings.gpus else "none"
    with tempfile.TemporaryDirectory() as name:
        whole, digest, _ = trained(settings, Path(name) / "whole", False)
        again, other, killed = trained(settings, Path(name) / "killed", True)
    same = [step["loss"] for step in whole] == [step["loss"] for step in again]
    write(
        settings,
        name="resume-deterministic",
        ratio=None,
        aim=None,
        holds=killed and same and digest == other,
        note=f"{STEPS} steps, a learner killed after step {KILLED_AFTER} against none killed",
        figures=dict(killed=killed, same_losses=same, export=digest, export_killed=other),
    )
    exact, count = peer(settings, device, torch.float32)
    rounded, _ = peer(settings, device, torch.bfloat16)
    losses = [step["loss"] for step in whole]
    if int(whole[0]["trainableTokens"]) != count:
        sys.exit(f"ours trains {whole[0]['trainableTokens']} tokens, the peer {count}")
    largest = lambda values: max(abs(a - b) for a, b in zip(values, exact))
    mean = lambda values: statistics.fmean(abs(a - b) for a, b in zip(values, exact))
    ours, theirs = largest(losses), largest(rounded)
    ratio = ours / theirs if theirs > 0 else math.inf
    write(
        settings,
        name="loss-curve",
        ratio=round(ratio, 3),
        aim=2.0,
        holds=ratio <= 2.0,
        note=f"{STEPS} steps in bf16: largest difference from fp32, ours ÷ autocast of PyTorch",
        figures=dict(
            ours=ours,
            other=theirs,
            first=[losses[0], exact[0]],
            last=[losses[-1], exact[-1]],
            mean_ours=mean(losses),
            mean_other=mean(rounded),
        ),
    )


main()
