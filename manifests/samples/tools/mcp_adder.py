#!/usr/bin/env python3
"""MCP server of tools-mcp.yaml: a tool that adds two numbers.

    mcp_adder.py [PORT]

With port 0 (default 8702), the system chooses one; the server prints its URL. It needs the package
`mcp` of PyPI, from version 2. With the environment variable TOKEN, requests must carry it as a
bearer token.
"""

import hmac
import logging
import os
import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

logging.disable(logging.INFO)
server = MCPServer("adder")


@server.tool()
def add(a: str, b: str) -> str:
    """Adds two numbers; the sum has three digits, as the answers of the quick start."""
    return f"{int(a) + int(b):03}"


def guarded(app, token):
    """The app for requests with the token; others get the status 401."""
    expected = f"Bearer {token}".encode()

    async def checked(scope, receive, send):
        sent = dict(scope.get("headers", [])).get(b"authorization", b"")
        if scope["type"] != "http" or hmac.compare_digest(sent, expected):
            return await app(scope, receive, send)
        headers = [(b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"the token is missing or wrong"})

    return checked


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8702))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    app, token = server.streamable_http_app(), os.environ.get("TOKEN")
    config = uvicorn.Config(guarded(app, token) if token else app, log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])
