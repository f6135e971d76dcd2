"""Agent that checks chat completions with OpenAI's client: answers, streams, choices, branches, errors."""

import json
import math
import sys

import openai

row = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)
prompt = [{"role": "user", "content": row["question"]}]


def create(messages=prompt, **parameters):
    return client.chat.completions.create(model="policy", messages=messages, **parameters)


def post(path, **body):
    return client.post(path, body=body, cast_to=object)


def rejected(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {part}")


assert [model.id for model in client.models.list()] == ["policy"]

# One answer, with the log-probability of each token.
first = create(logprobs=True, max_tokens=4)
assert first.model == "policy" and first.object == "chat.completion"
choice = first.choices[0]
assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
tokens = choice.logprobs.content
assert first.usage.completion_tokens == len(tokens) <= 4
assert first.usage.prompt_tokens > 0
assert all(math.isfinite(token.logprob) and token.logprob <= 0 for token in tokens)
assert "".join(token.token for token in tokens).startswith(choice.message.content)
assert create().choices[0].logprobs is None

# Choices, and a stream of the same shape.
several = create(n=3)
assert [choice.index for choice in several.choices] == [0, 1, 2]
options = {"stream": True, "stream_options": {"include_usage": True}}
chunks = list(create(logprobs=True, n=2, **options))
assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices
sampled = 0
for index in range(2):
    parts = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == index]
    assert parts[0].delta.role == "assistant"
    reasons = [part.finish_reason for part in parts]
    assert reasons.pop() in ("stop", "length") and not any(reasons), reasons
    text = "".join(part.delta.content or "" for part in parts)
    tokens = [token for part in parts if part.logprobs for token in part.logprobs.content]
    assert text and "".join(token.token for token in tokens).startswith(text), (text, tokens)
    sampled += len(tokens)
assert chunks[-1].usage.completion_tokens == sampled

# A stop string ends a completion and is not part of it.
digit = several.choices[1].message.content[:1]
if digit:
    assert digit not in create(stop=digit).choices[0].message.content

# Errors.
rejected(openai.BadRequestError, "temperature", lambda: create(temperature=0.5))
tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
rejected(openai.BadRequestError, "format Chat", lambda: create(tools=[tool]))
rejected(openai.BadRequestError, "missing field", lambda: create(tools=[{"type": "function"}]))
rejected(openai.BadRequestError, "tool_choice", lambda: create(tool_choice="required"))
rejected(openai.BadRequestError, "seed", lambda: create(seed=1))
rejected(openai.BadRequestError, "maxTurns", lambda: create(n=100))
long = [{"role": "user", "content": row["question"] * 40}]
rejected(openai.BadRequestError, "leaves none", lambda: create(long))
stranger = client.with_options(api_key="rljob-0")
rejected(openai.AuthenticationError, "API key", lambda: stranger.models.list())
rejected(openai.NotFoundError, "no route", lambda: post("/embeddings"))
unknown = {"reward": 1, "completion": "nothing"}
rejected(openai.NotFoundError, "nothing", lambda: post("/rljob/reward", **unknown))
rejected(openai.BadRequestError, "expected f64", lambda: post("/rljob/reward", reward="1"))

# A branch continues the last choice, the newest of equal ones; the sample is that branch, not the
# last completion.
several = create(n=3)
reply = {"role": "assistant", "content": several.choices[2].message.content}
branch = create(prompt + [reply, {"role": "user", "content": " " + row["question"]}])
create()
post("/rljob/reward", reward=0.25, completion=several.id, choice=2)
post("/rljob/reward", reward=1.0)
post("/rljob/finish", completion=branch.id)
