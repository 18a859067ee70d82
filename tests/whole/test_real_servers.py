"""Servers nobody here wrote, through the room, compared with what the SDK's own client gets from the same server.

The main job on each of them, half of them on either backend: status, search and describe with nothing running, a first
call that starts it, the same answer as the SDK's client, nothing left at the end.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.support import in_real_time
from tests.support.loops import on_one_loop
from tests.support.real_servers import REAL_SERVERS, RealServer, real_server

from greenroom.supervisor.room import Greenroom

# On a slow machine it takes seconds to import what they need. After the probe only the older handshake would be tried.
PATIENT = {"probeTimeoutMs": 20_000, "connectTimeoutMs": 120_000}
# A call whose answer does not depend on the moment it is made.
STEADY: dict[str, tuple[str, dict[str, Any]]] = {
    "time": ("convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
    "everything": ("get-sum", {"a": 2, "b": 40}),
}


async def _ask_the_sdk(server: RealServer, tool: str, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """What the SDK's own client lists and is answered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mcp import Client, StdioServerParameters, stdio_client

        entry = server.entry
        parameters = StdioServerParameters(
            command=entry["command"], args=list(entry["args"]), env=dict(entry.get("env", {}))
        )
        with open(os.devnull, "w") as errlog:  # noqa: ASYNC230  # not a wait
            async with Client(stdio_client(parameters, errlog=errlog)) as client:
                listed = await client.list_tools()
                return listed.tools, await client.call_tool(tool, arguments)


# Each takes a second of processor time to start, and is started twice. It sees of our loop nothing but its bytes; what
# depends on the loop is shown with our own servers. Each loop gets one of each language and of each era.
ON = {
    "time": "trio",
    "everything": "trio",
    "memory": "trio",
    "git": "asyncio",
    "sqlite": "asyncio",
    "filesystem": "asyncio",
}


@pytest.mark.parametrize(("name", "backend"), [(name, ON[name]) for name in REAL_SERVERS])
@in_real_time
async def test_a_real_server_answers_as_it_answers_the_sdk(name: str, tmp_path: Path) -> None:
    server = real_server(name, tmp_path)
    tool, arguments = STEADY.get(name, (server.tool, dict(server.arguments)))
    from mcp_types import Tool

    cache = tmp_path / "catalogue.json"
    config = {"mcpServers": {name: server.entry}, "settings": PATIENT}
    async with Greenroom.open(config, cache_path=cache) as room:
        await room.catalogued()
        (discovered,) = room.status()
        assert discovered.connected
        assert len(room.tools(server=name)) >= server.tool_count
        described = room.describe(f"{name}_{tool}")
        assert room.search(tool.replace("_", " ").replace("-", " ")).matches[0].target.server == name

        known = await room.call(f"{name}_{server.tool}", dict(server.arguments))
        assert server.answer in known.text
        result = await room.call(described.name, arguments)

        entry = room.entry(name)
        assert entry is not None
        assert entry.protocol_version == server.era
        assert [status.pid for status in room.status()] == [discovered.pid], (
            "the discovery and the call share a child"
        )
    assert room.drain_report is not None
    assert room.drain_report.adds_up
    assert room.drain_report.completed == 2

    theirs, answer = await _ask_the_sdk(server, tool, arguments)
    assert [Tool.model_validate(record) for record in entry.tools or ()] == theirs
    assert result.to_mcp().model_dump(exclude={"meta"}) == answer.model_dump(exclude={"meta"})

    # A second boot knows all of it and starts nothing.
    async with Greenroom.open(config, cache_path=cache) as again:
        assert [target.name for target in again.tools()] == [target.name for target in room.tools()]
        assert again.describe(described.name).input_schema == described.input_schema
        assert [status.pid for status in again.status()] == [None]


@on_one_loop
@in_real_time
async def test_a_real_server_refuses_what_its_schema_does_not_allow(tmp_path: Path) -> None:
    """Arguments are the server's to check: we pass its own words on."""
    server = real_server("everything", tmp_path)
    async with Greenroom.open(
        {"mcpServers": {"everything": server.entry}}, cache_path=":memory:", bootstrap=False
    ) as room:
        result = await room.call("everything_get-sum", {"a": "two"})

        assert result.is_error
        assert "expected number" in result.text
