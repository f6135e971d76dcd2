"""Agent in a verifier pod: checks what its container can reach, then runs the agent of
tests/openai/api.py."""

import glob
import os
import runpy
import socket
import urllib.parse


def content(files):
    text = b""
    for file in glob.glob(files):
        try:
            text += open(file, "rb").read()
        except OSError:
            pass
    return text


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
assert b"tls-file" not in content("/proc/[0-9]*/cmdline"), "the bridge is in this container"
assert b"CREDENTIAL" not in content("/proc/*/environ"), "a variable of the coordinator"
# The bridge needs the certificate of the coordinator.
assert b"rljob" not in answer(("127.0.0.1", 8083), b'{"Command": ["true"]}\n')
# The base URL is a port of this pod.
proxy = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
assert proxy.hostname == "127.0.0.1", proxy
assert b" 404 " in answer((proxy.hostname, proxy.port), b"GET /exit HTTP/1.0\r\n\r\n")
runpy.run_path("/data/api.py")
