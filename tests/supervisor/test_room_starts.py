"""Who starts when, and what the room says meanwhile: turns for permits, attempts given up, what stays known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.rooms import Outcomes, open_room, settle, teach

from greenroom import Greenroom, RpcRefusal, ServerRequest, State, UsageError
from greenroom.protocol.address import Address
from greenroom.protocol.errors import NeedsAuth
from greenroom.protocol.events import Kind, Note, NoteCode
from greenroom.supervisor.server_messages import Callbacks
from greenroom.testing import FaultScript, ScriptedServer
from greenroom.testing.fake_servers import HANG, FakeServer, fake_connectors, tool
from greenroom.testing.room_inside import RoomInside


@in_virtual_time
async def test_a_second_call_does_not_cost_a_server_its_turn_for_a_permit() -> None:
    servers = {"first": FakeServer(start_latency=5.0), "b": FakeServer(), "c": FakeServer(start_latency=5.0)}
    async with open_room(servers, startPermits=1) as room, Outcomes() as calls:
        for name in servers:
            await teach(room, name)
        for name in ("first", "b", "c", "b"):
            calls.start(room, f"{name}_echo")
            await settle()
        await anyio.sleep(6.0)
        assert [one.at for one in calls.all] == [5.0, 5.0, None, 5.0]


@in_virtual_time
async def test_status_tells_since_when_a_server_has_waited_for_its_turn() -> None:
    """From when it began to wait, however many queues it has passed since."""
    busy, starting, late = FakeServer(call_latency=2.0), FakeServer(start_latency=20.0), FakeServer()
    servers = {"busy": busy, "starting": starting, "late": late}
    async with (
        open_room(servers, startPermits=1, maxConnections=2, reserveConnections=0) as room,
        Outcomes() as calls,
    ):
        seen: list[tuple[str | None, Any]] = []
        for name in servers:
            await teach(room, name)
            calls.start(room, f"{name}_echo")
            await settle()
        for _ in range(2):
            await anyio.sleep(1.5)
            row = room.status()[-1]
            seen.append((row.waiting_for, row.waiting))
        assert seen == [("slot", 1.5), ("permit", 3.0)]
        row = room.status()[1]
        assert (row.waiting_for, row.waiting) == (None, 3.0)


@in_virtual_time
async def test_a_restart_gives_up_an_attempt_that_installs_nothing() -> None:
    server = FakeServer(start_latency=20.0)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await teach(room, "a")
        tasks.start_soon(room.connect, "a")
        await anyio.sleep(1.0)
        assert room.status()[0].state is State.CONNECTING
        server.start_latency = 0.0
        await room.restart("a")
        assert (server.starts, anyio.current_time()) == (2, pytest.approx(1.0, abs=0.1))


@in_virtual_time
async def test_a_bug_while_a_server_starts_gives_its_permit_to_the_next() -> None:
    servers = {"a": FakeServer(initialize_latency=HANG, stop_latency=30.0), "b": FakeServer()}
    async with open_room(servers, startPermits=1) as room, Outcomes() as calls:
        for name in servers:
            await teach(room, name)
        broken = calls.start(room, "a_echo")
        await settle()
        waiting = calls.start(room, "b_echo")
        await settle()
        RoomInside(room).machinery.servers.actor("a").stop_for_bug(ZeroDivisionError("ours"))
        await anyio.sleep(1.0)
        assert broken.error.code == "bug"
        assert (waiting.at, servers["a"].live) == (0.0, 1)


@in_virtual_time
async def test_a_call_apart_that_needs_a_login_is_the_last_that_tries() -> None:
    server = FakeServer(start_error=NeedsAuth("log in with `greenroom auth a`", server="a"))
    async with open_room({"a": server}, entries={"a": {"isolation": "per_call"}}) as room:
        await teach(room, "a")
        for _ in range(2):
            with pytest.raises(NeedsAuth, match="greenroom auth a"):
                await room.call("a_echo")
        assert server.starts == 1
        assert room.status()[0].needs_auth


@in_virtual_time
async def test_a_server_of_a_bad_entry_says_in_status_what_is_bad() -> None:
    config: dict[str, Any] = {"mcpServers": {"good": {"command": "fake"}, "bad": {"command": 7}}}
    connectors = fake_connectors({"good": FakeServer()})
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors) as room:
        rows = {row.server: row for row in room.status()}
        assert (rows["good"].broken, rows["good"].down) == (None, None)
        assert "mcpServers.bad.command" in (rows["bad"].broken or "")
        assert rows["bad"].down is None, "said once"


@in_virtual_time
async def test_what_was_learned_of_one_definition_is_not_said_of_another() -> None:
    """Nor is a room done learning when the old server has made way, before the new one was asked."""
    server = FakeServer(tools=[tool("before")])

    def config(**servers: list[str]) -> dict[str, Any]:
        return {"mcpServers": {name: {"command": "fake", "args": args} for name, args in servers.items()}}

    connectors = fake_connectors({"a": server, "b": FakeServer(tools=[])})
    async with Greenroom.open(config(a=[]), cache_path=":memory:", connectors=connectors) as room:
        await room.catalogued()
        assert [target.original for target in room.tools()] == ["before"]
        server.tools, server.initialize_latency = [tool("after")], 5.0
        await room.reload(config(a=["other"]))
        assert room.tools() == ()
        await room.catalogued()
        assert ([target.original for target in room.tools()], anyio.current_time()) == (["after"], 5.0)
        await room.reload(config(b=[]))
        await room.catalogued()
        assert room.tools() == ()
        starts = server.starts
        await room.reload(config(a=["other"], b=[]))
        assert [target.original for target in room.tools()] == ["after"], "remembered without a file, too"
        await anyio.sleep(60.0)
        assert server.starts == starts


def test_a_configuration_given_as_a_dict_is_checked_against_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GREENROOM_TEST_SET", "example.test")
    monkeypatch.delenv("GREENROOM_TEST_UNSET", raising=False)
    urls = {name: {"url": f"https://${{GREENROOM_TEST_{name.upper()}}}/mcp"} for name in ("set", "unset")}
    room = Greenroom.open({"mcpServers": urls})
    assert list(room.config.broken) == ["unset"]
    assert "GREENROOM_TEST_UNSET" in str(room.config.broken["unset"])


@in_virtual_time
async def test_what_has_initialized_is_not_being_installed_any_more() -> None:
    server = FakeServer(initialize_latency=3.0, list_latency=5.0)
    entries = {"a": {"command": "npx", "args": ["-y", "some-server"]}}
    async with open_room({"a": server}, entries=entries) as room, Outcomes() as calls:
        await teach(room, "a")
        calls.start(room, "a_echo")
        seen: list[tuple[float, str | None]] = []
        for seconds in (1.0, 3.0):
            await anyio.sleep(seconds)
            (row,) = room.status()
            assert row.state is State.CONNECTING
            seen.append((anyio.current_time(), row.waiting_for))
        assert seen == [(1.0, "install"), (4.0, None)]
        await room.restart("a")  # so it may be ended
        assert server.starts == 2


@in_real_time
async def test_status_names_the_process_of_a_server_while_there_is_one(tmp_path: Path) -> None:
    far = ScriptedServer(FaultScript(), tmp_path / "log")
    config = {"mcpServers": {"far": far.entry}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        assert room.status()[0].pid is None
        await room.connect("far")
        pid = room.status()[0].pid
        assert pid is not None
        assert os.getpgid(pid) == pid, "it leads a group of its own"
        await room.drain("far")
        assert room.status()[0].pid is None


@pytest.mark.parametrize("file", ["catalogue.json", "catalogue.pins.json"])
@in_real_time
async def test_what_is_kept_and_cannot_be_read_is_told_of(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("{}{")
    room = Greenroom.open({"mcpServers": {}}, cache_path=tmp_path / "catalogue.json")
    events = room.events([Kind.NOTE])
    async with events, room:
        note = await anext(aiter(events))
    assert isinstance(note, Note)
    assert (note.code, f"set aside as {file}.broken-1" in note.detail) == (
        NoteCode.CATALOGUE_FILE,
        True,
    )


@in_real_time
async def test_what_a_server_lists_now_is_newer_than_what_an_earlier_run_has_kept(tmp_path: Path) -> None:
    """However often its lists changed in that run."""
    for lists in (("one", "two", "three"), ("now",)):
        server = FakeServer()
        async with Greenroom.open(
            {"mcpServers": {"a": {"command": "fake"}}},
            cache_path=tmp_path / "catalogue.json",
            connectors=fake_connectors({"a": server}),
            bootstrap=False,
        ) as room:
            for name in lists:
                server.tools = [tool(name)]
                await room.restart("a")
                await room.settled()
            assert [each.name for each in room.tools()] == [f"a_{lists[-1]}"]


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "tasks/get"])
@in_virtual_time
async def test_who_gives_roots_answers_only_a_request_for_roots(method: str) -> None:
    callbacks = Callbacks(roots=["file:///here"])
    assert await callbacks.answer(ServerRequest(Address("a"), "roots/list", {})) == {
        "roots": [{"uri": "file:///here"}]
    }
    with pytest.raises(RpcRefusal):
        await callbacks.answer(ServerRequest(Address("a"), method, {}))


@in_virtual_time
async def test_a_session_says_in_its_name_that_it_is_over() -> None:
    async with open_room({"a": FakeServer()}) as room:
        async with room.session("ann") as ann:
            assert repr(ann) == "<Session 'ann'>"
        assert repr(ann) == "<Session 'ann' (over)>"
        with pytest.raises(UsageError, match="is over"):
            await ann.call("a_echo")
