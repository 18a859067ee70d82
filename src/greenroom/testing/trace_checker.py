"""The trace checker: reads the event stream of a room and notes every violation of the rules.

It reads each event as it is emitted. The laws about transitions and about who comes first are here. What is known of
each address and circuit breaker is in `Lives`, the laws about calls are in `CallLaws`, and `Reasons` tells whether an
ending had a reason. When the rules (`docs/decisions`) do not allow an event, it notes a violation, in words; the driver
of the room reads the violations after each step. It never raises inside the step that emits, for that would change what
it watches.

A `GroundTruth` tells whether an ending had a reason: it is the part that hurts the servers, so it knows what was done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from ..config.model import Config, Lifecycle, ServerDefinition
from ..protocol.address import Address
from ..protocol.events import (
    BreakerDecision,
    BreakerMove,
    CallAccepted,
    CallEnded,
    CallEvent,
    CallSent,
    Event,
    Note,
    NoteCode,
    Place,
    StartMoved,
    Transition,
    WarmChildMoved,
    WarmMove,
)
from ..protocol.lifecycle import TABLE, Cause, Reason, State
from .room_inside import SESSION_REST

_QUEUE_BEFORE = {
    Place.PERMIT: "slot",
    Place.STARTING: "permit",
}  # the queue that a start has left for this place


class TraceChecker:
    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth
        self.violations: list[str] = []
        self.lives: Lives = Lives(truth)
        self.calls: CallLaws = CallLaws(truth, self.lives, self.report)
        self.reasons: Reasons = Reasons(truth)
        self.last_start: dict[str, float] = {}
        self.restarts: dict[str, list[float]] = {}
        self._seq: int | None = None
        self._lines: dict[str, tuple[Address, ...]] = {}
        self._warm: dict[str, str] = {}  # who has taken over each warm child, by the child
        self._resetting: set[str] = set()  # those children that are being reset

    def begin(self, address: Address, state: State, incarnation: int) -> None:
        """An actor that was there before the first event."""
        self.lives.all[address] = AddressLife(address, state, incarnation)

    def read(self, event: Event) -> None:
        """The next event, in the step that emitted it."""
        if self._seq is not None and event.seq != self._seq + 1:
            self.report(event, f"event {self._seq + 1} is missing")
        self._seq = event.seq
        self._look_at_queues(event)
        try:
            self._take(event)
        except Exception as error:
            self.report(event, f"the checker cannot read it: {error!r}")

    def _take(self, event: Event) -> None:
        match event:
            case Transition():
                self._on_transition(event)
            case CallEvent():
                self.calls.read(event)
            case Note():
                self._on_note(event)
            case BreakerDecision():
                self._on_breaker(event)
            case WarmChildMoved():
                self._on_warm(event)
            case _:
                pass

    def _look_at_queues(self, event: Event) -> None:
        """First come, first served. Every move out of a queue is an event, and the queues are compared with what they
        were at the event before. Servers that were asked for by name may pass; so may who has a warm child, with the
        slot of that."""
        left = _QUEUE_BEFORE.get(event.place) if isinstance(event, StartMoved) else None
        if left == "slot" and event.address is not None and event.address.is_session:
            left = "session slot"
        lines = self.truth.lines()
        for what, line in lines.items():
            before, self._lines[what] = self._lines.get(what, ()), line
            if what != left or event.address is None or event.address not in before:
                continue
            ahead = before[: before.index(event.address)]
            passed = [other for other in ahead if other in line and not self._was_asked(other, event)]
            if passed and not self._was_asked(event.address, event) and not self._has_warm(event):
                self.report(event, f"{passed[0]} has waited longer for a {what}")

    def _was_asked(self, address: Address, event: Event) -> bool:
        return any(
            self.truth.asked(what, address.server, event.at - 4.0) for what in ("connect", "find", "drained")
        )

    def report(self, event: Event, what: str) -> None:
        self.violations.append(f"{what}: {event}")

    def forget(self, server: str) -> None:
        """The server was removed and configured again, so its circuit breaker and its restarts begin anew."""
        self.lives.breakers.pop(server, None)
        self.last_start.pop(server, None)
        self.restarts = {
            key: starts for key, starts in self.restarts.items() if key.partition("[")[0] != server
        }

    # ---- transitions ------------------------------------------------------------------------------------------------

    def _on_transition(self, event: Transition) -> None:
        assert event.address is not None
        life = self._life_of(event)
        self._check_order(life, event)
        if event.before is State.CLOSED:
            life.incarnation = event.incarnation
        elif event.after not in TABLE[event.before].values():
            self.report(event, "the table has no such transition")
        life.state, life.since = event.after, event.at
        match event.after:
            case State.CONNECTING:
                self._on_start(life, event)
            case State.CONNECTED:
                self._on_connected(life, event)
            case State.DRAINING:
                self._on_leaving(life, event)
            case State.CLOSED:
                self._on_closed(life, event)
            case State.IDLE:
                pass

    def _life_of(self, event: Transition) -> AddressLife:
        assert event.address is not None
        life = self.lives.of(event.address)
        if life.state is State.CLOSED and event.before is State.IDLE and life.is_for_good:
            life.state, life.incarnation = State.IDLE, 1  # the address was gone, and is made anew
            if life.address.is_session:
                self.lives.breakers.pop(str(life.address), None)
        return life

    def _check_order(self, life: AddressLife, event: Transition) -> None:
        if event.before is not life.state:
            self.report(event, f"it was {life.state.value}")
        expected = life.incarnation + (event.before is State.CLOSED)
        if event.incarnation != expected:
            self.report(event, f"its incarnation is {expected}")

    def _on_start(self, life: AddressLife, event: Transition) -> None:
        server, now = life.address.server, event.at
        life.connecting_at = now
        by_name = self.truth.asked("connect", server, now)
        if self.truth.asked("down", server, -math.inf) and not by_name:
            self.report(event, "it was taken down, and nobody asked for it by name")
        shared = self.lives.breaker(Address(server))
        if self.lives.breaker(life.address).must_refuse(now) or shared.must_refuse(now):
            if not by_name:
                self.report(event, "its circuit breaker refuses")
            elif now - self.last_start.get(server, -math.inf) < 1.0 - EPS:
                self.report(event, "a second start within a second, around a circuit breaker that refuses")
        self.last_start[server] = now
        if life.failed_last and not life.address.is_call:
            self._count_restart(life, event, by_name=by_name)

    def _count_restart(self, life: AddressLife, event: Transition, *, by_name: bool) -> None:
        settings, key = self.truth.config.settings, str(life.address)
        recent = [when for when in self.restarts.get(key, ()) if when > event.at - settings.restart_period]
        self.restarts[key] = [*recent, event.at]
        if len(recent) >= settings.restart_intensity and not by_name and not self._is_probing(life):
            self.report(event, f"restart {len(recent) + 1} within {settings.restart_period:g} s")

    def _is_probing(self, life: AddressLife) -> bool:
        return self.lives.breaker(life.address).may_be_tripped

    def _on_connected(self, life: AddressLife, event: Transition) -> None:
        if any(self._warm.get(child) == str(life.address) for child in self._resetting):
            self.report(event, "its child is not reset yet")
        life.connected_at = life.rested_at = event.at
        # Each again in the order of acceptance, and calls are numbered in that order. So replays stand first, except
        # behind a call that a full pipe had not taken.
        life.unsent, life.open = dict.fromkeys(sorted((*life.open, *life.unsent))), {}
        life.failed_last = False
        if life.address.is_session:
            self.lives.breaker(Address(life.address.server)).reset(event.at)
        if self.truth.asked("connect", life.address.server, event.at):
            self.lives.breaker(life.address).connected_by_name()

    def _on_leaving(self, life: AddressLife, event: Transition) -> None:
        assert event.cause is not None
        life.end_cause(event.at)
        life.endings.append(EndingCause(event.at, event.cause))
        self._tell_breaker(life, event)
        if not self.reasons.has_reason(life, event, event.cause):
            self.report(event, "there was no reason for it")
        if event.cause in (Cause.IDLE_TIMEOUT, Cause.EVICTED) and event.before is State.CONNECTED:
            self._check_seats(life, event)

    def _on_closed(self, life: AddressLife, event: Transition) -> None:
        assert event.cause is not None
        if event.in_flight:
            self.report(event, "gone with calls in flight")
        if event.before is State.IDLE or life.endings[-1].cause is not event.cause:
            self._on_leaving(life, event)
        life.end_cause(event.at)
        life.failed_last = event.cause in (Cause.CONNECT_FAILED, Cause.LOST)

    def _tell_breaker(self, life: AddressLife, event: Transition) -> None:
        """A failure counts at once, while the rest of the process tree is still being stopped. A loss during draining
        is only told when the incarnation has closed."""
        since = life.endings[-2].at if event.before is State.DRAINING else event.at
        if event.cause is Cause.CONNECT_FAILED:
            self.lives.breaker(life.address).connect_failed(event.at)
            if life.address.is_session:
                self.lives.breaker(Address(life.address.server)).connect_failed(event.at)
        elif event.cause is Cause.LOST and event.reason not in (Reason.UNRESPONSIVE, Reason.EXPIRED):
            # The one was counted before; the other is no death.
            self.lives.breaker(life.address).died(event.at, since)

    def _check_seats(self, life: AddressLife, event: Transition) -> None:
        """An idle or evicted connection may only end if the minimum is still held, and an eviction must serve a
        waiter. A session's child has rested before."""
        is_session = life.address.is_session
        if (
            is_session
            and event.cause is Cause.EVICTED
            and event.at - max(life.rested_at, life.connected_at) < SESSION_REST - EPS
        ):
            self.report(event, "it had not rested for a minute")
        seats = self.truth.seats(of_sessions=is_session)
        if seats.staying < seats.minimum:
            self.report(event, f"{seats.staying} are left, and the minimum is {seats.minimum}")
        has_another_reason = seats.shared > seats.capacity or self.reasons.was_idle(life, event)
        is_for_nobody = event.cause is Cause.EVICTED and seats.leaving > seats.waiting
        if is_for_nobody and not has_another_reason:
            self.report(event, f"{seats.leaving} leave, and {seats.waiting} wait for a slot")

    # ---- what is started ahead --------------------------------------------------------------------------------------

    def _has_warm(self, event: Event) -> bool:
        return str(event.address) in self._warm.values()

    def _on_warm(self, event: WarmChildMoved) -> None:
        child, before = f"{event.server} {event.child}", self._warm.get(f"{event.server} {event.child}")
        if event.move is WarmMove.TAKEN:
            if before is not None:
                self.report(event, f"{before} has taken it over already")
            self._warm[child] = f"{event.server}[{event.by}]"
        elif event.move is WarmMove.RETURNED:
            if before is None:
                self.report(event, "nobody had taken it over")
            self._warm.pop(child, None)
        elif event.move is WarmMove.RESETTING:
            if before is None:
                self.report(event, "nobody had taken it over")
            elif not self._is_over(before):
                self.report(event, f"{before} is not over")
            self._warm.pop(child, None)
            self._resetting.add(child)
        elif event.move is WarmMove.RESET:
            if child not in self._resetting:
                self.report(event, "it was not being reset")
            self._resetting.discard(child)
        elif event.move in (WarmMove.NOT_RESET, WarmMove.ENDED, WarmMove.LOST):
            self._warm.pop(child, None)
            self._resetting.discard(child)

    def _is_over(self, address: str) -> bool:
        """Whether the session or call that this address was for is over, and nothing of it runs."""
        lives = (life for life in self.lives.all.values() if str(life.address) == address)
        return all(
            life.state is State.CLOSED and life.endings[-1].cause is Cause.SCOPE_ENDED for life in lives
        )

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def _on_note(self, event: Note) -> None:
        if event.code in (NoteCode.BUG, NoteCode.CALLBACK, NoteCode.READER):
            self.report(event, "an error of our own")

    def _on_breaker(self, event: BreakerDecision) -> None:
        assert event.address is not None
        breaker = self.lives.breaker(event.address)
        if event.is_reset or event.move in (BreakerMove.FAILED, BreakerMove.SILENT, BreakerMove.QUARANTINED):
            breaker.refuses_for = None if event.is_reset else event.move
        if event.move is BreakerMove.REDEFINED:
            breaker.reset(event.at)
            self.restarts.pop(str(event.address), None)
        if event.is_reset:
            breaker.said_reset_at = event.at
        elif event.move is BreakerMove.FAILED:
            breaker.said_failed_at = event.at
        elif event.move is BreakerMove.QUARANTINED:
            breaker.quarantined(event.at)


