"""Calls a reward function of the user for each request on standard input, in the sandbox.

A request and a response are a line of JSON each; `null` asks only whether the function can be
called. An exception ends the process: the sample is retried, then rejected. A file without a
function that takes the keywords ends it with `UNUSABLE`, which fails the run. What the function
prints goes to standard error.
"""
import importlib.util
import inspect
import json
import os
import sys
import traceback

UNUSABLE = 126

path, name = sys.argv[1:]


def unusable(cause):
    print(" ".join(cause.split()), file=sys.stderr, flush=True)
    sys.exit(UNUSABLE)


def check(function):
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions of C extensions have none
        return
    try:
        signature.bind(prompt="", completion="", answer="")
    except TypeError as error:
        unusable(
            f"{path}: {name}{signature} is called with the keywords prompt, completion and "
            f"answer: {error}"
        )


responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
sys.path[:] = [os.path.dirname(path)] + [folder for folder in sys.path if folder]
spec = importlib.util.spec_from_file_location("reward_function", path)
module = importlib.util.module_from_spec(spec)
sys.modules["reward_function"] = module
try:
    spec.loader.exec_module(module)
except (Exception, SystemExit) as error:
    traceback.print_exc()
    unusable(f"{path} cannot be imported: {type(error).__name__}: {error}")
function = getattr(module, name, None)
if not callable(function):
    found = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    unusable(f"{path} has no function {name}; it has {', '.join(found) or 'none'}")
check(function)
for line in sys.stdin:
    request = json.loads(line)
    if request is None:
        print("null", file=responses, flush=True)
        continue
    score = function(
        prompt=request["prompt"], completion=request["completion"], answer=request["answer"]
    )
    response = dict(score) if isinstance(score, dict) else {"reward": float(score)}
    response["id"] = request["id"]
    print(json.dumps(response, allow_nan=False), file=responses, flush=True)
