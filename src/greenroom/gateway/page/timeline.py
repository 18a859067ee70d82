"""What has happened in a room, or on a tape, as the lanes of the page's timeline.

There are two groups of lanes. Each client has a lane, or several while its calls overlap. A call is a span there, from
when it was accepted to its end, and inside it a span for each thing that it waited for before it was sent. Each address
of a server has a lane, with a span for each state of an incarnation, one for each thing that a start waited for, and a
mark for each decision and note. Beside it are lanes for the calls that it was sent: there a call is a span that says
which incarnation ran it, from when it was sent until its answer.

Pure: records of events in, lanes out. The records may end anywhere, as the last ones of a gateway that was killed do.
Then open spans end with the last record.

Rejected: a format of other viewers. Those read spans of OpenTelemetry (`observe.otlp`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from ...protocol.lifecycle import Cause, Means
from ...protocol.waits import QUEUE, waits

_PLACES_WITHOUT_WAIT: Final = (
    "out",
    "starting",
    "live",
    "leaving",
)  # a state says it all there, or nothing is to say
_WAITED_FOR: Final = {
    "breaker": "circuit breaker",
    "starting": "connect",
}  # others have their own name, or are the queue
_NO_WAIT: Final = ("out", "live", "leaving", "permit")
_FAILURES: Final = frozenset(cause.value for cause in Cause if Means.FAILED in cause.means)
_BAD: Final = ("transition", "refusal")  # marks of a crash or a failed start; of a call that was refused
_NOBODY: Final = "the room"  # whose calls have no client
Record = Mapping[str, Any]
Lane = dict[str, Any]  # as JSON: `group`, `name`, `spans`
Span = dict[str, Any]  # as JSON: `name`, `kind`, `start`, `end`, `about`; of a mark `isBad`, and no end


def lanes_of(records: Iterable[Record]) -> list[Lane]:
    """The lanes of these records, each as a line of an event log has it, in the order of time. Moments are seconds."""
    timeline = _Timeline()
    for record in records:
        timeline.take(record)
    return timeline.finish()


@attrs.define
class _Open:
    """A state that has begun."""

    state: str
    since: float
    incarnation: int
    about: dict[str, Any]


@attrs.define
class _Call:
    """A call that has not ended."""

    number: int
    address: str
    name: str
    lane: str  # of its client
    accepted: float
    about: dict[str, Any]
    sent: float | None = None  # the last time, if it is in flight
    run_lane: str = ""  # of its server, while it is in flight
    run_about: dict[str, Any] = attrs.field(factory=dict[str, Any])

    @property
    def since(self) -> float:
        return self.accepted if self.sent is None else self.sent


@attrs.define
class _Lanes:
    """The lanes of one group, by name."""

    group: str
    spans: dict[str, list[Span]] = attrs.field(factory=lambda: dict[str, list[Span]]())
    busy: set[str] = attrs.field(factory=set[str])  # those with an open call

    def take_free(self, name: str) -> str:
        """A lane of this name, or one beside it, without an open call."""
        free, further = name, 1
        while free in self.busy:
            further += 1
            free = f"{name} ({further})"
        self.busy.add(free)
        return free

    def add(
        self, lane: str, kind: str, name: str, start: float, end: float, about: Mapping[str, Any]
    ) -> None:
        self.spans.setdefault(lane, []).append(
            {"name": name, "kind": kind, "start": start, "end": end, "about": about}
        )

    def mark(self, lane: str, name: str, at: float, is_bad: bool) -> None:
        self.spans.setdefault(lane, []).append({"name": name, "kind": "mark", "start": at, "isBad": is_bad})

    def lanes(self) -> list[Lane]:
        return [{"group": self.group, "name": name, "spans": spans} for name, spans in self.spans.items()]


@attrs.define
class _Timeline:
    clients: _Lanes = attrs.field(factory=lambda: _Lanes("clients"))
    servers: _Lanes = attrs.field(factory=lambda: _Lanes("servers"))
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

    def finish(self) -> list[Lane]:
        for address in tuple(self.states):
            self._end_state(address)
        for address in tuple(self.waits):
            self._end_wait(address)
        for call in tuple(self.calls.values()):
            self._end_call(call, {"outcome": "open"})
        return [*self.clients.lanes(), *self.servers.lanes()]

    # ---- servers ----------------------------------------------------------------------------------------------------

    def _transition(self, record: Record) -> None:
        address = _address(record)
        self._end_state(address)
        about = _about(record, "cause", "reason", "detail", "inFlight", "queued")
        if record.get("to") == "draining" and record.get("cause") in _FAILURES:
            self._mark({**record, "detail": f"{record['cause']}: {record.get('detail', '')}"})
        if record.get("to") != "closed":
            self.states[address] = _Open(
                str(record.get("to")), self.last, int(record.get("incarnation", 0)), about
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
            self._span(waited, "wait", address)

    def _end_state(self, address: str) -> None:
        opened = self.states.pop(address, None)
        if opened is not None and opened.state != "idle":  # an empty lane shows that best
            self._span(opened, "state", address)

    def _span(self, opened: _Open, kind: str, address: str) -> None:
        about = {"incarnation": opened.incarnation, **opened.about}
        self.servers.add(address, kind, opened.state, opened.since, self.last, about)

    def _mark(self, record: Record) -> None:
        name = str(record.get("detail") or record.get("kind")).partition("\n")[0]
        self.servers.mark(_address(record), name, self.last, record.get("kind") in _BAD)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _call(self, record: Record) -> None:
        number, what = int(record.get("call", 0)), record.get("detail")
        if what == "accepted":
            about = _about(record, "call", "method", "client", "server", "scope")
            name = str(record.get("tool") or record.get("method") or f"call {number}")
            lane = self.clients.take_free(str(record.get("client") or _NOBODY))
            self.calls[number] = _Call(number, _address(record), name, lane, self.last, about)
        elif (call := self.calls.get(number)) is None:
            return  # it began before the first record
        elif what == "sent":
            self._send(call, record)
        elif what == "ended":
            self._end_call(call, _about(record, "outcome", "isError", "reach", "waited", "taken"))

    def _send(self, call: _Call, record: Record) -> None:
        self._end_waiting(call)
        self._leave_server(call, {"outcome": "sent again"})
        call.sent = self.last
        call.run_lane = self.servers.take_free(f"{call.address}: calls")
        call.run_about = _about(record, "call", "incarnation", "waited")

    def _end_call(self, call: _Call, said: dict[str, Any]) -> None:
        self.clients.add(call.lane, "call", call.name, call.accepted, self.last, {**call.about, **said})
        if call.sent is None:
            self._end_waiting(call)  # after the call: of two spans that are equal, the first is the outer one
        self._leave_server(call, said)
        self.clients.busy.discard(call.lane)
        self.calls.pop(call.number, None)

    def _leave_server(self, call: _Call, said: dict[str, Any]) -> None:
        if call.sent is not None:
            about = {**call.run_about, **said}
            self.servers.add(call.run_lane, "run", call.name, call.sent, self.last, about)
            self.servers.busy.discard(call.run_lane)

    def _end_waiting(self, call: _Call) -> None:
        """What the call has waited for until now, as far as it took time."""
        moves = self.moves.get(call.address, [])
        near = moves[max(0, bisect_right(moves, call.since, key=_at) - 1) :]
        for name, since, until in waits(near, call.since, self.last, _wait_in):
            if until > since and call.sent is None:
                self.clients.add(call.lane, "wait", name, since, until, {})


def _wait_in(place: str) -> str:
    return QUEUE if place in _NO_WAIT else _WAITED_FOR.get(place, place)


def _at(move: tuple[float, str]) -> float:
    return move[0]


def _about(record: Record, *names: str) -> dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def _address(record: Record) -> str:
    server, scope = record.get("server"), record.get("scope", "shared")
    if server is None:
        return "room"
    return str(server) if scope == "shared" else f"{server}[{scope}]"
