"""The event stream as text: a line per event for people, and a JSON object per event for programs
(`_events_file`).

People are told of transitions, policy decisions and oddities, each once. An attempt to connect is one line,
which says how it ended, and a decision that only follows from an ending is left out. Single calls, and the
steps of connecting, are only in the JSON. The log goes to standard error, which many clients never read. A
full pipe there must not stop the gateway. So a line is written only if it fits without waiting, and the next
line says how many were left out.
"""

from __future__ import annotations

import enum
import os
import select
from collections.abc import Callable, Iterable
from typing import Any, Final

import anyio
import attrs
from anyio.abc import TaskStatus

from ..protocol.events import EndDecision, Event, Eviction, GateDecision, Kind, Lagged, Transition
from ..protocol.lifecycle import Cause, State
from ..protocol.plain_text import one_line

_ATOMIC: Final = select.PIPE_BUF
TOLD: Final = frozenset({Kind.TRANSITION, Kind.DECISION, Kind.NOTE})


class Log:
    """Writes lines to a descriptor, each after `greenroom: `. Never waits, never raises."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._lost = 0

    def line(self, text: str) -> None:
        """Write one line, unless its reader has fallen behind."""
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
    """One event as a line for people. None: there is nothing to tell."""
    if isinstance(event, Lagged):
        return f"{event.missed} events were dropped here"
    if event.kind not in TOLD:
        return None
    who = str(event.address) if event.address is not None else "room"
    if isinstance(event, EndDecision | Eviction) or (
        isinstance(event, GateDecision) and event.cause is not None
    ):
        return None  # it follows from an ending that was told
    if not isinstance(event, Transition):
        return f"{who}: {event.detail}"
    if event.after in (State.CONNECTING, State.IDLE):
        return None
    if event.cause is Cause.CONNECT_FAILED:
        return f"{who}: {event.detail or event.before.value}" if event.after is State.DRAINING else None
    return f"{who}: {event.before.value} → {event.after.value}{_because(event)}"


def record_of(event: Event | Lagged) -> dict[str, Any]:
    """One event as JSON: its fields by name, without those at their defaults, and what happened in words."""
    if isinstance(event, Lagged):
        return {"kind": "lagged", "missed": event.missed}
    record: dict[str, Any] = {"seq": event.seq, "at": round(event.at, 6), "kind": event.kind.value}
    if event.address is not None:
        record |= {"server": event.address.server, "scope": event.address.scope}
    for field in attrs.fields(type(event)):
        value = getattr(event, field.name)
        if field.name not in _SAID and value is not None and value is not field.default:
            name: str = field.name
            record[_KEYS.get(name, name)] = _plain(value)
    if event.detail:
        record["detail"] = event.detail
    return {**record, "inFlight": getattr(event, "in_flight", 0), "queued": getattr(event, "queued", 0)}


# Fields that the record has under another name, in another form, or in the words.
_SAID: Final = frozenset({"seq", "at", "address", "words", "in_flight", "queued"})
_KEYS: Final[dict[str, str]] = {"before": "from", "after": "to", "shut_for": "shutFor"}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return round(value, 6) if isinstance(value, float) else value


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
    """Give the events of `room` to `hearers`, from the start of this task until the stream ends. `kinds`:
    only these; None: all. Events that nobody asks for cost a call nothing, so only an events file asks for
    those of calls."""
    told = tuple(hearers)
    async with room.events(kinds) as events:
        task_status.started()
        async for event in events:
            for hear in told:
                hear(event)


def _because(event: Transition) -> str:
    reasons = [event.cause.value if event.cause else "", event.detail]
    text = ", ".join(reason for reason in reasons if reason)
    return f" ({text})" if text else ""
