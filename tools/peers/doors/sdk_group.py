"""The SDK's `ClientSessionGroup`, connected to one server after the other, as its documentation does it."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from _lines import Library, Message, serve, servers
from mcp import StdioServerParameters
from mcp.client.session_group import ClientSessionGroup, ClientSessionParameters

LIMIT = 5.0


@asynccontextmanager
async def opened() -> AsyncGenerator[Library]:
    at = ""
    async with ClientSessionGroup(component_name_hook=lambda name, _: f"{at}_{name}") as group:
        for at, entry in servers().items():  # the hook reads it
            parameters = StdioServerParameters(command=entry["command"], args=entry["args"])
            try:
                await group.connect_to_server(parameters, ClientSessionParameters(read_timeout_seconds=LIMIT))
            except Exception as error:
                print(f"{at}: {error!r}", file=sys.stderr)

        async def tools() -> list[str]:
            return list(group.tools)

        async def call(server: str, tool: str, arguments: Message) -> object:
            return await group.call_tool(f"{server}_{tool}", arguments)

        yield Library(tools, call)


serve(opened())
