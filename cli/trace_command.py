"""An event log as a timeline: JSONL from `serve --events` into the Chrome trace format (chrome://tracing,
Perfetto).

Each address has a lane. It has a span for each state of an incarnation and for each queue that the start waited in
before (its circuit breaker, a slot, a start permit), and a mark for each policy decision and note. A call is a span
on the call track of its address, named by its tool, from accepted to ended. An arrow leads from its acceptance to the
moment it was sent. So one sees that a call waited for a start, or was replayed by a second incarnation.

Pure: records in, trace events out. The log may be cut off, because the gateway was killed. Then open spans
end with the last record. A line that is no record is counted and left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import click

from ..config.private_files import open_own
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted
from .common import say, show_json

if TYPE_CHECKING:
    from . import json_shapes as shapes


# ---- `greenroom trace`: an event log as a timeline ------------------------------------------------------------------


@click.command("trace")
@click.argument("events", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead of stdout.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: the timeline, or with --output what was written."
)
def trace_command(events: Path, output: Path | None, as_json: bool) -> int:
    """Turn EVENTS, the log of `serve --events`, into a Chrome or Perfetto trace.

    Open the result at https://ui.perfetto.dev or chrome://tracing.
    """

    with events.open(encoding="utf-8", errors="replace") as lines:
        trace = trace_of(lines)
    if trace.skipped:
        are = ("is not an event", "was") if trace.skipped == 1 else ("are not events", "were")
        say(f"{counted(trace.skipped, 'line')} of {events} {are[0]} and {are[1]} left out.")
    if output is None:
        click.echo(trace.to_json())
    else:
        _write(output, trace.to_json() + "\n")
        if as_json:
            said: shapes.Traced = {
                "output": str(output),
                "events": len(trace.events),
                "skipped": trace.skipped,
            }
            show_json(said)
    return 0


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read (0600), because it names calls."""
    try:
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, is_named=True), "wb") as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        text = f"--output {path}: {error.strerror}. Name a file that can be written."
        raise UsageError(text) from None


_PROCESS: Final = 1
_MICROSECONDS: Final = 1e6
_PLACES_THAT_HOLD: Final = ("out", "starting", "live")
Record = Mapping[str, Any]
TraceEvent = dict[str, Any]


@attrs.frozen
class Trace:
    events: list[TraceEvent]
    skipped: int  # how many lines were no records

    def to_json(self) -> str:
        return json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def trace_of(lines: Iterable[str]) -> Trace:
    """The trace of an event log's lines."""
    tracer = _Tracer()
    skipped = 0
    for line in lines:
        record = _record(line)
        if record is None:
            skipped += bool(line.strip())
        else:
            tracer.take(record)
    return Trace(tracer.finish(), skipped)


def _record(line: str) -> Record | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(cast("dict[str, Any]", value).get("at"), int | float):
        return None
    return cast("Record", value)


@attrs.define
class _Open:
    """A state that has begun."""

    state: str
    since: float
    incarnation: int
    args: dict[str, Any]


@attrs.frozen
class _Call:
    number: int
    address: str
    name: str

    @classmethod
    def of(cls, record: Record) -> _Call:
        number = int(record.get("call", 0))
        name = record.get("tool") or record.get("method") or f"call {number}"
        return cls(number, _address(record), str(name))