# ---- The laws about calls: each is accepted, sent in order to a connected server, and ends once ---------------------
#
# A circuit breaker that has tripped lets one call through at a time. Answers also tell something about the breakers;
# that is recorded here too.


class CallLaws:
    """`report` notes a violation."""

    def __init__(self, truth: GroundTruth, lives: Lives, report: Callable[[Event, str], None]) -> None:
        self.truth = truth
        self.lives = lives
        self.report = report
        self.accepted: dict[int, AddressLife] = {}
        self.ended: dict[int, int] = {}
        self.outcomes: dict[str, int] = {}

    def read(self, event: CallEvent) -> None:
        assert event.address is not None
        life, number = self.lives.of(event.address), event.call
        match event:
            case CallAccepted():
                self.accepted[number] = life
                life.unsent[number] = None
            case CallSent():
                self._on_sent(life, number, event)
            case CallEnded():
                self._on_ended(life, number, event)
            case _:
                pass

    def _on_sent(self, life: AddressLife, number: int, event: CallSent) -> None:
        if life.state is not State.CONNECTED:
            self.report(event, f"sent while {life.state.value}")
        if number in self.ended:
            self.report(event, "sent after its end")
        first = next(iter(life.unsent), number)
        if number in life.unsent and first != number and not self._may_overtake(life):
            self.report(event, f"call {first} was accepted before it")
        life.unsent.pop(number, None)
        self._check_probe(life, event)
        life.open[number] = event.at
        life.sends[number] = life.sends.get(number, 0) + 1

    def _check_probe(self, life: AddressLife, event: CallSent) -> None:
        """A tripped breaker lets only one call through at a time, until an answer has reset it."""
        breaker = self.lives.breaker(life.address)
        if breaker.is_tripped:
            before = [
                number
                for other in self.lives.all.values()
                if self.lives.breaker(other.address) is breaker
                for number, since in other.open.items()
                if since > breaker.tripped_at
            ]
            # The answer that resets a breaker lets the next go before its own end is told. That it did is believed for
            # this one moment; what is in flight decides who is there besides.
            if before and event.in_flight > 1 and breaker.said_reset_at < event.at:
                self.report(event, f"call {before[0]} is the probe already")

    def _may_overtake(self, life: AddressLife) -> bool:
        """A full pipe takes what comes when it takes again; the fake one forgets what it did not take."""
        return self.truth.was("full pipe", life.address.server, life.connected_at)

    def _on_ended(self, life: AddressLife, number: int, event: CallEnded) -> None:
        self.ended[number] = self.ended.get(number, 0) + 1
        if self.ended[number] > 1:
            self.report(event, "its second outcome")
        if number not in self.accepted:
            self.report(event, "it was never accepted")
        was_sent = life.open.pop(number, None) is not None
        life.unsent.pop(number, None)
        life.rested_at = event.at
        outcome = event.outcome
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        breaker = self.lives.breaker(life.address)
        if outcome in ("result", "remote_error"):
            breaker.answered(event.at, event.at - life.connected_at)
        elif outcome == "timeout" and (was_sent or life.state is State.CONNECTED):
            breaker.timed_out(event.at)


