#!/usr/bin/env python3
"""Agent with a tool that runs Python programs of the model. The reward is 1 for the right answer.

A program runs in a process with limits of time, memory, files and output, in an empty folder and
without environment variables. It has the user and the network of the agent, and can therefore read
what the agent can: run agents in verifier pods, which have no tokens, and whose policy admits no
connection from them.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile

from openai import BadRequestError, OpenAI

TURNS = 3
SECONDS = 5
MEMORY_BYTES = 512 << 20
FILE_BYTES = 1 << 20
OUTPUT_BYTES = 2000

TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs a Python program.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
}


def limit():
    """Limits of a program, set in its process."""
    for what, most in (
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def run(code):
    """What a program prints, or its error."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=limit,
        )
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return f"error: the program did not end within {SECONDS} s"
        finally:
            # Also what it has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read(OUTPUT_BYTES).decode(errors="replace").rstrip("\n")
    if status == 0:
        return text
    return f"error: {text.splitlines()[-1] if text else f'status {status}'}"


def result(call):
    """The result of a tool call."""
    arguments = json.loads(call.function.arguments)
    code = arguments.get("code") if isinstance(arguments, dict) else None
    if call.function.name != "python" or not isinstance(code, str):
        return "error: call python with the text `code`"
    return run(code)


def main():
    row = json.load(sys.stdin)
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    messages, answer = [{"role": "user", "content": row["question"]}], None
    for _ in range(TURNS):
        try:
            completion = client.chat.completions.create(
                model="policy", messages=messages, tools=[TOOL]
            )
        except BadRequestError:
            break  # no room for a further completion: the sample has no answer
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            answer = message.content
            break
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result(call)})
    reward = {"reward": float(answer == row["answer"])}
    client.post("/rljob/reward", body=reward, cast_to=object)


if __name__ == "__main__":
    main()
