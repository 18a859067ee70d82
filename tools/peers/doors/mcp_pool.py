"""`mcp-pool`: a pool of the SDK's clients for each server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from _lines import Library, Message, serve, servers
from mcpool import MCPPool, PoolConfig

LIMIT = 5.0


def pool_of(entry: Mapping[str, object]) -> MCPPool:
    return MCPPool(
        config=PoolConfig(
            transport="stdio",
            endpoint=str(entry["command"]),
            stdio_args=list(entry["args"]),
            min_sessions=1,
            max_sessions=4,
            connect_timeout_s=LIMIT,
            health_check_interval_s=1.0,  # what finds a dead session
        )
    )


@asynccontextmanager
async def opened() -> AsyncGenerator[Library]:
    pools = {name: pool_of(entry) for name, entry in servers().items()}
    starting = {name: asyncio.create_task(pool.start()) for name, pool in pools.items()}

    async def tools() -> list[str]:
        names: list[str] = []
        for name, pool in pools.items():
            await asyncio.wait({starting[name]})
            names += [f"{name}_{tool.name}" for tool in (await pool.list_tools()).tools]
        return names

    async def call(server: str, tool: str, arguments: Message) -> object:
        await asyncio.wait({starting[server]})
        async with pools[server].session() as session:
            return await session.call_tool(tool, arguments, read_timeout_seconds=LIMIT)

    try:
        yield Library(tools, call)
    finally:
        await asyncio.gather(*(pool.shutdown() for pool in pools.values()), return_exceptions=True)


serve(opened())
