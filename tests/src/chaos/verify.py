"""Command of a reward: compares the completion with the answer."""

import json
import sys

for line in sys.stdin:
    request = json.loads(line)
    correct = request["completion"].strip() == request["answer"].strip()
    print(json.dumps({"id": request["id"], "reward": float(correct)}), flush=True)