# ---- What the trace checker knows of each address and each circuit breaker from the events ---------------------------
#
# What events do not tell, it asks the `GroundTruth`.
#
# An `AddressLife` is one address: its state and since when, its calls, and why it ended. `Lives` holds them all, and
# what can be known of each breaker from outside (`BreakerModel`).


@attrs.frozen
class Seats:
    """The slots of the children of sessions, or all others, at one moment. A connection that is ending still has
    one."""

    capacity: int  # slots that are set aside for nobody
    minimum: int
    staying: int  # held by connections that are not ending
    shared: int  # held, and not set aside
    leaving: int  # how many of `shared` are ending
    waiting: int


class GroundTruth(Protocol):
    """Knows what was done to the servers and the room: a world does, and so may a test that makes events itself."""

    @property
    def config(self) -> Config:
        """The room's, as it is now."""
        ...

    def was(self, fault: str, server: str, since: float) -> bool:
        """Whether the server had this fault at any moment from `since` on."""
        ...

    def lines(self) -> Mapping[str, tuple[Address, ...]]:
        """The addresses that now wait for a slot, and for a permit, in order of arrival."""
        ...

    def seats(self, *, of_sessions: bool) -> Seats:
        """How the slots are held now."""
        ...

    def asked(self, what: str, server: str, since: float) -> bool:
        """Whether somebody asked for this by name, or still does, from `since` on."""
        ...


