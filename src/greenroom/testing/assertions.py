"""Assertions for your own tests: what must hold after any room has closed.

* `assert_no_orphans(room)`: no process that the room started is left. `with assert_no_orphans():` checks every room
  that is opened and closed inside. Processes are found by the run's id. So one that has left its group, its session
  and its parent is found too, and processes of others are never reported.
* `assert_one_outcome_each(events, report)`: every accepted call ended exactly once, and the sums add up.

Nothing is cleaned up: the error names what was found, so that you can look at it.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, overload

from ..protocol.events import CallAccepted, CallEnded, CallEvent, Event, Lagged

if TYPE_CHECKING:
    from ..protocol.status import DrainReport
    from ..supervisor.room import Greenroom


WITHIN: Final = 1.0  # seconds: what was killed may take a moment to go
_LOOK_AGAIN: Final = 0.005


# ---- processes -----------------------------------------------------------------------------------------------------
@overload
def assert_no_orphans(room: Greenroom, *, within: float = WITHIN) -> None: ...


@overload
def assert_no_orphans(*, within: float = WITHIN) -> _ProcessWatch: ...


def assert_no_orphans(room: Greenroom | None = None, *, within: float = WITHIN) -> _ProcessWatch | None:
    """Assert that no process that a room has started is left: no child, no grandchild, no guard, no zombie.

    With a closed room, it checks at once. Without a room, it is a context manager (`with assert_no_orphans():`) that
    checks at its end for processes that did not exist at its beginning. It blocks for at most `within` seconds,
    because processes may take that long to end. Raises `AssertionError`, which names each pid and its command. It
    checks only on Linux."""
    if room is None:
        return _ProcessWatch(within)
    _report_of(room)
    if sys.platform == "linux":
        run_id = room.run_id
        refuse_orphans(lambda: of_run(run_id), within)
    return None


class _ProcessWatch:
    """Checks that no process of ours is added while it is entered."""

    def __init__(self, within: float) -> None:
        self._within = within
        self._before: set[int] | None = None

    def __enter__(self) -> None:
        self._before = self._look()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._before
        if error is None and before is not None:  # else the body's own error is what to read
            refuse_orphans(lambda: self._look() - before, self._within)

    def __del__(self) -> None:
        if self._before is None:
            text = "assert_no_orphans() has not looked: write `with assert_no_orphans():`, or give it the closed room"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def _look(self) -> set[int]:
        if sys.platform != "linux":
            return set()

        return of_this_process()


def refuse_orphans(look: Callable[[], set[int]], within: float) -> None:
    """Raises `AssertionError` when `look` still finds processes after so many seconds."""
    deadline = time.monotonic() + within
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN)
    if left:
        lines = [f"  {pid}: {command(pid)}" for pid in sorted(left)]
        raise AssertionError("\n".join([f"{len(left)} processes were left behind:", *lines]))


# ---- calls ---------------------------------------------------------------------------------------------------------
def assert_one_outcome_each(
    source: Greenroom | DrainReport | Iterable[Event | Lagged], report: DrainReport | None = None
) -> None:
    """Assert that every accepted call has ended exactly once: by a result, an error, or its caller's cancellation.

    `source` is a closed room or its drain report, whose sums must add up; or all events of a room, from its opening to
    its end. With events, each call is followed, and they must agree with `report`, if you pass it. Raises
    `AssertionError`, which names each call with another number of outcomes."""
    if isinstance(source, Iterable):
        calls = _follow(source)
        wrong = [*_not_once(calls), *(_differences(calls, report) if report is not None else ())]
    else:
        wrong = _sums(_report_of(source))
    if wrong:
        raise AssertionError(
            "\n".join(["Not every accepted call has one outcome:", *(f"  {it}" for it in wrong)])
        )


def _report_of(source: Greenroom | DrainReport) -> DrainReport:
    """The drain report of a closed room. Raises `AssertionError` for one that has not closed."""
    from ..protocol.status import DrainReport

    report = source if isinstance(source, DrainReport) else source.drain_report
    if report is None or not report.is_final:
        raise AssertionError(
            "This room has not closed yet: leave its `async with`, or await `room.aclose()`."
        )
    return report


def _sums(report: DrainReport) -> list[str]:
    return [] if report.adds_up else [f"the sums do not add up: {report}"]


def _follow(events: Iterable[Event | Lagged]) -> dict[int, list[CallEvent]]:
    """The events of each call, by its number. Raises `AssertionError` when events are missing or out of order."""
    calls: dict[int, list[CallEvent]] = {}
    last = 0
    for event in events:
        if isinstance(event, Lagged):
            raise AssertionError(f"{event.missed} events were missed: read them faster than they come.")
        if event.seq <= last:
            raise AssertionError(f"event {event.seq} came after event {last}: the stream is out of order.")
        last = event.seq
        if isinstance(event, CallEvent):
            calls.setdefault(event.call, []).append(event)
    return calls


def _not_once(calls: dict[int, list[CallEvent]]) -> Iterable[str]:
    for number, events in calls.items():
        steps = [type(event) for event in events]
        told = f"call {number} of {events[0].address}: {', '.join(map(_in_words, events))}"
        if steps[0] is not CallAccepted or steps.count(CallAccepted) != 1:
            yield f"{told} — accepted {steps.count(CallAccepted)} times, or not first"
        elif CallEnded not in steps:
            yield f"{told} — it never ended"
        elif steps.index(CallEnded) != len(steps) - 1:
            yield f"{told} — something happened after it had ended"


def _in_words(event: CallEvent) -> str:
    return f"{event.detail} ({event.outcome})" if isinstance(event, CallEnded) else event.detail


def _differences(calls: dict[int, list[CallEvent]], report: DrainReport) -> Iterable[str]:
    """Where the events and the report disagree."""
    yield from _sums(report)
    outcomes = Counter(
        _sort_of(event.outcome)
        for events in calls.values()
        for event in events
        if isinstance(event, CallEnded)
    )
    counted = {
        "accepted": len(calls),
        **{sort: outcomes[sort] for sort in ("completed", "failed", "cancelled")},
    }
    told = {sort: getattr(report, sort) for sort in counted}
    for sort, number in counted.items():
        if told[sort] != number:
            yield f"the events say {number} {sort}, the drain report {told[sort]}"


def _sort_of(outcome: str) -> str:
    return {"result": "completed", "cancelled": "cancelled"}.get(outcome, "failed")


# ---- Information about processes from /proc (Linux) ------------------------------------------------------------------
#
# If a process has ended meanwhile, its data reads as empty.
#
# Every process that a room starts carries the room's run id: in `GREENROOM_ROOM` in its environment, or, for the guard,
# among its arguments. The id begins with the pid of the room's own process. So the remains of a room can be told from
# all other processes of the machine, wherever they are in the process tree.

PROC: Final = Path("/proc")
TAG: Final = b"GREENROOM_ROOM="


def run_ids(pid: int) -> list[bytes]:
    """The ids of the runs that a process belongs to, from its environment."""
    words = [*read(pid, "environ").split(b"\0"), *read(pid, "cmdline").split(b"\0")]
    return [word.removeprefix(TAG) for word in words if word.startswith(TAG)]


def of_run(run_id: str) -> set[int]:
    """All processes of this run."""
    return {pid for pid in every_pid() if run_id.encode() in run_ids(pid)}


def of_this_process() -> set[int]:
    """All processes of our rooms, open or closed, and our zombies."""
    ours = b"%d-" % os.getpid()
    tagged = {pid for pid in every_pid() if any(run.startswith(ours) for run in run_ids(pid))}
    return tagged | {pid for pid in children(os.getpid()) if is_zombie(pid)}


def every_pid() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())


def children(pid: int) -> Iterator[int]:
    for listing in PROC.glob(f"{pid}/task/*/children"):
        yield from map(int, _bytes_of(listing).split())


def stat(pid: int) -> list[bytes]:
    """The fields after the command's name: state, parent, …"""
    return read(pid, "stat").rpartition(b") ")[2].split()


def is_zombie(pid: int) -> bool:
    return stat(pid)[:1] == [b"Z"]


def command(pid: int) -> str:
    """The command line of a process, or "zombie"."""
    return read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip() or "zombie"


def read(pid: int, name: str) -> bytes:
    return _bytes_of(PROC / str(pid) / name)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
