#!/usr/bin/env python3
"""Agent of two turns: asks a question, and asks it again if the answer is wrong."""

import json
import sys

from openai import OpenAI

row = json.load(sys.stdin)
client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
messages = [{"role": "user", "content": row["question"]}]
for turn in range(2):
    completion = client.chat.completions.create(model="policy", messages=messages)
    answer = completion.choices[0].message.content
    if answer == row["answer"]:
        break
    messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": " " + row["question"]})
reward = {"reward": float(answer == row["answer"])}
client.post("/rljob/reward", body=reward, cast_to=object)
