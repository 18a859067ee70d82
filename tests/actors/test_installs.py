"""The first start of servers that are installed first: real processes that stand for `npx` and what it does."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.gateway import alive, logged_pids, serve
from tests.support.installs import COMPUTES, HANGS, SPAWNS, SPEAKS, held, logged, npx, release
from tests.support.patience import PATIENCE
from tests.support.rooms import Outcomes, open_room, record_events, settle, teach
from tests.support.rows import for_each
from tests.support.timers import timers_at_work

from greenroom import CallTimeout, Greenroom, ServerStatus
from greenroom.actors.backend import current_backend
from greenroom.actors.event_stream import EventStream
from greenroom.actors.host import Declaration, NoHost
from greenroom.actors.install_patience import Patience
from greenroom.actors.room_context import RoomContext, Spawner
from greenroom.actors.timers import Timers
from greenroom.actors.transports.child_process import tree_signs
from greenroom.config.installers import is_installer
from greenroom.config.model import Settings
from greenroom.protocol.address import Address
from greenroom.protocol.events import Note
from greenroom.supervisor.discovery import DISCOVERY_IDLE
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors

IMPATIENT = 1.5  # seconds: the connect timeout, much less than any of these installs takes


def room_of(entries: Mapping[str, Any], **settings: Any) -> Greenroom:
    settings = {"connectTimeoutMs": IMPATIENT * 1000, "queueTimeoutMs": 60_000, **settings}
    return Greenroom.open({"mcpServers": dict(entries), "settings": settings}, cache_path=":memory:")


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not true():
            await anyio.sleep(0.02)


@in_real_time
async def test_t47_what_is_being_installed_is_not_ended_however_long_it_takes(tmp_path: Path) -> None:
    async def install(name: str, lines: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        async with room_of({"slow": npx(folder, "slow", lines)}) as room:
            await room.catalogued()
            assert [target.name for target in room.tools()][:2] == ["slow_ask", "slow_crash"], name
            assert len(logged(folder, "npx")) == len(logged(folder, "start")) == 1, name

    async with anyio.create_task_group() as tasks:
        for name, lines in {"speaks": SPEAKS, "spawns": SPAWNS, "computes": COMPUTES}.items():
            tasks.start_soon(install, name, lines)


@in_real_time
async def test_t47_one_that_shows_no_work_is_ended_by_sigterm(tmp_path: Path) -> None:
    async with room_of({"stuck": npx(tmp_path, "stuck", HANGS)}, stopTimeoutMs=2_000) as room:
        await room.catalogued()
        (status,) = room.status()
        assert f"no sign of work for {IMPATIENT} s; if it needs longer" in (status.failure or "")
        assert "stuck" in (status.failure or "")
        assert logged(tmp_path, "undone") == logged(tmp_path, "npx")


@in_real_time
async def test_t47_one_that_works_for_ever_has_the_install_time(tmp_path: Path) -> None:
    entry = npx(tmp_path, "endless", "while :; do echo more >&2; sleep 0.1; done")
    async with room_of({"endless": {**entry, "installTimeoutMs": 2_000}}) as room:
        await room.catalogued()
        (status,) = room.status()
        assert "within 2 s, with the time to install it; " in (status.failure or "")


@in_real_time
async def test_t47_two_are_installed_at_a_time_and_what_is_called_at_once(tmp_path: Path) -> None:
    entries = {name: npx(tmp_path, name, held(tmp_path)) for name in ("a", "b", "c", "d")}
    async with room_of(entries) as room, Outcomes() as calls:

        def waiting() -> list[str]:
            return [row.server for row in room.status() if row.waiting_for == "its turn to install"]

        await until(lambda: len(logged(tmp_path, "npx")) == 2)
        assert waiting() == ["c", "d"]
        one = calls.start(room, "d_echo", {"text": "now"})
        await until(lambda: len(logged(tmp_path, "npx")) == 3)
        assert waiting() == ["c"]
        release(tmp_path)
        await room.catalogued()
        await until(lambda: one.outcome == "now")
        assert len(port_of(room).catalogue.index.servers) == 4
        assert len(logged(tmp_path, "start")) == 4, "each was started once"


@in_real_time
async def test_t47_a_call_joins_the_discovery_and_its_timeout_ends_no_install(tmp_path: Path) -> None:
    async with room_of({"slow": npx(tmp_path, "slow", held(tmp_path))}, queueTimeoutMs=600) as room:
        await until(lambda: bool(room.status()[0].last_line))
        with pytest.raises(CallTimeout, match=r"\(installing for \d+ s, which goes on: fetched \d+\)"):
            await room.call("slow_echo", {"text": "hi"})
        release(tmp_path)
        await room.catalogued()
        assert (await room.call("slow_echo", {"text": "hi"})).text == "hi"
        assert len(logged(tmp_path, "npx")) == len(logged(tmp_path, "start")) == 1


@in_real_time
async def test_t47_an_install_for_one_call_is_finished_when_the_call_has_left(tmp_path: Path) -> None:
    entry = npx(tmp_path, "apart", held(tmp_path)) | {"isolation": "per_call", "bootstrap": False}
    async with room_of({"apart": entry}, queueTimeoutMs=600) as room:
        await teach(room, "apart")
        with pytest.raises(CallTimeout, match="which goes on"):
            await room.call("apart_echo")
        release(tmp_path)
        await until(lambda: bool(logged(tmp_path, "start")))
        await until(lambda: len(room.status()) == 1)
        assert not alive(logged_pids(tmp_path))
        assert not logged(tmp_path, "undone")


@in_real_time
async def test_t47_reconnecting_waits_for_an_install_and_does_not_end_it(tmp_path: Path) -> None:
    ended: list[Any] = []

    async def reconnect(room: Greenroom) -> None:
        ended.extend(await room.reconnect())

    async with room_of({"slow": npx(tmp_path, "slow", held(tmp_path))}) as room:
        await until(lambda: room.status()[0].waiting_for == "install")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reconnect, room)
            await settle()
            assert not ended
            release(tmp_path)
        assert ended == [("slow", None)]
        assert len(logged(tmp_path, "npx")) == len(logged(tmp_path, "start")) == 1


@in_real_time
async def test_t47_its_progress_is_in_status(tmp_path: Path) -> None:
    began = anyio.current_time()
    async with room_of({"slow": npx(tmp_path, "slow", held(tmp_path))}) as room:

        def row() -> ServerStatus:
            return room.status()[0]

        await until(lambda: int((row().last_line or "fetched 0").split()[1]) >= 4)
        assert row().waiting_for == "install"
        assert 0.3 < (row().waiting or 0.0) < anyio.current_time() - began
        release(tmp_path)
        await room.catalogued()
        assert (row().waiting_for, row().waiting, row().last_line) == (None, None, None)


def test_t47_when_the_client_leaves_an_install_is_undone_in_time(tmp_path: Path) -> None:
    with serve(
        tmp_path, {"slow": npx(tmp_path, "slow", HANGS)}, bootstrap=True, stopTimeoutMs=2_000
    ) as gateway:
        gateway.initialize()
        anyio.run(until, lambda: bool(logged(tmp_path, "npx")))
        gateway.end()
        assert logged(tmp_path, "undone") == logged(tmp_path, "npx")
        assert not alive(logged_pids(tmp_path))


@in_virtual_time
async def test_t47_a_discovery_that_fails_is_tried_again_until_it_is_known() -> None:
    """For a server with a child per call, too, whose discovery has an address of its own."""
    servers = {"shared": FakeServer(refuse_start="not yet"), "apart": FakeServer(refuse_start="not yet")}
    entries = {"apart": {"isolation": "per_call"}}
    async with open_room(servers, entries=entries, bootstrap=True) as room:
        await room.catalogued()
        assert not room.tools()
        await anyio.sleep(200.0)
        for server in servers.values():
            assert 3 <= server.starts <= 12, "again and again, ever later"
            server.refuse_start = None
        await anyio.sleep(300.0)
        assert [target.name for target in room.tools()] == ["apart_echo", "shared_echo"]
        starts = [server.starts for server in servers.values()]
        await anyio.sleep(200.0)
        assert [server.starts for server in servers.values()] == starts


@in_virtual_time
async def test_t47_a_discovered_server_stays_for_the_call_that_follows() -> None:
    server = FakeServer()
    async with open_room({"a": server}, bootstrap=True, idleTimeout=2) as room:
        await room.catalogued()
        await anyio.sleep(DISCOVERY_IDLE - 1.0)
        await room.call("a_echo")
        await anyio.sleep(100.0)
        assert (server.starts, server.live) == (1, 1), "called once, it has its idle time"
        await anyio.sleep(30.0)
        assert (server.starts, server.live) == (1, 0)


class ElicitingHost(NoHost):
    def declaration(self, address: Address) -> Declaration:
        return Declaration({"elicitation": {}})


@in_virtual_time
async def test_t47_a_client_that_comes_meanwhile_ends_no_first_start() -> None:
    """It can answer what the server was not told of: that is no reason to start the server again."""
    server = FakeServer(initialize_latency=5.0)
    async with open_room({"a": server}, bootstrap=True) as room, Outcomes() as calls:
        await anyio.sleep(1.0)
        port_of(room).answer_with(ElicitingHost())
        one = calls.start(room, "a_echo", {"n": 1})
        await anyio.sleep(4.5)
        assert [target.name for target in room.tools()] == ["a_echo"]
        assert one.outcome == '{"n": 1}'
        await anyio.sleep(6.0)
        assert (server.starts, server.most_live) == (1, 1)


@in_virtual_time
async def test_t47_the_log_is_told_that_an_install_goes_on() -> None:
    async with open_room(
        {"a": FakeServer(initialize_latency=25.0)}, entries={"a": {"command": "npx"}}
    ) as room:
        notes = record_events(room, Note)
        await room.connect("a")
        assert [note.detail for note in notes] == [
            "still installing after 10 s",
            "still installing after 20 s",
        ]


# ---- patience, by itself -----------------------------------------------------------------------------------------


@asynccontextmanager
async def patient(quiet: float, most: float | None) -> AsyncGenerator[tuple[Patience, Timers]]:
    """Of an attempt that begins now, in the context of a room whose timers run."""
    backend = current_backend()
    async with timers_at_work() as timers, anyio.create_task_group() as tasks:
        spawner = Spawner(backend, tasks)
        context = RoomContext(
            backend, timers, EventStream(backend), Settings(), fake_connectors({}), spawner, client_info={}
        )
        yield Patience(context, backend.now(), quiet, most, quiet), timers
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_t47_patience_is_counted_from_the_last_look_that_saw_work() -> None:
    work, told = [0], list[str]()
    async with patient(quiet=3.0, most=60.0) as (patience, timers):
        began = patience.began
        patience.begin(lambda: work[0], told.append)
        assert patience.is_installing
        await anyio.sleep(1.0)
        assert patience.limit.when == began + 3.0, "a first look is no sign"
        await anyio.sleep(1.1)
        work[0] += 1
        await anyio.sleep(5.0)
        assert patience.limit.when == pytest.approx(began + 2.25 + 3.0), "four looks in each quiet time"
        assert patience.reason().startswith("no answer to the handshake, and no sign of work for 3 s; if it ")
        patience.stop()
        assert (patience.is_installing, len(timers)) == (False, 0)
        patience.stop()
    assert told == []


@in_virtual_time
async def test_t47_what_works_on_and_on_has_its_time_in_all_and_is_told_of_ever_less() -> None:
    looks, told = list[None](), list[str]()

    def signs() -> int:
        looks.append(None)
        return len(looks)

    async with patient(quiet=4.0, most=100.0) as (patience, _):
        patience.begin(signs, told.append)
        await anyio.sleep(99.5)
        assert len(looks) == 100, "once a second"
        assert patience.limit.when == patience.began + 100.0
        assert "no sign of work" in patience.reason()
        await anyio.sleep(0.5)
        assert patience.reason().startswith(
            "no answer to the handshake within 100 s, with the time to install it; "
        )
        assert "installTimeoutMs" in patience.reason()
        patience.stop()
    assert told == [f"still installing after {seconds} s" for seconds in (10, 20, 40, 80)]


@in_virtual_time
async def test_t47_less_time_in_all_than_for_silence_is_as_much() -> None:
    async with patient(quiet=3.0, most=1.0) as (impatient, _):
        assert impatient.most == 3.0
    async with patient(quiet=3.0, most=None) as (plain, timers):
        plain.begin(lambda: pytest.fail("there is nothing to look at"), print)
        assert (plain.is_installing, plain.most, len(timers)) == (False, 3.0, 1)
        assert plain.reason().startswith("no answer to the handshake within 3 s; ")
        assert "connectTimeoutMs" in plain.reason()
        plain.stop()
        assert len(timers) == 0


def test_t47_a_tree_shows_its_processes_and_their_work() -> None:
    script = "read a; (read b <&3; while :; do :; done) & wait"
    tree = subprocess.Popen(
        ["sh", "-c", f"exec 3<&0; {script}"], stdin=subprocess.PIPE, start_new_session=True
    )
    assert tree.stdin is not None

    def signs() -> Any:
        return tree_signs(tree.pid)

    def soon(true: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while not true() and time.monotonic() < deadline:
            time.sleep(0.01)
        return true()

    try:
        assert set(signs()) == {tree.pid}
        tree.stdin.write(b"\n")
        tree.stdin.flush()
        assert soon(lambda: len(signs()) == 2)
        assert soon(lambda: signs() == (time.sleep(0.05), signs())[1]), "both wait"
        before = signs()
        tree.stdin.write(b"\n")
        tree.stdin.flush()
        assert soon(lambda: signs() != before)
        assert set(signs()) == set(before)
    finally:
        tree.stdin.close()
        os.killpg(tree.pid, signal.SIGKILL)
        tree.wait()
    assert signs() == {}


@for_each(
    ("line", "installs"),
    [
        ("npx -y @upstash/context7-mcp", True),
        ("/usr/local/bin/npx foo", True),
        ("C:\\node\\NPX.CMD foo", True),
        ("npm exec foo", True),
        ("npm start", False),
        ("bunx foo", True),
        ("pnpm dlx foo", True),
        ("yarn dlx foo", True),
        ("uvx mcp-server-git", True),
        ("uv --directory /srv run server.py", True),
        ("uv tool run foo", True),
        ("uv sync", False),
        ("pipx run foo", True),
        ("docker run -i --rm mcp/time", True),
        ("docker exec -i box server", False),
        ("env TOKEN=x npx foo", True),
        ("env -i TOKEN=x npx foo", True),
        ("env", False),
        ("env node npx", False),
        ("pnpx foo", True),
        ("pnpm install", False),
        ("npm x foo", True),
        ("yarn start", False),
        ("bun x foo", True),
        ("bun server.ts", False),
        ("deno run server.ts", True),
        ("deno serve", False),
        ("uv run server.py", True),
        ("pipx list", False),
        ("go run .", True),
        ("go build", False),
        ("cargo run", True),
        ("docker compose run server", True),
        ("podman run server", True),
        ("nerdctl run server", True),
        ("bash -lc 'npx foo'", True),
        ('sh -c "npx \'foo"', False),
        ("sh", False),
        ("cmd /d /c node server.js", False),
        ("sh -c 'FOO=1 exec npx -y foo'", True),
        ("cmd /c npx foo", True),
        ("sh -c 'node server.js'", False),
        ("node server.js", False),
        ("python -m npx", False),
    ],
)
def test_it_is_seen_from_a_command_whether_it_installs_something(line: str, installs: bool) -> None:
    import shlex

    command, *args = [word.replace("\0", "\\") for word in shlex.split(line.replace("\\", "\0"))]
    assert is_installer(command, args) is installs
    assert not is_installer(None)
