"""Raw broadcasts of NCCL between two GPUs: the bytes of a model in buckets of 1 GiB.

Started with torchrun, one process per GPU. Rank 0 prints one line of JSON with the seconds of each
broadcast of all buckets, after the first, which connects the GPUs.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist

BUCKET = 1 << 30


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bytes", type=int)
    parser.add_argument("--times", type=int, default=10)
    settings = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    sizes = [BUCKET] * (settings.bytes // BUCKET) + [settings.bytes % BUCKET]
    buckets = [torch.zeros(size, dtype=torch.uint8, device="cuda") for size in sizes if size]
    seconds = []
    for _ in range(settings.times + 1):
        dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for bucket in buckets:
            dist.broadcast(bucket, src=0)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    if dist.get_rank() == 0:
        print(json.dumps(dict(bytes=settings.bytes, seconds=seconds[1:])), flush=True)
    dist.destroy_process_group()


main()
