"""The echo server as its author would write it with the official SDK, over stdio.

python sdk_server.py
"""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("echo", log_level="CRITICAL")


@server.tool()
def echo(text: str) -> str:
    """Echo the text back."""
    return text


if __name__ == "__main__":
    server.run("stdio")
