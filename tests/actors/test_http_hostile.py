"""Whatever an HTTP server sends costs nobody else a moment, and is never said to be a bug of ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import in_real_time, run
from tests.support.hostile_http import MIB, ODD, attacks, responses
from tests.support.http_rooms import room_at
from tests.support.patience import PATIENCE
from tests.support.raw_http import Handler, RawHttp, Seen, raw_http

from greenroom.protocol.errors import Bug, CallError
from greenroom.protocol.events import Note, NoteCode
from greenroom.supervisor.room import Greenroom

LONGEST_TURN = 0.05  # seconds of the processor's time: a loaded machine has little part in it
CHECKS = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
EAGER = ("packed", "packed three times, 5 KB", "a packed stream", "many headers", "many interim answers")
PLACES: dict[str, Callable[[Seen], bool]] = {
    "initialize": lambda seen: seen.method == "initialize",
    "list": lambda seen: seen.method == "tools/list",
    "call": lambda seen: seen.method == "tools/call",
    "notification": lambda seen: seen.method.startswith("notifications/"),
    "stream": lambda seen: seen.verb == "GET",
}


class Hostile:
    """A hook that answers what comes to one place with the bytes given; of several by the last part of the path."""

    def __init__(self, is_there: Callable[[Seen], bool], *data: bytes) -> None:
        self.is_there = is_there
        self.data = data
        self.answered = 0

    def __call__(self, handler: Handler, seen: Seen) -> bool:
        if not self.is_there(seen):
            return False
        self.answered += 1
        handler.close_connection = True
        handler.wfile.write(self.data[int(handler.path.rpartition("/")[2]) if len(self.data) > 1 else 0])
        return True


async def bugs_of(room: Greenroom, found: list[str]) -> None:
    async with room.events() as events:
        async for event in events:
            if isinstance(event, Note) and event.code is NoteCode.BUG:
                found.append(f"{event.address}: {event.detail}")


async def measure(turns: list[float]) -> None:
    """Keep in `turns[0]` the longest turn of the loop's, in seconds of its thread's own time, or a millisecond more: a
    look at each turn would burn all the time that a call waits."""
    before = time.thread_time()
    while True:
        await anyio.sleep(0.001)
        now = time.thread_time()
        turns[0], before = max(turns[0], now - before), now


@in_real_time
async def test_t33_a_small_reply_stops_nobody() -> None:
    """To a call; and to being connected, which an eager server brings about by itself."""
    turns, longest, bugs = [0.0], dict[str, float](), list[str]()

    async def called(server: RawHttp) -> None:
        async with room_at(server.url, {"maxLineBytes": MIB}) as room, anyio.create_task_group() as tasks:
            tasks.start_soon(bugs_of, room, bugs)
            for name, data in attacks().items():
                server.hook = hostile = Hostile(PLACES["call"], data)
                turns[0] = 0.0
                with anyio.fail_after(PATIENCE):
                    while not hostile.answered:
                        with pytest.raises(CallError):
                            await room.call("ok", timeout=1.0)
                longest[name] = turns[0]
                server.hook = None
                await room.connect("raw")
            tasks.cancel_scope.cancel()

    async def initialized(server: RawHttp) -> None:
        for name in EAGER:
            server.hook = Hostile(PLACES["initialize"], attacks()[name])
            async with room_at(server.url, {"maxLineBytes": MIB}, connect=False) as room:
                turns[0] = 0.0
                with pytest.raises(CallError):
                    await room.connect("raw")
                longest[f"{name}, on initialize"] = turns[0]

    attacks()  # making them up takes its time too
    with raw_http() as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(measure, turns)
            await called(server)
            await initialized(server)
            tasks.cancel_scope.cancel()
    assert {name: turn for name, turn in longest.items() if turn > LONGEST_TURN} == {}
    assert bugs == []


async def try_all(data: Sequence[bytes], **entry: Any) -> list[str]:
    """A server for each place and each of these answers, all at once. Returns what was said to be a bug of ours."""
    bugs: list[str] = []
    with ExitStack() as stack:
        config: dict[str, Any] = {}
        for place, is_there in PLACES.items():
            server = stack.enter_context(raw_http())
            server.hook = Hostile(is_there, *data)
            for number in range(len(data)):
                config[f"{place}{number}"] = {"url": f"{server.url}/{number}", **entry}
        settings = {"maxLineBytes": MIB, "startPermits": len(config)}
        async with (
            Greenroom.open(
                {"mcpServers": config, "settings": settings}, cache_path=":memory:", bootstrap=False
            ) as room,
            anyio.create_task_group() as tasks,
        ):

            async def one(name: str) -> None:
                with anyio.move_on_after(1.0):
                    try:
                        await room.connect(name)
                        await room.call(f"{name}_ok", timeout=0.3)
                    except CallError as error:
                        if isinstance(error, Bug):
                            bugs.append(str(error))

            tasks.start_soon(bugs_of, room, bugs)
            async with anyio.create_task_group() as tries:
                for name in config:
                    tries.start_soon(one, name)
            tasks.cancel_scope.cancel()
    return bugs


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_an_odd_answer_is_no_bug_of_ours(transport: str, backend: str) -> None:
    assert run(backend, lambda: try_all(list(ODD.values()), type=transport)) == []


# What is read wrongly is read wrongly on both loops: each transport is tried on one. The table above is tried on both.
@pytest.mark.parametrize(("transport", "backend"), [("http", "trio"), ("sse", "asyncio")])
@settings(max_examples=3, deadline=None, suppress_health_check=CHECKS)
@given(st.lists(responses(), min_size=8, max_size=8))
def test_arbitrary_answers_are_no_bug_of_ours(transport: str, backend: str, data: list[bytes]) -> None:
    assert run(backend, lambda: try_all(data, type=transport)) == []
