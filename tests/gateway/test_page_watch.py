"""What a page is told while it looks: as much as the status says, whatever happens, and nothing once it has left."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.gateway.test_conversations import asking_room, echo
from tests.support import in_real_time, in_virtual_time, run
from tests.support.asking import AskingServer
from tests.support.gateway import PATIENCE
from tests.support.rooms import open_room, settle, teach

from greenroom import Greenroom
from greenroom.config.files import load_config
from greenroom.config.model import Config
from greenroom.gateway.control_methods import held_view
from greenroom.gateway.doors.http_request import Caller
from greenroom.gateway.json_views import room_status_view, status_view
from greenroom.gateway.page.room_page import RoomPage
from greenroom.protocol.errors import GreenroomError
from greenroom.protocol.events import Kind
from greenroom.protocol.jsonrpc import encode
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, tool
from greenroom.testing.room_inside import RoomInside

READER, OWNER = Caller("rita"), Caller("olga", is_owner=True)
# Seconds that go on by themselves: a page counts them.
GO_ON = ("failedAgo", "waiting", "retryIn", "nextTry")


def room_of(*names: str, **settings: Any) -> Greenroom:
    return asking_room({name: AskingServer({"echo": echo}) for name in names}, None, **settings)


def page_of(room: Greenroom, **more: Any) -> RoomPage:
    return RoomPage(room, version="9.9", door="http", clients=list, **more)


class Seen:
    """A page that keeps what it is told, as the script in a browser does."""

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        self.stream = frames
        self.rows: dict[str, dict[str, Any]] = {}
        self.sections: dict[str, Any] = {}
        self.names: list[str] = []
        self.missed = 0

    async def more(self) -> None:
        with anyio.fail_after(PATIENCE):
            self.hear(await anext(self.stream))

    def hear(self, frame: bytes) -> None:
        head, _, data = frame.decode().partition("\ndata: ")
        name = head.removeprefix("event: ")
        self.names.append(name)
        said: Any = json.loads(data) if data else {}
        if name == "lagged":
            self.missed += said["missed"]
        elif name in ("snapshot", "change"):
            servers = said.pop("servers", {})
            servers = {"changed": servers, "gone": []} if name == "snapshot" else servers
            self.rows.update((row["name"], row) for row in servers.get("changed", ()))
            for gone in servers.get("gone", ()):
                del self.rows[gone]
            self.sections |= said

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not is_so():
                await self.more()


async def status(room: Greenroom) -> dict[str, dict[str, Any]]:
    view = await room_status_view(port_of(room))
    further: dict[str, list[Any]] = {name: [] for name in (row["name"] for row in view["servers"])}
    for row in view.get("addresses", ()):
        further[row["name"]].append(row)
    return {row["name"]: still({**row, "addresses": further[row["name"]]}) for row in view["servers"]}


def still(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what goes on by itself."""
    return {
        key: [still(each) for each in value] if key == "addresses" else value
        for key, value in row.items()
        if key not in GO_ON
    }


@in_virtual_time
async def test_that_the_next_try_comes_nearer_is_no_news() -> None:
    """Each look told the row of a server that had failed once more."""
    async with (
        open_room({"a": FakeServer(refuse_start="no")}, bootstrap=True) as room,
        aclosing(page_of(room).watch(READER)) as frames,
    ):
        seen = Seen(frames)
        # A thread puts it together, and virtual time goes on meanwhile: nothing limits it, and how often the server has
        # failed by then is not known.
        seen.hear(await anext(frames))

        def waits_long() -> bool:
            row = seen.rows.get("a", {})
            return row.get("retryIn") is None and (row.get("nextTry") or 0.0) > 30.0

        await seen.until(waits_long)
        seen.names.clear()
        with anyio.move_on_after(20.0):
            while True:
                await seen.more()
    assert "change" not in seen.names


@in_real_time
async def test_after_a_churn_the_page_shows_what_the_status_says() -> None:
    names = [f"s{n}" for n in range(8)]
    random = Random(4711)
    async with room_of(*names, isolation="per_session") as room:
        port_of(room).services.keep_recent()
        async with aclosing(page_of(room).watch(READER)) as frames:
            seen = Seen(frames)
            await seen.more()
            begun = 0

            async def churn(name: str) -> None:
                nonlocal begun
                for _ in range(6):
                    begun += 1
                    act = random.choice([room.connect, room.drain, room.restart, through_session])
                    try:
                        await act(name)
                    except GreenroomError:
                        continue

            async def through_session(name: str) -> None:
                async with room.session(f"{name}-{random.random()}") as session:
                    await session.call(f"{name}_echo", {})

            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(churn, name)
                await seen.until(lambda: begun > 24)  # half of all, so more is to come
            expected = await status(room)
            await seen.until(lambda: {name: still(row) for name, row in seen.rows.items()} == expected)
        async with aclosing(page_of(room).watch(READER)) as frames:
            late = Seen(frames)
            await late.more()
            assert {name: still(row) for name, row in late.rows.items()} == await status(room)


