"""T01: contexts are entered and left by the actor alone, whoever causes it and whatever becomes of them.

In the field, a client entered in one task and left in another ends the whole program ("Attempted to exit cancel scope
in a different task"). Here connections are caused by short-lived tasks, under scopes that are cancelled, and ended by
others; one server is a child process, one an SDK server in our process, whose client is such a context.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from tests.support import run
from tests.support.gateway import alive, faulty, logged_pids

from greenroom import Greenroom
from greenroom.protocol.lifecycle import State


def _sdk_server() -> Any:
    import mcp_types as types
    from mcp.server.lowlevel import Server

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="hello", input_schema={"type": "object"})])

    async def call_tool(_context: Any, _params: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text="hello")])

    return Server("inside", on_list_tools=list_tools, on_call_tool=call_tool)


def test_t01_whoever_starts_and_whoever_ends_a_connection_it_is_entered_and_left_in_one_task(
    backend: str, tmp_path: Path
) -> None:
    config = {"mcpServers": {"child": faulty(tmp_path, "child")}}

    async def main() -> None:
        room = Greenroom.open(
            config, cache_path=":memory:", bootstrap=False, in_process={"inside": _sdk_server}
        )
        tools = {"child": "child_echo", "inside": "inside_hello"}
        async with anyio.create_task_group() as owner:
            await room.start(owner)

            async def cause(server: str, scope: anyio.CancelScope, started: anyio.Event) -> None:
                with scope:
                    started.set()
                    await room.call(tools[server])

            for server in tools:
                for _ in range(3):
                    # Caused by a task whose scope is cancelled at once, waited for by another, ended by a third.
                    scope, started = anyio.CancelScope(), anyio.Event()
                    async with anyio.create_task_group() as causing:
                        causing.start_soon(cause, server, scope, started)
                        await started.wait()
                        scope.cancel()
                    await room.connect(server)
                    async with anyio.create_task_group() as using:
                        using.start_soon(room.call, tools[server])
                    async with anyio.create_task_group() as ending:
                        ending.start_soon(room.drain, server)
                    states = {status.server: status.state for status in room.status()}
                    assert states[server] is State.IDLE
                    await room.connect(server)
            # Closed from a task that is neither the one that opened it nor the group's.
            async with anyio.create_task_group() as closing:
                closing.start_soon(room.aclose)
        assert room.drain_report is not None
        assert room.drain_report.adds_up
        assert alive(logged_pids(tmp_path)) == set()

    run(backend, main)
