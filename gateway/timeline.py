"""What has happened in a gateway as a timeline, in the Chrome trace format (Perfetto, chrome://tracing).

There are two groups of lanes. Each client has a lane, or several while its calls overlap. A call is a span there, from
when it was accepted to its end, and inside it a span for each thing that it waited for before it was sent. Each address
of a server has a lane, with a span for each state of an incarnation, one for each thing that a start waited for, and a
mark for each decision and note. Beside it are lanes for the calls that it was sent: there a call is a span that says
which incarnation ran it, from when it was sent until its answer. An arrow leads to it from its client's lane, each time
the call was sent.

Perfetto, whose trace processor reads a timeline in `make world`, has three rules that no format describes. Two spans of
one lane are one inside the other or apart, or the second is left out. The id of an arrow is a number. And an arrow
points to the span that began later, whatever its ends say; so it cannot lead to the state of the incarnation, which
began before the call.

Pure: records in, trace events out. The log may be cut off, because the gateway was killed. Then open spans
end with the last record. A line that is no record is counted and left out.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import attrs

from ..protocol.lifecycle import Cause, Means
from ..protocol.waits import QUEUE, waits

_CLIENTS: Final = 1
_SERVERS: Final = 2
_MICROSECONDS: Final = 1e6
_PLACES_WITHOUT_WAIT: Final = (
    "out",
    "starting",
    "live",
    "leaving",
)  # a state says it all there, or nothing is to say
_WAITED_FOR: Final = {
    "gate": "circuit breaker",
    "starting": "connect",
}  # others have their own name, or are the queue
_NO_WAIT: Final = ("out", "live", "leaving", "permit")
_FAILURES: Final = frozenset(cause.value for cause in Cause if Means.FAILED in cause.means)
_NOBODY: Final = "the room"  # whose calls have no client
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


def trace_of_records(records: Iterable[Record]) -> Trace:
    """The trace of records, each as a line of an event log has it."""
    tracer = _Tracer()
    for record in records:
        tracer.take(record)
    return Trace(tracer.finish(), 0)


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


@attrs.define
class _Call:
    """A call that has not ended."""

    number: int
    address: str
    name: str
    lane: int  # of its client
    accepted: float
    args: dict[str, Any]
    sent: float | None = None  # the last time, if it is in flight
    run_lane: int = 0  # of its server, while it is in flight
    run_args: dict[str, Any] = attrs.field(factory=dict[str, Any])

    @property
    def since(self) -> float:
        return self.accepted if self.sent is None else self.sent


@attrs.define
class _Lanes:
    """The lanes of one group, numbered in the order in which they are needed."""

    process: int
    numbers: dict[str, int] = attrs.field(factory=dict[str, int])
    busy: set[int] = attrs.field(factory=set[int])  # those with an open call

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers) + 1)

    def take_free(self, name: str) -> int:
        """A lane of this name, or one beside it, without an open call."""
        further = 1
        while (lane := self.number(name if further == 1 else f"{name} ({further})")) in self.busy:
            further += 1
        self.busy.add(lane)
        return lane

    def names(self, group: str) -> list[TraceEvent]:
        if not self.numbers:
            return []
        named = [_name(self.process, lane, "thread_name", name) for name, lane in self.numbers.items()]
        return [_name(self.process, 0, "process_name", group), *named]


@attrs.define
class _Tracer:
    events: list[TraceEvent] = attrs.field(factory=list[TraceEvent])
    clients: _Lanes = attrs.field(factory=lambda: _Lanes(_CLIENTS))
    servers: _Lanes = attrs.field(factory=lambda: _Lanes(_SERVERS))
    states: dict[str, _Open] = attrs.field(factory=lambda: dict[str, _Open]())
    waits: dict[str, _Open] = attrs.field(factory=lambda: dict[str, _Open]())  # on the way to a connection
    moves: dict[str, list[tuple[float, str]]] = attrs.field(
        factory=lambda: dict[str, list[tuple[float, str]]]()
    )
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
            self._end_call(call, {"outcome": "open at the end of the log"})
        return [*self.clients.names("clients"), *self.servers.names("servers"), *self.events]

    # ---- servers ----------------------------------------------------------------------------------------------------

    def _transition(self, record: Record) -> None:
        address = _address(record)
        self._end_state(address, self.last)
        args = _args(record, "cause", "reason", "detail", "inFlight", "queued")
        if record.get("to") == "draining" and record.get("cause") in _FAILURES:
            self._mark({**record, "detail": f"{record['cause']}: {record.get('detail', '')}"})
        if record.get("to") != "closed":
            self.states[address] = _Open(
                str(record.get("to")), self.last, int(record.get("incarnation", 0)), args
            )

    def _start(self, record: Record) -> None:
        """A start came to a place on its way to a connection. At a place where nothing is waited for, the
        state's span says it all."""
        address, place = _address(record), str(record.get("place"))
        self._end_wait(address)
        self.moves.setdefault(address, []).append((self.last, place))
        if place not in _PLACES_WITHOUT_WAIT:
            number = int(record.get("incarnation", 0))
            self.waits[address] = _Open(f"waits for {_WAITED_FOR.get(place, place)}", self.last, number, {})

    def _end_wait(self, address: str) -> None:
        waited = self.waits.pop(address, None)
        if waited is not None and self.last > waited.since:
            self._span(waited, "wait", address, self.last)

    def _end_state(self, address: str, at: float) -> None:
        opened = self.states.pop(address, None)
        if opened is not None and opened.state != "idle":  # an empty lane shows that best
            self._span(opened, "state", address, at)

    def _span(self, opened: _Open, category: str, address: str, at: float) -> None:
        args = {"incarnation": opened.incarnation, **opened.args}
        self._add("X", opened.state, category, self.servers, address, opened.since, args, until=at)

    def _mark(self, record: Record) -> None:
        name = str(record.get("detail") or record.get("kind")).partition("\n")[0]
        mark = self._add("i", name, str(record.get("kind")), self.servers, _address(record), self.last)
        mark["s"] = "t"

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _call(self, record: Record) -> None:
        number, what = int(record.get("call", 0)), record.get("detail")
        if what == "accepted":
            args = _args(record, "call", "method", "client", "server", "scope")
            name = str(record.get("tool") or record.get("method") or f"call {number}")
            lane = self.clients.take_free(str(record.get("client") or _NOBODY))
            self.calls[number] = _Call(number, _address(record), name, lane, self.last, args)
        elif (call := self.calls.get(number)) is None:
            return  # it began before the log
        elif what == "sent":
            self._send(call, record)
        elif what == "ended":
            said = _args(record, "outcome", "isError", "reach", "waited", "taken")
            self._end_call(call, said)

    def _send(self, call: _Call, record: Record) -> None:
        self._end_waiting(call)
        self._leave_server(call, {"outcome": "sent again"})
        call.sent = self.last
        call.run_lane = self.servers.take_free(f"{call.address}: calls")
        call.run_args = _args(record, "call", "incarnation", "waited")
        start = self._add("s", "sent", "flow", self.clients, call.lane, self.last)
        end = self._add("f", "sent", "flow", self.servers, call.run_lane, self.last)
        start["id"] = end["id"] = len(self.events)
        end["bp"] = "e"

    def _end_call(self, call: _Call, said: dict[str, Any]) -> None:
        args = {**call.args, **said}
        self._add("X", call.name, "call", self.clients, call.lane, call.accepted, args, until=self.last)
        if call.sent is None:
            self._end_waiting(call)  # after the call: of two spans that are equal, the first is the outer one
        self._leave_server(call, said)
        self.clients.busy.discard(call.lane)
        self.calls.pop(call.number, None)

    def _leave_server(self, call: _Call, said: dict[str, Any]) -> None:
        if call.sent is not None:
            args = {**call.run_args, **said}
            end = max(
                self.last, call.sent + 1 / _MICROSECONDS
            )  # an arrow does not find a span that takes no time
            self._add("X", call.name, "run", self.servers, call.run_lane, call.sent, args, until=end)
            self.servers.busy.discard(call.run_lane)

    def _end_waiting(self, call: _Call) -> None:
        """What the call has waited for until now, as far as it took time."""
        moves = self.moves.get(call.address, [])
        near = moves[max(0, bisect_right(moves, call.since, key=_at) - 1) :]
        for name, since, until in waits(near, call.since, self.last, _wait_in):
            if until > since and call.sent is None:
                self._add("X", name, "wait", self.clients, call.lane, since, until=until)

    # ---- events of the trace ----------------------------------------------------------------------------------------

    def _add(
        self,
        phase: str,
        name: str,
        category: str,
        lanes: _Lanes,
        lane: str | int,
        at: float,
        args: dict[str, Any] | None = None,
        *,
        until: float | None = None,
    ) -> TraceEvent:
        event: TraceEvent = {
            "name": name,
            "cat": category,
            "ph": phase,
            "ts": _us(at),
            "pid": lanes.process,
            "tid": lanes.number(lane) if isinstance(lane, str) else lane,
        }
        if until is not None:
            event["dur"] = _us(until) - _us(at)
        if args is not None:
            event["args"] = args
        self.events.append(event)
        return event


def _wait_in(place: str) -> str:
    return QUEUE if place in _NO_WAIT else _WAITED_FOR.get(place, place)


def _at(move: tuple[float, str]) -> float:
    return move[0]


def _args(record: Record, *names: str) -> dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def _address(record: Record) -> str:
    server, scope = record.get("server"), record.get("scope", "shared")
    if server is None:
        return "room"
    return str(server) if scope == "shared" else f"{server}[{scope}]"


def _us(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)


def _name(process: int, lane: int, what: str, name: str) -> TraceEvent:
    return {"name": what, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