@in_real_time
async def test_what_has_happened_while_it_looked_is_shown() -> None:
    async with room_of("one", "two") as room:
        port_of(room).services.keep_recent()
        async with aclosing(page_of(room).watch(READER)) as frames:
            seen = Seen(frames)
            await seen.more()
            for _ in range(3):
                await room.connect("one")
                await room.drain("two")
                await room.restart("one")
                await room.connect("two")
            expected = await status(room)
            await seen.until(lambda: {name: still(row) for name, row in seen.rows.items()} == expected)


@in_real_time
async def test_a_server_that_comes_and_one_that_goes() -> None:
    async with room_of("one", "two") as room, aclosing(page_of(room).watch(READER)) as frames:
        seen = Seen(frames)
        await seen.more()
        before = room.config
        await room.reload({"mcpServers": {"two": {"command": "none"}, "three": {"command": "none"}}})
        await seen.until(lambda: set(seen.rows) == {"two", "three"})
        assert before is not room.config


@in_real_time
async def test_once_it_has_left_nothing_hears_or_runs_for_it() -> None:
    async with room_of("one") as room:
        events = RoomInside(room).events
        page = page_of(room)
        heard = {kind for kind in Kind if events.wants(kind)}
        tasks = len(anyio.get_running_tasks())
        for _ in range(3):
            async with aclosing(page.watch(OWNER)) as frames:
                await Seen(frames).more()
                assert events.wants(Kind.CALL)
            assert {kind for kind in Kind if events.wants(kind)} == heard
            assert len(anyio.get_running_tasks()) == tasks


@in_real_time
async def test_a_page_that_reads_slowly_holds_nobody_up_and_is_right_in_the_end() -> None:
    async with room_of("one") as room:
        await teach(room, "one", [tool("echo")])
        async with aclosing(page_of(room).watch(READER)) as frames:
            seen = Seen(frames)
            await seen.more()
            for _ in range(1_500):  # nobody reads
                await room.call("one_echo", {})
            await seen.until(lambda: "lagged" in seen.names)
            assert seen.missed >= 500
            expected = await status(room)
            await seen.until(lambda: {name: still(row) for name, row in seen.rows.items()} == expected)
            assert seen.sections["calls"] == []


@in_real_time
async def test_open_calls_are_those_that_are_open() -> None:
    release = anyio.Event()

    async def wait(asking: Any, arguments: Any) -> str:
        await release.wait()
        return "done"

    servers = {"one": AskingServer({"wait": wait})}
    async with asking_room(servers) as room, anyio.create_task_group() as tasks:
        port_of(room).services.keep_recent()
        await teach(room, "one", [tool("wait")])
        tasks.start_soon(room.call, "one_wait", {})
        await settle()
        async with aclosing(page_of(room).watch(READER)) as frames:
            seen = Seen(frames)
            await seen.until(
                lambda: [call["tool"] for call in seen.sections.get("calls", ())] == ["one_wait"]
            )
            assert seen.sections["calls"][0]["server"] == "one"
            tasks.start_soon(room.call, "one_wait", {})
            await seen.until(lambda: len(seen.sections["calls"]) == 2)
            await seen.until(lambda: {call["state"] for call in seen.sections["calls"]} == {"sent"})
            release.set()
            await seen.until(lambda: seen.sections["calls"] == [])


@in_real_time
async def test_the_stream_ends_with_the_gateway_and_not_everybody_may_watch() -> None:
    async with room_of("one") as room:
        page = page_of(room)
        open_ones = [page.watch(READER) for _ in range(16)]
        for frames in open_ones:
            await Seen(frames).more()
        refused = Seen(page.watch(READER))
        await refused.more()
        assert refused.names == ["refused"]
        with pytest.raises(StopAsyncIteration):
            await refused.more()
        for caller in (OWNER, Caller("rob")):
            others = Seen(page.watch(caller))
            await others.more()
            assert others.names == ["snapshot"], "one who watches much keeps nobody else from it"
            open_ones.append(others.stream)
        page.close()
        for frames in open_ones:
            with anyio.fail_after(PATIENCE):
                async for _ in frames:
                    pass


@in_real_time
async def test_a_thousand_servers_are_looked_at_without_holding_the_loop_up() -> None:
    """Processor time of the loop's thread, so that a busy machine makes no difference. The collector is off, as it is
    for the objects of a gateway's room."""
    names, turns, at_once = [f"s{n}" for n in range(1_000)], list[float](), 0.0
    gc.disable()
    try:
        async with room_of(*names) as room, anyio.create_task_group() as tasks:
            began = time.thread_time()
            encode(status_view(port_of(room).catalogue))
            at_once = time.thread_time() - began

            async def measure() -> None:
                while True:
                    before = time.thread_time()
                    await anyio.lowlevel.checkpoint()
                    turns.append(time.thread_time() - before)

            async with aclosing(page_of(room).watch(READER)) as frames:
                seen = Seen(frames)
                tasks.start_soon(measure)
                await seen.more()
                assert len(seen.rows) == len(names)
                for name in names[:150]:
                    port_of(room).services.note("look again", name)  # so many that it looks at all
                await seen.until(lambda: "events" in seen.names)
            tasks.cancel_scope.cancel()
        assert max(turns) < at_once / 2, (sorted(turns)[-5:], at_once)
    finally:
        gc.enable()


