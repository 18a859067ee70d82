"""Children that are started ahead, as real processes: they live as they should, and end with what started them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.gateway import PATIENCE, alive, faulty, gone_within, logged_pids, serve
from tests.support.patience import until
from tests.support.rooms import Outcomes, record_events

from greenroom import CallError, Greenroom
from greenroom.events import WarmChildMoved, WarmMove

_BETWEEN = 0.01  # seconds between two looks


async def comes(holds: Callable[[], Any]) -> None:
    with anyio.fail_after(PATIENCE):
        while not holds():
            await anyio.sleep(_BETWEEN)


@asynccontextmanager
async def opened(
    entry: dict[str, Any], cache: Path | str = ":memory:", **settings: Any
) -> AsyncGenerator[Greenroom]:
    config = {"mcpServers": {"a": entry}, "settings": {"stopTimeoutMs": 2000, **settings}}
    async with Greenroom.open(config, cache_path=cache, bootstrap=False) as room:
        yield room


def warm(room: Greenroom) -> int:
    return next(row.warm for row in room.status() if row.scope == "shared")


async def pid_in(room: Greenroom, session: str) -> int:
    async with room.session(session) as one:
        return int((await one.call("a_pid")).text)


def ahead(folder: Path, count: int, *faults: str) -> dict[str, Any]:
    return {**faulty(folder, "a", *faults), "isolation": "per_session", "warm": count}


@in_real_time
async def test_a_session_gets_a_process_that_was_there_before_it_and_keeps_it(tmp_path: Path) -> None:
    async with opened(ahead(tmp_path, 2)) as room:
        used = {await pid_in(room, "first")}
        await comes(lambda: warm(room) == 2)
        for number in range(6):
            await comes(lambda: len(alive(logged_pids(tmp_path))) == 2)
            there = alive(logged_pids(tmp_path))
            async with room.session(f"next {number}") as one:
                said = {int((await one.call("a_pid")).text) for _ in range(3)}
                row = next(row for row in room.status() if row.scope != "shared")
                assert said == {row.pid}
                assert said <= there - used, "it was started ahead, and nobody has used it before"
                used |= said
            await comes(lambda: warm(room) == 2)
    assert gone_within(logged_pids(tmp_path)) == set()


@in_real_time
async def test_one_that_is_killed_is_replaced_and_never_handed_out(tmp_path: Path) -> None:
    async with opened(ahead(tmp_path, 1)) as room:
        events = record_events(room, WarmChildMoved)
        first = await pid_in(room, "first")
        for number in range(3):
            await comes(lambda: warm(room) == 1 and len(alive(logged_pids(tmp_path) - {first})) == 1)
            (victim,) = alive(logged_pids(tmp_path) - {first})
            os.kill(victim, signal.SIGKILL)
            assert await pid_in(room, f"s{number}") != victim, "even at this very moment"
        assert any("SIGKILL" in event.words or "ended" in event.words for event in events)
    assert gone_within(logged_pids(tmp_path)) == set()


@in_real_time
async def test_a_flood_on_stderr_stops_no_warm_child_and_is_in_the_log_of_its_server(tmp_path: Path) -> None:
    """Nobody would read it, and it could not start."""
    program = tmp_path / "loud.py"
    program.write_text(
        "import os, runpy, sys\n"
        "for number in range(40_000): os.write(2, b'line %d of a flood\\n' % number)\n"
        f"sys.argv[0] = {os.fspath(faulty(tmp_path, 'a')['args'][1])!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    entry = ahead(tmp_path, 1)
    entry["args"] = ["-S", os.fspath(program), *entry["args"][2:]]
    async with opened(entry, tmp_path / "cache" / "catalogue.json") as room:
        events = record_events(room, WarmChildMoved)
        await pid_in(room, "first")
        await comes(lambda: len(alive(logged_pids(tmp_path))) == 1)  # it has written everything
        pid = await pid_in(room, "next")
        assert any(event.move is WarmMove.TAKEN and event.by == "session:next" for event in events)
    (log,) = (path for path in (tmp_path / "cache" / "logs").iterdir() if path.suffix == ".log")
    text = log.read_text() + "".join(old.read_text() for old in log.parent.glob("*.old"))
    assert f"started: process {pid}" in text
    assert "taken over: [session:next] incarnation 1" in text
    assert re.search(r"^\[warm:\d\] line \d+ of a flood$", text, re.MULTILINE)


@pytest.mark.parametrize("command", [["false"], ["no-such-program-of-greenroom"]], ids=["exits", "missing"])
@in_real_time
async def test_what_ends_at_once_is_not_started_again_and_again(command: list[str]) -> None:
    entry = {"command": command[0], "isolation": "per_session", "warm": 4, "lifecycle": "eager"}
    async with opened(entry) as room:
        events = record_events(room, WarmChildMoved)
        await comes(lambda: [event.move for event in events].count(WarmMove.LOST) >= 4)
        await anyio.sleep(0.5)
        assert [event.move for event in events].count(WarmMove.LOST) <= 8, "four at first, and few after them"
        async with room.session("alice") as alice:
            with pytest.raises(CallError):
                await alice.call("a_echo")


@in_real_time
async def test_each_of_many_calls_has_a_process_of_its_own(tmp_path: Path) -> None:
    entry = {**faulty(tmp_path, "a"), "isolation": "per_call", "warm": 8}
    async with opened(entry, maxConnections=20, connectTimeoutMs=60_000, queueTimeoutMs=100_000) as room:
        events = record_events(room, WarmChildMoved)
        await room.call("a_pid")
        await comes(lambda: warm(room) == 8)
        async with Outcomes() as calls:
            for _ in range(32):
                calls.start(room, "a_pid")
        pids = [call.outcome for call in calls.all]
        assert len({str(pid) for pid in pids}) == 32
        assert all(isinstance(pid, str) and pid.isdigit() for pid in pids)
        assert [event.move for event in events].count(WarmMove.TAKEN) >= 8
        await comes(lambda: warm(room) == 8)
    assert gone_within(logged_pids(tmp_path)) == set()


@in_real_time
async def test_a_caller_that_leaves_while_it_takes_one_over_leaves_nothing(tmp_path: Path) -> None:
    async with opened(ahead(tmp_path, 2)) as room:
        await pid_in(room, "first")
        for turns in range(12):
            await comes(lambda: warm(room) == 2)
            async with room.session(f"s{turns}") as one:
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(one.call, "a_pid")
                        for _ in range(turns):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()
        assert (await pid_in(room, "last")) > 0
    assert gone_within(logged_pids(tmp_path)) == set()


@in_real_time
async def test_a_changed_definition_ends_the_processes_of_the_old_one(tmp_path: Path) -> None:
    entry = ahead(tmp_path, 2)
    async with opened(entry) as room:
        await pid_in(room, "first")
        await comes(lambda: warm(room) == 2 and len(alive(logged_pids(tmp_path))) == 2)
        kept = alive(logged_pids(tmp_path))
        await room.reload({"mcpServers": {"a": {**entry, "maxQueued": 9}}})
        assert alive(logged_pids(tmp_path)) == kept
        await room.reload({"mcpServers": {"a": {**entry, "env": {"OTHER": "yes"}}}})
        await comes(lambda: not alive(kept))
        await pid_in(room, "next")


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, None, signal.SIGTERM], ids=["killed", "its client left", "ended"]
)
def test_a_gateway_that_ends_leaves_none(tmp_path: Path, how: int | None) -> None:
    """Not even of those that would like to stay."""
    entry = {**ahead(tmp_path, 3, "--ignore-eof", "--ignore-term"), "isolation": "per_call"}
    with serve(tmp_path, {"a": entry}, stopTimeoutMs=500) as gateway:
        gateway.initialize()
        gateway.mcp(tool="a_pid")
        until(lambda: len(alive(logged_pids(tmp_path))) >= 3)
        gateway.end(how)
        assert gone_within(logged_pids(tmp_path)) == set()
