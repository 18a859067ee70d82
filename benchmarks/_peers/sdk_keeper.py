"""A server that keeps what it is told, as its author would write it with the official SDK, over stdio.

python sdk_keeper.py
"""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("keeper", log_level="CRITICAL")
kept: list[str] = []


@server.tool()
def keep(text: str) -> str:
    """Keep a text, and say all that are kept."""
    kept.append(text)
    return ",".join(kept)


@server.tool()
def reset() -> str:
    """Forget everything."""
    kept.clear()
    return "done"


if __name__ == "__main__":
    server.run("stdio")
