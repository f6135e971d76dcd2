#!/usr/bin/env python3
"""A GRPO loop in Python around the real SGLang for comparison, on two GPUs of one machine.

SGLang serves on GPU 0, this process trains on GPU 1 (packed.py). A step samples completions for
random prompts (one /generate request per sample), draws rewards, normalises advantages per group,
trains one minibatch and broadcasts the bf16 weights over NCCL in flat buckets.

Modes: `sync` samples, trains and updates in turn; `async` samples the next step's completions while
this step trains (one step off). Lengths: `fixed` (512 tokens), `mixed` (log-normal, 64 to 1,024) or
`geometric` (a token in 253 is the last, at most 1,024: a model with random weights and STOPS
end-of-sequence tokens).
Prints one line of JSON for each pair: seconds of a step and its parts, tokens per second.
"""

import argparse
import asyncio
import datetime
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

# The trainer's GPU, and SGLang's setting of NCCL: both ends of a broadcast must agree. CUDA reads
# the first at its first call, which may be in an import below.
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
os.environ["NCCL_CUMEM_ENABLE"] = "0"

import aiohttp
import torch
import torch.distributed as dist
from packed import Limits, Sample, Trainer, random_model
from shapes import SHAPES
from torch.distributed.distributed_c10d import (
    Backend,
    PrefixStore,
    _new_process_group_helper,
    _world,
)

PROMPT, FIXED, SHORTEST, LONGEST = 256, 512, 64, 1024
STOPS = 600
BUCKET_BYTES = 2**30
GROUP = "loop-peer"
STARTUP_SECONDS = 300
DEVICE = torch.device("cuda")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    pairs = [f"{lengths}-{mode}" for lengths in ("fixed", "mixed") for mode in ("sync", "async")]
    parser.add_argument("--pairs", nargs="+", default=pairs, help="each LENGTHS-MODE")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8, help="samples of a prompt")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1.5b")
    parser.add_argument("--bin", type=int, default=24_576)
    parser.add_argument("--chunk", type=int, default=8_192)
    parser.add_argument("--model", type=Path, default=Path("loop-peer-model"))
    parser.add_argument("--port", type=int, default=30_000)
    parser.add_argument("--update-port", type=int, default=29_611)
    parser.add_argument("--log", type=Path, default=Path("loop-peer-sglang.log"))
    parser.add_argument("--engine-argument", action="append", default=[], help="flag of SGLang")
    return parser.parse_args()


class Engine:
    """A client of SGLang's HTTP interface."""

    def __init__(self, port, session):
        self.url, self.session = f"http://127.0.0.1:{port}", session

    async def post(self, path, body):
        async with self.session.post(self.url + path, json=body) as response:
            text = await response.read()
            if response.status != 200:
                raise RuntimeError(f"{path}: {response.status} {text[:300]}")
            return text

    async def wait_until_up(self, server, log):
        for _ in range(STARTUP_SECONDS):
            if server.poll() is not None:
                sys.exit(f"SGLang ended with {server.returncode}: {log.read_text()[-2000:]}")
            try:
                async with self.session.get(self.url + "/model_info") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(1.0)
        sys.exit(f"SGLang is not up after {STARTUP_SECONDS} s: {log.read_text()[-2000:]}")

    async def sample(self, prompt, length):
        sampling = dict(max_new_tokens=length, temperature=1.0, ignore_eos=True)
        body = dict(input_ids=prompt, return_logprob=True, sampling_params=sampling)
        output = json.loads(await self.post("/generate", body))
        logprobs = [entry[0] for entry in output["meta_info"]["output_token_logprobs"]]
        return output["output_ids"], logprobs


class Weights:
    """The NCCL group with the engine, and the weights in flat buckets."""

    def __init__(self, model, port):
        self.port, self.buckets, size = port, [[]], 0
        for name, weight in model.named_parameters():
            if size + weight.nbytes > BUCKET_BYTES:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append((name, weight))
            size += weight.nbytes

    def join(self):
        store = dist.TCPStore("127.0.0.1", self.port, 2, True, wait_for_workers=False)
        backend, prefix = Backend("nccl"), PrefixStore(GROUP, store)
        timeout = datetime.timedelta(minutes=2)
        self.group, _ = _new_process_group_helper(
            2, 0, [], backend, prefix, group_name=GROUP, timeout=timeout
        )
        _world.pg_group_ranks[self.group] = {0: 0, 1: 1}

    async def form_group(self, engine):
        body = dict(master_address="127.0.0.1", master_port=self.port, rank_offset=1)
        body.update(world_size=2, group_name=GROUP, backend="nccl")
        await asyncio.gather(
            asyncio.to_thread(self.join), engine.post("/init_weights_update_group", body)
        )

    def broadcast(self, bucket):
        flat = torch.cat([weight.detach().view(-1) for _, weight in bucket])
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self.group.broadcast([flat], options).wait()
        torch.cuda.current_stream().synchronize()

    async def update(self, engine, version):
        """Seconds of the pause, the transfer and the continuation."""
        times = [time.perf_counter()]
        await engine.post("/pause_generation", dict(mode="abort"))
        times.append(time.perf_counter())
        for index, bucket in enumerate(self.buckets):
            body = dict(
                names=[name for name, _ in bucket],
                dtypes=["bfloat16"] * len(bucket),
                shapes=[list(weight.shape) for _, weight in bucket],
                group_name=GROUP,
                load_format="flattened_bucket",
                flush_cache=index + 1 == len(self.buckets),
                weight_version=str(version),
            )
            await asyncio.gather(
                asyncio.to_thread(self.broadcast, bucket),
                engine.post("/update_weights_from_distributed", body),
            )
        times.append(time.perf_counter())
        await engine.post("/continue_generation", {})
        times.append(time.perf_counter())
        return [round(end - start, 4) for start, end in zip(times, times[1:])]


