"""Agent with a tool over /v1/responses: the loop of agents, whose next input has the items so far.

It adds with the tool that the model calls. The reward is 1 if the answer to the result is the sum.
"""

import json
import sys

import openai

row = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)
tool = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    },
}
items = [{"role": "user", "content": row["question"]}]


def create(input, **parameters):
    return client.responses.create(model="policy", input=input, tools=[tool], **parameters)


def streamed(input, **parameters):
    """The response of a stream, whose events have the same items."""
    done, arguments = [], {}
    for event in create(input, stream=True, **parameters):
        if event.type == "response.function_call_arguments.delta":
            arguments[event.item_id] = arguments.get(event.item_id, "") + event.delta
        elif event.type == "response.output_item.done":
            done.append(event.item)
    assert event.type in ("response.completed", "response.incomplete"), event
    assert done == event.response.output, (done, event.response.output)
    calls = [item for item in done if item.type == "function_call"]
    assert arguments == {call.id: call.arguments for call in calls}, arguments
    return event.response


# Without parsing, a call is text.
plain = create(items, tool_choice="none")
assert [item.type for item in plain.output] == ["message"]
assert plain.tools[0].name == "add" and plain.tool_choice == "none"

# The samples of a row alternate between streams and single responses, and between items and ids.
number = int(row["question"][0])
response = streamed(items) if number % 2 else create(items)
calls = [item for item in response.output if item.type == "function_call"]
reward = 0.0
if calls:
    results = []
    for call in calls:
        assert call.call_id and call.name == "add"
        numbers = json.loads(call.arguments)
        try:
            result = f"{int(numbers['a']) + int(numbers['b']):03}"
        except (KeyError, ValueError):
            result = "error"
        output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
        results.append(output)
    if number % 4 < 2:
        items += [item.model_dump(exclude_none=True) for item in response.output]
        answer = create(items + results, tool_choice="none")
    else:
        answer = create(results, tool_choice="none", previous_response_id=response.id)
    # Prompt, completion, result: the conversation continues.
    before = response.usage.input_tokens + response.usage.output_tokens
    assert answer.usage.input_tokens > before, answer.usage
    reward = float(answer.output_text == row["answer"])
client.post("/rljob/reward", body={"reward": reward}, cast_to=object)
