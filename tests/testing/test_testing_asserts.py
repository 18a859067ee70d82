"""The public assertions hold where nothing is wrong, and name what is where something is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.support import in_virtual_time, run, run_virtual
from tests.support.patience import PATIENCE
from tests.support.rooms import Outcomes, open_room, record_events
from tests.support.rows import for_each

import greenroom.testing
from greenroom import DrainReport, Greenroom
from greenroom.events import Event, Lagged
from greenroom.protocol.events import CallAccepted, CallEnded, CallEvent, CallSent
from greenroom.testing import (
    FakeServer,
    FaultScript,
    ScriptedServer,
    assert_no_orphans,
    assert_one_outcome_each,
    assertions,
)
from greenroom.testing.assertions import is_zombie, read, refuse_orphans

# ---- processes -----------------------------------------------------------------------------------------------------

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@contextmanager
def _left_behind(run_id: str, *, by_argument: bool = False) -> Generator[int]:
    """A process of that run that nobody has ended, in a session of its own. `by_argument`: as the guard says it."""
    code, tag = "print(flush=True); import time; time.sleep(60)", f"GREENROOM_ROOM={run_id}"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *([tag] if by_argument else ())],
        env={} if by_argument else {"GREENROOM_ROOM": run_id},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


async def _one_call(tmp_path: Path) -> Greenroom:
    server = ScriptedServer(FaultScript(), tmp_path / "log")
    config = {"mcpServers": {"far": server.entry}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        await room.call("far_echo")
        with pytest.raises(AssertionError, match="has not closed yet"):
            assert_no_orphans(room)
    return room


@needs_proc
def test_a_closed_room_has_left_nothing(backend: str, tmp_path: Path) -> None:
    with assert_no_orphans():
        room = run(backend, _one_call, tmp_path)
    assert_no_orphans(room)


@needs_proc
def test_what_a_room_left_is_named(tmp_path: Path) -> None:
    room = run("trio", _one_call, tmp_path)

    with _left_behind(room.run_id) as pid:
        with pytest.raises(AssertionError, match="1 processes were left behind") as caught:
            assert_no_orphans(room, within=0)
        assert f"{pid}: {sys.executable} -S -c print" in str(caught.value)
    with _left_behind(room.run_id, by_argument=True) as pid, pytest.raises(AssertionError, match=f"{pid}: "):
        assert_no_orphans(room, within=0)
    with _left_behind(f"{room.run_id}1"):  # another room's
        assert_no_orphans(room, within=0)


@needs_proc
def test_the_context_finds_what_was_added_inside() -> None:
    # Others are no process's at all: that of the next number may be another worker, which looks for its own.
    ours, others, longer = (
        f"{pid}-0123" for pid in (os.getpid(), (1 << 22) + os.getpid(), f"{os.getpid()}1")
    )

    with ExitStack() as later:
        later.enter_context(_left_behind(ours))
        with assert_no_orphans(within=0):
            later.enter_context(_left_behind(others))
            later.enter_context(_left_behind(longer))
    with ExitStack() as later:

        def leave_one() -> None:
            with assert_no_orphans(within=0):
                later.enter_context(_left_behind(ours))

        with pytest.raises(AssertionError, match="-S -c print"):
            leave_one()


@needs_proc
def test_it_waits_as_long_as_it_is_told_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = run("trio", _one_call, tmp_path)
    looks, of_run = list[str](), assertions.of_run

    def look(run_id: str) -> set[int]:
        looks.append(run_id)
        return of_run(run_id)

    monkeypatch.setattr(assertions, "of_run", look)
    with _left_behind(room.run_id):
        with pytest.raises(AssertionError, match="left behind"):
            assert_no_orphans(room, within=0)
        assert looks == [room.run_id]


@needs_proc
def test_a_process_whose_name_looks_like_a_zombies_state_is_none() -> None:
    code = "open('/proc/self/comm', 'w').write('a) Z b'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as it:
        assert it.stdout is not None
        it.stdout.readline()
        assert b"a) Z b" in read(it.pid, "stat")
        assert not is_zombie(it.pid)
        it.communicate(b"\n")


@needs_proc
def test_a_zombie_of_ours_is_found() -> None:
    def leave_one() -> None:
        with assert_no_orphans(within=0):
            child = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", ""], {})
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)

    with pytest.raises(AssertionError, match=": zombie") as caught:
        leave_one()
    os.waitpid(int(str(caught.value).split()[-2].rstrip(":")), 0)


@needs_proc
def test_a_zombie_of_another_thread_is_found() -> None:
    pids, over = list[int](), threading.Event()

    def start() -> None:
        pids.append(os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", ""], {}))
        os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
        over.wait()

    thread = threading.Thread(target=start)
    try:
        watch = assert_no_orphans(within=0)
        watch.__enter__()
        thread.start()
        while not (pids and is_zombie(pids[0])):
            time.sleep(0.001)
        with pytest.raises(AssertionError, match=": zombie"):
            watch.__exit__(None, None, None)
    finally:
        over.set()
        thread.join()
        os.waitpid(pids[0], 0)


@needs_proc
def test_what_is_on_its_way_out_is_waited_for() -> None:
    with assert_no_orphans(within=PATIENCE), _left_behind(f"{os.getpid()}-0123") as pid:
        os.kill(pid, signal.SIGKILL)


def test_it_looks_again_while_something_is_left_and_no_longer() -> None:
    looks = [{1}, {1}, set[int](), {1}]
    refuse_orphans(lambda: looks.pop(0), PATIENCE)
    assert looks == [{1}]

    began = time.monotonic()
    with pytest.raises(AssertionError, match="1 processes were left behind"):
        refuse_orphans(lambda: {1}, 0.05)
    assert time.monotonic() - began >= 0.05


def test_the_bodys_own_error_comes_first() -> None:
    with ExitStack() as later:

        def leave_one_and_fail() -> None:
            with assert_no_orphans(within=0):
                later.enter_context(_left_behind(f"{os.getpid()}-0123"))
                _ = 1 / 0

        with pytest.raises(ZeroDivisionError):
            leave_one_and_fail()


def test_a_watch_that_was_never_entered_says_so() -> None:
    with pytest.warns(ResourceWarning, match="write `with assert_no_orphans"):
        assert_no_orphans()


# ---- calls ---------------------------------------------------------------------------------------------------------


async def _three_calls() -> tuple[list[Event], DrainReport]:
    """A result, an error and a cancellation."""
    server = FakeServer()
    async with open_room({"far": server}) as room:
        events = record_events(room, Event)
        await room.call("far_echo")
        server.call_error = (-1, "no")
        async with Outcomes() as calls:
            calls.start(room, "far_echo")
        server.call_latency = 60
        async with Outcomes() as calls:
            leaving = calls.start(room, "far_echo")
            await anyio.sleep(1)
            leaving.cancel()
    assert room.drain_report is not None
    assert_one_outcome_each(room)
    return events, room.drain_report


def test_a_rooms_own_events_and_report_agree(backend: str) -> None:
    events, report = run_virtual(backend, _three_calls)

    assert (report.completed, report.failed, report.cancelled) == (1, 1, 1)
    assert_one_outcome_each(report)
    assert_one_outcome_each(events, report)


STEPS: dict[str, type[CallEvent]] = {"accepted": CallAccepted, "sent": CallSent, "ended": CallEnded}


def _call(seq: int, step: str, outcome: str | None = None) -> Event:
    more: dict[str, Any] = {} if outcome is None else {"outcome": outcome}
    return STEPS[step](seq, 0.0, call=7, method="tools/call", tool="echo", client=None, **more)


ACCEPTED, SENT, ENDED = _call(1, "accepted"), _call(2, "sent"), _call(3, "ended", "result")


@for_each(
    ("events", "said"),
    [
        ([ACCEPTED, SENT], r"call 7 of None: accepted, sent — it never ended"),
        ([ACCEPTED, ENDED, _call(4, "ended", "timeout")], r"ended \(timeout\) — something happened after"),
        ([ACCEPTED, ENDED, _call(4, "sent")], "something happened after it had ended"),
        ([SENT, ENDED], "accepted 0 times"),
        ([ACCEPTED, _call(2, "accepted"), ENDED], "accepted 2 times"),
        ([ACCEPTED, Lagged(3), ENDED], "3 events were missed"),
        ([SENT, ACCEPTED], "event 1 came after event 2"),
        ([ACCEPTED, _call(1, "sent"), ENDED], "event 1 came after event 1"),
    ],
)
def test_a_call_without_exactly_one_outcome_is_named(events: list[Event | Lagged], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_one_outcome_each(events)


def test_no_other_order_than_accepted_then_whatever_then_ended_passes() -> None:
    """All that can happen to a call in four steps, or fewer. It may be sent more than once: it was replayed."""
    for steps in (each for count in range(1, 5) for each in product(STEPS, repeat=count)):
        events: list[Event | Lagged] = [
            _call(seq, step, "result" if step == "ended" else None) for seq, step in enumerate(steps, 1)
        ]
        is_right = steps[0] == "accepted" and steps[-1] == "ended" and set(steps[1:-1]) <= {"sent"}
        if is_right and len(steps) > 1:
            assert_one_outcome_each(events)
        else:
            with pytest.raises(AssertionError, match="call 7"):
                assert_one_outcome_each(events)


def test_sums_that_do_not_add_up_are_told() -> None:
    report = DrainReport(accepted=2, completed=1, failed=0, cancelled=0, refused=5)

    with pytest.raises(AssertionError, match="do not add up: 2 calls accepted: 1 completed"):
        assert_one_outcome_each(report)


def test_a_report_that_does_not_add_up_is_told_beside_the_events() -> None:
    report = DrainReport(accepted=1, completed=1, failed=0, cancelled=1, refused=0)

    with pytest.raises(AssertionError, match="the sums do not add up: 1 call accepted"):
        assert_one_outcome_each([ACCEPTED, SENT, ENDED], report)


def test_events_and_report_that_differ_are_told() -> None:
    report = DrainReport(accepted=1, completed=0, failed=1, cancelled=0, refused=0)

    assert_one_outcome_each([ACCEPTED, SENT, ENDED], msgspec.structs.replace(report, completed=1, failed=0))
    with pytest.raises(AssertionError, match="the events say 1 completed, the drain report 0"):
        assert_one_outcome_each([ACCEPTED, SENT, ENDED], report)
    two = msgspec.structs.replace(report, accepted=2, completed=1, failed=1)
    with pytest.raises(AssertionError, match="the events say 1 accepted, the drain report 2"):
        assert_one_outcome_each([ACCEPTED, SENT, ENDED], two)


@pytest.mark.parametrize(
    ("outcome", "sort"), [("result", "completed"), ("timeout", "failed"), ("cancelled", "cancelled")]
)
def test_each_sort_of_outcome_is_compared(outcome: str, sort: str) -> None:
    events = [ACCEPTED, _call(2, "ended", outcome)]
    for told in ("completed", "failed", "cancelled"):
        report = msgspec.structs.replace(DrainReport(1, 0, 0, 0, 0), **{told: 1})
        if told == sort:
            assert_one_outcome_each(events, report)
            continue
        with pytest.raises(AssertionError) as caught:
            assert_one_outcome_each(events, report)
        assert f"the events say 1 {sort}, the drain report 0" in str(caught.value)
        assert f"the events say 0 {told}, the drain report 1" in str(caught.value)


def test_only_the_call_that_has_no_outcome_is_named() -> None:
    other = msgspec.structs.replace(_call(2, "accepted"), call=8)

    with pytest.raises(AssertionError, match="call 8 of None: accepted — it never ended") as caught:
        assert_one_outcome_each([ACCEPTED, other, ENDED])
    assert "call 7" not in str(caught.value)


@in_virtual_time
async def test_a_room_that_is_open_is_refused() -> None:
    async with open_room({"far": FakeServer()}) as room:
        with pytest.raises(AssertionError, match="has not closed yet"):
            assert_one_outcome_each(room)


# ---- the table of contents -----------------------------------------------------------------------------------------


def test_every_name_of_the_kit_can_be_had() -> None:
    assert "FakeServer" in dir(greenroom.testing)
    assert all(getattr(greenroom.testing, name) is not None for name in dir(greenroom.testing))
    with pytest.raises(AttributeError, match="no attribute 'FakeSever'"):
        _ = greenroom.testing.FakeSever  # pyright: ignore[reportAttributeAccessIssue]


def test_the_kit_costs_nothing_until_it_is_used() -> None:
    heavy = ["attrs", "anyio", "trio", "mcp", "hypothesis", "pytest", "greenroom.protocol.errors"]
    code = (
        f"import sys, greenroom.testing.servers.scripted; print([m for m in {heavy!r} if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
