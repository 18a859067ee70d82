"""The lifecycle proved by search: see `greenroom.testing` for what is drawn and what must hold.

By default in seconds; `make soak` looks for as long as it takes to run some thousand times as many steps. What judges
the search is judged below it: the trace checker, the outcomes and the laws are each shown a run that breaks the rules,
and have to say so; a rule that is kept must be let pass.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import anyio
import attrs
import pytest
from hypothesis import HealthCheck, settings
from msgspec.structs import replace
from tests.support.profiles import examples

from greenroom import Reach
from greenroom.actors.call import Call
from greenroom.config.model import Lifecycle, Settings
from greenroom.config.parse import parse_config
from greenroom.events import Event
from greenroom.protocol.address import Address
from greenroom.protocol.errors import (
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    Drained,
    GreenroomError,
    ServerDown,
    ServerLost,
    Unavailable,
    UnknownTool,
    UsageError,
)
from greenroom.protocol.events import (
    BreakerDecision,
    BreakerMove,
    CallAccepted,
    CallEnded,
    CallSent,
    CatalogueChanged,
    ConnectStep,
    Note,
    NoteCode,
    Place,
    StartMoved,
    Step,
    Transition,
)
from greenroom.protocol.lifecycle import Cause, Ending, Reason, State
from greenroom.testing import World, laws
from greenroom.testing.fake_servers import HANG
from greenroom.testing.laws import outcomes_have_reasons
from greenroom.testing.room_machine import RoomMachine
from greenroom.testing.trace_checker import BreakerModel, Leave, Life, Seats, Span, TraceChecker
from greenroom.testing.world import OneCall, Versions, tools_of

RoomMachine.TestCase.settings = settings(
    examples(300),
    stateful_step_count=30,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRooms = RoomMachine.TestCase


# ---- the trace checker --------------------------------------------------------------------------------------------

IDLE, CONNECTING, CONNECTED = State.IDLE, State.CONNECTING, State.CONNECTED
DRAINING, CLOSED = State.DRAINING, State.CLOSED


CALL_STEPS: dict[str, Any] = {"accepted": CallAccepted, "sent": CallSent, "ended": CallEnded}


class Told:
    """A trace checker and the one who tells it: events as they come, and the ground truth (`wrong`: until when)."""

    def __init__(self, entry: dict[str, Any] | None = None, **room: Any) -> None:
        raw = {"mcpServers": {"a": {"command": "fake", **(entry or {})}}, "settings": room}
        self.config = parse_config(raw)
        self.wrong: dict[str, float] = {}
        self.asks: dict[str, float] = {}
        self.asked_by_name: dict[str, float] = {}
        self.asks_for: dict[str, str] = {}
        self.queues: dict[str, tuple[Address, ...]] = {}
        self.taken = Seats(capacity=20, minimum=0, staying=1, shared=1, leaving=0, waiting=0)
        self.checker = TraceChecker(self)
        self.at, self._seq = 0.0, 0

    def was(self, fault: str, server: str, since: float) -> bool:
        return fault in self.wrong and self.wrong[fault] >= since

    def asked(self, what: str, server: str, since: float) -> bool:
        if what in ("connect", "find", "drained") and server in self.asked_by_name:
            return self.asked_by_name[server] >= since
        return self.asks_for.get(server) == what or (what in self.asks and self.asks[what] >= since)

    def lines(self) -> dict[str, tuple[Address, ...]]:
        return self.queues

    def seats(self, *, of_sessions: bool) -> Seats:
        return self.taken

    def tell(self, make: type[Event], *, skip: int = 0, **more: Any) -> Self:
        self._seq += 1 + skip
        address, number = more.pop("address", Address("a")), more.pop("incarnation", 1)
        self.checker.read(make(self._seq, self.at, address, number, **more))
        return self

    def step(self, before: State, after: State, cause: Cause | None = None, **more: Any) -> Self:
        return self.tell(Transition, before=before, after=after, cause=cause, **more)

    def start(self, **more: Any) -> Self:
        return self.step(IDLE, CONNECTING, **more)

    def connect(self, **more: Any) -> Self:
        return self.start(**more).step(CONNECTING, CONNECTED, **more)

    def leave(self, cause: Cause, *, before: State = CONNECTED, **more: Any) -> Self:
        return self.step(before, DRAINING, cause, **more).step(DRAINING, CLOSED, cause, **more)

    def fail(self, incarnation: int = 1, **more: Any) -> Self:
        """One start that fails, and had a reason to."""
        self.wrong["failing"] = math.inf
        self.step(IDLE if incarnation == 1 else CLOSED, CONNECTING, incarnation=incarnation, **more)
        return self.leave(Cause.CONNECT_FAILED, before=CONNECTING, incarnation=incarnation, **more)

    def call(self, number: int, *steps: str, **more: Any) -> Self:
        for step in steps:
            outcome = {"outcome": more.get("outcome", "result")} if step == "ended" else {}
            whose = {"call": number, "method": "tools/call", "tool": "a_echo", "client": None}
            where = {"address": more.get("address", Address("a")), "in_flight": more.get("in_flight", 0)}
            self.tell(CALL_STEPS[step], **whose, **outcome, **where)
        return self

    @property
    def violations(self) -> list[str]:
        return [re.split(r": \w+\(seq=", text)[0] for text in self.checker.violations]


def _later(told: Told, seconds: float) -> Told:
    told.at += seconds
    return told


def _tripped() -> Told:
    """A circuit breaker that has tripped, and a server that is up again behind it."""
    told = Told(failureThreshold=1, cooldownMs=5_000).fail()
    _later(told, 10.0).step(CLOSED, CONNECTING, incarnation=2)
    return told.step(CONNECTING, CONNECTED, incarnation=2)


def _asked(told: Told, what: str) -> Told:
    told.asks[what] = math.inf
    return told


def _wrong(told: Told, what: str, until: float = math.inf) -> Told:
    told.wrong[what] = until
    return told


def _seated(told: Told, **seats: int) -> Told:
    told.taken = attrs.evolve(told.taken, **seats)
    return told


def _again(told: Told, incarnation: int) -> Told:
    """It starts and connects once more, at once."""
    told.step(CLOSED, CONNECTING, incarnation=incarnation)
    return told.step(CONNECTING, CONNECTED, incarnation=incarnation)


def _lost_twice(reason: Reason | None = None, **settings: Any) -> Told:
    told = _wrong(_wrong(Told(**settings).connect(), "lost"), "hung").leave(Cause.LOST, reason=reason)
    return _again(told, 2).leave(Cause.LOST, reason=reason, incarnation=2)


def _half_taken() -> Told:
    """A pipe that was full for a while took call 2 and not call 1; the server was lost, and is up again."""
    told = _wrong(_wrong(Told().connect(), "lost"), "full pipe")
    told.call(1, "accepted").call(2, "accepted", "sent").call(3, "accepted").leave(Cause.LOST)
    told.wrong["full pipe"] = -1.0
    return _again(told, 2)


def _to_replay() -> Told:
    """Call 1 was at a server that was lost, call 2 has waited; it is up again."""
    told = _wrong(Told().connect(), "lost").call(1, "accepted", "sent").call(2, "accepted")
    return _again(told.leave(Cause.LOST), 2)


def _forgotten(told: Told) -> Told:
    told.checker.forget("a")
    return told


def _by_name_in_a_session() -> Told:
    """The server's circuit breaker refuses; a session's child connects all the same, asked for by name."""
    told = Told(restartBackoff={"minMs": 5_000, "maxMs": 5_000}).fail()
    _asked(_later(told, 1.5), "connect").connect(address=ANN)
    told.asks.clear()
    return _later(told, 0.1)


ANN, BOB, ONE_CALL = Address.of_session("a", "ann"), Address.of_session("a", "bob"), Address("a", "call:1")
LAWFUL: dict[str, Callable[[], Told]] = {
    "a call": lambda: Told().connect().call(1, "accepted", "sent", "ended"),
    "two in order": lambda: Told().connect().call(1, "accepted").call(2, "accepted").call(1, "sent"),
    "a failed start": lambda: Told().fail(),
    "another, when its circuit breaker admits it": lambda: _later(Told().fail(), 1.3).fail(2),
    "another, by name": lambda: _asked(_later(Told().fail(), 1.0), "connect").fail(2),
    "a loss": lambda: _wrong(Told().connect(), "lost").leave(Cause.LOST),
    "a hang": lambda: _wrong(Told().connect(), "hung").leave(Cause.LOST, reason=Reason.UNRESPONSIVE),
    "idle for its time": lambda: _later(Told({"idleTimeout": 1}).connect(), 60.0).leave(Cause.IDLE_TIMEOUT),
    "eviction": lambda: Told().connect().leave(Cause.EVICTED),
    "a drain": lambda: _asked(Told().connect(), "drained").leave(Cause.DRAINED),
    "a shutdown": lambda: _asked(Told().connect(), "shutdown").leave(Cause.SHUTDOWN),
    "a login": lambda: _wrong(Told().start(), "login").leave(Cause.NEEDS_AUTH, before=CONNECTING),
    "one that left the queue": lambda: (
        Told().connect().call(1, "accepted", "ended", outcome="cancelled").call(2, "accepted", "sent")
    ),
    "another order behind a full pipe": lambda: (
        _wrong(Told().connect(), "full pipe").call(1, "accepted").call(2, "accepted", "sent")
    ),
    "what a full pipe had not taken, then a replay": lambda: (
        _half_taken().call(1, "sent").call(2, "sent").call(3, "sent")
    ),
    "a replay first": lambda: _to_replay().call(1, "sent").call(2, "sent"),
    "a first loss costs nothing": lambda: _again(_wrong(Told().connect(), "lost").leave(Cause.LOST), 2),
    "what hung was counted before": lambda: _again(_lost_twice(Reason.UNRESPONSIVE), 3),
    "configured anew": lambda: _forgotten(Told().fail()).fail(2),
    "its restarts forgotten": lambda: _restarts(
        {"restartIntensity": 2, "restartPeriodMs": 9_000}, forget_after=2
    ),
    "opened by a session's child": lambda: _by_name_in_a_session().fail(2),
    "idle, down to the minimum": lambda: _seated(
        _later(Told({"idleTimeout": 1}).connect(), 60.0), minimum=1, staying=1
    ).leave(Cause.IDLE_TIMEOUT),
    "one leaves for one who waits": lambda: _seated(Told().connect(), leaving=1, waiting=1).leave(
        Cause.EVICTED
    ),
    "there are too many": lambda: _seated(Told().connect(), capacity=1, shared=2, leaving=1).leave(
        Cause.EVICTED
    ),
    "idle, and nobody waits": lambda: _seated(
        _later(Told({"idleTimeout": 1}).connect(), 60.0), leaving=1
    ).leave(Cause.IDLE_TIMEOUT),
    "what was kept until a reload": lambda: _asked(
        Told({"lifecycle": "keep-alive"}).connect(), "reload"
    ).leave(Cause.EVICTED),
    "a probe alone": lambda: _tripped().call(1, "accepted").call(1, "sent", in_flight=1),
    "two through a breaker that was reset": lambda: (
        Told().connect().call(1, "accepted", "sent").call(2, "accepted", "sent", in_flight=2)
    ),
    "what was sent before it tripped": lambda: _before_it_tripped().call(2, "accepted", "sent", in_flight=2),
    "a probe whose answer is told in a moment": lambda: _later(
        _tripped().call(1, "accepted", "sent", in_flight=1), 1.0
    ).call(2, "accepted", "sent", in_flight=1),
    "the next, when the answer has opened it": lambda: (
        _later(_tripped().call(1, "accepted", "sent", in_flight=1), 1.0)
        .tell(BreakerDecision, move=BreakerMove.ANSWERED)
        .call(2, "accepted", "sent", in_flight=2)
    ),
    "a probe beside another server's call": lambda: (
        _other_at_work(_tripped()).call(2, "accepted").call(2, "sent", in_flight=2)
    ),
    "one who was there before": lambda: _there_before(CONNECTED, 3).leave(Cause.DRAINED, incarnation=3),
    "a session of the same name again": lambda: (
        _asked(Told(), "scope ended").connect(address=ANN).leave(Cause.SCOPE_ENDED, address=ANN)
    ).connect(address=ANN),
    "a new session's own breaker admits calls": lambda: _new_session_after_two_losses(),
    "a child each call": lambda: (
        Told().connect(address=ONE_CALL).leave(Cause.SCOPE_ENDED, address=ONE_CALL).connect(address=ONE_CALL)
    ),
    "removed and configured again": lambda: (
        _asked(Told(), "removed").connect().leave(Cause.REMOVED).connect()
    ),
    "removed while it is idle": lambda: _asked(Told(), "removed").step(IDLE, CLOSED, Cause.REMOVED),
    "taken down, and asked for by name": lambda: _asked(_asked(Told(), "down"), "connect").start(),
    "a child for a call may fail often": lambda: _call_children(
        Told(failureThreshold=50, restartBackoff={"minMs": 1, "maxMs": 1}, restartIntensity=1)
    ),
    "what was drained is started as often as it is wanted": lambda: _drained_often(
        Told(restartIntensity=1, restartPeriodMs=99_000)
    ),
    "restarted by name": lambda: _restarted(_asked(_often(restartIntensity=1), "connect")),
    "restarted to probe": lambda: _restarted(_often(restartIntensity=1, failureThreshold=2, cooldownMs=1)),
    "what has connected has forgotten its failure": lambda: _drained_often(
        _later(_often(restartIntensity=1).fail(), 1.0), first=2
    ),
    "connected by name, and wanted again": lambda: _by_name_and_again().start(),
    "drained below the minimum": lambda: _seated(
        _asked(Told().connect(), "drained"), minimum=1, staying=0
    ).leave(Cause.DRAINED),
    "evicted before it was connected": lambda: _seated(
        Told().start(), minimum=1, staying=0, leaving=2, waiting=1
    ).leave(Cause.EVICTED, before=CONNECTING),
    "a note": lambda: Told().tell(Note, code=NoteCode.ODD),
    "passed by one who was asked for": lambda: _passed("slot", a=14.0),
    "passed by one who was asked for a while ago": lambda: _passed("permit", a=10.0),
    "passed one who was asked for": lambda: _passed("slot", first=14.0),
    "passed one who has left": lambda: _passed("slot", stays=False),
    "moved to another place": lambda: _passed("slot", to=Place.BREAKER),
    "was in no line": lambda: _passed("slot", before=("first",)),
    "was first": lambda: _passed("permit", before=("a", "first")),
    "restarts that are long ago": lambda: _restarts({"restartIntensity": 2, "restartPeriodMs": 1_500}),
    "lost at some moment while it drained": lambda: _lost_while_it_drained(),
    "evicted, idle for its time": lambda: _seated(
        _later(Told({"idleTimeout": 1}).connect(), 60.0), leaving=2, waiting=1
    ).leave(Cause.EVICTED),
    "idle, with the time of all": lambda: _later(Told(idleTimeout=2).connect(), 120.0).leave(
        Cause.IDLE_TIMEOUT
    ),
    "an eager one, with its own time": lambda: _later(
        Told({"lifecycle": "eager", "idleTimeout": 1}).connect(), 60.0
    ).leave(Cause.IDLE_TIMEOUT),
    "evicted, and not configured": lambda: _not_configured(Told().connect()).leave(Cause.EVICTED),
    "a session's end": lambda: _ended_session(ANN).connect(address=ANN).leave(Cause.SCOPE_ENDED, address=ANN),
}


def _passed(
    in_line: str,
    *,
    before: tuple[str, ...] = ("first", "a"),
    stays: bool = True,
    to: Place | None = None,
    **asked: float,
) -> Told:
    """`a` leaves a queue in which `first` may stay. `asked`: when somebody asked for a server by name; it is 14 now."""
    told = _later(Told(), 14.0)
    told.asked_by_name = asked
    told.queues = {"slot": (), "permit": (), in_line: tuple(map(Address, before))}
    told.tell(Step, step=ConnectStep.STARTED)
    told.queues = {"slot": (), "permit": (), in_line: (Address("first"),) if stays else ()}
    return told.tell(StartMoved, place=to or (Place.PERMIT if in_line == "slot" else Place.STARTING))


def _not_configured(told: Told) -> Told:
    told.config = parse_config({"mcpServers": {}})
    return told


def _ended_session(address: Address) -> Told:
    told = Told()
    told.asks_for[str(address)] = "scope ended"
    return told


def _lost_while_it_drained() -> Told:
    """Its second loss was told five seconds after it began to drain, and it is wanted again at once."""
    told = _asked(_wrong(Told().connect(), "lost"), "drained").leave(Cause.LOST)
    _again(told, 2).step(CONNECTED, DRAINING, Cause.DRAINED, incarnation=2)
    _later(told, 5.0).step(DRAINING, CLOSED, Cause.LOST, incarnation=2)
    return _again(told, 3)


def _before_it_tripped() -> Told:
    """Call 1 was sent through a circuit breaker that has tripped since."""
    told = Told(failureThreshold=1, cooldownMs=1_000).connect().call(1, "accepted", "sent")
    told.checker.lives.breaker(Address("a")).connect_failed(_later(told, 1.0).at)
    return _later(told, 9.0)


def _other_at_work(told: Told) -> Told:
    told.config = parse_config({"mcpServers": {"a": {"command": "fake"}, "b": {"command": "fake"}}})
    told.connect(address=Address("b"))
    return told.call(1, "accepted", "sent", address=Address("b"))


def _there_before(state: State, incarnation: int) -> Told:
    told = _asked(Told(), "drained")
    told.checker.begin(Address("a"), state, incarnation)
    return told


def _session_lost_twice() -> Told:
    told = _asked(_wrong(Told().connect(address=ANN), "lost"), "scope ended")
    told.leave(Cause.LOST, address=ANN)
    told.step(CLOSED, CONNECTING, incarnation=2, address=ANN)
    told.step(CONNECTING, CONNECTED, incarnation=2, address=ANN)
    return told


def _new_session_after_two_losses() -> Told:
    told = _session_lost_twice().step(CONNECTED, DRAINING, Cause.LOST, incarnation=2, address=ANN)
    told.step(DRAINING, CLOSED, Cause.SCOPE_ENDED, incarnation=2, address=ANN)
    return told.connect(address=ANN)


def _call_children(told: Told) -> Told:
    for _ in range(4):
        _later(told, 1.0).fail(address=ONE_CALL)
    return told


def _drained_often(told: Told, first: int = 1) -> Told:
    _asked(told, "drained")
    for number in range(first, first + 4):
        _later(told, 1.0).step(IDLE if number == 1 else CLOSED, CONNECTING, incarnation=number)
        told.step(CONNECTING, CONNECTED, incarnation=number).leave(Cause.DRAINED, incarnation=number)
    return told


def _often(**room: Any) -> Told:
    """It may be started again at once, and as often as its room allows in 99 seconds."""
    quick: dict[str, Any] = {"restartBackoff": {"minMs": 1, "maxMs": 1}, "failureThreshold": 50}
    return Told(None, **{**quick, "restartPeriodMs": 99_000, **room})


def _restarted(told: Told) -> Told:
    for number in (1, 2, 3, 4):
        _later(told, 2.0).fail(number)
    return told


def _by_name_and_again() -> Told:
    """Its circuit breaker refuses for long; it was connected by name, drained, and made anew."""
    told = Told(restartBackoff={"minMs": 50_000, "maxMs": 50_000}).fail()
    _asked(_later(told, 1.5), "connect").step(CLOSED, CONNECTING, incarnation=2)
    _asked(told.step(CONNECTING, CONNECTED, incarnation=2), "removed").leave(Cause.REMOVED, incarnation=2)
    del told.asks["connect"]
    return told


@pytest.mark.parametrize("case", LAWFUL)
def test_the_trace_checker_lets_pass_what_is_lawful(case: str) -> None:
    assert LAWFUL[case]().violations == []


def _restarts(settings: dict[str, Any], forget_after: int = 0) -> Told:
    told = Told(failureThreshold=50, restartBackoff={"minMs": 1, "maxMs": 1}, **settings)
    for number in (1, 2, 3, 4):
        _later(told, 1.0).fail(number)
        if number == forget_after:
            told.checker.forget("a")
    return told


UNLAWFUL: dict[str, tuple[Callable[[], Told], str]] = {
    "a gap": (lambda: Told().tell(CatalogueChanged).tell(CatalogueChanged, skip=1), "event 2 is missing"),
    "once more": (
        lambda: Told().tell(CatalogueChanged).tell(CatalogueChanged, skip=-1),
        "event 2 is missing",
    ),
    "nobody's": (
        lambda: Told().step(IDLE, CONNECTING, address=None),
        "the checker cannot read it: AssertionError()",
    ),
    "passed at a slot": (lambda: _passed("slot"), "first has waited longer for a slot"),
    "passed at a permit": (lambda: _passed("permit"), "first has waited longer for a permit"),
    "no such row": (lambda: Told().step(IDLE, CONNECTED), "the table has no such transition"),
    "twice": (lambda: Told().start().start(), "it was connecting"),
    "a skipped number": (lambda: Told().start(incarnation=2), "its incarnation is 1"),
    "the same number": (
        lambda: _later(Told().fail(), 10.0).step(CLOSED, CONNECTING, incarnation=1),
        "its incarnation is 2",
    ),
    "down": (
        lambda: _asked(Told(), "down").start(),
        "it was taken down, and nobody asked for it by name",
    ),
    "down since long": (
        lambda: (lambda told: (told.asks.update(down=1.0), told.start())[1])(_later(Told(), 9.0)),
        "it was taken down, and nobody asked for it by name",
    ),
    "a second loss": (lambda: _again(_lost_twice(), 3), "its circuit breaker refuses"),
    "a session's failure": (
        lambda: _later(Told().fail(address=ANN), 0.7).start(),
        "its circuit breaker refuses",
    ),
    "what a full pipe had not taken is overtaken by a replay": (
        lambda: _half_taken().call(2, "sent"),
        "call 1 was accepted before it",
    ),
    "a replay is overtaken": (lambda: _to_replay().call(2, "sent"), "call 1 was accepted before it"),
    "below the minimum": (
        lambda: _seated(_later(Told({"idleTimeout": 1}).connect(), 60.0), minimum=1, staying=0).leave(
            Cause.IDLE_TIMEOUT
        ),
        "0 are left, and the minimum is 1",
    ),
    "evicted for nobody": (
        lambda: _seated(Told().connect(), leaving=2, waiting=1).leave(Cause.EVICTED),
        "2 leave, and 1 wait for a slot",
    ),
    "a session's child that has not rested": (
        lambda: _later(_seated(Told().connect(address=ANN), leaving=1, waiting=1), 59.0).leave(
            Cause.EVICTED, address=ANN
        ),
        "it had not rested for a minute",
    ),
    "a breaker that refuses": (lambda: _later(Told().fail(), 0.7).fail(2), "its circuit breaker refuses"),
    "a session's server's": (
        lambda: _later(Told().fail(), 0.7).start(address=ANN),
        "its circuit breaker refuses",
    ),
    "a session's own": (
        lambda: _later(Told().fail(address=ANN), 0.7).start(address=ANN, incarnation=1),
        "its circuit breaker refuses",
    ),
    "around a breaker that refuses at once": (
        lambda: _asked(_later(Told().fail(), 0.7), "connect").fail(2),
        "a second start within a second, around a circuit breaker that refuses",
    ),
    "too many restarts": (
        lambda: _restarts({"restartIntensity": 2, "restartPeriodMs": 2_500}),
        "restart 3 within 2.5s",
    ),
    "gone with calls": (
        lambda: _wrong(Told().connect(), "lost").leave(Cause.LOST, in_flight=1),
        "gone with calls in flight",
    ),
    "sent too early": (lambda: Told().start().call(1, "accepted", "sent"), "sent while connecting"),
    "sent after its end": (
        lambda: Told().connect().call(1, "accepted", "sent", "ended", "sent"),
        "sent after its end",
    ),
    "overtaken": (
        lambda: Told().connect().call(1, "accepted").call(2, "accepted", "sent"),
        "call 1 was accepted before it",
    ),
    "a second probe": (
        lambda: _later(_tripped().call(1, "accepted", "sent", in_flight=1), 1.0).call(
            2, "accepted", "sent", in_flight=2
        ),
        "call 1 is the probe already",
    ),
    "ended twice": (
        lambda: Told().connect().call(1, "accepted", "sent", "ended", "ended"),
        "its second outcome",
    ),
    "never accepted": (lambda: Told().connect().call(1, "ended"), "it was never accepted"),
    "our own error": (lambda: Told().tell(Note, code=NoteCode.BUG), "an error of our own"),
    "a callback's error": (lambda: Told().tell(Note, code=NoteCode.CALLBACK), "an error of our own"),
    "a reader's error": (lambda: Told().tell(Note, code=NoteCode.READER), "an error of our own"),
    "passed, and asked for too long ago": (
        lambda: _passed("slot", a=9.9),
        "first has waited longer for a slot",
    ),
    "passed by one for whom nobody asked": (
        lambda: _passed("slot", other=14.0),
        "first has waited longer for a slot",
    ),
    "a call's child's failure": (
        lambda: _later(Told().fail(address=ONE_CALL), 0.7).start(),
        "its circuit breaker refuses",
    ),
    "around a breaker that refuses, later": (
        lambda: _asked(_later(_later(Told(), 9.0).fail(), 0.7), "connect").fail(2),
        "a second start within a second, around a circuit breaker that refuses",
    ),
    "as many as there may be": (
        lambda: _seated(Told().connect(), capacity=2, shared=2, leaving=2, waiting=1).leave(Cause.EVICTED),
        "2 leave, and 1 wait for a slot",
    ),
    "idle, and none of its own time": (
        lambda: _later(Told(idleTimeout=2).connect(), 119.0).leave(Cause.IDLE_TIMEOUT),
        "there was no reason for it",
    ),
    "an eager one": (
        lambda: _later(Told({"lifecycle": "eager"}, idleTimeout=2).connect(), 999.0).leave(
            Cause.IDLE_TIMEOUT
        ),
        "there was no reason for it",
    ),
    "one that is never idle": (
        lambda: _later(Told({"idleTimeout": 0}).connect(), 9e9).leave(Cause.IDLE_TIMEOUT),
        "there was no reason for it",
    ),
    "a session that is idle": (
        lambda: _later(Told({"idleTimeout": 1}).connect(address=ANN), 60.0).leave(
            Cause.IDLE_TIMEOUT, address=ANN
        ),
        "there was no reason for it",
    ),
    "idle with a call in flight": (
        lambda: _later(Told({"idleTimeout": 1}).connect(), 60.0).step(
            CONNECTED, DRAINING, Cause.IDLE_TIMEOUT, in_flight=1
        ),
        "there was no reason for it",
    ),
    "idle, and not configured": (
        lambda: _later(_not_configured(Told({"idleTimeout": 1}).connect()), 9e9).leave(Cause.IDLE_TIMEOUT),
        "there was no reason for it",
    ),
    "eviction at work with more to do": (
        lambda: Told().connect().step(CONNECTED, DRAINING, Cause.EVICTED, in_flight=1, queued=1),
        "there was no reason for it",
    ),
    "a session's end told of another": (
        lambda: _ended_session(BOB).connect(address=ANN).leave(Cause.SCOPE_ENDED, address=ANN),
        "there was no reason for it",
    ),
    "one who was not there before": (
        lambda: _asked(Told(), "drained").leave(Cause.DRAINED, incarnation=3),
        "it was idle",
    ),
    "anew, though it is only closed": (
        lambda: _asked(Told().connect(), "drained").leave(Cause.DRAINED).start(),
        "it was closed",
    ),
    "a session's own, which was lost twice": (
        lambda: (
            _session_lost_twice()
            .leave(Cause.LOST, incarnation=2, address=ANN)
            .step(CLOSED, CONNECTING, incarnation=3, address=ANN)
        ),
        "its circuit breaker refuses",
    ),
    "a breaker that refuses and that nobody went around": (
        lambda: _later(Told(restartBackoff={"minMs": 50_000, "maxMs": 50_000}).fail(), 1.5).step(
            CLOSED, CONNECTING, incarnation=2
        ),
        "its circuit breaker refuses",
    ),
    "too many restarts at the bound": (
        lambda: _restarted(_often(restartIntensity=2)),
        "restart 3 within 99s",
    ),
    "evicted, and below the minimum": (
        lambda: _seated(Told().connect(), minimum=1, staying=0, leaving=1, waiting=1).leave(Cause.EVICTED),
        "0 are left, and the minimum is 1",
    ),
    "a login that was given": (
        lambda: _wrong(_later(Told(), 9.0).start(), "login", 8.0).leave(Cause.NEEDS_AUTH, before=CONNECTING),
        "there was no reason for it",
    ),
    "a loss for nothing": (
        lambda: _wrong(_later(Told().connect(), 9.0), "lost", 8.0).leave(Cause.LOST),
        "there was no reason for it",
    ),
    "a hang before": (
        lambda: _wrong(_later(Told(), 9.0).connect(), "hung", 8.0).leave(Cause.LOST, reason=Reason.UNHEALTHY),
        "there was no reason for it",
    ),
    "a hang that was a loss": (
        lambda: _wrong(Told().connect(), "lost").leave(Cause.LOST, reason=Reason.UNRESPONSIVE),
        "there was no reason for it",
    ),
    "a well server fails": (
        lambda: _wrong(_later(Told(), 9.0).start(), "failing", 8.0).leave(
            Cause.CONNECT_FAILED, before=CONNECTING
        ),
        "there was no reason for it",
    ),
    "nobody asked for a login": (
        lambda: Told().start().leave(Cause.NEEDS_AUTH, before=CONNECTING),
        "there was no reason for it",
    ),
    "idle too early": (
        lambda: _later(Told({"idleTimeout": 1}).connect(), 59.0).leave(Cause.IDLE_TIMEOUT),
        "there was no reason for it",
    ),
    "idle since its last call": (
        lambda: _later(
            _later(Told({"idleTimeout": 1}).connect(), 59.0).call(1, "accepted", "sent", "ended"), 2.0
        ).leave(Cause.IDLE_TIMEOUT),
        "there was no reason for it",
    ),
    "never idle": (
        lambda: _later(Told({"lifecycle": "keep-alive", "idleTimeout": 1}).connect(), 99.0).leave(
            Cause.IDLE_TIMEOUT
        ),
        "there was no reason for it",
    ),
    "idle with a call": (
        lambda: _later(Told({"idleTimeout": 1}).connect(), 60.0).step(
            CONNECTED, DRAINING, Cause.IDLE_TIMEOUT, queued=1
        ),
        "there was no reason for it",
    ),
    "eviction at work": (
        lambda: Told().connect().step(CONNECTED, DRAINING, Cause.EVICTED, in_flight=1),
        "there was no reason for it",
    ),
    "eviction of the kept": (
        lambda: Told({"lifecycle": "keep-alive"}).connect().leave(Cause.EVICTED),
        "there was no reason for it",
    ),
    "eviction of a call": (
        lambda: (lambda one: Told().connect(address=one).leave(Cause.EVICTED, address=one))(
            Address.of_call("a", "1")
        ),
        "there was no reason for it",
    ),
    "drained unasked": (lambda: Told().connect().leave(Cause.DRAINED), "there was no reason for it"),
    "drained, asked long ago": (
        lambda: (lambda told: (told.asks.update(drained=8.0), told.leave(Cause.DRAINED))[1])(
            _later(Told(), 9.0).connect()
        ),
        "there was no reason for it",
    ),
    "a room that is open": (lambda: Told().connect().leave(Cause.SHUTDOWN), "there was no reason for it"),
    "a session that is open": (
        lambda: Told().connect(address=ANN).leave(Cause.SCOPE_ENDED, address=ANN),
        "there was no reason for it",
    ),
    "a bug": (lambda: Told().connect().leave(Cause.BUG), "there was no reason for it"),
    "another cause at the end": (
        lambda: (
            _asked(Told().connect(), "drained")
            .step(CONNECTED, DRAINING, Cause.DRAINED)
            .step(DRAINING, CLOSED, Cause.LOST)
        ),
        "there was no reason for it",
    ),
}


@pytest.mark.parametrize("case", UNLAWFUL)
def test_the_trace_checker_says_what_cannot_be(case: str) -> None:
    make, said = UNLAWFUL[case]
    assert said in make().violations


def test_a_life_is_found_ended_as_it_was_since_then() -> None:
    told = _asked(Told(), "drained")
    _later(told, 5.0).connect().step(CONNECTED, DRAINING, Cause.DRAINED)
    life = told.checker.lives.of(Address("a"))
    assert life.ended_as(Cause.DRAINED, 9.0)  # it is on its way out still
    _later(told, 2.0).step(DRAINING, CLOSED, Cause.DRAINED)
    assert [life.ended_as(Cause.DRAINED, since) for since in (5.0, 7.0, 7.1)] == [True, True, False]
    assert not life.ended_as(Cause.LOST, 0.0)


def test_an_ending_counts_though_another_has_followed_since() -> None:
    """A call that came while a failed start was being stopped is judged after the next incarnation was lost."""
    told = _wrong(_wrong(Told(), "failing"), "lost").start().step(CONNECTING, DRAINING, Cause.CONNECT_FAILED)
    _later(told, 1.0).step(DRAINING, CLOSED, Cause.CONNECT_FAILED)
    _again(told, 2).leave(Cause.LOST, incarnation=2)
    life = told.checker.lives.of(Address("a"))
    assert [life.ended_as(Cause.CONNECT_FAILED, since) for since in (0.5, 1.0, 1.1)] == [True, True, False]


def test_a_stronger_cause_ends_a_weaker_one() -> None:
    told = _asked(_asked(Told(), "drained"), "removed").connect()
    told.step(CONNECTED, DRAINING, Cause.DRAINED)
    _later(told, 1.0).step(DRAINING, CLOSED, Cause.REMOVED)
    life = told.checker.lives.of(Address("a"))
    assert [life.ended_as(Cause.REMOVED, 1.0), life.ended_as(Cause.DRAINED, 1.1)] == [True, False]


def test_what_the_room_says_of_a_breaker_is_kept_beside_what_was_seen() -> None:
    told = Told(failureThreshold=3)
    breaker = told.checker.lives.breaker(Address("a"))
    seen: list[tuple[float, float, BreakerMove | None]] = []
    for at, move in enumerate(BreakerMove, 1):
        told.at = float(at)
        told.tell(BreakerDecision, move=move)
        assert breaker.may_be_tripped is (3 <= at < 9), "it was quarantined, until it had another definition"
        seen.append((breaker.said_failed_at, breaker.said_reset_at, breaker.refuses_for))
    assert seen == [
        (1.0, -math.inf, BreakerMove.FAILED),
        (1.0, -math.inf, BreakerMove.SILENT),
        (1.0, -math.inf, BreakerMove.QUARANTINED),
        (1.0, -math.inf, BreakerMove.QUARANTINED),  # half-open
        (1.0, -math.inf, BreakerMove.QUARANTINED),  # by name
        (1.0, -math.inf, BreakerMove.QUARANTINED),  # its probe has left
        (1.0, 7.0, None),
        (1.0, 8.0, None),
        (1.0, 9.0, None),
        (1.0, 9.0, None),  # another host of a cluster has told
    ]
    assert not breaker.is_tripped
    assert told.violations == []


@pytest.mark.parametrize(
    ("steps", "outcome", "opens", "may_trip"),
    [
        (("accepted", "sent", "ended"), "result", True, False),
        (("accepted", "sent", "ended"), "remote_error", True, False),
        (("accepted", "sent", "ended"), "timeout", False, True),
        (("accepted", "ended"), "timeout", False, True),
        (("accepted", "sent", "ended"), "cancelled", False, False),
        (("accepted", "sent", "ended"), "call_failed", False, False),
    ],
)
def test_how_a_call_ended_is_what_is_known_of_its_breaker(
    steps: tuple[str, ...], outcome: str, opens: bool, may_trip: bool
) -> None:
    told = Told(failureThreshold=2).connect()
    breaker = told.checker.lives.breaker(Address("a"))
    breaker.connect_failed(0.0)
    _later(told, 31.0).call(1, *steps, outcome=outcome)
    assert breaker.failures == (Span() if opens else Span(1, 2) if may_trip else Span(1, 1))
    assert breaker.may_be_tripped is may_trip


def test_an_early_answer_resets_no_breaker_and_a_timeout_of_what_never_was_sent_counts_for_nothing() -> None:
    told = _later(Told(failureThreshold=2), 5.0).connect()
    breaker = told.checker.lives.breaker(Address("a"))
    breaker.connect_failed(5.0)
    _later(told, 29.0).call(1, "accepted", "sent", "ended")
    assert breaker.failures == Span(1, 1)
    told = _later(Told(failureThreshold=2), 5.0).call(1, "accepted", "ended", outcome="timeout")
    assert told.checker.lives.breaker(Address("a")).failures == Span()


# ---- the circuit breaker, as a bystander knows it ------------------------------------------------------------------


def _breaker(**more: Any) -> BreakerModel:
    given: dict[str, Any] = {"threshold": 3, "cooldown": 20.0, **more}
    return BreakerModel(**given)


def _refuses(breaker: BreakerModel, at: float) -> tuple[bool, bool]:
    return breaker.must_refuse(at), breaker.may_refuse(at)


def test_a_failed_start_makes_its_breaker_refuse_within_the_jitters_bounds() -> None:
    breaker = _breaker()
    breaker.connect_failed(100.0)
    assert [_refuses(breaker, at) for at in (100.7, 100.9, 101.2, 101.3)] == [
        (True, True), (False, True), (False, True), (False, False),
    ]  # fmt: skip
    breaker.connect_failed(100.0)
    assert [_refuses(breaker, at) for at in (101.5, 101.7, 102.4, 102.5)] == [
        (True, True), (False, True), (False, True), (False, False),
    ]  # fmt: skip


def test_the_first_death_is_free_and_a_flat_delay_has_no_jitter() -> None:
    breaker = _breaker(flat=2.0)
    breaker.died(100.0)
    assert _refuses(breaker, 100.1) == (False, False)
    breaker.died(100.0)
    assert [_refuses(breaker, at) for at in (101.9, 102.1)] == [(True, True), (False, False)]


def test_a_death_of_an_unknown_moment_makes_the_breaker_refuse_from_between() -> None:
    breaker = _breaker(flat=2.0)
    breaker.died(90.0)
    breaker.died(100.0, 95.0)
    assert breaker.refuses_until == Span(97.0, 102.0)


def test_the_delay_doubles_up_to_its_bound() -> None:
    breaker = _breaker(threshold=99, backoff_max=3.0)
    for _ in range(9):
        breaker.connect_failed(0.0)
    assert breaker.refuses_until == Span(3.0 * 0.8, 3.0 * 1.2)


def test_a_breaker_trips_at_its_threshold_for_its_cooldown() -> None:
    breaker = _breaker()
    for _ in range(2):
        breaker.connect_failed(0.0)
    assert not breaker.is_tripped
    assert not breaker.may_be_tripped
    breaker.connect_failed(10.0)
    assert (breaker.is_tripped, breaker.tripped_at, breaker.refuses_until) == (True, 10.0, Span(30.0, 30.0))
    assert breaker.may_refuse(1e9)  # until an answer resets it
    breaker.connected_by_name()
    assert not breaker.must_refuse(10.0)
    breaker.answered(40.0, connected_for=0.0)
    assert (breaker.is_tripped, breaker.may_be_tripped, breaker.failures) == (False, False, Span())
    assert [breaker.may_refuse(at) for at in (40.0, 40.1)] == [True, False]


def test_what_may_have_tripped_a_breaker_is_only_a_may() -> None:
    for what in (BreakerModel.timed_out, BreakerModel.quarantined):
        breaker = _breaker(threshold=1)
        what(breaker, 5.0)
        assert (breaker.is_tripped, breaker.may_be_tripped, breaker.refuses_until.most) == (False, True, 25.0)
        assert _refuses(breaker, 6.0) == (False, True)
        breaker.answered(6.0, connected_for=0.0)
        assert breaker.may_be_tripped


def test_a_failure_that_only_the_room_knows_of_may_make_a_breaker_refuse() -> None:
    breaker = _breaker()
    breaker.connect_failed(10.0)
    breaker.reset(10.0)
    for said, asked, may in (
        (10.0, 11.0, False),
        (12.0, 11.0, False),
        (12.0, 12.0, True),
        (12.0, 13.0, True),
    ):
        breaker.said_failed_at = said
        assert breaker.may_refuse(asked) is may, (said, asked)
    breaker.connect_failed(12.0)
    breaker.reset(12.0)
    assert not breaker.may_refuse(13.0), "it was counted here, too"


def test_what_may_have_been_the_probes_answer_leaves_only_a_may() -> None:
    breaker = _breaker(threshold=3)
    breaker.connect_failed(0.0)
    for _ in range(2):
        breaker.timed_out(0.0)
    assert (breaker.failures, breaker.may_be_tripped, breaker.must_refuse(0.5)) == (Span(1, 3), True, True)
    breaker.answered(0.5, connected_for=0.1)
    assert (breaker.failures, breaker.may_be_tripped) == (Span(0, 3), True)
    assert _refuses(breaker, 0.5) == (False, True)
    breaker.connect_failed(1.0)
    assert (breaker.failures, breaker.is_tripped, breaker.may_be_tripped) == (Span(1, 4), False, True)
    breaker.answered(1.1, connected_for=30.0)
    assert breaker.failures == Span()


def test_a_breaker_that_nobody_saw_refuse_did_not_refuse_before_it_was_reset() -> None:
    breaker = _breaker()
    breaker.reset(5.0)
    assert not breaker.may_refuse(5.0)
    breaker.connect_failed(6.0)
    breaker.reset(6.5)
    assert [breaker.may_refuse(at) for at in (6.0, 6.5, 6.6)] == [True, True, False]


def test_a_timeout_below_the_threshold_trips_nothing_and_what_is_tripped_stays_so() -> None:
    breaker = _breaker(threshold=2)
    breaker.timed_out(1.0)
    assert (breaker.failures, breaker.may_be_tripped, breaker.may_refuse(1.0)) == (Span(0, 1), False, False)
    breaker.quarantined(1.0)
    breaker.failures.most = 0
    breaker.timed_out(5.0)
    assert (breaker.may_be_tripped, breaker.refuses_until.most) == (True, 25.0)
    breaker.died(6.0)
    assert breaker.may_be_tripped


def test_an_answer_forgives_what_has_been_stable_for_long_enough() -> None:
    breaker = _breaker()
    breaker.connect_failed(0.0)
    breaker.answered(0.1, connected_for=29.9)
    assert breaker.must_refuse(0.5)
    breaker.answered(0.2, connected_for=30.0)
    assert _refuses(breaker, 0.5) == (False, False)


# ---- outcomes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    made = World({"a": {}, "b": {"idleTimeout": 1}})
    yield made
    made.run.close()


def _ended(world: World, *outcomes: str | GreenroomError, after: float = 0.0) -> OneCall:
    call = OneCall(len(world.calls), "a", "echo", None, world.now, world.config.servers["a"])
    call.outcomes, call.ended = list(outcomes), world.now + after
    world.calls.append(call)
    return call


def _timeout(reach: Reach) -> CallError:
    return CallTimeout("", server="a", reach=reach, timeout=1.0)


UNREASONED: dict[str, tuple[str | GreenroomError, float, str]] = {
    "cancelled": ("cancelled", 0.0, "nobody cancelled it"),
    "almost its own": ('{"n": 03, "who": null}', 0.0, "somebody else's answer"),
    "another's": ('{"n": 7, "who": null}', 0.0, "somebody else's answer"),
    "connect": (ConnectFailed("", server="a"), 0.0, "its server was not failed to connect meanwhile"),
    "unavailable": (Unavailable("a", failed_ago=1, retry_in=1), 0.0, "its circuit breaker admits calls"),
    "down": (ServerDown("", server="a"), 0.0, "it was not taken down"),
    "unknown": (UnknownTool("a_echo"), 0.0, "its server is configured, and known"),
    "no session": (UsageError("its session is over"), 0.0, "its session is open"),
    "busy": (Busy("a", in_flight=1, queued=1, oldest_age=1, retry_after=1), 0.0, "only 1 calls were open"),
    "too early unsent": (_timeout(Reach.NOT_SENT), 1.0, "it had waited 1s of 45s"),
    "waited for nothing": (_timeout(Reach.NOT_SENT), 30.0, "nothing kept it from being sent"),
    "too early sent": (_timeout(Reach.SENT), 59.0, "it had had 59s of 60s"),
    "not slow": (_timeout(Reach.SENT), 60.0, "its server was not slow"),
    "lost unsent": (ServerLost("", server="a", reach=Reach.NOT_SENT), 0.0, "was not lost meanwhile"),
    "lost sent": (ServerLost("", server="a", reach=Reach.SENT), 0.0, "was not lost meanwhile"),
    "drained unsent": (Drained("", server="a"), 0.0, "its server was not drained or restart or"),
    "drained sent": (Drained("", server="a", reach=Reach.SENT), 0.0, "its server was not drained or"),
    "half sent": (ConnectFailed("", server="a").copy(Reach.SENT), 0.0, "nothing here can end so"),
    "answered": (ServerLost("", server="a", reach=Reach.ANSWERED), 0.0, "nothing here can end so"),
}


@pytest.mark.parametrize("case", UNREASONED)
def test_an_outcome_without_a_reason_is_named(world: World, case: str) -> None:
    outcome, after, said = UNREASONED[case]
    world.advance(1.0)
    call = _ended(world, outcome, after=after)
    with pytest.raises(AssertionError, match=f"call 0 of a_echo, begun at 1, ended at .*{said}"):
        outcomes_have_reasons(world)
    assert call.is_judged


def test_a_second_outcome_is_named(world: World) -> None:
    _ended(world, "cancelled", '{"n": 0, "who": null}')
    with pytest.raises(AssertionError, match="call 0 of a_echo ended 2 times"):
        outcomes_have_reasons(world)


def test_a_call_that_has_not_ended_is_not_judged_yet(world: World) -> None:
    call = _ended(world, "cancelled")
    call.ended = None
    outcomes_have_reasons(world)
    assert not call.is_judged


def test_what_was_done_to_its_server_explains_an_outcome(world: World) -> None:
    """The other side of each question, each by the thing it asks for and with nothing else done."""
    _ended(world, "cancelled").asked_to_leave = True
    _ended(world, '{"n": 1, "who": null}')
    world.truth.hurt("lost", "a")
    _ended(world, ServerLost("", server="a", reach=Reach.SENT))
    world.truth.hurt("slow", "a")
    _ended(world, _timeout(Reach.SENT), after=60.0)
    _ended(world, _timeout(Reach.NOT_SENT), after=30.0)
    _ended(world, ServerDown("", server="a")).was_down = True
    world.checker.lives.breaker(Address("a")).connect_failed(world.now)
    _ended(world, Unavailable("a", failed_ago=1, retry_in=1))
    outcomes_have_reasons(world)
    assert all(call.is_judged for call in world.calls)


def test_busy_is_believed_when_more_are_open_than_may_wait() -> None:
    made = World({"a": {"maxQueued": 2}})
    try:
        made.advance(1.0)
        _ended(made, "cancelled").asked_to_leave = True
        made.advance(1.0)  # what ended before it does not count
        _ended(made, "cancelled").asked_to_leave = True
        busy = _ended(made, Busy("a", in_flight=1, queued=2, oldest_age=1, retry_after=1))
        of_another_server, begun_later = (_ended(made, "cancelled") for _ in range(2))
        of_another_server.asked_to_leave = begun_later.asked_to_leave = True
        of_another_server.server, begun_later.began = "b", made.now + 1.0
        with pytest.raises(AssertionError, match="only 2 calls were open"):
            outcomes_have_reasons(made)
        _ended(made, "cancelled").asked_to_leave = True
        busy.is_judged = False
        outcomes_have_reasons(made)
    finally:
        made.run.close()


def test_what_ended_when_the_clock_began_is_not_open_any_more() -> None:
    made = World({"a": {"maxQueued": 2}})
    try:
        assert made.now == 0.0
        for _ in range(3):
            _ended(made, "cancelled").asked_to_leave = True
        assert made.calls[0].ended == 0.0
        made.advance(1.0)
        _ended(made, Busy("a", in_flight=1, queued=2, oldest_age=1, retry_after=1))
        with pytest.raises(AssertionError, match="only 1 calls were open"):
            outcomes_have_reasons(made)
    finally:
        made.run.close()


def test_a_call_of_a_server_that_is_not_configured_is_judged_too(world: World) -> None:
    call = _ended(world, _timeout(Reach.NOT_SENT), after=30.0)
    call.definition = None
    with pytest.raises(AssertionError, match="nothing kept it from being sent"):
        outcomes_have_reasons(world)


@pytest.mark.parametrize(("blocked", "reached"), [(False, 2), (True, 1)])
def test_a_deaf_server_of_a_world_answers_nothing_until_it_is_healed(
    world: World, blocked: bool, reached: int
) -> None:
    _well(world)
    world.faults.deafen("a", blocked=blocked)
    world.call("a")
    world.advance(5.0)
    assert (len(world.pending), len(world.servers["a"].calls)) == (1, reached)
    world.faults.heal("a")
    world.advance(200.0)
    world.call("a")
    assert world.calls[-1].outcomes
    assert isinstance(world.calls[-1].outcomes[0], str), "an answer"


def _as_it_is(world: World) -> dict[str, Any]:
    return attrs.asdict(world.servers["a"], recurse=False)


def test_a_healed_server_is_as_it_was_before_whatever_was_done_to_it(world: World) -> None:
    before = _as_it_is(world)
    for hurt in (
        *(
            partial(world.faults.slow_down, "a", step, HANG)
            for step in ("start", "initialize", "list", "call", "stop")
        ),
        partial(world.faults.refuse, "a"),
        partial(world.faults.refuse, "a", "refuse_initialize"),
        partial(world.faults.deafen, "a"),
        partial(world.faults.deafen, "a", blocked=True),
    ):
        hurt()
        assert _as_it_is(world) != before
        world.faults.heal("a")
        assert _as_it_is(world) == before
        world.advance(1.0)
        for fault in ("hung", "slow", "failing", "late", "full pipe"):
            assert not world.truth.was(fault, "a", world.now)


def test_a_server_is_silent_since_it_fell_silent_first(world: World) -> None:
    world.advance(1.0)
    world.faults.deafen("a")
    world.advance(2.0)
    world.faults.deafen("a", blocked=True)
    assert world.truth.silent_since == {"a": 1.0}
    world.faults.heal("a")
    assert world.truth.silent_since == {}
    world.faults.deafen("a")
    assert world.truth.silent_since == {"a": 3.0}


def test_an_ending_that_was_over_stays_over_since_then() -> None:
    life = Life(Address("a"))
    life.end_leave(1.0)
    life.leaves.append(Leave(2.0, Cause.LOST))
    life.end_leave(3.0)
    life.end_leave(9.0)
    assert [leave.until for leave in life.leaves] == [3.0]


def test_only_what_befell_a_calls_own_session_or_all_of_them_explains_its_end(world: World) -> None:
    for scope, explains in (("session:x", True), ("shared", True), ("session:y", False), ("call:1", False)):
        world.checker.lives.all.clear()
        call = _ended(world, ServerLost("", server="a", reach=Reach.SENT))
        call.session = "x"
        life = world.checker.lives.of(Address("a", scope))
        life.leaves.append(Leave(world.now, Cause.LOST))
        if explains:
            outcomes_have_reasons(world)
        else:
            with pytest.raises(AssertionError, match="was not lost meanwhile"):
                outcomes_have_reasons(world)
            call.is_judged = True


def test_what_waits_in_the_background_of_a_world_may_fail_with_our_errors_only(world: World) -> None:
    async def fail(error: Exception) -> None:
        await anyio.sleep(1.0)
        raise error

    world.background.start(lambda: fail(ServerDown("down", server="a")))
    world.background.start(lambda: fail(ValueError("odd")))
    assert world.background.waiting == 2
    world.advance(1.0)
    assert world.background.waiting == 0
    assert world.background.unexpected == ["ValueError('odd') came out of the room"]


@pytest.mark.parametrize("loss", [Reason.DIED, Reason.EXPIRED])
def test_a_world_loses_a_server_as_it_is_told(world: World, loss: Reason) -> None:
    _well(world)
    world.faults.lose("a", 1.0, loss)
    world.advance(0.5)
    assert world.inside.actor("a").is_connected
    world.advance(1.0)
    said = [
        event.reason for event in world.events if isinstance(event, Transition) and event.after is DRAINING
    ]
    assert said == [loss]


def test_a_world_knows_when_it_was_last_asked(world: World) -> None:
    assert world.truth.last_asked("find", "a") == -math.inf
    _well(world)
    for _ in range(2):
        world.ask("find", "a")
        world.advance(2.0)
    assert world.truth.last_asked("find", "a") == 2.0
    assert [world.truth.last_asked(*asked) for asked in (("find", "b"), ("drain", "a"))] == [-math.inf] * 2
    world.faults.slow_down("a", "stop", 4.0)
    world.ask("drain", "a")
    world.advance(3.0)
    assert world.truth.last_asked("drain", "a") == world.now == 7.0, "somebody still asks"
    world.advance(3.0)
    assert world.truth.last_asked("drain", "a") == 8.0


# ---- laws ----------------------------------------------------------------------------------------------------------


def _servers(world: World) -> Any:
    """Where faults are planted that no room has."""
    return world.inside.machinery.servers


def _well(world: World) -> Any:
    """`a` is connected and idle."""
    world.call("a")
    return _servers(world).actor("a")


def _at_work(world: World, tool: str = "echo", count: int = 2) -> Any:
    world.faults.slow_down("a", "call", 5.0)
    world.call("a", tool, count=count)
    return _servers(world).actor("a")


def _starting(world: World, count: int = 3) -> Any:
    world.faults.slow_down("a", "start", 5.0)
    world.call("a", count=count)
    return _servers(world).actor("a")


def _at_permit(world: World) -> Any:
    """`a` holds the only permit, `b` waits for it."""
    _permits(world, 1)
    _starting(world)
    world.call("b")
    return _servers(world).actor("b")


def _permits(world: World, count: int) -> None:
    world.inside.machinery.config = attrs.evolve(
        world.config, settings=attrs.evolve(world.config.settings, start_permits=count)
    )
    world.inside.machinery.context.settings = world.config.settings


def _put(world: World, actor: Any, place: Place) -> None:
    """There, against all rules: nobody is told."""
    _servers(world).starts.places.move(actor.record, actor, place)


def _change(what: Any, **more: Any) -> None:
    for name, value in more.items():
        setattr(what, name, value)


def _kept(world: World) -> Any:
    actor = _well(world)
    actor.record.definition = attrs.evolve(actor.record.definition, lifecycle=Lifecycle.KEEP_ALIVE)
    return actor


def _bounded(actor: Any, **bounds: int) -> None:
    actor.record.definition = attrs.evolve(actor.record.definition, **bounds)


def _full(world: World) -> None:
    """One call in flight, and one that waits for its place."""
    _bounded(_well(world), max_in_flight=1)
    actor = _at_work(world)
    assert (actor.in_flight, actor.queued) == (1, 1)


def _tripped_breaker(actor: Any, failed_at: float, **more: Any) -> None:
    actor.record.breaker.state = replace(
        actor.record.breaker.state, tripped=True, failed_at=failed_at, **more
    )


def _hung(world: World) -> None:
    actor = _well(world)
    _tripped_breaker(actor, world.now + 1.0)
    world.checker.lives.breaker(actor.address).refuses_for = BreakerMove.SILENT


def _half_open(actor: Any, *, ended: bool | None) -> None:
    actor.record.breaker.state = replace(actor.record.breaker.state, probing=True)
    if ended is not None:
        actor.record.breaker.probe = Call("ping", None)
        actor.record.breaker.probe.ended = ended


def _lives_as(world: World, actor: Any, seconds: float, **more: Any) -> None:
    life = world.checker.lives.of(actor.address)
    _change(life, since=world.now - seconds, **more)


def _drains(world: World, seconds: float) -> None:
    world.faults.slow_down("a", "stop", 4.0)
    actor = _well(world)
    world.ask("drain", "a")
    _lives_as(world, actor, seconds)


def _lost_at_work(world: World) -> None:
    actor = _at_work(world)
    world.ask("drain", "a")
    actor.life = replace(actor.life, ending=Ending(Cause.LOST))


def _silent(world: World, seconds: float) -> None:
    actor = _kept(world)
    world.truth.silent_since["a"] = world.now - seconds
    world.checker.lives.of(actor.address).rested_at = world.truth.reloaded_at = -math.inf


def _lazy(world: World) -> None:
    record = _servers(world).actor("a").record
    record.definition = attrs.evolve(record.definition, lifecycle=Lifecycle.LAZY)


def _listening(world: World) -> None:
    _servers(world).actor("a").subscriptions.uris["note://one"] = 1


def _idle_for(world: World, seconds: float, server: str = "a") -> None:
    world.call(server)
    actor = _servers(world).actor(server)
    world.checker.lives.of(actor.address).rested_at = world.now - seconds


def _slots(world: World, count: int) -> None:
    settings = attrs.evolve(world.inside.machinery.context.settings, max_connections=count)
    world.inside.machinery.context.settings = settings


def _rests_while_another_waits(world: World) -> None:
    _well(world)
    _slots(world, 1)
    _put(world, _servers(world).actor("b"), Place.SLOT)


def _waits_beside_a_free_slot(world: World) -> None:
    _put(world, _servers(world).actor("b"), Place.SLOT)


def _waits_beside_the_kept(world: World) -> None:
    """There are two slots, and one of them is set aside."""
    _well(world)
    listed = _servers(world)
    listed.starts.places.set_aside({"a": listed.records["a"]})
    _slots(world, 2)
    _put(world, _servers(world).actor("b"), Place.SLOT)


def _queued_too_long(world: World) -> None:
    _starting(world).calls.waiting[0].queue_deadline = world.now - 1.0


def _seen_twice(world: World, times: int, tool: str) -> None:
    _well(world)
    world.call("a", tool)
    world.servers["a"].calls.extend([world.servers["a"].calls[-1]] * (times - 1))


IDLE_LIMIT, HEALTH = Settings().idle_timeout, 3 * Settings().health_interval
BROKEN: dict[str, tuple[laws.Law, Callable[[World], object], str]] = {
    "a complaint": (laws.nothing_unlawful_was_told, lambda w: w.checker.violations.append("oh"), "oh"),
    "a surprise": (laws.nothing_unlawful_was_told, lambda w: w.background.unexpected.append("ah"), "ah"),
    "nobody's child": (
        laws.one_connection_each,
        lambda w: (_well(w), _change(w.servers["a"], live=2)),
        "a: 2 live connections of 1 actors",
    ),
    "a child of one that is idle": (
        laws.one_connection_each,
        lambda w: (_servers(w).actor("a"), _change(w.servers["a"], live=1)),
        "a: 1 live connections of 0 actors",
    ),
    "a permit kept": (
        laws.permits_are_conserved,
        lambda w: _put(w, _well(w), Place.STARTING),
        "holds a start permit",
    ),
    "too many permits": (
        laws.permits_are_conserved,
        lambda w: (_starting(w), _permits(w, 0)),
        "1 start permits of 0 are held",
    ),
    "a free permit": (
        laws.permits_are_conserved,
        lambda w: (_at_permit(w), _permits(w, 2)),
        "somebody waits for a permit that is free",
    ),
    "in two places": (
        laws.each_start_is_in_one_place,
        lambda w: _servers(w).starts.places._at[Place.BREAKER].setdefault(_well(w), _well(w).record),
        "a connected #1> is live, and listed as \\['breaker', 'live'\\]",
    ),
    "listed nowhere": (
        laws.each_start_is_in_one_place,
        lambda w: _servers(w).starts.places._at[Place.LIVE].pop(_well(w)),
        "a connected #1> is live, and listed as \\[\\]",
    ),
    "out, and listed": (
        laws.each_start_is_in_one_place,
        lambda w: _servers(w).starts.places._at[Place.BREAKER].setdefault(_servers(w).actor("b")),
        "b idle #1> is out, and listed as \\['breaker'\\]",
    ),
    "nobody's start": (
        laws.each_start_is_in_one_place,
        lambda w: _servers(w).starts.places._at[Place.LIVE].setdefault(copy.copy(_well(w))),
        "nobody's start",
    ),
    "too many slots": (
        laws.slots_are_conserved,
        lambda w: (_well(w), _slots(w, 0)),
        "1 slots of 0 are held",
    ),
    "no slot": (
        laws.slots_are_conserved,
        lambda w: _put(w, _well(w), Place.OUT),
        "is live without a slot",
    ),
    "a slot for nothing": (
        laws.slots_are_conserved,
        lambda w: _put(w, _servers(w).actor("b"), Place.LIVE),
        "idle .* holds a slot",
    ),
    "in flight": (
        laws.load_is_counted,
        lambda w: _change(_at_work(w).record.load, in_flight=1),
        "a: in flight is miscounted",
    ),
    "queued": (
        laws.load_is_counted,
        lambda w: _change(_starting(w).record.load, queued=1),
        "a: queued is miscounted",
    ),
    "over its places": (
        laws.load_is_counted,
        lambda w: _bounded(_at_work(w), max_in_flight=1),
        "a: too many in flight",
    ),
    "over its queue": (
        laws.load_is_counted,
        lambda w: _bounded(_starting(w), max_in_flight=1, max_queued=1),
        "a: too many queued",
    ),
    "the tally": (
        laws.load_is_counted,
        lambda w: _change(w.inside.machinery.context.tally, accepted=1),
        "the tally has lost a call",
    ),
    "a hung one serves": (
        laws.nobody_serves_on_the_wrong_process,
        _hung,
        "was found hung, and is still connected",
    ),
    "an old one serves": (
        laws.nobody_serves_on_the_wrong_process,
        lambda w: (_well(w), w.truth.redefined_at.update(a=w.now + 1.0)),
        "runs on its old definition",
    ),
    "silent": (
        laws.the_silent_are_found_dead,
        lambda w: _silent(w, HEALTH + 1.0),
        f"a connected #1> has said nothing for {HEALTH + 1:g}s",
    ),
    "half-open for nobody": (
        laws.half_open_breakers_have_a_prober,
        lambda w: _half_open(_well(w), ended=None),
        "a: half-open for nobody",
    ),
    "its probe has ended": (
        laws.half_open_breakers_have_a_prober,
        lambda w: _half_open(_well(w), ended=True),
        "a: its probe has ended",
    ),
    "two through a tripped breaker": (
        laws.half_open_breakers_have_a_prober,
        lambda w: _tripped_breaker(_at_work(w), -1.0),
        "a: 2 calls went through a tripped circuit breaker",
    ),
    "waits for nothing": (
        laws.whoever_waits_is_in_a_queue,
        lambda w: _put(w, _at_permit(w), Place.OUT),
        "b idle #1> is wanted and waits for nothing",
    ),
    "waits, unwanted": (
        laws.whoever_waits_is_in_a_queue,
        lambda w: _put(w, _servers(w).actor("b"), Place.SLOT),
        "b idle #1> waits, and nobody wants it",
    ),
    "asked for, and waits for nothing": (
        laws.whoever_waits_is_in_a_queue,
        lambda w: (
            _permits(w, 1),
            _starting(w),
            w.ask("connect", "b"),
            _put(w, _servers(w).actor("b"), Place.OUT),
        ),
        "b idle #1> is wanted and waits for nothing",
    ),
    "a breaker without an end": (
        laws.whoever_waits_is_in_a_queue,
        lambda w: _put(w, _at_permit(w), Place.BREAKER),
        "nothing will let it through its circuit breaker",
    ),
    "a slot without an end": (
        laws.whoever_waits_is_in_a_queue,
        lambda w: _put(w, _at_permit(w), Place.SLOT),
        "may wait for a slot for ever",
    ),
    "waits beside a free slot": (
        laws.pressure_makes_room,
        _waits_beside_a_free_slot,
        "1 wait for a slot, and one is free",
    ),
    "waits beside the slot of one that is kept": (
        laws.pressure_makes_room,
        _waits_beside_the_kept,
        "1 wait for a slot, and one is free",
    ),
    "idle under pressure": (
        laws.pressure_makes_room,
        _rests_while_another_waits,
        "is idle while 1 wait for a slot",
    ),
    "connects for ever": (
        laws.nothing_outstays_its_time,
        lambda w: _lives_as(w, _starting(w), laws.PATIENCE + 1.0),
        "connects for 301s",
    ),
    "drains for ever": (
        laws.nothing_outstays_its_time,
        lambda w: _drains(w, Settings().drain_timeout + Settings().stop_timeout + 1.0),
        f"a draining #1> drains for {Settings().drain_timeout + Settings().stop_timeout + 1:g}s",
    ),
    "an attempt drains for ever": (
        laws.nothing_outstays_its_time,
        lambda w: (_drains(w, 5.0), _change(w.checker.lives.of(Address("a")), connecting_at=math.inf)),
        "drains for 5s",
    ),
    "lost, and at work": (
        laws.nothing_outstays_its_time,
        _lost_at_work,
        "is lost, and has calls in flight",
    ),
    "idle for ever": (
        laws.nothing_outstays_its_time,
        lambda w: _idle_for(w, IDLE_LIMIT + 1.0),
        f"a connected #1> is idle for {IDLE_LIMIT + 1:g}s, its limit is {IDLE_LIMIT:g}s",
    ),
    "idle for ever, by its own limit": (
        laws.nothing_outstays_its_time,
        lambda w: _idle_for(w, 61.0, "b"),
        "b connected #1> is idle for 61s, its limit is 60s",
    ),
    "queued for ever": (laws.nothing_outstays_its_time, _queued_too_long, "a call outstayed the queue"),
    "nothing at the far end": (
        laws.far_ends_agree,
        lambda w: _at_work(w).peer._open.clear(),
        "a: 2 calls in flight, 0 at its far end",
    ),
    "run twice": (
        laws.far_ends_agree,
        lambda w: _seen_twice(w, 2, "echo"),
        "call 1 of a_echo reached its server 2 times",
    ),
    "run three times": (
        laws.far_ends_agree,
        lambda w: _seen_twice(w, 3, "safe"),
        "call 1 of a_safe reached its server 3 times",
    ),
    "older": (
        laws.versions_only_grow,
        lambda w: w.versions.seen.update(a=1),
        "a: version 0 replaced a newer one",
    ),
    "a lost timer": (
        laws.no_timer_is_lost,
        lambda w: (_at_work(w), w.inside.machinery.context.timers._heap.clear()),
        "^1 timers will never fire",
    ),
    "left over": (
        laws.nothing_outlives_its_session,
        lambda w: _servers(w).actor("a", "session:ann"),
        "its session is over",
    ),
    "still queued": (laws.recovered, _starting, "still has 3 calls queued"),
    "still in flight": (laws.recovered, _at_work, "still has 2 calls in flight"),
    "kept, and not live": (
        laws.recovered,
        lambda w: (_kept(w), _servers(w).actor("a").stop(Ending(Cause.EVICTED))),
        "a is kept alive, and is not live",
    ),
    "no outcome": (
        laws.recovered,
        lambda w: _change(_ended(w), ended=None),
        "call 0 of a_echo has no outcome",
    ),
}


@pytest.mark.changes_the_books
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_law_is_told(world: World, case: str) -> None:
    law, break_it, said = BROKEN[case]
    law(world)
    break_it(world)
    with pytest.raises(AssertionError, match=said):
        law(world)


KEPT: dict[str, tuple[laws.Law, Callable[[World], object]]] = {
    "silent for all its time": (laws.the_silent_are_found_dead, lambda w: _silent(w, HEALTH)),
    "connects for all its time": (
        laws.nothing_outstays_its_time,
        lambda w: _lives_as(w, _starting(w), Settings().connect_timeout),
    ),
    "drains for all its time": (
        laws.nothing_outstays_its_time,
        lambda w: _drains(w, Settings().drain_timeout + Settings().stop_timeout),
    ),
    "an attempt drains as long as its stop": (
        laws.nothing_outstays_its_time,
        lambda w: (_drains(w, 4.0), _change(w.checker.lives.of(Address("a")), connecting_at=math.inf)),
    ),
    "idle for all its time": (laws.nothing_outstays_its_time, lambda w: _idle_for(w, IDLE_LIMIT)),
    "one through a tripped breaker": (
        laws.half_open_breakers_have_a_prober,
        lambda w: _tripped_breaker(_at_work(w, count=1), -1.0),
    ),
    "those sent before it tripped": (
        laws.half_open_breakers_have_a_prober,
        lambda w: _tripped_breaker(_at_work(w), w.now),
    ),
    "connected, and waits for a place": (laws.whoever_waits_is_in_a_queue, lambda w: _full(w)),
    "idle, and asked for a tool since": (
        laws.nothing_outstays_its_time,
        lambda w: (_idle_for(w, IDLE_LIMIT + 1.0), w.ask("find", "a")),
    ),
    "all its places": (laws.load_is_counted, lambda w: _bounded(_at_work(w), max_in_flight=2)),
    "all its queue": (
        laws.load_is_counted,
        lambda w: _bounded(_starting(w), max_in_flight=1, max_queued=2),
    ),
    "found hung, and connected since": (
        laws.nobody_serves_on_the_wrong_process,
        lambda w: (_hung(w), _tripped_breaker(_servers(w).actor("a"), w.now - 1.0)),
    ),
    "its breaker refuses for something else": (
        laws.nobody_serves_on_the_wrong_process,
        lambda w: (_hung(w), _change(w.checker.lives.breaker(Address("a")), refuses_for=BreakerMove.FAILED)),
    ),
    "silent, and nobody asks a lazy one": (
        laws.the_silent_are_found_dead,
        lambda w: (_silent(w, HEALTH + 1.0), _lazy(w)),
    ),
    "silent, and at work": (
        laws.the_silent_are_found_dead,
        lambda w: (_silent(w, HEALTH + 1.0), _at_work(w)),
    ),
    "silent, and not connected": (
        laws.the_silent_are_found_dead,
        lambda w: (_silent(w, HEALTH + 1.0), _servers(w).actor("a").stop(Ending(Cause.EVICTED))),
    ),
    "at work for longer than it may be idle": (
        laws.nothing_outstays_its_time,
        lambda w: (_idle_for(w, IDLE_LIMIT + 1.0), _at_work(w)),
    ),
    "idle, and somebody wants to hear of a resource": (
        laws.nothing_outstays_its_time,
        lambda w: (_idle_for(w, IDLE_LIMIT + 1.0), _listening(w)),
    ),
    "safe to run twice": (laws.far_ends_agree, lambda w: _seen_twice(w, 2, "safe")),
    "the same version": (laws.versions_only_grow, lambda w: (_well(w), w.versions.seen.update(a=0))),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_just_keeps_a_law_is_let_pass(world: World, case: str) -> None:
    law, do_it = KEPT[case]
    do_it(world)
    law(world)


PACE = {"start": 0.5, "call": 1.0, "stop": 0.5}


def _everything(world: World) -> Iterator[None]:
    world.open_session("ann")
    yield
    world.call("shared", count=3)
    world.call("apart", session="ann")
    world.call("once", count=2)
    world.call("shared", "safe", leave_after=2)
    yield
    world.advance(0.5)
    yield
    world.call("narrow", count=3)
    yield
    world.advance(0.5)
    world.cancel(world.pending[0])
    yield
    world.advance(0.25)
    world.close_session("ann")
    yield
    world.ask("drain", "shared")
    yield
    world.advance(3.0)
    world.ask("connect", "shared")
    world.advance(3.0)
    yield
    world.faults.deafen("short")  # nobody asks a lazy one how it is
    world.advance(200.0)
    yield
    world.reload("definition", "shared")
    yield
    world.call("shared")
    world.advance(2.0)
    yield
    world.reload("disable", "kept")
    world.advance(2.0)
    yield


def _crowd(world: World) -> Iterator[None]:
    world.open_session("ann")
    for name in ("a", "b", "c", "d"):
        world.call(name, count=2)
        yield
    world.call("apart", session="ann")
    for _ in range(12):
        yield
        world.advance(0.5)
    world.ask("connect", "a")
    world.ask("connect", "b")
    yield
    world.call("c")
    for _ in range(6):
        yield
        world.advance(0.5)
    world.advance(1_000.0)  # longer than any of them may be idle
    yield


def _sessions_make_way(world: World) -> Iterator[None]:
    world.open_session("ann")
    world.open_session("bob")
    for server, session in (("a", "ann"), ("b", "bob"), ("c", "ann"), ("a", "bob")):
        world.call(server, session=session)
        yield
        world.advance(20.0)
        yield
    for _ in range(6):
        world.advance(40.0)
        yield


def _refusing_breakers(world: World) -> Iterator[None]:
    world.open_session("ann")
    world.call("a")
    world.call("apart", session="ann")
    world.ask("connect", "never")
    world.advance(3.0)
    yield
    for name in ("a", "apart", "never"):
        world.faults.lose(name)
    yield
    for _ in range(2):
        world.call("a", "safe", count=2)
        world.call("apart", session="ann", count=2)
        for _ in range(4):
            world.advance(0.5)
            yield
    world.faults.refuse("a")
    world.ask("drain", "a")
    world.advance(1.0)
    world.ask("connect", "a")
    world.advance(1.0)
    yield
    world.call("a", count=2)
    world.advance(1.0)
    yield
    world.faults.heal("a")
    world.faults.slow_down("a", "call", 3.0)
    world.call("a")
    for _ in range(4):
        world.advance(0.5)
        world.call("a")
        yield


def _patience(world: World) -> Iterator[None]:
    """It may take longer than the others, and does."""
    world.faults.slow_down("a", "start", 50.0)
    world.call("a")
    yield
    world.advance(49.0)
    yield
    world.advance(2.0)
    yield
    world.faults.slow_down("a", "call", 30.0)
    world.faults.slow_down("a", "stop", 20.0)
    world.call("a")
    world.ask("drain", "a")
    yield
    for seconds in (20.0, 29.0):
        world.advance(seconds)
        yield


LIVES: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any], Callable[[World], Iterator[None]]]] = {
    "one of each kind": (
        {
            "shared": {},
            "apart": {"isolation": "per_session"},
            "once": {"isolation": "per_call"},
            "kept": {"lifecycle": "keep-alive"},
            "eager": {"lifecycle": "eager"},
            "narrow": {"maxInFlight": 1, "maxQueued": 5},
            "short": {"idleTimeout": 0.05},
        },
        {},
        _everything,
    ),
    **{
        f"more than there are slots, {how}": (
            {
                "a": {"idleTimeout": 0.05},
                "b": {},
                "c": {},
                "d": {},
                "apart": {"isolation": "per_session"},
                **({"kept": {"lifecycle": "keep-alive"}} if "minConnections" not in more else {}),
            },
            {"maxConnections": 2, "startPermits": 1, **more},
            _crowd,
        )
        for how, more in {"some set aside": {}, "one to stay": {"minConnections": 1}}.items()
    },
    "more sessions than they have slots": (
        {name: {"isolation": "per_session"} for name in "abc"},
        {"maxSessionConnections": 1, "acquireTimeoutMs": 900_000, "queueTimeoutMs": 900_000},
        _sessions_make_way,
    ),
    "breakers that refuse": (
        {
            "a": {},
            "apart": {"isolation": "per_session"},
            "kept": {"lifecycle": "keep-alive"},
            "never": {"lifecycle": "keep-alive", "restartPolicy": "never"},
        },
        {"failureThreshold": 1, "cooldownMs": 1_000},
        _refusing_breakers,
    ),
    "more time than the others": (
        {"a": {"connectTimeoutMs": 60_000, "drainTimeoutMs": 40_000, "stopTimeoutMs": 25_000}},
        {},
        _patience,
    ),
}


@pytest.mark.parametrize("life", LIVES)
def test_every_law_holds_all_through_an_ordinary_life(life: str) -> None:
    entries, more, script = LIVES[life]
    world = World(entries, more, pace=PACE if life != "more time than the others" else None)
    try:
        for _ in script(world):
            for law in laws.settled:
                law(world)
        for name in world.servers:
            world.faults.heal(name)
        for seconds in (50.0, 100.0):
            world.advance(seconds)
            for law in laws.settled:
                law(world)
        world.advance(1_000.0)
        laws.recovered(world)
        world.close()
        for law in (*laws.settled, laws.ended):
            law(world)
    finally:
        world.run.close()


def test_versions_are_remembered_from_look_to_look_until_nothing_is_known() -> None:
    entry: Any = None
    fake: Any = SimpleNamespace(
        config=SimpleNamespace(servers={"a": None}),
        entry=lambda _name: entry,
    )
    versions = Versions(fake, ["a"])

    def look(version: int | None) -> list[str]:
        nonlocal entry
        entry = (
            None if version is None else SimpleNamespace(tools=[{"name": "echo"}, {"name": f"v{version}"}])
        )
        versions.look("a")
        return versions.violations

    for version in (3, 3, 12, None, 1):
        assert look(version) == []
    assert look(0) == ["a: version 0 replaced a newer one"]
    versions.violations.clear()
    fake.config.servers = {}
    assert look(0) == []
    fake.config.servers = {"a": None}
    assert look(0) == []


def test_an_older_version_is_told_though_a_newer_one_has_followed_at_once(world: World) -> None:
    for version in (2, 1, 3):
        world.do(lambda version=version: world.inside.teach("a", tools_of(version)))
    with pytest.raises(AssertionError, match="a: version 1 replaced a newer one"):
        laws.versions_only_grow(world)


LEFT: dict[str, tuple[Callable[[World], object], str]] = {
    "the sums": (
        lambda w: _report(w, accepted=99),
        "the drain report does not add up",
    ),
    "a call": (lambda w: w.calls[0].outcomes.clear(), "call 0 of a_echo has no outcome"),
    "an acceptance": (
        lambda w: w.checker.calls.accepted.update({99: w.checker.lives.of(Address("a"))}),
        "calls \\[99\\] were accepted and never ended",
    ),
    "an event": (lambda w: w.checker.calls.ended.update({99: 1}), "the events and the report disagree"),
    "an asker": (lambda w: _change(w.background, waiting=1), "somebody still waits"),
    "a server": (lambda w: _change(w.servers["b"], live=1), "b is still alive"),
    "a permit": (
        lambda w: _servers(w).starts.places._at[Place.STARTING].setdefault("x"),
        "a start permit was never given back",
    ),
    "a slot": (
        lambda w: _servers(w).starts.places._at[Place.LIVE].setdefault("x"),
        "a slot was never given back",
    ),
}


def _report(world: World, **more: int) -> None:
    world.inside.machinery.report = attrs.evolve(world.room.drain_report, **more)


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_at_the_end_is_told(world: World, case: str) -> None:
    leave, said = LEFT[case]
    _well(world)
    with pytest.raises(AssertionError, match="the room did not end in time"):
        laws.ended(world)
    world.close()
    laws.ended(world)
    leave(world)
    with pytest.raises(AssertionError, match=said):
        laws.ended(world)
