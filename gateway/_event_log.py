"""The event stream as text: one line a person can follow, and one JSON object a program can (`_events_file`).

A person is told of transitions, of policy decisions and of what is odd, each thing once: an attempt to connect is one
line, how it ended; so is what was decided because of an ending that has been told. Of single calls, and of each step on
the way, only the JSON tells. The log
goes to standard error, which many clients never read: a full pipe there must not stop the gateway, so a line is written
only when it fits without waiting, and what was left out is counted and said.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

from ..protocol.events import Event, Kind, Lagged
from ..protocol.lifecycle import Cause, State
from ..protocol.plain_text import one_line

_ATOMIC: Final = select.PIPE_BUF
TOLD: Final = frozenset({Kind.TRANSITION, Kind.DECISION, Kind.NOTE})


class Log:
    """Lines on a descriptor, `greenroom: ` in front. Never waits, never raises."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._lost = 0

    def line(self, text: str) -> None:
        """Write one line, unless whoever reads it has fallen behind."""
        if self._lost:
            text = f"({self._lost} lines left out) {text}"
        data = f"greenroom: {one_line(text, _ATOMIC // 4 - 16)}".encode("utf-8", "replace") + b"\n"
        self._lost = 0 if self._written(data) else self._lost + 1

    def _written(self, data: bytes) -> bool:
        try:
            if not select.select((), (self._fd,), (), 0)[1]:
                return False
            os.write(self._fd, data)
        except (OSError, ValueError):
            return False
        return True


def line_of(event: Event | Lagged) -> str | None:
    """One event as a person reads it, or None when there is nothing to tell."""
    if isinstance(event, Lagged):
        return f"{event.missed} events were dropped here"
    if event.kind not in TOLD:
        return None
    who = str(event.address) if event.address is not None else "room"
    if event.kind is Kind.DECISION and event.cause is not None:
        return None  # what follows from an ending that was told
    if event.kind is not Kind.TRANSITION:
        return f"{who}: {event.detail}"
    if event.after in (State.CONNECTING, State.IDLE):
        return None
    if event.cause is Cause.CONNECT_FAILED:
        return f"{who}: {event.detail or _name(event.before)}" if event.after is State.DRAINING else None
    return f"{who}: {_name(event.before)} → {_name(event.after)}{_because(event)}"


def record_of(event: Event | Lagged) -> dict[str, Any]:
    """One event as JSON, without the fields that say nothing."""
    if isinstance(event, Lagged):
        return {"kind": "lagged", "missed": event.missed}
    record: dict[str, Any] = {"seq": event.seq, "at": round(event.at, 6), "kind": event.kind.value}
    if event.address is not None:
        record |= {"server": event.address.server, "scope": event.address.scope}
    optional = {
        "incarnation": event.incarnation or None,
        "from": event.before.value if event.before else None,
        "to": event.after.value if event.after else None,
        "cause": event.cause.value if event.cause else None,
        "detail": event.detail or None,
        "call": event.call,
        "outcome": event.outcome,
    }
    record |= {key: value for key, value in optional.items() if value is not None}
    return record | {"inFlight": event.in_flight, "queued": event.queued}


Hear = Callable[[Event | Lagged], None]


def to_log(log: Log) -> Hear:
    def hear(event: Event | Lagged) -> None:
        line = line_of(event)
        if line is not None:
            log.line(line)

    return hear


async def follow(
    room: Any,
    hearers: Iterable[Hear],
    *,
    kinds: Iterable[Kind] | None = None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Tell the events of `room` (of these `kinds`; None: all) to `hearers`, from the moment this has started, until
    the stream ends. Events nobody asked for cost a call nothing, so only a file of events asks for those of calls."""
    told = tuple(hearers)
    async with room.events(kinds) as events:
        task_status.started()
        async for event in events:
            for hear in told:
                hear(event)


def _name(state: State | None) -> str:
    return state.value if state is not None else "?"


def _because(event: Event) -> str:
    reasons = [event.cause.value if event.cause else "", event.detail]
    text = ", ".join(reason for reason in reasons if reason)
    return f" ({text})" if text else ""
