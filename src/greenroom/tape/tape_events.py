"""What happened on a tape as records of events, in the order of time, as `serve --events` writes them.

A timeline and the page read them. Times are seconds since the tape began.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Final

from ..protocol.result import says_error
from .tape_lines import OPEN, CallLine, EventLine
from .tape_reader import Tape

Record = dict[str, Any]


class CallStep(enum.IntEnum):
    """What happened to a call; of what happened at once, in this order."""

    ACCEPTED = 1
    SENT = 2
    ENDED = 3


def steps_of(tape: Tape) -> Iterator[tuple[float, EventLine | tuple[CallStep, CallLine]]]:
    """Its events, and the steps of its calls, with their times."""
    found: list[tuple[float, int, int]] = [(line.t, 0, number) for number, line in enumerate(tape.events)]
    for number, call in enumerate(tape.calls):
        found.append((call.accepted, CallStep.ACCEPTED, number))
        if call.sent is not None:
            found.append((call.sent, CallStep.SENT, number))
        found.append((call.ended, CallStep.ENDED, number))
    found.sort()
    for at, step, number in found:
        yield at, (CallStep(step), tape.calls[number]) if step else tape.events[number]


def records_of(tape: Tape) -> Iterator[Record]:
    """The records of its events and calls."""
    for at, what in steps_of(tape):
        record = what.event if isinstance(what, EventLine) else _MAKE[what[0]](what[1])
        yield {**record, "at": at}


def is_tool_error(call: CallLine) -> bool:
    """Whether the tool itself calls its result an error. A large result is not looked into."""
    return bool(call.result) and says_error(bytes(call.result))


def has_failed(call: CallLine) -> bool:
    return call.outcome not in ("result", "cancelled", OPEN) or is_tool_error(call)


def _common(call: CallLine, what: str) -> Record:
    said: Record = {"kind": "call", "detail": what, "call": call.n, "method": call.method}
    said |= {"server": call.server, "scope": call.scope, "incarnation": call.incarnation}
    return said | {
        key: each for key, each in (("tool", call.tool), ("client", call.session)) if each is not None
    }


def _accepted(call: CallLine) -> Record:
    return _common(call, "accepted")


def _sent(call: CallLine) -> Record:
    return {**_common(call, "sent"), "waited": round(call.waited, 6)}


def _ended(call: CallLine) -> Record:
    said = {
        **_common(call, "ended"),
        "outcome": call.outcome,
        "reach": call.reach,
        "waited": round(call.waited, 6),
    }
    if call.sent is not None:
        said["taken"] = round(call.ended - call.sent, 6)
    if is_tool_error(call):
        said["isError"] = True
    return said


_MAKE: Final = {CallStep.ACCEPTED: _accepted, CallStep.SENT: _sent, CallStep.ENDED: _ended}
