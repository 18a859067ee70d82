"""The spans of a tape's calls.

The calls are told to `CallSpans`, step by step and in their order, by a clock that goes as the tape says. So they have
the names and attributes of a live room's, and whatever comes to these comes to those of tapes. Durations are not told:
a histogram counts them where it is collected, which is now. A call that has not ended is no span, as in a room.

What the tape says of an outcome counts in the form that ours have; anything else is told as it stands there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

import attrs
from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider

from ..actors.call import Call
from ..protocol.address import Address
from ..protocol.errors import CallError, RemoteError
from ..protocol.json_values import object_or_empty
from ..tape.tape_events import CallStep, steps_of
from ..tape.tape_lines import OPEN, CallLine, EventLine
from ..tape.tape_reader import Tape
from .tracing import CallSpans, Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def tell_spans(tape: Tape, tracers: TracerProvider) -> None:
    """Tell this provider of the tape's calls, at the times at which they were made."""
    clock, tracing = _TapeClock(), Tracing(tracers, NoOpMeterProvider())
    tracing.set_clock(clock.now, tape.head.at)
    told = _TapedCalls(tape, tracing)
    for clock.at, what in steps_of(tape):
        if isinstance(what, EventLine):
            told.heard(what, clock.at)
        elif what[1].outcome != OPEN:  # what has not ended is no span
            told.stepped(*what)


@attrs.define
class _TapeClock:
    at: float = 0.0

    def now(self) -> float:
        return self.at


@attrs.frozen
class _TapedTable:
    """What a call's table tells of where the call was."""

    address: Address
    number: int
    protocol_version: str | None

    def incarnation(self) -> int:
        return self.number


class _TapedCalls:
    def __init__(self, tape: Tape, tracing: Tracing) -> None:
        self._tape = tape
        self._tracing = tracing
        self._open: dict[int, tuple[Call, CallSpans]] = {}  # by which line it is
        self._versions = defaultdict[Address, str | None](lambda: None)
        for line in tape.listed:
            self._versions[Address(line.server, line.scope)] = line.version

    def heard(self, line: EventLine, at: float) -> None:
        record = line.event
        if record.get("event") == "StartMoved" and "server" in record and "place" in record:
            address = Address(record["server"], record.get("scope", "shared"))
            self._tracing.start_moved(address, at, record["place"])

    def stepped(self, step: CallStep, line: CallLine) -> None:
        if step is CallStep.ACCEPTED:
            self._open[id(line)] = self._accepted(line)
            return
        call, spans = self._open[id(line)]
        if step is CallStep.SENT:
            spans.attempt(call, _transport(self._tape, line.server))
        else:
            del self._open[id(line)]
            _end(call, line)
            spans.end(call)

    def _accepted(self, line: CallLine) -> tuple[Call, CallSpans]:
        call = Call(line.method, object_or_empty(line.said), tool=line.tool)
        call.server = line.server
        address = Address(line.server, line.scope)
        call.owner = cast("Any", _TapedTable(address, line.incarnation, self._versions[address]))
        return call, CallSpans(self._tracing, call, Context(), None)


def _end(call: Call, line: CallLine) -> None:
    """Give the call the outcome that it had."""
    call.reach, call.ended = line.reach, True
    if line.error is None:
        call.cancelled = line.outcome != "result"
        call.result = None if call.cancelled else bytes(line.result)
        return
    said, rpc = line.error, line.error.rpc
    if rpc is None or not isinstance(rpc.get("code"), int):
        call.error = CallError(said.message, server=line.server, reach=line.reach, tool=line.tool)
    else:
        call.error = RemoteError(said.message, server=line.server, rpc_code=rpc["code"], tool=line.tool)
    call.error.code = said.code


def _transport(tape: Tape, server: str) -> str:
    entries: Any = tape.head.config.get("mcpServers")
    entry = object_or_empty(object_or_empty(entries).get(server))
    return "tcp" if "url" in entry else "pipe"