async def act(page: RoomPage, **said: Any) -> tuple[int, Any]:
    answer = await page.act(said, "olga")
    return answer.status, json.loads(answer.body)


@in_real_time
async def test_a_changed_definition_is_accepted_as_it_was_shown_and_not_otherwise() -> None:
    server = AskingServer({"echo": echo}, schemas={"echo": {"type": "object"}})
    async with asking_room({"one": server}) as room:
        page = page_of(room)
        await room.call("one_echo", {})
        server.schemas["echo"] = {"type": "object", "properties": {"more": {"type": "string"}}}
        server.tell("notifications/tools/list_changed")
        async with aclosing(page.watch(OWNER)) as frames:
            seen = Seen(frames)
            await seen.until(lambda: bool(seen.sections.get("pins")))
            (pin,) = seen.sections["pins"]
            assert (pin["server"], pin["kind"], pin["name"]) == ("one", "tool", "echo")
            assert pin["parts"] == ["input schema"]
            assert "more" in pin["is"]["inputSchema"]["properties"]
            assert pin["was"]["inputSchema"] == {"type": "object"}
            one = {"action": "accept", "server": "one", "kind": "tool", "name": "echo"}
            other = "".join("1" if each == "0" else "0" for each in pin["digest"])
            status, said = await act(page, **one, digest=other)
            assert (status, said["error"]["code"]) == (400, "changed_meanwhile")
            assert room.describe("one_echo").changed is not None
            status, said = await act(page, **one, digest=pin["digest"])
            assert (status, said) == (200, {"done": True, "said": "Accepted: tool echo."})
            await seen.until(lambda: seen.sections["pins"] == [])
            await room.call("one_echo", {})


def test_a_file_of_the_project_is_trusted_as_it_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    monkeypatch.chdir(project)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home))
    file = project / ".mcp.json"

    def write(*args: str) -> None:
        file.write_text(json.dumps({"mcpServers": {"one": {"command": "tool", "args": [*args]}}}))

    def load() -> Config:
        return load_config(cwd=project, home=home, environ={"XDG_STATE_HOME": str(home)})

    async def main() -> None:
        async with Greenroom.open(load()) as room:
            page = page_of(room)
            for acts in (False, True):
                async with aclosing(page.watch(OWNER if acts else READER)) as frames:
                    seen = Seen(frames)
                    await seen.more()
                    (asked,) = seen.sections["projects"]
                    assert (asked["project"], asked["servers"]) == (str(file), ["one"])
                    assert (asked["matters"] is not None) is acts, "an owner's alone"
            one = {"action": "trust", "project": str(file), "digest": asked["digest"]}
            write("--other")
            status, said = await act(page, **one)
            assert (status, said["error"]["code"]) == (400, "changed_meanwhile")
            assert "one" in load().broken
            write()
            assert (await act(page, **one))[0] == 200
            assert "one" in load().servers

    write()
    run("asyncio", main)


@in_real_time
async def test_a_page_that_comes_late_is_told_of_each_call_before_and_since_when_none_is_missing() -> None:
    async with room_of("one") as room:
        port_of(room).services.keep_recent()
        await teach(room, "one")
        for _ in range(30):
            await room.call("one_echo")
        for _ in range(2):  # it looks, and looks again after a pause
            async with aclosing(page_of(room).watch(READER)) as frames:
                told: list[dict[str, Any]] = []
                since = None
                with anyio.fail_after(PATIENCE):
                    async for frame in frames:
                        head, _, data = frame.decode().partition("\ndata: ")
                        said: Any = json.loads(data)
                        if head == "event: snapshot":
                            since = said["countedSince"]
                        if head == "event: events":
                            told += [one for one in said if one["event"] == "CallEnded"]
                        if len(told) >= 30:
                            break
                assert since is not None
                assert all(one["at"] >= since for one in told)
                assert len({one["call"] for one in told}) == len(told) == 30, (
                    "a page tells them by these numbers"
                )


@in_real_time
async def test_what_holds_calls_now_is_told_with_who_has_what_they_wait_for_and_what_to_do() -> None:
    """The page and the status said that all is well (issue 38, 5.2)."""
    busy = AskingServer({"wait": echo})
    async with asking_room(
        {"busy": busy, "late": AskingServer({"echo": echo})}, None, maxConnections=1
    ) as room:
        await teach(room, "busy")
        await teach(room, "late")
        await room.connect("busy")
        release = port_of(room).connections.lease("busy")  # as long as somebody is about to call it
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.call, "late_echo")
            async with aclosing(page_of(room).watch(READER)) as frames:
                seen = Seen(frames)
                await seen.until(lambda: bool(seen.sections.get("held")))
                (held,) = seen.sections["held"]
                assert held["what"] == "1 call waits for a slot: all 1 are taken"
                assert (held["servers"], held["by"], held["holders"]) == (["late"], ["busy"], 1)
                assert "maxConnections" in held["step"]
                assert held_view(port_of(room))["held"] == [held]
                release()
                await seen.until(lambda: not seen.sections["held"])
