#!/usr/bin/env python3
"""Agent that answers a question and checks its answer in a second turn. `rewards` scores it."""

import json
import sys

from openai import OpenAI

END = "End with the answer in \\boxed{}."

row = json.load(sys.stdin)
client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
messages = []
for request in (row["question"], "Check each step and correct what is wrong."):
    messages.append({"role": "user", "content": f"{request} {END}"})
    completion = client.chat.completions.create(model="policy", messages=messages)
    answer = completion.choices[0].message.content or ""
    messages.append({"role": "assistant", "content": answer})
