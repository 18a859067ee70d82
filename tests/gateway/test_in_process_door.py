"""Clients in the program's own process, with lines. Sessions of the SDK are in `test_in_process_sdk_clients`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room, settle

from greenroom import Greenroom, InProcessDoor, UsageError
from greenroom.testing import HANG, FakeServer, fake_connectors, tool

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


class Listener:
    """The outlet of a client without the SDK."""

    busy = False

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def send(self, line: bytes) -> bool:
        self.said.append(json.loads(line))
        return True


def request(number: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


@in_virtual_time
async def test_a_client_without_the_sdk_gives_and_takes_lines() -> None:
    async with open_room({"a": FakeServer()}) as room:
        await room.connect("a")
        ear = Listener()
        async with InProcessDoor.open(room) as door, door.client(ear) as receive:
            await receive(request(1, "initialize", **HELLO))
            await receive(request(2, "tools/call", name="a_echo", arguments={"x": 1}))
            await receive(b"{")
            await settle()
        assert [said.get("id") for said in ear.said] == [1, None, 2]
        assert ear.said[1]["error"]["code"] == -32700
        assert json.loads(ear.said[2]["result"]["content"][0]["text"]) == {"x": 1}


@in_virtual_time
async def test_each_client_has_a_session_of_its_own_until_it_leaves() -> None:
    server = FakeServer()
    async with open_room({"a": server}, isolation="per_session") as room, InProcessDoor.open(room) as door:
        for _ in range(2):
            async with door.client(Listener(), session="alice") as one, door.client(Listener()) as other:
                await one(request(1, "tools/call", name="a_echo"))
                await other(request(1, "tools/call", name="a_echo"))
                await settle()
                scopes = {row.scope for row in room.status()} - {"shared"}
                assert len(scopes) == 2
                assert "session:alice" in scopes
                assert server.live == 2
            await settle()
            assert server.live == 0
        async with door.client(Listener(), session="alice"):
            with pytest.raises(UsageError):
                async with door.client(Listener(), session="alice"):
                    pass


@in_virtual_time
async def test_what_a_client_left_open_is_cancelled_when_it_is_gone() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with InProcessDoor.open(room) as door, door.client(Listener()) as receive:
            await receive(request(1, "tools/call", name="a_echo"))
            await settle()
        await settle()
        assert server.cancelled == 1
        report = room.drain_report
        assert report is not None
        assert (report.open, report.cancelled) == (0, 1)


@in_virtual_time
async def test_a_change_of_the_lists_is_told() -> None:
    server = FakeServer(tools=[tool("echo")])
    async with open_room({"a": server}) as room:
        await room.connect("a")
        ear = Listener()
        async with InProcessDoor.open(room) as door, door.client(ear) as receive:
            await receive(request(1, "initialize", **HELLO))
            await receive(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
            await receive(request(2, "tools/list"))
            server.tools = [tool("echo"), tool("more")]
            server.announce_tools()
            await anyio.sleep(10)
            assert [s["method"] for s in ear.said if "method" in s] == ["notifications/tools/list_changed"]


@pytest.mark.parametrize("modern", [False, True], ids=["2025-11-25", "2026-07-28"])
@in_virtual_time
async def test_an_error_of_a_server_is_a_result_where_a_client_asks_for_that(modern: bool) -> None:
    meta: Mapping[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    }
    more = {"_meta": meta} if modern else {}
    async with open_room({"a": FakeServer(call_error=(-32050, "no ink"))}) as room:
        await room.connect("a")
        ear = Listener()
        for wanted in (False, True):
            async with (
                InProcessDoor.open(room) as door,
                door.client(Listener()),  # what one client asks for is not for the others
                door.client(ear, errors_as_results=wanted) as receive,
            ):
                await receive(request(1, "tools/call", name="a_echo", **more))
                await receive(request(2, "prompts/get", name="a_none", **more))
                await settle()
    error, no_prompt, told, still_no_prompt = ear.said
    assert error["error"]["code"] == -32050
    result = told["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"] == "[a] no ink"
    assert result["_meta"]["greenroom/error"] == {
        "error": "rpc_error",
        "code": -32050,
        "message": "[a] no ink",
        "data": {"greenroom/server": "a"},
    }
    assert result.get("resultType") == ("complete" if modern else None)
    assert "error" in no_prompt
    assert "error" in still_no_prompt


@in_virtual_time
async def test_when_the_block_of_a_client_ends_nothing_is_taken_from_it_any_more() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room, InProcessDoor.open(room) as door:
        async with door.client(Listener()) as receive:
            await receive(request(1, "tools/call", name="a_echo"))
            await settle()
        with pytest.raises(anyio.ClosedResourceError):
            await receive(request(2, "tools/call", name="a_echo"))
        await settle()
    assert len(server.calls) == 1


@in_virtual_time
async def test_a_profile_narrows_what_a_client_sees_and_may_change_how() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    config = {
        "mcpServers": {name: {"command": "fake"} for name in servers},
        "profiles": {"narrow": {"servers": ["b"], "expose": "proxy"}},
    }
    connectors = fake_connectors(servers)
    async with Greenroom.open(config, cache_path=":memory:", connectors=connectors, bootstrap=False) as room:
        await room.connect("a")
        await room.connect("b")
        async with InProcessDoor.open(room) as door:
            ear = Listener()
            async with door.client(ear) as all_of_it, door.client(ear, profile="narrow") as narrow:
                for receive in (all_of_it, narrow):
                    await receive(request(1, "tools/list"))
                await settle()
            names = [[one["name"] for one in said["result"]["tools"]] for said in ear.said]
            assert names == [["a_echo", "b_echo"], ["mcp"]]
            with pytest.raises(UsageError):
                async with door.client(ear, profile="none"):
                    pass


@in_virtual_time
async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    async with open_room({"a": FakeServer()}) as room:
        with pytest.raises(KeyError, match="mine"):
            async with InProcessDoor.open(room) as door, door.client(Listener()):
                raise KeyError("mine")


@in_virtual_time
async def test_a_room_that_is_not_open_and_an_exposure_that_is_none_are_said_at_once() -> None:
    room = open_room({"a": FakeServer()})
    with pytest.raises(UsageError):
        async with InProcessDoor.open(room):
            pass
    async with room:
        with pytest.raises(UsageError, match="sideways"):
            async with InProcessDoor.open(room, expose="sideways"):
                pass


@in_virtual_time
async def test_a_client_that_reads_nothing_is_told_its_answers_do_not_fit() -> None:
    """What waits for it is bounded, and short lines are never dropped."""
    text = "x" * 30_000_000
    async with (
        open_room({"a": FakeServer()}) as room,
        InProcessDoor.open(room) as door,
        door.streams() as streams,
    ):
        read: Any = streams[0]
        for _ in range(4):
            assert read.send(text.encode())
        assert read.busy
        assert not read.send(text.encode())
        assert read.send(b"{}")
