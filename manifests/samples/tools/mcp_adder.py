#!/usr/bin/env python3
"""MCP server of tools-mcp.yaml: a tool that adds two numbers.

    mcp_adder.py [PORT]

With port 0 (default 8702), the system chooses one; the server prints its URL. It needs the package
`mcp` of PyPI, from version 2.
"""

import logging
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


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8702))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])
