"""The event stream as text: a line per event for people, and a JSON object per event for programs
(`EventsFile`).

People are told of transitions, policy decisions and oddities, each once. A server that begins to fail is one line,
and so is one whose circuit breaker trips, is quarantined, or lets calls pass again. An attempt that fails as the one
before it did is no news (`Teller`). A decision that only follows from an ending is left out. Single calls, every
attempt and the steps of connecting are only in the JSON. The log goes to standard error, which many clients never
read. A full pipe there must not stop the gateway. So a line is written only if it fits without waiting, and the next
line says how many were left out.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskStatus

from ..actors.workers import Part
from ..config.private_files import open_own
from ..protocol.errors import UsageError
from ..protocol.event_records import record_of
from ..protocol.events import EndDecision, Event, Eviction, GateDecision, GateMove, Kind, Lagged, Transition
from ..protocol.lifecycle import Cause, State
from ..protocol.safe_text import counted, one_line, seen_in_json
from .next_steps import PLAIN, Commands

_ATOMIC: Final = select.PIPE_BUF
TOLD: Final = frozenset({Kind.TRANSITION, Kind.DECISION, Kind.NOTE})


class Log:
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


Hear = Callable[[Event | Lagged], None]
_NUMBERS: Final = re.compile(r"\b(?=\w*\d)[0-9a-fA-F]+\b|\d+")  # process ids, times, addresses
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
        if server is not None and isinstance(event, GateDecision):
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

    def _decision(self, server: str, event: GateDecision) -> str | None:
        if not event.tripped:
            was = self._trouble.get(server)
            was_tripped = was is not None and was.tripped
            if was is not None:
                was.tripped = was.quarantined = False
            return line_of(event) if was_tripped else None
        trouble = self._of(server)
        was_tripped, trouble.tripped = trouble.tripped, True
        if event.move is GateMove.QUARANTINED:
            was_quarantined, trouble.quarantined = trouble.quarantined, True
            return None if was_quarantined else f"{line_of(event)}; {_refuses(event)}"
        return (
            None
            if was_tripped
            else f"{event.address}: circuit breaker: {counted(event.failures, 'failure')} in a row; {_refuses(event)}"
        )

    def _of(self, server: str) -> _Trouble:
        return self._trouble.setdefault(server, _Trouble())


def _refuses(event: GateDecision) -> str:
    return f"calls are refused for {event.shut_for:.0f} s, then one is let through"


def to_log(log: Log) -> Hear:
    teller = Teller()

    def hear(event: Event | Lagged) -> None:
        line = teller.line(event)
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


# ---- The events file: each event as one line of JSON, appended to the file that `--events` names --------------------
#
# It is an optional part. It is opened and written without waiting, even with a full disk, a pipe that nobody
# reads, or a file that is gone. Events that cannot be written are counted. When writing works again, the file
# says how many are missing (`{"kind": "lagged", …}`). Only its owner can read a file made here (0600), because
# events tell whose servers do what.
#
# There are thousands of call events a second. They are kept back and written with the next event of another
# kind, or when 64 KiB of them have gathered. So when a gateway is killed, the file lacks at most the last
# calls.

_AT_ONCE: Final = 1 << 16  # bytes of kept call events from which on they are written anyway
_MOST: Final = 1 << 20  # the most bytes kept for a pipe that is read slowly
_END: Final = ord("\n")
# Errors that are no mistake of the person who named the file: it may work later.
_PASSING: Final = frozenset(
    {
        errno.ENXIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EIO,
        errno.EAGAIN,
    }
)


class EventsFile:
    """Writes each event to a file, as a line of JSON. `close` it at the end."""

    def __init__(self, path: Path, part: Part) -> None:
        """Open the file. Raises `UsageError` when `path` can never be written to."""
        self._path = path
        self._part = part
        self._fd: int | None = None
        self._kept = bytearray()
        self._events = 0  # how many events are missing if `_kept` is lost
        self._missed = 0
        self._is_torn = False  # the last line in the file is incomplete
        try:
            self._open()
        except OSError as error:
            if error.errno not in _PASSING:
                text = f"--events {path}: {error.strerror}. Name a file that can be written."
                raise UsageError(text) from None
            self._failed(error)

    def __call__(self, event: Event | Lagged) -> None:
        """Take one event. Never waits, never raises."""
        if self._fd is None and not self._opened_again():
            self._missed += 1
            return
        if len(self._kept) > _MOST:
            self._missed += 1
        else:
            self._say_gap()
            self._kept += _line(record_of(event))
            self._events += 1
        if isinstance(event, Lagged) or event.kind is not Kind.CALL or len(self._kept) > _AT_ONCE:
            self._write()

    def close(self) -> None:
        if self._fd is not None:
            self._write()
        self._close()

    def _open(self) -> None:
        self._fd = open_own(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, is_named=True)

    def _opened_again(self) -> bool:
        if self._part.is_due:
            try:
                self._open()
            except OSError as error:
                self._failed(error)
        return self._fd is not None

    def _say_gap(self) -> None:
        if self._missed:
            if self._is_torn and not self._kept:
                self._kept += b"\n"
            self._kept += _line(record_of(Lagged(self._missed)))
            self._events += self._missed
            self._missed = 0

    def _write(self) -> None:
        """Write as much as is taken without waiting."""
        assert self._fd is not None
        while self._kept:
            try:
                written = os.write(self._fd, self._kept)
            except BlockingIOError:
                return
            except OSError as error:
                self._failed(error)
                return
            self._is_torn = self._kept[written - 1] != _END
            del self._kept[:written]
        self._events = 0
        self._part.works()

    def _failed(self, error: OSError) -> None:
        self._missed += self._events
        self._events = 0
        self._kept.clear()
        self._close()
        self._part.failed(error)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def lines_of(events: Callable[[], Iterable[Event]]) -> str:
    """These events as lines of an events file."""
    return b"".join(_line(record_of(event)) for event in events()).decode()


def _line(record: object) -> bytes:
    text = seen_in_json(json.dumps(record, separators=(",", ":"), ensure_ascii=False))
    return text.encode("utf-8", "replace") + b"\n"
