"""MCP server of tests: tools that answer, and tools that misbehave. Prints its URL."""

import asyncio
import logging
import socket

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer

logging.disable(logging.INFO)
server = MCPServer("tools")


@server.tool()
def add(a: int, b: int) -> str:
    return str(a + b)


@server.tool()
def metadata(context: Context) -> str:
    """What the call says about itself."""
    meta = context.request_context.meta
    return " ".join(str(meta[f"rljob.dev/{name}"]) for name in ["session", "turn", "call"])


@server.tool()
async def slow() -> str:
    await asyncio.sleep(3600)
    return ""


@server.tool()
def flood() -> str:
    return "x" * (2 << 20)


@server.tool()
def picture() -> Image:
    return Image(data=b"x", format="png")


listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
uvicorn.Server(config).run(sockets=[listener])
