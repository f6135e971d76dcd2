"""Peer of the rollout benchmark: aiohttp client.

For each line N on standard input: N requests, then N ÷ seconds of processor time on standard
output.

usage: rollout_peer.py URL GROUP GROUPS BODY
"""
import asyncio
import json
import sys
import time

import aiohttp

url, size, in_flight = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
body = json.loads(sys.argv[4])
longest, vocabulary = body["sampling_params"]["max_new_tokens"], 50_000


async def sample(session, number):
    """Samples one completion, checks it, and returns tokens and log-probabilities."""
    request = {**body, "rid": f"r.{number:010}."}
    async with session.post(f"{url}/generate", json=request) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                newest = line[5:]
    answer = json.loads(newest)
    meta, tokens = answer["meta_info"], answer["output_ids"]
    logprobs = [logprob for logprob, _, _ in meta["output_token_logprobs"]]
    assert meta["weight_version"] == "step-0.attempt-0"
    assert meta["finish_reason"]["type"] == "length"
    assert len(logprobs) == len(tokens) <= longest
    assert all(0 <= token < vocabulary for token in tokens)
    return tokens, logprobs


async def groups(session, firsts):
    """Samples groups in sequence while the shared iterator `firsts` has more."""
    for first in firsts:
        await asyncio.gather(*(sample(session, first + index) for index in range(size)))


async def main():
    headers = {"Authorization": "Bearer secret"}
    connector = aiohttp.TCPConnector(limit=size * in_flight)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        for line in iter(sys.stdin.readline, ""):
            requests = int(line)
            start = time.process_time()
            firsts = iter(range(0, requests, size))
            await asyncio.gather(*(groups(session, firsts) for _ in range(in_flight)))
            print(requests / (time.process_time() - start), flush=True)


asyncio.run(main())
