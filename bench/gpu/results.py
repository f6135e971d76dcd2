"""Rows of results.jsonl, and the GPUs that they name."""

import json
import subprocess


def gpus():
    """Names of the machine's GPUs."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()


def gigabytes():
    """Memory of the first GPU."""
    query = ["nvidia-smi", "--id=0", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    mebibytes = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return int(mebibytes) * 2**20 / 1e9


def append(file, row):
    with file.open("a") as out:
        out.write(json.dumps(row) + "\n")
