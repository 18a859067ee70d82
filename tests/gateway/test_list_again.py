"""Whoever connects or refreshes a connected server gets its list of now; that it was asked
for its list just now is said only if it was."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room

from greenroom import Greenroom
from greenroom.errors import ConnectFailed
from greenroom.gateway.control_methods import begin, look
from greenroom.gateway.exposures.mcp_tool import McpTool, ask
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, tool


def names(room: Greenroom) -> list[str]:
    return [target.original for target in room.tools("one")]


async def asked(room: Greenroom, **arguments: Any) -> tuple[str, dict[str, Any]]:
    result = await ask(McpTool(port_of(room)), arguments)
    return result["content"][0]["text"], result["_meta"]["greenroom/details"]


async def refreshed(room: Greenroom, server: str) -> list[dict[str, Any]]:
    """What `greenroom refresh SERVER` comes to."""
    begun = begin(room, [server])
    for _ in range(1_000):
        rows = await look(port_of(room), begun)
        if all(row["state"] != "waiting" for row in rows):
            return rows
        await anyio.sleep(0.3)
    raise AssertionError("it was waited for without end")


@in_virtual_time
async def test_a_connect_of_a_connected_server_lists_again_in_the_same_process() -> None:
    one = FakeServer(list_latency=0.2)
    async with open_room({"one": one}) as room:
        await room.connect("one")
        one.tools = [tool("echo"), tool("late")]  # and it says nothing of that
        assert names(room) == ["echo"]
        text, details = await asked(room, connect="one")
        assert details["tools"] == ["one_echo", "one_late"]
        assert "one_late" in text
        one.tools = [tool("last")]
        async with room.session("s") as session:
            await session.connect("one")
        assert names(room) == ["last"]
        assert one.starts == 1, "what it keeps in memory is not lost"
        await room.connect("one", force=True)
        assert one.starts == 2


@in_virtual_time
async def test_a_refresh_of_a_connected_server_lists_again() -> None:
    one = FakeServer(list_latency=0.2)
    async with open_room({"one": one}) as room:
        await room.connect("one")
        one.tools = [tool("echo"), tool("late")]
        (row,) = await refreshed(room, "one")
        assert (row["state"], row["tools"], one.starts) == ("known", 2, 1)
        assert names(room) == ["echo", "late"]


@in_virtual_time
async def test_a_refresh_of_a_connected_server_ends_when_it_has_listed_the_same_again() -> None:
    one = FakeServer(list_latency=0.2)
    async with open_room({"one": one}) as room:
        await room.connect("one")
        for _ in range(2):
            (row,) = await refreshed(room, "one")
            assert (row["state"], row["tools"], one.starts) == ("known", 1, 1)


@in_virtual_time
async def test_many_who_connect_at_once_share_one_reading_and_none_gets_an_older_list() -> None:
    one = FakeServer(list_latency=1.0)
    async with open_room({"one": one}) as room:
        await room.connect("one")
        (connection,) = one.connections
        read: list[str] = []
        request = connection.request

        def counted(exchange: Any, *rest: Any, **more: Any) -> Any:
            read.append(exchange.method)
            return request(exchange, *rest, **more)

        connection.request = counted  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(room.connect, "one")
            await anyio.sleep(0.5)  # the reading has begun: who comes now may know of something newer
            one.tools = [tool("newest")]
            await room.connect("one")
            assert names(room) == ["newest"]
        assert read.count("tools/list") == 2


@in_virtual_time
async def test_one_that_does_not_list_again_is_started_anew_when_it_has_nothing_else_to_do() -> None:
    one = FakeServer()
    async with open_room({"one": one}, connectTimeoutMs=5_000) as room:
        await room.connect("one")
        one.tools = [tool("late")]
        one.list_latency = 1_000.0
        with anyio.move_on_after(1.0):
            await room.connect("one")
        assert one.starts == 1, "who leaves changes nothing"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.connect, "one")
            await anyio.sleep(7.0)
            one.list_latency = 0.0
        assert (names(room), one.live) == (["late"], 1)
        assert one.starts == 2


@pytest.mark.parametrize("by", ["connect", "refresh"])
@in_virtual_time
async def test_one_that_does_not_list_again_while_it_works_for_another_is_left_alone(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = FakeServer(call_latency=55.0)
    began = time.time()
    monkeypatch.setattr("time.time", lambda: began + anyio.current_time())
    async with (
        open_room({"one": one}, connectTimeoutMs=5_000) as room,
        anyio.create_task_group() as tasks,
    ):
        await room.connect("one")
        ended: list[Any] = []

        async def work() -> None:
            ended.append(await room.call("one_echo", {}))

        tasks.start_soon(work)
        await anyio.sleep(0.1)
        one.list_latency = 1_000.0
        if by == "connect":
            with pytest.raises(ConnectFailed, match="in flight"):
                await room.connect("one")
        else:
            (row,) = await refreshed(room, "one")
            assert row["state"] == "failed"
            assert row["failure"]
        await anyio.sleep(60.0)
        assert (len(ended), one.starts) == (1, 1)


@pytest.mark.parametrize("by", ["connect", "refresh"])
@in_virtual_time
async def test_one_that_dies_while_it_lists_again_is_connected(by: str) -> None:
    one = FakeServer()
    async with open_room({"one": one}) as room, anyio.create_task_group() as tasks:
        await room.connect("one")
        one.tools, one.list_latency = [tool("late")], 5.0

        async def do() -> None:
            await (room.connect("one") if by == "connect" else refreshed(room, "one"))
            tasks.cancel_scope.cancel()
            assert (names(room), one.starts) == (["late"], 2)

        tasks.start_soon(do)
        await anyio.sleep(1.0)
        one.list_latency = 0.0
        one.crash()
        await anyio.sleep(300.0)
        raise AssertionError("it was waited for without end")


@in_virtual_time
async def test_that_a_server_was_asked_just_now_is_said_only_if_it_was() -> None:
    async with open_room({"one": FakeServer(), "two": FakeServer(), "three": FakeServer()}) as room:
        await room.connect("one")
        for given in ({"tool": "one_nope"}, {"tool": "nope", "server": "one"}):
            text, details = await asked(room, **given)
            assert (details["error"], "just now" in text) == ("tool_not_found", False), given
            assert "one_echo" in text, given
        for given in ({"tool": "two_nope"}, {"tool": "nope", "server": "three"}):
            text, details = await asked(room, **given)
            assert (details["error"], "just now" in text) == ("tool_not_found_after_reconnect", True), given
            assert "_echo" in text, given


@in_virtual_time
async def test_a_tool_that_went_away_during_its_call_does_not_say_that_it_was_asked_just_now() -> None:
    one = FakeServer(call_latency=1.0, call_error=(-32602, "no such tool"))
    async with open_room({"one": one}) as room, anyio.create_task_group() as tasks:
        await room.connect("one")
        told: list[tuple[str, dict[str, Any]]] = []

        async def call() -> None:
            told.append(await asked(room, tool="one_echo"))

        tasks.start_soon(call)
        await anyio.sleep(0.1)
        one.tools = [tool("other")]
        one.announce_tools()
        await anyio.sleep(2.0)
        ((text, details),) = told
        assert (details["error"], "just now" in text) == ("tool_not_found", False)
        assert "one_other" in text
