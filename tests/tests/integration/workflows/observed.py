"""Environment of the quick start's sums whose first observation is the end of the question.

The prompt is `27+`, and `reset` answers with `58=`. Steps are those of the sample `sums.py`, whose
folder is the argument.
"""

import json
import sys

sys.path.insert(0, sys.argv[1])
from sums import Sums

sums = Sums()
for line in sys.stdin:
    [(route, request)] = json.loads(line).items()
    if route == "step":
        answer = sums.step(request)
    else:
        hidden = int(request["answer"]) - int(request["prompt"].rstrip("+"))
        observation = f"{hidden:02}="
        sums.reset({**request, "prompt": request["prompt"] + observation})
        answer = {"observation": observation}
    print(json.dumps(answer), flush=True)