@attrs.define
class _Tracer:
    events: list[TraceEvent] = attrs.field(factory=list[TraceEvent])
    lanes: dict[str, int] = attrs.field(factory=dict[str, int])
    states: dict[str, _Open] = attrs.field(factory=lambda: dict[str, _Open]())
    waits: dict[str, _Open] = attrs.field(factory=lambda: dict[str, _Open]())  # on the way to a connection
    calls: dict[int, _Call] = attrs.field(factory=lambda: dict[int, _Call]())  # open ones
    last: float = 0.0

    def take(self, record: Record) -> None:
        self.last = float(record["at"])
        kind = record.get("kind")
        if kind == "transition":
            self._transition(record)
        elif kind == "start":
            self._start(record)
        elif kind == "call":
            self._call(record)
        else:
            self._mark(record)

    def finish(self) -> list[TraceEvent]:
        for address in tuple(self.states):
            self._end_state(address, self.last)
        for address in tuple(self.waits):
            self._end_wait(address)
        for call in tuple(self.calls.values()):
            self.events.append(self._call_event("e", call, {"outcome": "open at the end of the log"}))
        names = [_name(0, "process_name", "greenroom")]
        names += [_name(lane, "thread_name", address) for address, lane in self.lanes.items()]
        return names + self.events

    def _transition(self, record: Record) -> None:
        address = _address(record)
        self._end_state(address, self.last)
        args = _args(record, "cause", "reason", "detail", "inFlight", "queued")
        if record.get("to") != "closed":
            self.states[address] = _Open(
                str(record.get("to")), self.last, int(record.get("incarnation", 0)), args
            )

    def _start(self, record: Record) -> None:
        """A start came to a place on its way to a connection. At a place where nothing is waited for, the
        state's span says it all."""
        address, place = _address(record), str(record.get("place"))
        self._end_wait(address)
        if place not in _PLACES_THAT_HOLD:
            number = int(record.get("incarnation", 0))
            self.waits[address] = _Open(f"waits for {place}", self.last, number, {})

    def _end_wait(self, address: str) -> None:
        waited = self.waits.pop(address, None)
        if waited is not None and self.last > waited.since:
            self._span(waited, "wait", address, self.last)

    def _end_state(self, address: str, at: float) -> None:
        opened = self.states.pop(address, None)
        if opened is not None and opened.state != "idle":  # an empty lane shows that best
            self._span(opened, "state", address, at)

    def _span(self, opened: _Open, category: str, address: str, at: float) -> None:
        self.events.append(
            {
                "name": opened.state,
                "cat": category,
                "ph": "X",
                "ts": _us(opened.since),
                "dur": _us(at) - _us(opened.since),
                "pid": _PROCESS,
                "tid": self._lane(address),
                "args": {"incarnation": opened.incarnation, **opened.args},
            }
        )

    def _call(self, record: Record) -> None:
        call, what = _Call.of(record), record.get("detail")
        if what == "accepted":
            self.calls[call.number] = call
            self.events.append(self._call_event("b", call, _args(record, "call", "method", "client")))
            self.events.append(self._flow("s", call))
        elif what == "sent":
            self.events.append(self._call_event("n", call, _args(record, "incarnation", "waited")))
            self.events.append({**self._flow("f", call), "bp": "e"})
        elif what == "ended":
            self.calls.pop(call.number, None)
            args = {"outcome": record.get("outcome"), **_args(record, "reach", "waited", "taken")}
            self.events.append(self._call_event("e", call, args))

    def _call_event(self, phase: str, call: _Call, args: dict[str, Any]) -> TraceEvent:
        return {
            "name": call.name,
            "cat": "call",
            "ph": phase,
            "id": call.number,
            "ts": _us(self.last),
            "pid": _PROCESS,
            "tid": self._lane(call.address),
            "args": args,
        }

    def _flow(self, phase: str, call: _Call) -> TraceEvent:
        return {**self._call_event(phase, call, {}), "name": "sent", "cat": "flow"}

    def _mark(self, record: Record) -> None:
        self.events.append(
            {
                "name": str(record.get("detail") or record.get("kind")).partition("\n")[0],
                "cat": str(record.get("kind")),
                "ph": "i",
                "s": "t",
                "ts": _us(self.last),
                "pid": _PROCESS,
                "tid": self._lane(_address(record)),
            }
        )

    def _lane(self, address: str) -> int:
        return self.lanes.setdefault(address, len(self.lanes) + 1)


def _args(record: Record, *names: str) -> dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def _address(record: Record) -> str:
    server, scope = record.get("server"), record.get("scope", "shared")
    if server is None:
        return "room"
    return str(server) if scope == "shared" else f"{server}[{scope}]"


def _us(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)


def _name(lane: int, what: str, name: str) -> TraceEvent:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": lane, "args": {"name": name}}