@attrs.define(eq=False)
class EndingCause:
    """One cause for which an incarnation ends. It holds until a stronger cause comes, or until the incarnation has
    closed."""

    at: float
    cause: Cause
    until: float = math.inf


@attrs.define(eq=False)
class AddressLife:
    """One address, as its transitions describe it."""

    address: Address
    state: State = State.IDLE
    incarnation: int = 1
    since: float = 0.0  # of this state
    connecting_at: float = -math.inf
    connected_at: float = -math.inf
    rested_at: float = -math.inf  # its last call ended
    failed_last: bool = False  # its last ending was a loss or a failure
    unsent: dict[int, None] = attrs.field(factory=dict[int, None])  # accepted, in order
    open: dict[int, float] = attrs.field(factory=dict[int, float])  # sent, not ended: since when
    sends: dict[int, int] = attrs.field(factory=dict[int, int])
    endings: list[EndingCause] = attrs.field(factory=lambda: list[EndingCause]())

    def end_cause(self, at: float) -> None:
        """The last cause no longer holds. Harmless when there is none, or when it has ended."""
        if self.endings and self.endings[-1].until == math.inf:
            self.endings[-1].until = at

    def ended_as(self, cause: Cause, since: float) -> bool:
        """Whether it was ending for this cause at any moment from `since` on."""
        return any(each.cause is cause and each.until >= since - EPS for each in self.endings)

    @property
    def is_for_good(self) -> bool:
        return self.address.is_call or self.endings[-1].cause in (Cause.REMOVED, Cause.SCOPE_ENDED)


