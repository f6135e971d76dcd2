"""Agent that checks /v1/completions with OpenAI's client: texts, token ids, continued prompts."""

import json
import math
import sys

import openai

row = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)
prompt = row["question"]


def create(prompt=prompt, **parameters):
    return client.completions.create(model="policy", prompt=prompt, **parameters)


def rejected(part, call):
    try:
        call()
    except openai.BadRequestError as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"no error: {part}")


def ids(choice):
    """Token ids of a choice and of its prompt, which are no part of OpenAI's API."""
    extra = choice.model_extra
    return extra["prompt_token_ids"], extra["token_ids"]


# A text, with its tokens, their log-probabilities and ids.
first = create(logprobs=1, extra_body={"return_token_ids": True})
assert first.object == "text_completion" and first.model == "policy"
choice = first.choices[0]
assert choice.finish_reason in ("stop", "length")
found = choice.logprobs
assert first.usage.completion_tokens == len(found.tokens) == len(found.token_logprobs)
assert all(math.isfinite(logprob) and logprob <= 0 for logprob in found.token_logprobs)
assert found.text_offset[0] == 0 and "".join(found.tokens).startswith(choice.text)
given, sampled = ids(choice)
assert first.usage.prompt_tokens == len(given) and first.usage.completion_tokens == len(sampled)
assert create().choices[0].logprobs is None

# Choices, and a stream of the same shape.
several = create([prompt], n=2, max_tokens=1)
assert [choice.index for choice in several.choices] == [0, 1]
assert several.usage.completion_tokens == 2
chunks = list(create(stream=True, stream_options={"include_usage": True}))
reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
assert reasons.pop() in ("stop", "length") and not any(reasons), reasons
assert chunks[-1].usage.completion_tokens > 0

# Errors.
rejected("one prompt", lambda: create([prompt, prompt]))
rejected("echo", lambda: create(echo=True))
rejected("logprobs", lambda: create(logprobs=5))
rejected("suffix", lambda: create(suffix="."))
rejected("temperature", lambda: create(temperature=0.5))
rejected("vocabulary", lambda: create([1 << 40]))
rejected("vocabulary", lambda: create([-1]))

# Token ids continue the completion whose tokens they repeat, whatever its text is.
rest = given[-2:]
by_ids = create(given + sampled + rest, extra_body={"return_token_ids": True})
assert ids(by_ids.choices[0])[0] == given + sampled + rest

# A text continues the completion that it repeats: its prompt has the exact tokens so far.
text = prompt + choice.text + prompt
by_text = create(text, extra_body={"return_token_ids": True})
before, _ = ids(by_text.choices[0])
assert before[: len(given) + len(sampled)] == given + sampled, (before, given, sampled)
assert len(before) > len(given) + len(sampled)

# The sample is the branch of the text; every completion of it is trained on.
client.post(
    "/rljob/reward", body={"reward": 0.25, "completion": first.id}, cast_to=object
)
client.post("/rljob/reward", body={"reward": 1.0}, cast_to=object)
