"""A room is a toolset of a rollout: the launcher of the framework starts it, and its client calls a tool."""

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from room_of_clock import CLOCK
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.mcp import serve

from greenroom.adapters.verifiers import RoomConfig, RoomToolset


async def main(file):
    async with serve(RoomToolset(RoomConfig(servers=str(file)))) as url, AsyncExitStack() as stack:
        _, dispatch, servers = await connect_mcp({"mcpServers": {"": {"url": url}}}, stack)
        assert "weekday" in str(await call_mcp(servers, dispatch, "clock_now", {}))


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "mcp.json")
    file.write_text(json.dumps({"mcpServers": {"clock": CLOCK}}), encoding="utf-8")
    asyncio.run(main(file))
