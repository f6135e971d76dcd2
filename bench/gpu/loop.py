#!/usr/bin/env python3
"""Measures steps of GRPO on GPUs 0 and 1 beside loop_peer.py, and appends rows to a file.

usage: loop.py RLJOB TOKENIZER [--cases NAME ...] [--again] [--attention-backend NAME]
               [--engine COMMAND] [--out results.jsonl] [--commit SHA]

RLJOB is the command line program, TOKENIZER a folder with a tokenizer whose tokens the model of the
peer can embed. Both run SGLang with the same settings and the same random model, one after the
other: `sync` trains on samples of the current weights, `async` on those of the weights before.
Completions have 512 tokens (`fixed`), or end at a token in 253 (`geometric`, at most 1,024 tokens).
Figures of ours are means of the steps after the first two, in `async` without the last two, whose
successors are not sampled; those of the peer are means after the first. The first call measures the
peer with the lengths of the cases; with --again, further cases of ours are measured beside its
figures.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import engine
import results
from engine import SAMPLES

FOLDER = Path(__file__).resolve().parent
WORK = Path("/opt/loop")
PROMPT, STOPS, LONGEST = 256, 600, 1024
PEER_SECONDS, RUN_SECONDS = 600, 240
PARTS = ("rolloutSeconds", "trainSeconds", "syncSeconds", "waitSeconds", "computedTokens")

# `running` is spec.weightSync.runningCompletions, `order` spec.rollout.batchOrder, `staleness`
# spec.rollout.maxStaleness, 1 in mode `async`; `engines` share GPU 0 by NVIDIA's Multi-Process
# Service, so that two schedulers of SGLang, each a Python process, launch work at once.
Case = namedtuple(
    "Case", "lengths mode running steps aim order staleness engines", defaults=["Data", 1, 1]
)
CASES = {
    "loop-sync": Case("fixed", "sync", None, 5, 1.25),
    "loop-async": Case("fixed", "async", "Keep", 12, 1.5),
    "loop-async-finish": Case("fixed", "async", "Finish", 12, 1.5),
    "loop-async-recompute": Case("fixed", "async", "Recompute", 10, None),
    "loop-geometric-sync": Case("geometric", "sync", None, 5, None),
    "loop-geometric-async": Case("geometric", "async", "Keep", 10, 1.5),
    "loop-geometric-finished": Case("geometric", "async", "Keep", 10, None, "Finished"),
    "loop-geometric-two": Case("geometric", "async", "Keep", 12, 1.5, "Data", 2),
    "loop-geometric-finish": Case("geometric", "async", "Finish", 10, None),
    "loop-two-engines-sync": Case("fixed", "sync", None, 5, None, engines=2),
    "loop-two-engines-async": Case("fixed", "async", "Keep", 12, 1.5, engines=2),
    "loop-two-engines-geometric": Case("geometric", "async", "Keep", 12, 1.5, engines=2),
}
# Of two cases of ours: the second is the one that is measured against.
PAIRS = {
    "async-against-sync": ("loop-async", "loop-sync", 1.6),
    "interruption": ("loop-geometric-async", "loop-geometric-finish", 1.1),
    "finished-groups": ("loop-geometric-finished", "loop-geometric-async", None),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--attention-backend", default="triton")
    parser.add_argument("--engine", default=f"{sys.executable} -m sglang.launch_server")
    parser.add_argument("--note", default="", help="text for the notes of rows")
    parser.add_argument("--bin", type=int, default=24_576, help="tokens of the peer's bins")
    settings = parser.parse_args()
    settings.flags = engine.flags(settings.attention_backend)
    return settings


def end(process):
    """Kills a process with its descendants."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def peer(settings):
    """Writes figures of the peer for every case to the work folder, and its model."""
    cases = [CASES[name] for name in settings.cases]
    command = [sys.executable, str(FOLDER / "loop_peer.py"), "--steps", "3"]
    command += ["--pairs", *sorted({f"{case.lengths}-{case.mode}" for case in cases})]
    command += ["--model", str(WORK / "model"), "--log", str(WORK / "peer.log")]
    command += ["--bin", str(settings.bin)]
    command += [*(f"--engine-argument={flag}" for flag in settings.flags)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=PEER_SECONDS)
    except subprocess.TimeoutExpired:
        end(process)
        sys.exit(f"the peer takes more than {PEER_SECONDS} s")
    print(output[-3000:], flush=True)
    if process.returncode != 0:
        sys.exit(f"the peer ended with {process.returncode}")
    figures = (line for line in output.splitlines() if line.startswith("{"))
    (WORK / "peer.jsonl").write_text("\n".join(figures))


def figures_of_peer():
    rows = [json.loads(line) for line in (WORK / "peer.jsonl").read_text().splitlines()]
    return {(row["lengths"], row["mode"]): row for row in rows}


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
    """Tokenizer and rows, and a copy of the model that ends completions at STOPS tokens."""
    for path in settings.tokenizer.iterdir():
        if path.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(path, WORK / "model")
    stopping = WORK / "model-geometric"
    stopping.mkdir()
    for path in (WORK / "model").iterdir():
        (stopping / path.name).symlink_to(path)
    stops = json.dumps({"eos_token_id": list(range(50_000, 50_000 + STOPS))})
    (stopping / "generation_config.json").unlink(missing_ok=True)
    (stopping / "generation_config.json").write_text(stops)
    rows = prompts(settings.tokenizer)
    with (WORK / "train.jsonl").open("w") as file:
        file.writelines(json.dumps(next(rows)) + "\n" for _ in range(1024))


