"""What doors see of a room through its port: the whole room, or what one session sees of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from types import MappingProxyType

import anyio
import msgspec
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.rooms import open_room, teach
from tests.support.stdio import SERVERS, lives, until

from greenroom import Greenroom
from greenroom.actors.call import Call
from greenroom.actors.workers import LONG_WORK, aside
from greenroom.config.model import Scrub
from greenroom.errors import CallError, ConnectFailed, Unavailable, UnknownServer
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors


@in_virtual_time
async def test_the_row_of_a_sessions_own_child_stands_in_place_of_its_servers() -> None:
    entries = {"own": {"isolation": "per_session"}}
    async with (
        open_room({"own": FakeServer(), "shared": FakeServer()}, entries=entries) as room,
        room.session("ann") as ann,
        room.session("ben") as ben,
    ):
        await ann.connect("own")
        seen = sorted((row.server, row.scope) for row in port_of(ann).catalogue.status())
        assert seen == [("own", "session:ann"), ("shared", "shared")]
        assert ("own", "shared") in [(row.server, row.scope) for row in port_of(ben).catalogue.status()]
        assert [row.scope for row in room.status() if row.server == "own"] == ["shared", "session:ann"]


@in_virtual_time
async def test_through_the_port_of_a_session_with_a_profile_the_rest_does_not_exist() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    config = {
        "mcpServers": {name: {"command": "fake"} for name in servers},
        "profiles": {"work": {"servers": ["b"]}},
    }
    opened = Greenroom.open(config, cache_path=":memory:", connectors=fake_connectors(servers))
    async with opened as room:
        await teach(room, "a")
        await teach(room, "b")
        async with room.session("ann", profile="work") as ann:
            port = port_of(ann)
            assert list(port.catalogue.config.servers) == ["b"]
            assert [row.server for row in port.catalogue.status()] == ["b"]
            assert port.catalogue.status("a") == []
            assert port.catalogue.entry("b") is not None
            with pytest.raises(UnknownServer):
                port.catalogue.entry("a")
        assert port_of(room).catalogue.entry("a") is not None


@in_real_time
async def test_who_waits_until_a_large_answer_is_scrubbed_may_leave() -> None:
    may_end, answer = threading.Event(), b'{"content":"%b"}' % (b"x" * LONG_WORK)
    scope = anyio.CancelScope()
    async with open_room({"one": FakeServer()}, entries={"one": {"scrub": "all"}}) as room:
        port = port_of(room)
        assert await port.scrubbed("one", Scrub.ALL, answer) == answer
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(aside, partial(may_end.wait, 5.0))
            await anyio.wait_all_tasks_blocked()
            with scope:
                scope.deadline = anyio.current_time() + 0.05
                await port.scrubbed("one", Scrub.ALL, answer)
            may_end.set()
        assert scope.cancelled_caught


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@in_real_time
async def test_the_status_names_no_process_that_has_ended() -> None:
    """Not even before anybody has seen its end, or while what it left behind is ended."""
    config = {"mcpServers": {"echo": {"command": sys.executable, "args": [str(SERVERS / "echo.py")]}}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        await room.connect("echo")
        pid = room.status()[0].pid
        assert pid is not None
        _kill(pid)  # the loop sees nothing meanwhile
        assert room.status()[0].pid is None


@in_real_time
async def test_a_room_whose_time_is_over_has_no_child_and_starts_none() -> None:
    config = {"mcpServers": {"echo": {"command": sys.executable, "args": [str(SERVERS / "echo.py")]}}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        await room.connect("echo")
        pid = room.status()[0].pid
        assert pid is not None
        port_of(room).fleet.end_children_at(time.monotonic())
        assert await until(lambda: room.status()[0].pid is None)
        assert not lives(pid)
        with pytest.raises(ConnectFailed, match="may run no servers any more"):
            await room.connect("echo")
        port_of(room).fleet.end_children_at(time.monotonic() + 600)
        await room.connect("echo")


@in_virtual_time
async def test_rooms_tell_each_other_which_servers_fail() -> None:
    broken = FakeServer(refuse_start="no such host")
    async with open_room({"one": broken}) as here, open_room({"one": FakeServer()}) as there:
        assert port_of(here).fleet.open_breakers() == {}
        with pytest.raises(ConnectFailed):
            await here.connect("one")
        said = {
            name: msgspec.structs.replace(theirs, seconds=20.0)
            for name, theirs in port_of(here).fleet.open_breakers().items()
        }
        assert [*said] == ["one"]
        port_of(there).fleet.heed_open_breakers({**said, "unknown": said["one"]})
        with pytest.raises(Unavailable, match="on another host"):
            await there.call("echo", server="one")
        assert port_of(there).fleet.open_breakers() == {}, "it has found nothing itself"
        await anyio.sleep(20.0)
        await there.connect("one")


@in_virtual_time
async def test_a_request_of_a_door_that_is_looked_at_before_it_is_sent_ends_once() -> None:
    """One that would change the server for others, and one whose params are a mapping of another kind."""
    server, ended = FakeServer(resources={"x://a": "text"}), list[Call]()
    async with open_room({"a": server}) as room:
        port = port_of(room)
        port.start_request("a", "resources/unsubscribe", {"uri": "x://a"}, ended.append)
        port.start_request("a", "resources/read", MappingProxyType({"uri": "x://a"}), ended.append)
        with pytest.raises(CallError):
            port.start_request("a", "resources/read", 7, ended.append)  # pyright: ignore[reportArgumentType]
        await anyio.sleep(1)
    report = room.drain_report
    assert report is not None
    assert (report.adds_up, report.completed, report.refused) == (True, 2, 1)
    assert [call.outcome for call in ended] == ["result", "result"]
