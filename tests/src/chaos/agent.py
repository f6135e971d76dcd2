"""Agent of two turns without a client library, which would take most of the time of a sample."""

import json
import os
import socket
import sys

host, port = os.environ["OPENAI_BASE_URL"].removeprefix("http://").split("/")[0].split(":")


def post(path, body):
    """Posts JSON on a new connection. A failure fails the program, which is then run again."""
    body = json.dumps(body).encode()
    head = (
        f"POST /v1{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\r\nContent-Length: {len(body)}\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"\r\n" + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return json.loads(content)


row = json.load(sys.stdin)
messages = [{"role": "user", "content": row["question"]}]
for turn in range(2):
    completion = post("/chat/completions", {"model": "policy", "messages": messages})
    answer = completion["choices"][0]["message"]["content"] or ""
    if answer == row["answer"]:
        break
    messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": " " + row["question"]})
post("/rljob/reward", {"reward": float(answer == row["answer"])})
