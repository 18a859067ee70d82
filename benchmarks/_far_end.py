"""The far end, the two ways to it, and rooms of servers that are never started."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import greenroom
import greenroom.testing.servers
from greenroom import Greenroom

ECHO = str(Path(greenroom.testing.servers.__file__).with_name("echo.py"))
COMMAND = (sys.executable, "-S", ECHO)
TEXT = {"text": "hello"}
BACKENDS = ("trio", "asyncio")


def echo_server() -> dict[str, Any]:
    """The echo server as an entry of `mcpServers`."""
    return {"command": COMMAND[0], "args": list(COMMAND[1:])}


def config_of(count: int, **settings: Any) -> dict[str, Any]:
    """A configuration of `count` echo servers, `echo0` … ."""
    return {"mcpServers": {f"echo{number}": echo_server() for number in range(count)}, "settings": settings}


@asynccontextmanager
async def room_of(config: Mapping[str, Any], cache_path: str = ":memory:") -> AsyncGenerator[Greenroom]:
    """A room that starts nothing by itself."""
    async with Greenroom.open(config, bootstrap=False, cache_path=cache_path) as room:
        yield room


@asynccontextmanager
async def sdk_client(command: Sequence[str] = COMMAND) -> AsyncGenerator[Any]:
    """The SDK's client on a child of its own. Imported late: not every row needs the SDK."""
    from mcp import Client, StdioServerParameters, stdio_client

    parameters = StdioServerParameters(command=command[0], args=list(command[1:]))
    async with Client(stdio_client(parameters)) as client:
        yield client
