#!/usr/bin/env python3
"""Measures steps of GRPO on two GPUs beside loop_peer.py, and appends rows to a file.

usage: loop.py RLJOB TOKENIZER [--modes sync async] [--out results.jsonl] [--commit SHA]

RLJOB is the command line program, TOKENIZER a folder with a tokenizer whose tokens the model of the
peer can embed. Both run SGLang with the same settings and the same random model, one after the
other: `sync` trains on samples of the current weights, `async` on those of the weights before.
Figures are medians of the steps after the first two.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
WORK = Path("/opt/loop")
PROMPT = 256
PEER_SECONDS, RUN_SECONDS = 420, 300
ENGINE = [
    "--attention-backend=triton",
    "--cuda-graph-max-bs=512",
    "--disable-piecewise-cuda-graph",
]
AIMS = {"sync": 1.25, "async": 1.5}
PARTS = ("rolloutSeconds", "trainSeconds", "syncSeconds", "computedTokens", "mismatchMean")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--modes", nargs="+", choices=AIMS, default=list(AIMS))
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--bin", type=int, default=16_384, help="tokens of the peer's bins")
    return parser.parse_args()


def run(command, seconds):
    """Output of a command, which is killed with its descendants if it takes too long."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        sys.exit(f"{command[:2]} takes more than {seconds} s")
    print(output[-3000:], flush=True)
    if process.returncode != 0:
        sys.exit(f"{command[:2]} ended with {process.returncode}")
    return output


def peer(settings):
    """Figures of the peer by mode. It leaves its model in the work folder."""
    command = [sys.executable, str(FOLDER / "loop_peer.py"), "--lengths", "fixed", "--steps", "4"]
    command += ["--model", str(WORK / "model"), "--log", str(WORK / "peer.log")]
    command += ["--modes", *settings.modes, "--bin", str(settings.bin)]
    command += [*(f"--engine-argument={flag}" for flag in ENGINE)]
    output = run(command, PEER_SECONDS)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {row["mode"]: row for row in rows}


def prompts(tokenizer):
    """Rows whose texts have exactly PROMPT tokens."""
    from transformers import AutoTokenizer

    tokenizer, draw = AutoTokenizer.from_pretrained(tokenizer), random.Random(5)
    words = [" time", " people", " water", " school", " number", " house", " river", " music"]
    while True:
        text = "The" + "".join(draw.choice(words) for _ in range(PROMPT - 1))
        if len(tokenizer(text)["input_ids"]) != PROMPT:
            sys.exit(f"{text[:60]}... has another number of tokens")
        yield {"text": text, "answer": "0"}


def prepare(settings):
    for path in settings.tokenizer.iterdir():
        if path.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(path, WORK / "model")
    rows = prompts(settings.tokenizer)
    with (WORK / "train.jsonl").open("w") as file:
        file.writelines(json.dumps(next(rows)) + "\n" for _ in range(1024))


def ours(settings, mode):
    """Figures of our job in this mode."""
    folder = WORK / f"runs-{mode}"
    command = [settings.rljob, "run", "-f", str(FOLDER / "loop.yaml"), "--dir", str(folder)]
    command += ["--engine-command", f"{sys.executable} -m sglang.launch_server"]
    command += ["--set", f"spec.rollout.maxStaleness={int(mode == 'async')}"]
    run(command, RUN_SECONDS)
    (file,) = folder.glob("**/metrics.jsonl")
    steps = [json.loads(line) for line in file.read_text().splitlines()][2:]
    median = lambda values: round(statistics.median(values), 4)
    figures = dict(step_s=median(step["tokens"] / step["tokensPerSecond"] for step in steps))
    figures.update({name: median(step.get(name, 0.0) for step in steps) for name in PARTS})
    return dict(figures, steps=len(steps), mode=mode)


def main():
    settings = arguments()
    if WORK.exists():
        sys.exit(f"{WORK} has files of an earlier run: remove it")
    WORK.mkdir(parents=True)
    os.environ["NCCL_CUMEM_ENABLE"] = "0"
    gpus = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.splitlines()
    theirs = peer(settings)
    prepare(settings)
    for mode in settings.modes:
        mine, aim = ours(settings, mode), AIMS[mode]
        ratio = theirs[mode]["step_s"] / mine["step_s"]
        row = dict(
            name=f"loop-{mode}",
            ratio=round(ratio, 3),
            aim=aim,
            holds=ratio >= aim,
            gpu=f"{len(gpus)} x {gpus[0]}",
            command="bench/gpu/loop.py",
            commit=settings.commit,
            note="64 prompts of 256 tokens, 8 samples of 512 tokens, Qwen2.5-1.5B shape",
            figures=dict(ours=mine, other=theirs[mode]),
        )
        with settings.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"bench loop-{mode} {ratio:.2f} {aim} {ratio >= aim}", flush=True)


main()
