"""The event stream as text for people: a line per event. (`observe.events_file` has all of it, for programs.)

People are told of transitions, policy decisions and oddities, each once. A server that begins to fail is one line,
and so is one whose circuit breaker trips, is quarantined, or lets calls pass again. An attempt that fails as the one
before it did is no news (`Teller`). A decision that only follows from an ending is left out. Single calls, every
attempt and the steps of connecting are only in the JSON. The log goes to standard error, which many clients never
read. A full pipe there must not stop the gateway. So a line is written only if it fits without waiting, and the next
line says how many were left out.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskStatus

from ..protocol.address import DISCOVERY, Address
from ..protocol.events import (
    BreakerDecision,
    BreakerMove,
    EndDecision,
    Event,
    Eviction,
    Kind,
    Lagged,
    Transition,
    WarmChildMoved,
    WarmMove,
)
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.lifecycle import Cause, State
from ..protocol.safe_text import counted, one_line
from .next_steps import PLAIN, Commands

_ATOMIC: Final = select.PIPE_BUF
TOLD: Final = frozenset({Kind.TRANSITION, Kind.DECISION, Kind.NOTE})


class EventLog:
    """Writes lines to a descriptor, each after `greenroom: `. Never waits, never raises. `commands`: those that lines
    tell of."""

    def __init__(self, fd: int = 2, commands: Commands = PLAIN) -> None:
        self._fd = fd
        self._commands = commands
        self._lost = 0

    def line(self, text: str) -> None:
        """Write one line, unless its reader has fallen behind."""
        if self._lost:
            text = f"({counted(self._lost, 'line')} left out) {text}"
        data = (
            f"greenroom: {one_line(self._commands.filled(text), _ATOMIC // 4 - 16)}".encode(
                "utf-8", "replace"
            )
            + b"\n"
        )
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
        return f"{counted(event.missed, 'event')} {'was' if event.missed == 1 else 'were'} dropped here"
    if event.kind not in TOLD:
        return None
    who = "room" if event.address is None else _name_of(event.address)
    if isinstance(event, EndDecision | Eviction) or (
        isinstance(event, BreakerDecision) and event.cause is not None
    ):
        return None  # it follows from an ending that was told
    if isinstance(event, WarmChildMoved) and event.move is not WarmMove.LOST:
        return None
    if not isinstance(event, Transition):
        return f"{who}: {event.detail}"
    if event.after in (State.CONNECTING, State.IDLE):
        return None
    if event.after is State.CLOSED and event.cause in (Cause.SHUTDOWN, Cause.SCOPE_ENDED):
        return None  # it never ran, or it was told that it drains for this
    if event.cause is Cause.CONNECT_FAILED:
        return f"{who}: {event.detail or event.before.value}" if event.after is State.DRAINING else None
    return f"{who}: {event.before.value} → {event.after.value}{_because(event)}"


def _name_of(address: Address) -> str:
    """The address for people. A child that is only asked for its lists is the server to them."""
    return address.server if address.scope == DISCOVERY else str(address)


Hear = Callable[[Event | Lagged], None]
_NUMBERS: Final = lazy_pattern(r"\b(?=\w*\d)[0-9a-fA-F]+\b|\d+")  # process ids, times, addresses
_NEW: Final = (Cause.RELOAD, Cause.REMOVED, Cause.RESTART)  # what failed before is another thing now


class _Trouble(msgspec.Struct):
    """What has been told of a server since it last worked."""

    words: str = ""  # why its last attempt failed, without numbers
    attempts: int = 0
    tripped: bool = False
    quarantined: bool = False


class Teller:
    """Makes lines of events, without what was told before: of fifteen attempts that fail alike one is told."""

    def __init__(self) -> None:
        self._trouble: dict[str, _Trouble] = {}  # by server

    def line(self, event: Event | Lagged) -> str | None:
        server = event.server if isinstance(event, Event) else None
        if server is not None and isinstance(event, Transition):
            return self._transition(server, event)
        if server is not None and isinstance(event, BreakerDecision):
            return self._decision(server, event)
        return line_of(event)

    def _transition(self, server: str, event: Transition) -> str | None:
        line = line_of(event)
        if event.cause in _NEW:
            self._trouble.pop(server, None)
        elif event.after is State.CONNECTED:
            trouble = self._trouble.get(server, _Trouble())
            attempts, trouble.attempts, trouble.words = trouble.attempts, 0, ""
            starts = "1 failed start" if attempts == 1 else f"{attempts} failed starts"
            return f"{line}, after {starts}" if attempts else line
        elif line is not None and event.cause is Cause.CONNECT_FAILED:
            trouble, words = self._of(server), _NUMBERS.sub("0", event.detail)
            is_known = trouble.attempts and trouble.words == words
            trouble.attempts, trouble.words = trouble.attempts + 1, words
            return None if is_known else line
        return line

    def _decision(self, server: str, event: BreakerDecision) -> str | None:
        if not event.tripped:
            was = self._trouble.get(server)
            was_tripped = was is not None and was.tripped
            if was is not None:
                was.tripped = was.quarantined = False
            return line_of(event) if was_tripped else None
        trouble = self._of(server)
        was_tripped, trouble.tripped = trouble.tripped, True
        if event.move is BreakerMove.QUARANTINED:
            was_quarantined, trouble.quarantined = trouble.quarantined, True
            return None if was_quarantined else f"{line_of(event)}; {_refuses(event)}"
        if was_tripped:
            return None
        who = "room" if event.address is None else _name_of(event.address)
        return f"{who}: circuit breaker: {counted(event.failures, 'failure')} in a row; {_refuses(event)}"

    def _of(self, server: str) -> _Trouble:
        return self._trouble.setdefault(server, _Trouble())


def _refuses(event: BreakerDecision) -> str:
    return f"calls are refused for {event.open_for:.0f} s, then one is let through"


def to_log(log: EventLog, played: Mapping[str, bool] | None = None) -> Hear:
    """Write a line for each event that is worth one. `played`: the servers that a tape plays, and whether it knows
    them. Nothing is told of one that it does not know, and no first start, idle timeout or last end of the others:
    nothing was started."""
    teller = Teller()

    def is_told(event: Event | Lagged) -> bool:
        known = None if played is None or not isinstance(event, Event) else played.get(event.server or "")
        if known is None or not isinstance(event, Transition):
            return known is not False
        is_first = event.after is State.CONNECTED and event.incarnation == 1
        return known and not is_first and event.cause not in (Cause.SHUTDOWN, Cause.IDLE_TIMEOUT)

    def hear(event: Event | Lagged) -> None:
        line = teller.line(event) if is_told(event) else None
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
    # The detail says which one, and in plain words.
    is_said = event.cause is Cause.SCOPE_ENDED and event.detail
    reasons = [event.cause.value if event.cause and not is_said else "", event.detail]
    text = ", ".join(reason for reason in reasons if reason)
    return f" ({text})" if text else ""
