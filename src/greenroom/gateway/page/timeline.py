"""What has happened in a room, or on a tape, as the lanes of the page's timeline.

There are two groups of lanes. Each client has a lane, or several while its calls overlap. A call is a span there, from
when it was accepted to its end, and inside it a span for each thing that it waited for before it was sent. Each address
of a server has a lane, with a span for each state of an incarnation, one for each thing that a start waited for, and a
mark for each decision and note. Beside it are lanes for the calls that it was sent: there a call is a span that says
which incarnation ran it, from when it was sent until its answer.

Pure: records of events in, lanes out. The records may end anywhere, as the last ones of a gateway that was killed do.
Then open spans end with the last record. In a room that runs they go on, so there they end now; and what went on before
the first record (a server that has been connected for hours has none) is known from how the room is now.

Rejected: a format of other viewers. Those read spans of OpenTelemetry (`observe.otlp`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec

from ...protocol.lifecycle import Cause, Means, State
from ...protocol.status import ServerStatus
from ...protocol.wait_intervals import QUEUE, waits

_PLACES_WITHOUT_WAIT: Final = (
    "out",
    "starting",
    "live",
    "leaving",
)  # a state says it all there, or nothing is to say
# Others have their own name, or are the queue.
_WAITED_FOR: Final = {"breaker": "circuit breaker", "starting": "connect"}
_STARTS_WAIT_FOR: Final = {
    "breaker": "the circuit breaker",
    "permit": "a start permit",
    "slot": "a slot",
}
_NO_WAIT: Final = ("out", "live", "leaving", "permit")
_FAILURES: Final = frozenset(cause.value for cause in Cause if Means.FAILED in cause.means)
_BAD: Final = ("transition", "refusal")  # marks of a crash or a failed start; of a call that was refused
_NOBODY: Final = "the room"  # whose calls have no client
Record = Mapping[str, Any]
# As JSON: `group`, `name`, `spans`; of a client `client`, of an address `server`, `scope`, and `isCalls` for its calls.
Lane = dict[str, Any]
# As JSON: `name`, `kind`, `start`, `end`, `about`; `isCut` if it began before; of a mark `isBad`, and no end.
Span = dict[str, Any]
_RUNNING: Final = frozenset({State.CONNECTING.value, State.CONNECTED.value, State.DRAINING.value})


class RoomNow(msgspec.Struct, frozen=True):
    """How a room is at the end of the records."""

    since: float  # from when on there are records
    now: float  # until when open spans go on
    rows: Sequence[ServerStatus]  # of all addresses


def lanes_of(records: Iterable[Record], room: RoomNow | None = None) -> list[Lane]:
    """The lanes of these records, each as a line of an event log has it, in the order of time. Moments are seconds.

    `room`: the room that goes on; None: there is none, and open spans end with the last record.
    """
    timeline = _Timeline(since=None if room is None else room.since)
    for record in records:
        timeline.take(record)
    if room is not None:
        timeline.last = max(timeline.last, room.now)
        for row in room.rows:
            timeline.go_on(row)
    return timeline.finish()


@attrs.define
class _RunningState:
    """A state that has begun."""

    state: str
    since: float
    incarnation: int
    about: dict[str, Any]
    is_cut: bool = False  # it began before


@attrs.define
class _RunningCall:
    """A call that has not ended."""

    number: int
    address: str
    name: str
    lane: str  # the line of the picture that is its client's
    accepted: float
    about: dict[str, Any]
    sent: float | None = None  # the last time, if it is in flight
    run_lane: str = ""  # that of its server, while it is in flight
    run_about: dict[str, Any] = attrs.field(factory=dict[str, Any])

    @property
    def since(self) -> float:
        return self.accepted if self.sent is None else self.sent


@attrs.define
class _Lanes:
    """The lanes of one group, by name."""

    group: str
    spans: dict[str, list[Span]] = attrs.field(factory=lambda: dict[str, list[Span]]())
    about: dict[str, Lane] = attrs.field(factory=lambda: dict[str, Lane]())  # whose they are
    busy: set[str] = attrs.field(factory=set[str])  # those with an open call

    def take_free(self, name: str, **about: Any) -> str:
        """A lane of this name, or one beside it, without an open call. `about`: whose it is."""
        free, further = name, 1
        while free in self.busy:
            further += 1
            free = f"{name} ({further})"
        self.busy.add(free)
        self.about[free] = about
        return free

    def of_address(self, record: Record) -> str:
        """The lane of the address that a record is of."""
        name, server = _address(record), record.get("server")
        if server is not None:
            self.about[name] = {"server": str(server), "scope": str(record.get("scope", "shared"))}
        return name

    def add(
        self,
        lane: str,
        kind: str,
        name: str,
        start: float,
        end: float,
        about: Mapping[str, Any],
        is_cut: bool = False,
    ) -> None:
        said = {"name": name, "kind": kind, "start": start, "end": end, "about": about}
        self.spans.setdefault(lane, []).append({**said, "isCut": True} if is_cut else said)

    def mark(self, lane: str, name: str, at: float, is_bad: bool) -> None:
        self.spans.setdefault(lane, []).append({"name": name, "kind": "mark", "start": at, "isBad": is_bad})

    def lanes(self) -> list[Lane]:
        return [
            {"group": self.group, "name": name, **self.about.get(name, {}), "spans": spans}
            for name, spans in self.spans.items()
        ]


@attrs.define
class _Timeline:
    since: float | None = None  # from when on there are records, of a room that goes on
    clients: _Lanes = attrs.field(factory=lambda: _Lanes("clients"))
    servers: _Lanes = attrs.field(factory=lambda: _Lanes("servers"))
    states: dict[str, _RunningState] = attrs.field(factory=lambda: dict[str, _RunningState]())
    # On the way to a connection.
    waits: dict[str, _RunningState] = attrs.field(factory=lambda: dict[str, _RunningState]())
    moves: dict[str, list[tuple[float, str]]] = attrs.field(
        factory=lambda: dict[str, list[tuple[float, str]]]()
    )
    calls: dict[int, _RunningCall] = attrs.field(factory=lambda: dict[int, _RunningCall]())  # open ones
    last: float = 0.0
    moved: set[str] = attrs.field(factory=set[str])  # addresses of which there is a transition

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
        address = self.servers.of_address(record)
        if address not in self.moved and self.since is not None and record.get("from") in _RUNNING:
            self._begin_before(address, str(record["from"]), int(record.get("incarnation", 0)))
        self.moved.add(address)
        self._end_state(address)
        about = _about(record, "cause", "reason", "detail", "inFlight", "queued")
        if record.get("to") == "draining" and record.get("cause") in _FAILURES:
            self._mark({**record, "detail": f"{record['cause']}: {record.get('detail', '')}"})
        if record.get("to") != "closed":
            self.states[address] = _RunningState(
                str(record.get("to")), self.last, int(record.get("incarnation", 0)), about
            )

    def _begin_before(self, address: str, state: str, incarnation: int) -> None:
        assert self.since is not None
        self.states[address] = _RunningState(state, self.since, incarnation, {}, is_cut=True)

    def go_on(self, row: ServerStatus) -> None:
        """What an address does now, of which no record tells."""
        record = {"server": row.server, "scope": row.scope}
        address = self.servers.of_address(record)
        if address not in self.moved and row.state.value in _RUNNING:
            self._begin_before(address, row.state.value, row.incarnation)
        place = row.waiting_for
        if place is not None and address not in self.waits and place not in _PLACES_WITHOUT_WAIT:
            assert self.since is not None
            since = self.last - (row.waiting or 0.0)
            self.waits[address] = _wait_for(
                place, max(self.since, since), row.incarnation, since < self.since
            )

    def _start(self, record: Record) -> None:
        """A start came to a place on its way to a connection. At a place where nothing is waited for, the
        state's span says it all."""
        address, place = self.servers.of_address(record), str(record.get("place"))
        self._end_wait(address)
        self.moves.setdefault(address, []).append((self.last, place))
        if place not in _PLACES_WITHOUT_WAIT:
            self.waits[address] = _wait_for(place, self.last, int(record.get("incarnation", 0)), False)

    def _end_wait(self, address: str) -> None:
        waited = self.waits.pop(address, None)
        if waited is not None and self.last > waited.since:
            self._span(waited, "wait", address)

    def _end_state(self, address: str) -> None:
        opened = self.states.pop(address, None)
        if opened is not None and opened.state != "idle":  # an empty lane shows that best
            self._span(opened, "state", address)

    def _span(self, opened: _RunningState, kind: str, address: str) -> None:
        about = {"incarnation": opened.incarnation, **opened.about}
        self.servers.add(address, kind, opened.state, opened.since, self.last, about, opened.is_cut)

    def _mark(self, record: Record) -> None:
        name = str(record.get("detail") or record.get("kind")).partition("\n")[0]
        self.servers.mark(self.servers.of_address(record), name, self.last, record.get("kind") in _BAD)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _call(self, record: Record) -> None:
        number, what = int(record.get("call", 0)), record.get("detail")
        if what == "accepted":
            about = _about(record, "call", "method", "client", "server", "scope")
            name = str(record.get("tool") or record.get("method") or f"call {number}")
            client = str(record.get("client") or _NOBODY)
            lane = self.clients.take_free(client, client=client)
            self.calls[number] = _RunningCall(number, _address(record), name, lane, self.last, about)
        elif (call := self.calls.get(number)) is None:
            return  # it began before the first record
        elif what == "sent":
            self._send(call, record)
        elif what == "ended":
            self._end_call(call, _about(record, "outcome", "isError", "reach", "waited", "taken"))

    def _send(self, call: _RunningCall, record: Record) -> None:
        self._end_waiting(call)
        self._leave_server(call, {"outcome": "sent again"})
        call.sent = self.last
        server, scope = record.get("server"), record.get("scope", "shared")
        whose = {} if server is None else {"server": str(server), "scope": str(scope), "isCalls": True}
        call.run_lane = self.servers.take_free(f"{call.address}: calls", **whose)
        call.run_about = _about(record, "call", "incarnation", "waited")

    def _end_call(self, call: _RunningCall, said: dict[str, Any]) -> None:
        self.clients.add(call.lane, "call", call.name, call.accepted, self.last, {**call.about, **said})
        if call.sent is None:
            self._end_waiting(call)  # after the call: of two spans that are equal, the first is the outer one
        self._leave_server(call, said)
        self.clients.busy.discard(call.lane)
        self.calls.pop(call.number, None)

    def _leave_server(self, call: _RunningCall, said: dict[str, Any]) -> None:
        if call.sent is not None:
            about = {**call.run_about, **said}
            self.servers.add(call.run_lane, "run", call.name, call.sent, self.last, about)
            self.servers.busy.discard(call.run_lane)

    def _end_waiting(self, call: _RunningCall) -> None:
        """What the call has waited for until now, as far as it took time."""
        moves = self.moves.get(call.address, [])
        near = moves[max(0, bisect_right(moves, call.since, key=_at) - 1) :]
        for name, since, until in waits(near, call.since, self.last, _wait_in):
            if until > since and call.sent is None:
                self.clients.add(call.lane, "wait", name, since, until, {})


def _wait_for(place: str, since: float, incarnation: int, is_cut: bool) -> _RunningState:
    return _RunningState(f"waits for {_STARTS_WAIT_FOR.get(place, place)}", since, incarnation, {}, is_cut)


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