class Lives:
    """All addresses and circuit breakers of a room."""

    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth
        self.all: dict[Address, AddressLife] = {}
        self.breakers: dict[str, BreakerModel] = {}

    def of(self, address: Address) -> AddressLife:
        found = self.all.get(address)
        if found is None:
            found = self.all[address] = AddressLife(address)
        return found

    def breaker(self, address: Address) -> BreakerModel:
        """The circuit breaker of an address: a session has its own, all other addresses of a server share one."""
        key = str(address) if address.is_session else address.server
        found = self.breakers.get(key)
        if found is None:
            settings = self.truth.config.settings
            found = self.breakers[key] = BreakerModel(
                settings.failure_threshold,
                settings.cooldown,
                settings.backoff_min,
                settings.backoff_max,
                settings.stable_after,
                settings.failure_backoff,
            )
        return found


# ---- Whether an ending had a reason, by the ground truth -------------------------------------------------------------
#
# What was done to the servers, and what was asked of the room.


class Reasons:
    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth

    def has_reason(self, life: AddressLife, event: Transition, cause: Cause) -> bool:
        server, was, asked = life.address.server, self.truth.was, self.truth.asked
        match cause:
            case Cause.IDLE_TIMEOUT:
                return self.was_idle(life, event)
            case Cause.EVICTED:
                is_idle = not event.in_flight + event.queued
                return is_idle and (
                    life.address.is_session or (life.address.is_shared and self._may_evict(event))
                )
            case Cause.CONNECT_FAILED:
                return was("failing", server, life.connecting_at)
            case Cause.LOST if event.reason in (Reason.UNRESPONSIVE, Reason.UNHEALTHY):
                return was("hung", server, life.connected_at)
            case Cause.LOST | Cause.MOVED:
                return was("lost", server, event.at)
            case Cause.NEEDS_AUTH:
                return was("login", server, life.connecting_at)
            case Cause.RESTART if not asked("restart", server, life.connecting_at):
                # It was asked to list again what it has, and did not.
                is_silent = any(
                    was(fault, server, life.connected_at) for fault in ("hung", "full pipe", "slow")
                )
                return is_silent and any(
                    asked(what, server, life.connected_at) for what in ("connect", "find")
                )
            case Cause.BUG:
                return False
            case Cause.SCOPE_ENDED:
                return life.address.is_call or asked("scope ended", str(life.address), -math.inf)
            case Cause.SHUTDOWN:
                return asked("shutdown", "", -math.inf)
            case _:
                return asked(cause.value, server, life.connecting_at)

    def _definition(self, server: str) -> ServerDefinition | None:
        return self.truth.config.servers.get(server)

    def _may_evict(self, event: Transition) -> bool:
        """A keep-alive server must not be evicted, unless a reload has just changed that."""
        assert event.address is not None
        server = event.address.server
        changes = ("disabled", "removed", "reload", "drained")
        return not self._is_kept(server) or any(self.truth.asked(what, server, event.at) for what in changes)

    def was_idle(self, life: AddressLife, event: Transition) -> bool:
        definition = self._definition(life.address.server)
        if definition is None or event.in_flight or event.queued or self._is_kept(life.address.server):
            return False
        limit = definition.idle_timeout
        if limit is None:
            is_eager = definition.lifecycle is Lifecycle.EAGER
            limit = 0.0 if is_eager else self.truth.config.settings.idle_timeout
        return bool(limit) and life.address.is_shared and event.at - life.rested_at >= limit - EPS

    def _is_kept(self, server: str) -> bool:
        definition = self._definition(server)
        return definition is not None and definition.lifecycle is Lifecycle.KEEP_ALIVE


