"""Calls a reward function of the user for each request on standard input, in the sandbox.

A request and a response are a line of JSON each. An exception ends the process: the sample is
retried, then rejected. What the function prints goes to standard error.
"""
import importlib.util
import json
import os
import sys

path, name = sys.argv[1:]
responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
sys.path[:] = [os.path.dirname(path)] + [folder for folder in sys.path if folder]
spec = importlib.util.spec_from_file_location("reward_function", path)
module = importlib.util.module_from_spec(spec)
sys.modules["reward_function"] = module
spec.loader.exec_module(module)
function = getattr(module, name)
for line in sys.stdin:
    request = json.loads(line)
    score = function(
        prompt=request["prompt"], completion=request["completion"], answer=request["answer"]
    )
    response = dict(score) if isinstance(score, dict) else {"reward": float(score)}
    response["id"] = request["id"]
    print(json.dumps(response, allow_nan=False), file=responses, flush=True)