def wait_for_memory():
    """Waits until no process has memory of the GPUs."""
    query = ["nvidia-smi", "--id=0,1", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    for _ in range(60):
        used = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
        if max(map(int, used)) < 1000:
            return
        time.sleep(0.5)
    sys.exit(f"memory of GPUs is still used: {used} MiB")


def steps(folder):
    """Lines of metrics, without one that is being written."""
    for file in folder.glob("**/metrics.jsonl"):
        return [json.loads(line) for line in file.read_text().rpartition("\n")[0].splitlines()]
    return []


@contextlib.contextmanager
def process_service(engines):
    """Environment of a job whose engines share a GPU: NVIDIA's Multi-Process Service runs for it."""
    if engines == 1:
        yield {}
        return
    folder = WORK / "mps"
    folder.mkdir(exist_ok=True)
    service = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    environment = {**os.environ, **service}
    del environment["CUDA_VISIBLE_DEVICES"]
    control = ["nvidia-cuda-mps-control"]
    subprocess.run([*control, "-d"], env=environment, check=True)
    try:
        yield {**service, "CUDA_VISIBLE_DEVICES": ",".join(["0"] * engines + ["1"])}
    finally:
        subprocess.run(control, input="quit\n", text=True, env=environment, timeout=60)


def ours(settings, name):
    """Figures of our job, which is killed after its steps."""
    with process_service(CASES[name].engines) as environment:
        return figures_of_job(settings, name, {**os.environ, **environment})


def figures_of_job(settings, name, environment):
    case, folder = CASES[name], WORK / f"runs-{name}"
    flags = engine.flags(settings.attention_backend, case.engines)
    shutil.rmtree(folder, ignore_errors=True)
    command = [settings.rljob, "run", "-f", str(FOLDER / "loop.yaml"), "--dir", str(folder)]
    command += ["--engine-command", settings.engine]
    command += ["--set", f"spec.inference.sglang.extraArgs={json.dumps(flags)}"]
    if case.lengths == "fixed":
        # One batch after another. With a long tail, its last samples would keep places from the
        # next batch.
        limit = SAMPLES // case.engines
        command += ["--set", f"spec.inference.maxRunningRequests={limit}"]
    command += ["--set", f"spec.inference.replicas={case.engines}"]
    staleness = case.staleness if case.mode == "async" else 0
    command += ["--set", f"spec.rollout.maxStaleness={staleness}"]
    if case.running:
        command += ["--set", f"spec.weightSync.runningCompletions={case.running}"]
    if case.order != "Data":
        command += ["--set", f"spec.rollout.batchOrder={case.order}"]
    if case.lengths == "geometric":
        command += ["--set", f"spec.model.path={WORK / 'model-geometric'}"]
        command += ["--set", f"spec.rollout.maxNewTokens={LONGEST}"]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    deadline = time.monotonic() + RUN_SECONDS
    try:
        while len(steps(folder)) < case.steps:
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{name} trained {len(steps(folder))} of {case.steps} steps")
            time.sleep(0.2)
    finally:
        end(process)
        wait_for_memory()  # its engine and learner end after it
    measured = steps(folder)[2 : case.steps - (2 if case.mode == "async" else 0)]
    times = [step["tokens"] / step["tokensPerSecond"] for step in measured]
    mean = lambda values: round(statistics.fmean(values), 4)
    figures = dict(step_s=mean(times), steps_s=[round(each, 2) for each in times])
    figures.update({part: mean(step.get(part, 0.0) for step in measured) for part in PARTS})
    sampled = mean(step["completionTokens"] for step in measured) * SAMPLES
    figures.update(sampled_tokens=round(sampled), mode=case.mode)
    return figures


def write(settings, name, ratio, aim, note, figures):
    row = dict(
        name=name,
        ratio=round(ratio, 3),
        aim=aim,
        holds=None if aim is None else ratio >= aim,
        gpu=settings.gpu,
        command="bench/gpu/loop.py",
        commit=settings.commit,
        note=note,
        figures=figures,
    )
    results.append(settings.out, row)
    print(f"bench {name} {ratio:.3f} {aim} {row['holds']}", flush=True)


def per_token(figures):
    """Seconds of a step for a sampled token: steps with random lengths differ in their tokens."""
    return figures.get("mean_step_s", figures["step_s"]) / figures["sampled_tokens"]


def main():
    settings = arguments()
    if WORK.exists() and not settings.again:
        sys.exit(f"{WORK} has files of an earlier run: remove it")
    os.environ["NCCL_CUMEM_ENABLE"] = "0"
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    settings.gpu = f"2 x {results.gpus()[0]}"
    wait_for_memory()  # processes of an earlier run would share the GPUs
    if not settings.again:
        WORK.mkdir(parents=True)
        peer(settings)
    if not (WORK / "train.jsonl").exists():
        prepare(settings)
    theirs, mine = figures_of_peer(), {}
    for name in settings.cases:
        case = CASES[name]
        mine[name] = ours(settings, name)
        other = theirs.get((case.lengths, case.mode))
        if other is None:
            continue
        note = f"64 prompts of 256 tokens, 8 samples, {case.lengths} lengths, 1.5B shape"
        note += f", runningCompletions {case.running}" if case.running else ""
        note += f", batchOrder {case.order}" if case.order != "Data" else ""
        note += f", maxStaleness {case.staleness}" if case.staleness > 1 else ""
        note += f", {case.engines} engines on a GPU" if case.engines > 1 else ""
        note += f", {settings.attention_backend}{settings.note}"
        ratio = per_token(other) / per_token(mine[name])
        write(settings, name, ratio, case.aim, note, dict(ours=mine[name], other=other))
    for name, (one, other, aim) in PAIRS.items():
        if one in mine and other in mine:
            ratio = per_token(mine[other]) / per_token(mine[one])
            figures = dict(ours=mine[one], other=mine[other])
            write(settings, name, ratio, aim, f"{one} against {other}", figures)


main()
