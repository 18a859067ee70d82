"""A room as the transport of a FastMCP client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import product
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError
from mcp import MCPError
from tests.support import run
from tests.support.rooms import open_room, settle

from greenroom import InProcessDoor
from greenroom.adapters.fastmcp import RoomTransport
from greenroom.testing import HANG, FakeServer, tool

MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])
SUM = tool("sum", outputSchema={"type": "object", "properties": {"sum": {"type": "integer"}}})


def on_asyncio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """FastMCP's client knows no other loop."""

    def body(mode: str) -> None:
        run("asyncio", test, mode)

    body.__name__, body.__doc__ = test.__name__, test.__doc__
    return MODES(body)


def first_text(result: Any) -> str:
    return result.content[0].text


def summed(_given: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "3"}], "structuredContent": {"sum": 3}}


@on_asyncio
async def test_it_lists_and_calls(mode: str) -> None:
    async with open_room({"a": FakeServer(tools=[SUM], handler=summed)}) as room:
        await room.connect("a")
        async with Client(RoomTransport(room), mode=mode) as client:
            [listed] = await client.list_tools()
            assert listed.name == "a_sum"
            result = await client.call_tool("a_sum", {})
            assert result.structured_content == {"sum": 3}
            assert first_text(result) == "3"


@on_asyncio
async def test_errors_of_tools_and_of_servers_are_results(mode: str) -> None:
    failed = {"content": [{"type": "text", "text": "no ink"}], "isError": True}
    servers = {
        "a": FakeServer(handler=lambda _given: failed),
        "b": FakeServer(call_error=(-32050, "no paper")),
    }
    async with open_room(servers) as room:
        for name in servers:
            await room.connect(name)
        async with (
            InProcessDoor.open(room) as door,
            Client(RoomTransport(room), mode=mode) as alone,
            Client(RoomTransport(door), mode=mode) as of_a_door,
        ):
            said = ("a_echo", "no ink"), ("b_echo", "no paper"), ("b_none", "b_none")
            for client, (name, text) in product((alone, of_a_door), said):
                result = await client.call_tool(name, {}, raise_on_error=False)
                assert result.is_error
                assert text in first_text(result)
                with pytest.raises(ToolError, match=text):
                    await client.call_tool(name, {})


@on_asyncio
async def test_a_server_that_dies_in_a_call_is_told_and_the_next_call_works(mode: str) -> None:
    server = FakeServer()

    def die_first(given: Any) -> Any:
        if server.starts == 1:
            server.crash()
        return {"content": [{"type": "text", "text": "back"}]}

    server.handler = die_first
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Client(RoomTransport(room), mode=mode) as client:
            result = await client.call_tool("a_echo", {}, raise_on_error=False)
            assert result.is_error
            assert "may have run" in first_text(result)
            assert first_text(await client.call_tool("a_echo", {})) == "back"


@on_asyncio
async def test_a_cancelled_call_is_cancelled_at_its_server(mode: str) -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Client(RoomTransport(room), mode=mode) as client:
            call = asyncio.ensure_future(client.call_tool("a_echo", {}))
            while not server.calls and not room.drain_report.open:  # type: ignore[union-attr]
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            for _ in range(100):
                if server.cancelled:
                    break
                await asyncio.sleep(0.01)
            assert server.cancelled == 1


@on_asyncio
async def test_two_clients_of_one_door_are_two_sessions(mode: str) -> None:
    server = FakeServer()
    async with (
        open_room({"a": server}, isolation="per_session") as room,
        InProcessDoor.open(room) as door,
        Client(RoomTransport(door, session="alice"), mode=mode) as alice,
        Client(RoomTransport(door), mode=mode) as other,
    ):
        for client in (alice, other):
            await client.call_tool("a_echo", {})
        assert server.live == 2
        assert "session:alice" in {row.scope for row in room.status()}


@on_asyncio
async def test_it_shows_what_its_exposure_shows(mode: str) -> None:
    async with (
        open_room({"a": FakeServer()}) as room,
        Client(RoomTransport(room, expose="proxy"), mode=mode) as client,
    ):
        assert [one.name for one in await client.list_tools()] == ["mcp"]


@on_asyncio
async def test_a_change_of_the_lists_is_told(mode: str) -> None:
    server = FakeServer(tools=[tool("echo")])
    heard = asyncio.Event()

    async def hear(message: Any) -> None:
        if "tools/list_changed" in str(getattr(message, "method", "")):
            heard.set()

    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Client(RoomTransport(room), mode="legacy", message_handler=hear) as client:
            await client.list_tools()
            server.tools = [tool("echo"), tool("more")]
            server.announce_tools()
            async with asyncio.timeout(10):
                await heard.wait()
            assert {one.name for one in await client.list_tools()} == {"a_echo", "a_more"}


@on_asyncio
async def test_a_server_that_asks_is_answered_by_its_client(mode: str) -> None:
    async def ask(call: Any) -> Any:
        answer = await call.elicit(
            "which ink?", {"type": "object", "properties": {"ink": {"type": "string"}}}
        )
        return {"content": [{"type": "text", "text": answer["content"]["ink"]}]}

    async def answer(message: str, _type: Any, params: Any, _context: Any) -> Any:
        assert "which ink?" in message
        return {"ink": "green"}

    async with open_room({"a": FakeServer(handler=ask)}) as room:
        await room.connect("a")
        async with Client(RoomTransport(room), mode=mode, elicitation_handler=answer) as client:
            assert first_text(await client.call_tool("a_echo", {})) == "green"


@on_asyncio
async def test_a_call_that_somebody_has_to_allow_asks_the_clients_user(mode: str) -> None:
    server = FakeServer()
    asked: list[str] = []

    async def answer(message: str, _type: Any, _params: Any, _context: Any) -> Any:
        from fastmcp.client.elicitation import ElicitResult

        asked.append(message)
        if len(asked) == 1:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"allow": "once"})

    async with open_room({"a": server}, approve="all") as room:
        await room.connect("a")
        async with Client(RoomTransport(room), mode=mode, elicitation_handler=answer) as client:
            refused = await client.call_tool("a_echo", {"n": 1}, raise_on_error=False)
            assert refused.is_error
            assert not server.calls
            allowed = await client.call_tool("a_echo", {"n": 2}, raise_on_error=False)
            assert not allowed.is_error, allowed
        assert len(asked) == 2


@on_asyncio
async def test_what_a_server_tells_and_asks_in_a_call_comes_to_its_client(mode: str) -> None:
    told: list[Any] = []

    async def work(call: Any) -> Any:
        call.progress(1, 2, "half")
        line = await call.sample("a line")
        return {"content": [{"type": "text", "text": line["content"]["text"]}]}

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async def write(messages: Any, _params: Any, _context: Any) -> str:
        assert messages[0].content.text == "a line"
        return "words"

    async with open_room({"a": FakeServer(handler=work)}) as room:
        await room.connect("a")
        async with Client(RoomTransport(room), mode=mode, sampling_handler=write) as client:
            result = await client.call_tool("a_echo", {}, progress_handler=on_progress)
            assert first_text(result) == "words"
            assert told == [(1.0, 2.0, "half")]


@on_asyncio
async def test_a_call_in_flight_ends_when_its_client_is_closed(mode: str) -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Client(RoomTransport(room), mode=mode) as client:
            call = asyncio.ensure_future(client.call_tool("a_echo", {}))
            await settle()
        with pytest.raises((MCPError, RuntimeError)):
            await call
        await settle()
        assert server.cancelled == 1
