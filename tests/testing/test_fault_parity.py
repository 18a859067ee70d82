"""One script, two players: the fake in memory and virtual time, and the executable on the real clock, come to the same.

Each row plays a script through a whole room, once against each, and says what must come of it: what each call ends in,
how far it got, how often the server was started, which faults were played. Every deed is played at every step it
means something at: a test below counts them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from tests.support import in_real_time, run, run_virtual
from tests.support.http_rooms import room_at
from tests.support.patience import PATIENCE
from tests.support.raw_http import Handler, Seen, raw_http

from greenroom import CallError, Greenroom
from greenroom.protocol.fault_plan import DEEDS, FaultPlan
from greenroom.protocol.lifecycle import State
from greenroom.testing import FakeServer, Fault, FaultScript, ScriptedServer, fake_connectors

Far = FakeServer | ScriptedServer
Drive = Callable[[Greenroom, Far], Awaitable[list[str]]]

# No circuit breaker in the way, and no patience with a far end that is known to say nothing.
SETTINGS: Mapping[str, Any] = {
    "restartBackoff": {"minMs": 1, "maxMs": 1},
    "failureThreshold": 1000,
    "restartIntensity": 1000,
    "stopTimeoutMs": 1000,
    "drainTimeoutMs": 1000,
}
SHORT_CALLS = {"requestTimeoutMs": 1_000}
SHORT_CONNECT = {"connectTimeoutMs": 3_000}
WELL = "result"
SIDE_BY_SIDE = (
    9  # rows at a time: few enough that each is served well within the times above, on a slow machine, too
)
IDLE = 1.5  # seconds: more than passes between two messages of a handshake, on a slow machine, too


async def _outcome(room: Greenroom, tool: str = "echo") -> str:
    try:
        result = await room.call(f"far_{tool}", {"word": "hello"})
    except CallError as error:
        return f"{error.code} {error.reach}"
    assert result.text == '{"word": "hello"}'
    return WELL


async def two_calls(room: Greenroom, far: Far) -> list[str]:
    first = await _outcome(room)
    await anyio.sleep(0.05)  # longer than the circuit breaker refuses
    return [first, await _outcome(room)]


async def wait_between(room: Greenroom, far: Far) -> list[str]:
    """A call, the fault by itself, and what it does to the next one."""
    first = await _outcome(room)
    with anyio.fail_after(PATIENCE):
        while not far.played:
            await anyio.sleep(0.01)
    await anyio.sleep(0.1)
    return [first, await _outcome(room)]


async def wait_for_its_end(room: Greenroom, far: Far) -> list[str]:
    """A call, and another when it is known that the server has ended by itself."""
    first = await _outcome(room)
    with anyio.fail_after(PATIENCE):
        while not far.played or room.status()[0].state is State.CONNECTED:
            await anyio.sleep(0.01)
    return [first, await _outcome(room)]


async def wait_for_a_healthy_one(room: Greenroom, far: Far) -> list[str]:
    """Looked after until the fault was played, and something was heard since."""
    await room.connect("far")
    with anyio.fail_after(PATIENCE):
        while not far.played or far.pings < 3:
            await anyio.sleep(0.01)
        while room.status()[0].state is not State.CONNECTED:
            await anyio.sleep(0.01)
    return [await _outcome(room)]


async def meet_the_new_tool(room: Greenroom, far: Far) -> list[str]:
    first = await _outcome(room)
    with anyio.fail_after(PATIENCE):
        while len(room.tools()) != 2:
            await anyio.sleep(0.01)
    return [first, await _outcome(room, "new")]


async def drained(room: Greenroom, far: Far) -> list[str]:
    first = await _outcome(room)
    await room.drain("far")
    return [first, await _outcome(room)]


@attrs.frozen
class Row:
    fault: Fault
    outcomes: list[str]
    starts: int = 1
    drive: Drive = two_calls
    settings: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    entry: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    before: tuple[Fault, ...] = ()

    @property
    def script(self) -> FaultScript:
        return FaultScript.of(*self.before, self.fault)


def _watched(fault: Fault, starts: int = 1) -> Row:
    """Found by asking a keep-alive server how it is."""
    entry, settings = {"lifecycle": "keep-alive"}, {"healthIntervalMs": 500}
    return Row(fault, [WELL], starts, wait_for_a_healthy_one, settings, entry)


FAILED, LOST, UNANSWERED = "connect_failed not_sent", "call_failed sent", "timeout sent"
ROWS = [
    *(Row(Fault(at, "delay", seconds=0.05), [WELL, WELL]) for at in ("start", "initialize", "list", "call")),
    _watched(Fault("ping", "delay", seconds=0.02)),
    Row(Fault("stop", "delay", seconds=0.05), [WELL, "server_not_connected not_sent"], drive=drained),
    *(
        Row(Fault(at, "hang", start=1), [FAILED, WELL], 2, settings=SHORT_CONNECT)
        for at in ("start", "initialize", "list")
    ),
    Row(Fault("call", "hang", nth=2), [WELL, UNANSWERED], settings=SHORT_CALLS),
    _watched(Fault("ping", "hang", start=1), starts=2),
    Row(Fault("idle", "hang", after=IDLE), [WELL, UNANSWERED], drive=wait_between, settings=SHORT_CALLS),
    Row(Fault("stop", "hang"), [WELL, "server_not_connected not_sent"], drive=drained),
    *(
        Row(Fault(at, "crash", start=1, text="out of ink"), [FAILED, WELL], 2)
        for at in ("start", "initialize", "list")
    ),
    Row(Fault("call", "crash", start=1, exit_code=3), [LOST, WELL], 2),
    Row(Fault("call", "crash", start=1, nth=2, signal="SIGKILL"), [WELL, LOST]),
    Row(Fault("call", "crash", tool="echo", start=1, signal="SIGSEGV"), [LOST, WELL], 2),
    Row(
        Fault("call", "crash", start=1, exit_code=0),
        [LOST, WELL],
        2,
        before=(Fault("call", "delay", seconds=0.05),),
    ),
    _watched(Fault("ping", "crash", start=1), starts=2),
    Row(Fault("idle", "crash", after=IDLE, start=1), [WELL, WELL], 2, wait_for_its_end),
    *(Row(Fault(at, "refuse", text="no", start=1), [FAILED, WELL], 2) for at in ("initialize", "list")),
    Row(Fault("call", "refuse", text="no", code=-32001, nth=1), ["call_failed answered", WELL]),
    _watched(Fault("ping", "refuse", text="no")),
    *(Row(Fault(at, "garbage"), [WELL, WELL]) for at in ("start", "initialize", "list", "call")),
    _watched(Fault("ping", "garbage")),
    Row(Fault("idle", "garbage", after=IDLE, nth=1), [WELL, WELL], drive=wait_between),
    *(Row(Fault(at, "flood", stderr=100_000), [WELL, WELL]) for at in ("start", "initialize")),
    *(Row(Fault(at, "flood", notifications=1_000), [WELL, WELL]) for at in ("list", "call")),
    _watched(Fault("ping", "flood", notifications=1, stderr=1)),
    Row(Fault("idle", "flood", notifications=3, after=IDLE, nth=1), [WELL, WELL], drive=wait_between),
    *(
        Row(Fault(at, "list_changed", tools=["echo", "new"]), [WELL, WELL], drive=meet_the_new_tool)
        for at in ("initialize", "call")
    ),
    Row(Fault("list", "list_changed", tools=["echo", "new"], nth=1), [WELL, WELL], drive=meet_the_new_tool),
    Row(
        Fault("idle", "list_changed", tools=["echo", "new"], after=IDLE, nth=1),
        [WELL, WELL],
        drive=meet_the_new_tool,
    ),
    _watched(Fault("ping", "list_changed", tools=["echo"], nth=1)),
    *(Row(Fault(at, "answer_twice"), [WELL, WELL]) for at in ("initialize", "list", "call")),
    _watched(Fault("ping", "answer_twice")),
    Row(Fault("list", "answer_late", start=1), [FAILED, WELL], 2, settings=SHORT_CONNECT),
    Row(Fault("call", "answer_late", nth=1), [UNANSWERED, WELL], settings=SHORT_CALLS),
    _watched(Fault("ping", "answer_late", nth=1)),
    *(
        Row(Fault(at, "drop_answer", start=1), [FAILED, WELL], 2, settings=SHORT_CONNECT)
        for at in ("initialize", "list")
    ),
    Row(Fault("call", "drop_answer", nth=1), [UNANSWERED, WELL], settings=SHORT_CALLS),
    _watched(Fault("ping", "drop_answer", nth=1)),
]


async def _play(row: Row, far: Far) -> list[str]:
    """Through a room, from its opening to its end."""
    entry = far.entry if isinstance(far, ScriptedServer) else {"command": "fake"}
    config = {"mcpServers": {"far": {**entry, **row.entry}}, "settings": {**SETTINGS, **row.settings}}
    connectors = None if isinstance(far, ScriptedServer) else fake_connectors({"far": far})
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors) as room:
        outcomes = await row.drive(room, far)
    assert room.drain_report is not None
    assert room.drain_report.adds_up
    return outcomes


def _seen(row: Row, far: Far, outcomes: list[str]) -> None:
    assert outcomes == row.outcomes
    assert far.starts == row.starts
    assert {fault for _, fault in far.played} == set(row.script)
    assert all(fault.start in (None, start) for start, fault in far.played)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.script))
def test_the_fake_in_memory(row: Row, backend: str) -> None:
    fake = FakeServer(script=row.script)

    outcomes = run_virtual(backend, _play, row, fake)

    _seen(row, fake, outcomes)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_executable(backend: str, tmp_path: Path) -> None:
    """The far end does not know our loop, so each loop has half of the rows. Most of a row is waiting, so several wait
    side by side, each in a room of its own."""
    run(backend, _play_side_by_side, ROWS[backend == "asyncio" :: 2], tmp_path)


async def _play_side_by_side(rows: list[Row], folder: Path) -> None:
    places = anyio.Semaphore(SIDE_BY_SIDE)
    async with anyio.create_task_group() as tasks:
        for number, row in enumerate(rows):
            process = ScriptedServer(row.script, folder / f"{number}.log")
            tasks.start_soon(_play_one, places, row, process)


async def _play_one(places: anyio.Semaphore, row: Row, far: ScriptedServer) -> None:
    async with places:
        try:
            _seen(row, far, await _play(row, far))
        except Exception as error:
            error.add_note(f"in the row {row.script}")
            raise


def test_every_deed_is_played_at_every_step() -> None:
    wanted = {(deed, step) for deed in DEEDS for step in DEEDS[deed].steps}

    played = {(row.fault.do, row.fault.at) for row in (*ROWS, *EXPIRES, *UNSENT)}

    assert played == wanted


# ---- a session that expires is no process's to play: it is compared with a real HTTP server ------------------------

EXPIRES = [
    Row(Fault("list", "expire", start=1), [FAILED, WELL], 2),
    Row(Fault("call", "expire", start=1), [WELL, WELL], 2),
    Row(Fault("call", "expire", start=1, nth=2), [WELL, WELL], 2),
    Row(Fault("idle", "expire", after=IDLE, start=1), [WELL, WELL], 2, wait_between),
    _watched(Fault("ping", "expire", start=1), starts=2),
]


# A process does not know what was not sent to it.
UNSENT = [
    Row(Fault("list", "crash_before", start=1), [FAILED, WELL], 2),
    Row(Fault("call", "crash_before", start=1, exit_code=3), [WELL, WELL], 2),
    _watched(Fault("ping", "crash_before", start=1, signal="SIGKILL"), starts=2),
]


@pytest.mark.parametrize("row", [*EXPIRES, *UNSENT], ids=lambda row: str(row.script))
def test_what_has_certainly_not_run_in_memory(row: Row, backend: str) -> None:
    fake = FakeServer(script=row.script)

    outcomes = run_virtual(backend, _play, row, fake)

    _seen(row, fake, outcomes)


@pytest.mark.parametrize("row", EXPIRES[:3], ids=lambda row: str(row.script))
@in_real_time
async def test_an_expired_session_over_http(row: Row) -> None:
    plan = FaultPlan(row.script.entries, 1)

    with raw_http() as server:

        def forget(_handler: Handler, seen: Seen) -> bool:
            step = {"tools/list": "list", "tools/call": "call"}.get(seen.method)
            if step is not None and server.made == 1 and plan.due(step):
                server.forget_sessions()
            return False

        server.hook = forget
        async with room_at(server.url, dict(SETTINGS), connect=False) as room:
            assert await _two_calls_over_http(room) == row.outcomes
        assert server.made == row.starts


async def _two_calls_over_http(room: Greenroom) -> list[str]:
    outcomes: list[str] = []
    for _ in range(2):
        try:
            outcomes.append(WELL if (await room.call("ok", server="raw")).text == "ok" else "?")
        except CallError as error:
            outcomes.append(f"{error.code} {error.reach}")
        await anyio.sleep(0.05)
    return outcomes
