"""Agent that checks /v1/responses with OpenAI's client: texts, items, streams, continued responses."""

import json
import math
import sys

import openai

row = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)
question = row["question"]


def create(input=question, **parameters):
    return client.responses.create(model="policy", input=input, **parameters)


def rejected(part, call):
    try:
        call()
    except openai.BadRequestError as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"no error: {part}")


# A text, with the log-probability of each token.
first = create(include=["message.output_text.logprobs"])
assert first.object == "response" and first.model == "policy"
assert first.status in ("completed", "incomplete")
assert (first.incomplete_details is None) == (first.status == "completed")
message = first.output[0]
assert message.type == "message" and message.role == "assistant"
tokens = message.content[0].logprobs
assert all(math.isfinite(token.logprob) and token.logprob <= 0 for token in tokens)
assert first.usage.output_tokens == len(tokens)
assert first.usage.total_tokens == first.usage.input_tokens + len(tokens)
assert "".join(token.token for token in tokens).startswith(first.output_text)
cut = create(max_output_tokens=1)
assert cut.usage.output_tokens == 1
assert cut.status == "completed" or cut.incomplete_details.reason == "max_output_tokens"

# A stream has the same response, in parts.
events = list(create(stream=True))
assert [event.sequence_number for event in events] == list(range(len(events)))
kinds = [event.type for event in events]
assert kinds[:2] == ["response.created", "response.in_progress"]
assert events[0].response.status == "in_progress"
assert kinds[-1] in ("response.completed", "response.incomplete")
streamed = events[-1].response
text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
assert text == streamed.output_text and streamed.id == events[0].response.id
assert streamed.usage.output_tokens > 0

# The helper of the client that collects a stream.
with client.responses.stream(model="policy", input=question) as stream:
    for event in stream:
        if event.type == "response.output_text.done":
            text = event.text
    # It knows no end but `response.completed`.
    if event.type == "response.completed":
        assert stream.get_final_response().output_text == text

# Errors.
rejected("temperature", lambda: create(temperature=0.5))
rejected("reasoning", lambda: create(reasoning={"effort": "low"}))
rejected("background", lambda: create(background=True))
rejected("conversation", lambda: create(conversation="conv"))
rejected("must not be empty", lambda: create([]))
rejected("item_reference", lambda: create([{"type": "item_reference", "id": "msg"}]))
rejected("no response of this session", lambda: create(previous_response_id="resp"))
tool = {"type": "function", "name": "add", "parameters": {"type": "object"}}
rejected("format Chat", lambda: create(tools=[tool]))
rejected("tool_choice", lambda: create(tool_choice="required"))

# Items repeat the conversation; previous_response_id names it. Both continue its exact tokens.
items = [{"role": "user", "content": question}, *(item.model_dump() for item in first.output)]
by_items = create([*items, {"role": "user", "content": " " + question}])
by_id = create(" " + question, previous_response_id=first.id)
assert by_id.previous_response_id == first.id
before = first.usage.input_tokens + first.usage.output_tokens
assert by_items.usage.input_tokens == by_id.usage.input_tokens > before

# Instructions are not inherited: a response without those of the previous one starts again.
told = create(" " + question, instructions=question)
assert told.instructions == question
again = create(question, instructions=question, previous_response_id=told.id)
assert again.usage.input_tokens > told.usage.input_tokens + told.usage.output_tokens
untold = create(question, previous_response_id=told.id)
assert untold.usage.input_tokens < again.usage.input_tokens

# The sample is the continued response.
client.post("/rljob/reward", body={"reward": 0.25, "completion": first.id}, cast_to=object)
client.post("/rljob/reward", body={"reward": 1.0, "completion": by_id.id}, cast_to=object)
client.post("/rljob/finish", body={"completion": by_id.id}, cast_to=object)
