#!/usr/bin/env python3
"""Reward of the quick start's sums as a command: the share of the digits that are right.

It reads a request from each line of standard input and answers with a line of standard output.
"""

import json
import sys


def score(completion, answer):
    completion = completion.strip()
    right = sum(own == digit for own, digit in zip(completion, answer))
    return right / max(len(completion), len(answer))


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)  # id, prompt, completion, answer
        reward = score(request["completion"], request["answer"])
        print(json.dumps({"id": request["id"], "reward": reward}), flush=True)