# ---- A model of a circuit breaker, as seen from outside --------------------------------------------------------------
#
# It is written from `docs/decisions/circuit-breaker.md`, not from the code.
#
# Two things cannot be seen from outside: the random jitter, and whether anything else was heard of the server while a
# call timed out. So each figure is a pair of bounds. `must_refuse` is true when it certainly refuses,
# `may_refuse` when it possibly refuses. All times are in seconds.

JITTER = 0.2
HUGE = 64  # doublings
EPS = 1e-6  # seconds; sums of floats


@attrs.define
class Span:
    """The least and the most that one figure can be."""

    least: float = 0.0
    most: float = 0.0


@attrs.define
class BreakerModel:
    threshold: int
    cooldown: float
    backoff_min: float = 1.0
    backoff_max: float = 60.0
    stable_after: float = 30.0
    flat: float | None = None
    failures: Span = attrs.field(factory=Span)
    refuses_until: Span = attrs.field(factory=lambda: Span(-math.inf, -math.inf))
    is_tripped: bool = False  # for sure
    may_be_tripped: bool = False
    tripped_at: float = -math.inf  # or failed again since
    refused_until: float = -math.inf  # before it was last reset
    counted_at: float = -math.inf  # the last failure we know of
    said_reset_at: float = -math.inf  # by the room itself
    said_failed_at: float = -math.inf
    refuses_for: BreakerMove | None = None  # the last move after which it refuses, as the room says

    def connect_failed(self, now: float) -> None:
        self._failed(now, now, costs_the_first=True)

    def died(self, now: float, since: float | None = None) -> None:
        """The server died, at some moment from `since` on."""
        self._failed(now, now if since is None else since, costs_the_first=False)

    def timed_out(self, now: float) -> None:
        """A call timed out. This counts only if nothing at all was heard meanwhile, so only perhaps."""
        self.failures.most += 1
        self.may_be_tripped = self.may_be_tripped or self.failures.most >= self.threshold
        if self.may_be_tripped:
            self.refuses_until.most = max(self.refuses_until.most, now + self.cooldown)

    def quarantined(self, now: float) -> None:
        self.may_be_tripped = True
        self.refuses_until.most = max(self.refuses_until.most, now + self.cooldown)

    def answered(self, now: float, connected_for: float) -> None:
        if connected_for >= self.stable_after or self.is_tripped:
            self.reset(now)
        elif self.may_be_tripped:  # it may have been the probe's answer
            self.failures.least, self.refuses_until.least = 0.0, -math.inf

    def reset(self, now: float) -> None:
        """It admits all calls again, and all failures are forgotten."""
        if self.may_refuse(now):
            self.refused_until = now
        self.failures, self.refuses_until = Span(), Span(-math.inf, -math.inf)
        self.is_tripped = self.may_be_tripped = False

    def connected_by_name(self) -> None:
        """Half-open, without waiting."""
        self.refuses_until.least = -math.inf

    def must_refuse(self, now: float) -> bool:
        return now < self.refuses_until.least - EPS

    def may_refuse(self, at: float) -> bool:
        # The room knows of a failure that we do not.
        is_behind = self.counted_at + EPS < self.said_failed_at <= at + EPS
        has_refused = at <= max(self.refuses_until.most, self.refused_until) + EPS
        return self.may_be_tripped or has_refused or is_behind

    def _failed(self, now: float, since: float, *, costs_the_first: bool) -> None:
        self.counted_at = now
        self.failures.least += 1
        self.failures.most += 1
        if self.failures.least >= self.threshold:
            self.is_tripped, self.tripped_at = True, now
        self.may_be_tripped = self.may_be_tripped or self.failures.most >= self.threshold
        free = 0 if costs_the_first else 1
        jitter = JITTER if self.flat is None else 0.0
        least = self._delay(self.failures.least - free) * (1 - jitter)
        most = self._delay(self.failures.most - free) * (1 + jitter)
        least = max(least, self.cooldown) if self.is_tripped else least
        most = max(most, self.cooldown) if self.may_be_tripped else most
        self.refuses_until.least = max(self.refuses_until.least, since + least)
        self.refuses_until.most = max(self.refuses_until.most, now + most)

    def _delay(self, failures: float) -> float:
        if failures < 1:
            return 0.0
        if self.flat is not None:
            return self.flat
        return min(self.backoff_max, self.backoff_min * 2.0 ** min(failures - 1, HUGE))