class Loop:
    def __init__(self, settings, engine, trainer, weights):
        self.settings, self.engine = settings, engine
        self.trainer, self.weights = trainer, weights
        self.draw, self.version = random.Random(7), 0
        self.vocabulary = SHAPES[settings.shape]["vocab_size"]

    def length(self, kind):
        if kind == "fixed":
            return FIXED
        if kind == "geometric":
            goes_on = math.log(1 - STOPS / self.vocabulary)
            return min(LONGEST, 1 + int(math.log(1 - self.draw.random()) / goes_on))
        drawn = round(220 * math.exp(0.8 * self.draw.gauss(0, 1)))
        return min(LONGEST, max(SHORTEST, drawn))

    async def group(self, kind):
        prompt = [self.draw.randrange(self.vocabulary) for _ in range(PROMPT)]
        lengths = [self.length(kind) for _ in range(self.settings.samples)]
        outputs = await asyncio.gather(*(self.engine.sample(prompt, each) for each in lengths))
        rewards = [float(self.draw.random() < 0.5) for _ in outputs]
        mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
        return [
            Sample(prompt, tokens, logprobs, (reward - mean) / (deviation + 1e-6))
            for (tokens, logprobs), reward in zip(outputs, rewards)
        ]

    async def rollout(self, kind):
        """All samples of a step and the seconds for which they were sampled."""
        started = time.perf_counter()
        groups = [self.group(kind) for _ in range(self.settings.prompts)]
        samples = [sample for group in await asyncio.gather(*groups) for sample in group]
        return samples, time.perf_counter() - started

    async def train(self, samples):
        started = time.perf_counter()
        await asyncio.to_thread(self.trainer.step, samples)
        return time.perf_counter() - started

    async def step(self, kind, mode, running):
        """One step. In mode `async`, `running` samples its completions already."""
        started = time.perf_counter()
        samples, rollout_s = await (running or self.rollout(kind))
        following = asyncio.create_task(self.rollout(kind)) if mode == "async" else None
        await asyncio.sleep(0)
        train_s = await self.train(samples)
        if following:
            # The update aborts requests: the peer waits for them, as one step off does.
            await asyncio.wait([following])
        self.version += 1
        update_s = await self.weights.update(self.engine, self.version)
        figures = dict(
            step_s=time.perf_counter() - started,
            rollout_s=rollout_s,
            train_s=train_s,
            update_s=sum(update_s),
            sampled_tokens=sum(len(sample.completion) for sample in samples),
            trained_tokens=sum(sample.tokens() for sample in samples),
        )
        return figures, following, update_s

    async def measure(self, kind, mode):
        rows, running = [], None
        for index in range(self.settings.warmup + self.settings.steps):
            row, running, update_s = await self.step(kind, mode, running)
            if index >= self.settings.warmup:
                rows.append(row)
        if running:
            await running
        figures = {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}
        figures["mean_step_s"] = round(statistics.fmean(row["step_s"] for row in rows), 4)
        figures.update(
            lengths=kind,
            mode=mode,
            pause_transfer_continue_s=update_s,
            sampled_tok_per_s=round(figures["sampled_tokens"] / figures["rollout_s"]),
            trained_tok_per_s=round(figures["trained_tokens"] / figures["train_s"]),
            peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1),
        )
        print(json.dumps(figures), flush=True)


def save_model(model, folder):
    if not (folder / "config.json").exists():
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        config.pop("_attn_implementation", None)
        (folder / "config.json").write_text(json.dumps(config))


def start_server(settings):
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(settings.model)]
    command += ["--host=127.0.0.1", f"--port={settings.port}", "--skip-tokenizer-init"]
    command += ["--dtype=bfloat16", "--mem-fraction-static=0.8", "--max-running-requests=512"]
    command += ["--log-level-http=warning", *settings.engine_argument]
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="0", HF_HUB_OFFLINE="1")
    log = settings.log.open("w")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


async def run(settings, server, trainer):
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        engine = Engine(settings.port, session)
        await engine.wait_until_up(server, settings.log)
        weights = Weights(trainer.model, settings.update_port)
        await weights.form_group(engine)
        loop = Loop(settings, engine, trainer, weights)
        for pair in settings.pairs:
            await loop.measure(*pair.split("-"))


def main():
    settings = arguments()
    model = random_model(SHAPES[settings.shape], DEVICE)
    save_model(model, settings.model)
    server = start_server(settings)
    try:
        is_geometric = any(pair.startswith("geometric") for pair in settings.pairs)
        shortest = 1 if is_geometric else SHORTEST
        limits = Limits(settings.bin, settings.chunk, PROMPT + LONGEST, PROMPT + shortest)
        asyncio.run(run(settings, server, Trainer(model, limits, DEVICE)))
    finally:
        server.terminate()
        server.wait(30)


main()
