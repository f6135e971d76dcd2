"""Agent with a tool, with OpenAI's client: checks calls, streams of calls and their conversation.

It adds with the tool that the model calls. The reward is 1 if the answer to the result is the sum.
"""

import json
import sys

import openai

row = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)
tool = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "required": ["a", "b"],
        },
    },
}
messages = [{"role": "user", "content": row["question"]}]


def create(**parameters):
    return client.chat.completions.create(
        model="policy", messages=messages, tools=[tool], **parameters
    )


def streamed(**parameters):
    """Message and reason of a streamed completion, as those of one that is not streamed."""
    content, calls, reason = "", {}, None
    for chunk in create(stream=True, **parameters):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            calls[call.index] = call.model_dump(exclude={"index"})
        reason = choice.finish_reason or reason
    message = {"role": "assistant", "content": content or None}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message, reason


try:
    create(tool_choice="required")
except openai.BadRequestError as error:
    assert "tool_choice" in str(error), error
else:
    raise AssertionError("tool_choice is not rejected")

# Without parsing, a call is text.
plain = create(tool_choice="none").choices[0]
assert plain.message.tool_calls is None and plain.finish_reason in ("stop", "length")

# The samples of a row alternate between streams and single responses.
if int(row["question"][0]) % 2:
    message, reason = streamed()
else:
    choice = create().choices[0]
    message, reason = choice.message.model_dump(exclude_none=True), choice.finish_reason
reward = 0.0
if message.get("tool_calls"):
    assert reason in ("tool_calls", "length"), reason
    messages.append(message)
    for call in message["tool_calls"]:
        assert call["type"] == "function" and call["id"] and call["function"]["name"] == "add"
        numbers = json.loads(call["function"]["arguments"])
        try:
            result = f"{int(numbers['a']) + int(numbers['b']):03}"
        except (KeyError, ValueError):
            result = "error"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    answer = create(tool_choice="none")
    # Prompt, completion, result: the conversation continues.
    assert answer.usage.prompt_tokens > len(row["question"]) + 15, answer.usage
    reward = float(answer.choices[0].message.content == row["answer"])
else:
    assert reason in ("stop", "length"), reason
client.post("/rljob/reward", body={"reward": reward}, cast_to=object)
