#!/usr/bin/env python3
"""Environment of two-turns.yaml: a sum whose second number the model must ask for.

The prompt is `27+`. The completion `=` asks: it has the reward 0, and the message ` 27+58=` shows
the whole question. Any other completion is an answer, which ends the episode with the reward 1 if
it is right. A program plays one episode, over standard input and output as sums.py does. Only the
standard library is used.
"""

import json
import sys

ASK = "="


class HiddenOperand:
    def reset(self, request):
        self.prompt, self.answer = request["prompt"], request["answer"]
        return {}

    def step(self, request):
        completion = request["completion"].strip()
        if request["turn"] == 1 and completion == ASK:
            hidden = int(self.answer) - int(self.prompt.rstrip("+"))
            question = {"role": "user", "content": f" {self.prompt}{hidden:02}="}
            return {"reward": 0, "done": False, "messages": [question]}
        return {"reward": float(completion == self.answer), "done": True}


if __name__ == "__main__":
    episode = HiddenOperand()
    routes = {"reset": episode.reset, "step": episode.step}
    for line in sys.stdin:
        [(route, request)] = json.loads(line).items()
        print(json.dumps(routes[route](request)), flush=True)
