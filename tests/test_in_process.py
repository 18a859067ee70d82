"""Servers in our own process: an object or a factory of the SDK's, supervised like any other.

It is also the contract with the SDK's provisional API (`greenroom.actors._sdk`): a tool, progress, an error, a change
of the tools and the end of the server are all that we need of it, and all of them are shown here with the real thing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from tests.support import run
from tests.support.stdio import until

from greenroom.actors._pumps import pump_group
from greenroom.actors._sdk import as_server, from_message, to_message
from greenroom.protocol.errors import CallError, ConnectFailed
from greenroom.protocol.lifecycle import State
from greenroom.supervisor import Greenroom

EMPTY: dict[str, Any] = {"mcpServers": {}, "settings": {"toolPrefix": "none"}}


def make_server(cancelled: list[str] | None = None, begun: anyio.Event | None = None) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("within", log_level="CRITICAL")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def steps(count: int, context: Context[Any]) -> str:
        for step in range(count):
            await context.report_progress(step + 1, count)
        return "done"

    @server.tool()
    async def wait() -> str:
        if begun is not None:
            begun.set()
        try:
            await anyio.sleep(30)
        except anyio.get_cancelled_exc_class():
            assert cancelled is not None
            cancelled.append("wait")
            raise
        return "waited"

    @server.tool()
    async def grow(context: Context[Any]) -> str:
        server.add_tool(lambda: "new", name="newcomer")
        await context.notify_tools_changed()
        return "grown"

    return server


def room_of(**servers: Any) -> Greenroom:
    return Greenroom.open(EMPTY, cache_path=":memory:", bootstrap=False, in_process=servers)


def test_an_object_is_a_server_like_any_other(backend: str) -> None:
    async def body() -> None:
        async with room_of(within=make_server()) as room:
            await room.connect("within")
            assert [target.name for target in room.tools()] == ["add", "grow", "steps", "wait"]
            result = await room.call("add", {"a": 2, "b": 40})
            assert (result.text, result.structured) == ("42", {"result": 42})
            seen: list[Any] = []
            await room.call("steps", {"count": 3}, on_progress=seen.append)
            assert [step["progress"] for step in seen] == [1, 2, 3]
            assert (await room.call("add", {"a": "two"})).is_error
            await room.call("grow")
            assert await until(lambda: "newcomer" in [target.name for target in room.tools()])
            assert (await room.call("newcomer")).text == "new"

    run(backend, body)


def test_cancelling_a_call_cancels_the_handler(backend: str) -> None:
    async def body() -> None:
        cancelled, begun = list[str](), anyio.Event()
        async with room_of(within=make_server(cancelled, begun)) as room:
            await room.connect("within")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(room.call, "wait")
                await begun.wait()
                tasks.cancel_scope.cancel()
            assert await until(lambda: cancelled == ["wait"])

    run(backend, body)


def test_an_object_is_run_again_and_a_factory_called_again(backend: str) -> None:
    made: list[Any] = []

    def factory() -> Any:
        made.append(make_server())
        return made[-1]

    async def body() -> None:
        async with room_of(one=make_server(), many=factory) as room:
            for server in ("one", "many"):
                await room.connect(server)
                await room.restart(server)
                assert (await room.call("add", {"a": 1, "b": 1}, server=server)).text == "2"
        assert len(made) == 2

    run(backend, body)


def test_a_low_level_server_that_raises_is_lost_and_comes_back(backend: str) -> None:
    async def body() -> None:
        fall = anyio.Event()

        @asynccontextmanager
        async def lifespan(_server: Any) -> AsyncGenerator[dict[str, Any]]:
            async with anyio.create_task_group() as tasks:

                async def falls() -> None:
                    await fall.wait()
                    raise RuntimeError("the roof")

                tasks.start_soon(falls)
                yield {}
                tasks.cancel_scope.cancel()

        async def hang(_context: Any, _params: Any) -> Any:
            await anyio.sleep_forever()

        async def listed(_context: Any, _params: Any) -> Any:
            tools = [{"name": "hang", "inputSchema": {"type": "object"}}]
            return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": tools}

        server: Any = Server("low", lifespan=lifespan, on_list_tools=listed, on_call_tool=hang)
        async with room_of(low=server) as room, anyio.create_task_group() as tasks:
            await room.connect("low")

            async def call() -> None:
                with pytest.raises(CallError):  # the SDK's server answers what is open on its way down
                    await room.call("hang")

            tasks.start_soon(call)
            await anyio.sleep(0.05)
            fall.set()
            assert await until(lambda: "its code raised" in (room.status()[0].failure or ""))
            fall = anyio.Event()
            await room.connect("low")
            assert room.status()[0].state is State.CONNECTED

    run(backend, body)


@pytest.mark.parametrize("given", [object(), lambda: 3])
def test_what_is_no_server_is_refused_in_words(given: Any, backend: str) -> None:
    async def body() -> None:
        async with room_of(odd=given) as room:
            with pytest.raises(ConnectFailed, match="not an MCP server of the SDK or FastMCP"):
                await room.connect("odd")

    run(backend, body)


def test_a_factory_that_fails_is_told_in_words(backend: str) -> None:
    def factory() -> Any:
        raise ValueError("no stage")

    async def body() -> None:
        async with room_of(odd=factory) as room:
            with pytest.raises(ConnectFailed, match="could not be made: ValueError"):
                await room.connect("odd")

    run(backend, body)


def test_messages_keep_every_field_both_ways() -> None:
    answer = b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"vendor":{"x":null},"n":1.5}}'
    assert from_message(to_message(answer)) == answer
    assert as_server("a text") is None


# ---- the task group of a connection ----------------------------------------------------------------------------------


def test_pumps_live_as_long_as_their_connection_and_an_error_comes_out_as_itself(backend: str) -> None:
    async def body() -> None:
        ended: list[str] = []

        async def pump(name: str) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(name)

        async def fails(what: str) -> None:
            raise LookupError(what)

        async def connection(body: str, *pumps: Callable[[], Coroutine[Any, Any, None]]) -> None:
            async with pump_group() as tasks:
                for each in pumps:
                    tasks.start_soon(each)
                await anyio.lowlevel.checkpoint()
                if body == "fails":
                    raise ValueError("the body's")
                if body == "waits":
                    await anyio.sleep_forever()

        with anyio.fail_after(60):
            await connection("ends", partial(pump, "one"))
            assert ended == ["one"]
            with pytest.raises(ValueError, match="the body's"):
                await connection("fails", partial(pump, "two"))
            assert ended == ["one", "two"]
            with pytest.raises(LookupError, match="a pump's"):
                await connection("waits", partial(fails, "a pump's"))
            with pytest.raises(BaseExceptionGroup) as caught:
                await connection("fails", partial(fails, "one"), partial(fails, "other"))
            assert len(caught.value.exceptions) >= 2

    run(backend, body)
