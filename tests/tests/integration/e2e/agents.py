"""Agent in a verifier pod: checks what its container can reach, then plays two turns with OpenAI's
client. Its reward is 1.25, whatever the model answers."""

import json
import os
import socket
import sys
import urllib.parse

import openai
from container import content


def answer(address, data):
    """What a server answers before it closes the connection."""
    with socket.create_connection(address, 10) as connection:
        try:
            connection.sendall(data)
            return connection.recv(65536)
        except ConnectionError:
            return b""


for folder in ("/rljob/tokens", "/rljob/runs", "/var/run/secrets/kubernetes.io/serviceaccount"):
    assert not os.path.exists(folder), folder
assert not os.path.exists("/usr/local/bin/rljob-reward-runner"), "the image has the runner"
assert os.path.exists("/rljob/runner/rljob-sandbox"), "no copy of the sandbox"
assert b"tls-file" not in content("/proc/[0-9]*/cmdline"), "the bridge is in this container"
assert b"CREDENTIAL" not in content("/proc/*/environ"), "a variable of the coordinator"
# The bridge needs the certificate of the coordinator.
assert b"rljob" not in answer(("127.0.0.1", 8083), b'{"Command": ["true"]}\n')
# The base URL is a port of this pod.
proxy = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
assert proxy.hostname == "127.0.0.1", proxy
assert b" 404 " in answer((proxy.hostname, proxy.port), b"GET /exit HTTP/1.0\r\n\r\n")

row = json.load(sys.stdin)
# The runner repeats what is lost. A client that repeats requests would hide it.
client = openai.OpenAI(max_retries=0)
messages = [{"role": "user", "content": row["question"]}]


def create(**parameters):
    return client.chat.completions.create(model="policy", messages=messages, **parameters)


def post(path, **body):
    return client.post(path, body=body, cast_to=object)


chunks = list(create(stream=True, stream_options={"include_usage": True}))
assert chunks[-1].usage.completion_tokens > 0
choices = create(n=2)
assert [choice.index for choice in choices.choices] == [0, 1]
messages.append({"role": "assistant", "content": choices.choices[1].message.content})
messages.append({"role": "user", "content": " " + row["question"]})
end = create()
create()
post("/rljob/reward", reward=0.25, completion=choices.id, choice=1)
post("/rljob/reward", reward=1.0)
post("/rljob/finish", completion=end.id)
