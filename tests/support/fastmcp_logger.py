"""A server of FastMCP's, on stdio, run by `forked`.

It declares that it logs. Of 2026-07-28 it does so only for requests that name a level.
"""

from __future__ import annotations

from fastmcp import Context, FastMCP
from mcp.types import LoggingLevel

server = FastMCP("logger")


@server.tool
async def log(text: str, level: LoggingLevel, context: Context) -> str:
    await context.log(text, level=level)
    return "logged"


def main() -> None:
    server.run(show_banner=False)
