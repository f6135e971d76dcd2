"""Command of a reward: compares the completion with the answer, and tries to leave its container. A
component is 1 if its attempt failed, and `works` is 1 if what a command may do succeeds."""

import json
import os
import socket
import sys
import time

from container import content


def refused(attempt):
    try:
        attempt()
    except OSError:
        return 1
    return 0


parts = {
    "key": refused(lambda: os.listdir("/rljob/tokens")),
    "account": refused(lambda: os.listdir("/var/run/secrets/kubernetes.io/serviceaccount")),
    "run": refused(lambda: os.listdir("/rljob/runs")),
    "environment": int(b"CREDENTIAL" not in content("/proc/*/environ")),
    "bridge": int(b"tls-file" not in content("/proc/[0-9]*/cmdline")),
    "network": refused(lambda: socket.create_connection(("127.0.0.1", 8083), 1)),
    "works": 1 - refused(lambda: open("/tmp/written", "w").write(open("/data/train.jsonl").read())),
}
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(0.05)
    correct = request["completion"].strip() == request["answer"].strip()
    response = {"id": request["id"], "reward": float(correct), "components": parts}
    print(json.dumps(response), flush=True)
