#!/usr/bin/env python3
"""Environment of the quick start's sums as a program: one process plays one episode.

It reads a request from each line of standard input and answers with a line of standard output. A
right answer has the reward 1 and ends the episode. A wrong one has the reward -0.25, and the
question is asked again. The process is killed at the end of the episode. Only the standard library
is used.
"""

import json
import sys


class Sums:
    def reset(self, request):
        self.question, self.answer = request["prompt"], request["answer"]
        return {}

    def step(self, request):
        if request["completion"].strip() == self.answer:
            return {"reward": 1, "done": True}
        again = {"role": "user", "content": " " + self.question}
        return {"reward": -0.25, "done": False, "messages": [again]}


if __name__ == "__main__":
    sums = Sums()
    routes = {"reset": sums.reset, "step": sums.step}
    for line in sys.stdin:
        [(route, request)] = json.loads(line).items()
        print(json.dumps(routes[route](request)), flush=True)
