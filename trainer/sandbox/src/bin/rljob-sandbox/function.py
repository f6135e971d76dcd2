"""Calls a reward function of the user for each request on standard input, in the sandbox.

A request and a response are a line of JSON each; `null` asks only whether the function can be
called. An exception, or a result that is not a reward, is answered with `{"id", "fault"}`, which
rejects the sample; the process continues. Exceptions of memory end it: a new process may succeed. A
file without a function that takes the keywords ends it with `UNUSABLE`, which fails the run. What
the function prints goes to standard error.
"""
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback

UNUSABLE = 126
KEYWORDS = ("prompt", "completion", "answer")
EXPECTED = (
    'return a number, or {"reward": number, "components": {name: number}, "answer": text}, for each '
    "completion"
)
# Longest text of a result or an exception, in characters.
EXCERPT = 150

path, name = sys.argv[1:]


def unusable(cause):
    print(" ".join(cause.split()), file=sys.stderr, flush=True)
    sys.exit(UNUSABLE)


def keyword_sets(function):
    """Sets of keywords of a request with which the function can be called, the largest last."""
    sets, cause = [], None
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions of C extensions have none
        return [KEYWORDS]
    for keywords in (KEYWORDS, (*KEYWORDS, "fields")):
        try:
            signature.bind(**dict.fromkeys(keywords))
            sets.append(keywords)
        except TypeError as error:
            cause = cause or error
    if not sets:
        unusable(
            f"{path}: {name}{signature} is called with the keywords prompt, completion and "
            f"answer: {cause}"
        )
    return sets


class NoReward(Exception):
    """A result that is not a reward."""


def excerpt(text):
    text = " ".join(text.split())
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "…"


def shown(value):
    try:
        text = repr(value)
    except Exception:
        text = "a value that cannot be printed"
    return f"{excerpt(text)} ({type(value).__name__})" if value is not None else "None"


def number(value, what):
    try:
        # Numbers of other libraries, as those of NumPy, convert themselves; text would be parsed.
        result = None if isinstance(value, (str, bytes, bytearray)) else float(value)
    except (TypeError, ValueError, OverflowError):
        result = None
    if result is None or not math.isfinite(result):
        raise NoReward(f"returned {shown(value)}{what}; {EXPECTED}")
    return result


def response_of(result):
    if not isinstance(result, dict):
        return {"reward": number(result, "")}
    unknown = [key for key in result if key not in ("reward", "components", "answer")]
    components, answer = result.get("components"), result.get("answer")
    if "reward" not in result or unknown or not isinstance(components, (dict, type(None))):
        raise NoReward(f"returned {shown(result)}; {EXPECTED}")
    if not isinstance(answer, (str, type(None))):
        raise NoReward(f"returned {shown(answer)} as answer; {EXPECTED}")
    return {
        "reward": number(result["reward"], " as reward"),
        "components": {
            str(name): number(value, f" as component {name}")
            for name, value in (components or {}).items()
        },
        "answer": answer,
    }


def raised(error):
    """The exception with the last line of the user's file that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    place = f" (line {lines[-1]} of {os.path.basename(path)})" if lines else ""
    return f"raised {type(error).__name__}: {excerpt(str(error))}{place}"


def called(function, accepted, request):
    possible = [keywords for keywords in accepted if request.keys() >= set(keywords)]
    if not possible:
        return {"fault": "takes fields, of which the data have none: set their rewardFields"}
    arguments = {key: request[key] for key in possible[-1]}
    try:
        return response_of(function(**arguments))
    except MemoryError:
        raise
    except NoReward as fault:
        return {"fault": str(fault)}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"fault": raised(error)}


# Own files: `exit` closes standard input, and `print` writes to standard output.
requests = os.fdopen(os.dup(0), encoding="utf-8")
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
accepted = keyword_sets(function)
for line in requests:
    request = json.loads(line)
    if request is None:
        print("null", file=responses, flush=True)
        continue
    response = {"id": request["id"], **called(function, accepted, request)}
    print(json.dumps(response, allow_nan=False), file=responses, flush=True)
