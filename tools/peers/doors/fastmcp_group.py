"""FastMCP's `ClientGroup`, entered once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from _lines import Library, Message, configuration, serve
from fastmcp.client.group import ClientGroup


@asynccontextmanager
async def opened() -> AsyncGenerator[Library]:
    async with ClientGroup.from_config(configuration()) as group:

        async def tools() -> list[str]:
            return [tool.name for tool in await group.list_tools()]

        async def call(server: str, tool: str, arguments: Message) -> object:
            return await group.call_tool_mcp(f"{server}_{tool}", arguments)

        yield Library(tools, call)


serve(opened())
