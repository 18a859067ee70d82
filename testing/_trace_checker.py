"""The trace checker: reads the event stream of a room and notes every violation of the rules.

It reads each event as it is emitted. For each address it keeps the state and since when; for each gate, what can be
known from outside (`_gate_model`). When the rules of DESIGN do not allow an event, it notes a violation, in words; the
driver of the room reads the violations after each step. It never raises inside the step that emits, for that would
change what it watches.

A `GroundTruth` tells whether an ending had a reason: it is the part that hurts the servers, so it knows what was done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import attrs

from ..protocol.address import Address
from ..protocol.config import Config, Lifecycle, ServerDefinition
from ..protocol.events import (
    CallAccepted,
    CallEnded,
    CallEvent,
    CallSent,
    Event,
    GateDecision,
    GateMove,
    Note,
    NoteCode,
    Transition,
)
from ..protocol.lifecycle import TABLE, Cause, Reason, State
from ._gate_model import EPS, GateModel


@attrs.frozen
class Seats:
    """The pool's slots at one moment. A connection that is ending still has one."""

    capacity: int  # slots that are set aside for nobody
    minimum: int
    staying: int  # held by connections that are not ending
    shared: int  # held, and not set aside
    leaving: int  # how many of `shared` are ending
    waiting: int


class GroundTruth(Protocol):
    """Knows what was done to the servers and the room."""

    @property
    def config(self) -> Config:
        """The room's, as it is now."""
        ...

    def was(self, fault: str, server: str, since: float) -> bool:
        """Whether this was wrong with it at any moment from `since` on."""
        ...

    def lines(self) -> Mapping[str, tuple[Address, ...]]:
        """The addresses that wait now for a slot and for a permit, in order of arrival."""
        ...

    def seats(self) -> Seats:
        """How the slots are held now."""
        ...

    def asked(self, what: str, server: str, since: float) -> bool:
        """Whether somebody asked for this by name, or still does, from `since` on."""
        ...


@attrs.define(eq=False)
class Leave:
    """Why an incarnation ends: from when that was told until a stronger cause was, or until it had closed."""

    at: float
    cause: Cause
    until: float = math.inf


@attrs.define(eq=False)
class Life:
    """One address, as its transitions tell it."""

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
    leaves: list[Leave] = attrs.field(factory=lambda: list[Leave]())

    def end_leave(self, at: float) -> None:
        """The last cause holds no longer. Harmless when there is none, or when it has ended."""
        if self.leaves and self.leaves[-1].until == math.inf:
            self.leaves[-1].until = at

    def ended_as(self, cause: Cause, since: float) -> bool:
        """Whether it was on its way out for this cause at any moment from `since` on."""
        return any(leave.cause is cause and leave.until >= since - EPS for leave in self.leaves)


class TraceChecker:
    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth
        self.violations: list[str] = []
        self.lives: dict[Address, Life] = {}
        self.gates: dict[str, GateModel] = {}
        self.ended: dict[int, int] = {}
        self.accepted: dict[int, Life] = {}
        self.outcomes: dict[str, int] = {}
        self.last_start: dict[str, float] = {}
        self.restarts: dict[str, list[float]] = {}
        self._seq: int | None = None
        self._lines: dict[str, tuple[Address, ...]] = {}

    def begin(self, address: Address, state: State, incarnation: int) -> None:
        """An actor that was there before the first event."""
        self.lives[address] = Life(address, state, incarnation)

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
                self._on_call(event)
            case Note():
                self._on_note(event)
            case GateDecision():
                self._on_gate(event)
            case _:
                pass

    def _look_at_queues(self, event: Event) -> None:
        """First come, first served. Looked at with every event, so that hardly anybody leaves and comes back between
        two looks; who was asked for by name may have."""
        is_start = isinstance(event, Transition) and event.after is State.CONNECTING
        lines = self.truth.lines()
        for what, line in lines.items():
            before, self._lines[what] = self._lines.get(what, ()), line
            if not is_start or event.address not in before:
                continue
            ahead = before[: before.index(event.address)]
            passed = [other for other in ahead if other in line and not self._was_asked(other, event)]
            if passed and not self._was_asked(event.address, event):
                self.report(event, f"{passed[0]} has waited longer for a {what}")

    def _was_asked(self, address: Address, event: Event) -> bool:
        return any(
            self.truth.asked(what, address.server, event.at - 4.0) for what in ("connect", "find", "drained")
        )

    def report(self, event: Event, what: str) -> None:
        self.violations.append(f"{what}: {event}")

    def life(self, address: Address) -> Life:
        found = self.lives.get(address)
        if found is None:
            found = self.lives[address] = Life(address)
        return found

    def gate(self, address: Address) -> GateModel:
        """The gate of an address: a session has its own, all other addresses of a server share one."""
        key = str(address) if address.is_session else address.server
        found = self.gates.get(key)
        if found is None:
            settings = self.truth.config.settings
            found = self.gates[key] = GateModel(
                settings.failure_threshold,
                settings.cooldown,
                settings.backoff_min,
                settings.backoff_max,
                settings.stable_after,
                settings.failure_backoff,
            )
        return found

    def forget(self, server: str) -> None:
        """The server was removed completely and configured again, so its gate and its restarts start afresh."""
        self.gates.pop(server, None)
        self.last_start.pop(server, None)
        self.restarts = {
            key: starts for key, starts in self.restarts.items() if key.partition("[")[0] != server
        }

    def _definition(self, server: str) -> ServerDefinition | None:
        return self.truth.config.servers.get(server)

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

    def _life_of(self, event: Transition) -> Life:
        assert event.address is not None
        life = self.life(event.address)
        if life.state is State.CLOSED and event.before is State.IDLE and _is_for_good(life):
            life.state, life.incarnation = State.IDLE, 1  # the address was gone, and is made anew
            if life.address.is_session:
                self.gates.pop(str(life.address), None)
        return life

    def _check_order(self, life: Life, event: Transition) -> None:
        if event.before is not life.state:
            self.report(event, f"it was {life.state.value}")
        expected = life.incarnation + (event.before is State.CLOSED)
        if event.incarnation != expected:
            self.report(event, f"its incarnation is {expected}")

    def _on_start(self, life: Life, event: Transition) -> None:
        server, now = life.address.server, event.at
        life.connecting_at = now
        by_name = self.truth.asked("connect", server, now)
        if self.truth.asked("down", server, -math.inf) and not by_name:
            self.report(event, "it was taken down, and nobody asked for it by name")
        shared = self.gate(Address(server))
        if self.gate(life.address).must_be_shut(now) or shared.must_be_shut(now):
            if not by_name:
                self.report(event, "its gate is shut")
            elif now - self.last_start.get(server, -math.inf) < 1.0 - EPS:
                self.report(event, "a second start within a second, around a shut gate")
        self.last_start[server] = now
        if life.failed_last and not life.address.is_call:
            self._count_restart(life, event, by_name=by_name)

    def _count_restart(self, life: Life, event: Transition, *, by_name: bool) -> None:
        settings, key = self.truth.config.settings, str(life.address)
        recent = [when for when in self.restarts.get(key, ()) if when > event.at - settings.restart_period]
        self.restarts[key] = [*recent, event.at]
        if len(recent) >= settings.restart_intensity and not by_name and not self._is_probing(life):
            self.report(event, f"restart {len(recent) + 1} within {settings.restart_period:g}s")

    def _is_probing(self, life: Life) -> bool:
        return self.gate(life.address).may_be_tripped

    def _on_connected(self, life: Life, event: Transition) -> None:
        life.connected_at = life.rested_at = event.at
        # Each again in the order of acceptance, and calls are numbered in that order. So replays stand first, except
        # behind a call that a full pipe had not taken.
        life.unsent, life.open = dict.fromkeys(sorted((*life.open, *life.unsent))), {}
        life.failed_last = False
        if life.address.is_session:
            self.gate(Address(life.address.server)).reopened(event.at)
        if self.truth.asked("connect", life.address.server, event.at):
            self.gate(life.address).connected_by_name()

    def _on_leaving(self, life: Life, event: Transition) -> None:
        assert event.cause is not None
        life.end_leave(event.at)
        life.leaves.append(Leave(event.at, event.cause))
        self._tell_gate(life, event)
        if not self._has_reason(life, event, event.cause):
            self.report(event, "there was no reason for it")
        if event.cause in (Cause.IDLE_TIMEOUT, Cause.EVICTED) and event.before is State.CONNECTED:
            self._check_seats(life, event)

    def _on_closed(self, life: Life, event: Transition) -> None:
        assert event.cause is not None
        if event.in_flight:
            self.report(event, "gone with calls in flight")
        if event.before is State.IDLE or life.leaves[-1].cause is not event.cause:
            self._on_leaving(life, event)
        life.end_leave(event.at)
        life.failed_last = event.cause in (Cause.CONNECT_FAILED, Cause.LOST)

    def _tell_gate(self, life: Life, event: Transition) -> None:
        """It counts at once, while what is left is still to be stopped. What was lost while it drained is not told
        before it has closed."""
        since = life.leaves[-2].at if event.before is State.DRAINING else event.at
        if event.cause is Cause.CONNECT_FAILED:
            self.gate(life.address).connect_failed(event.at)
            if life.address.is_session:
                self.gate(Address(life.address.server)).connect_failed(event.at)
        elif event.cause is Cause.LOST and event.reason not in (Reason.UNRESPONSIVE, Reason.EXPIRED):
            # The one was counted before; the other is no death.
            self.gate(life.address).died(event.at, since)

    # ---- reasons ----------------------------------------------------------------------------------------------------

    def _has_reason(self, life: Life, event: Transition, cause: Cause) -> bool:
        server, was, asked = life.address.server, self.truth.was, self.truth.asked
        match cause:
            case Cause.IDLE_TIMEOUT:
                return self._was_idle(life, event)
            case Cause.EVICTED:
                return (
                    life.address.is_shared and not event.in_flight + event.queued and self._may_evict(event)
                )
            case Cause.CONNECT_FAILED:
                return was("failing", server, life.connecting_at)
            case Cause.LOST if event.reason in (Reason.UNRESPONSIVE, Reason.UNHEALTHY):
                return was("hung", server, life.connected_at)
            case Cause.LOST:
                return was("lost", server, event.at)
            case Cause.NEEDS_AUTH:
                return was("login", server, life.connecting_at)
            case Cause.BUG:
                return False
            case Cause.SCOPE_ENDED:
                return life.address.is_call or asked("scope ended", str(life.address), -math.inf)
            case Cause.SHUTDOWN:
                return asked("shutdown", "", -math.inf)
            case _:
                return asked(cause.value, server, life.connecting_at)

    def _check_seats(self, life: Life, event: Transition) -> None:
        """An idle or evicted connection may only end if the minimum is still held, and an eviction must serve a
        waiter."""
        seats = self.truth.seats()
        if seats.staying < seats.minimum:
            self.report(event, f"{seats.staying} are left, and the minimum is {seats.minimum}")
        has_another_reason = seats.shared > seats.capacity or self._was_idle(life, event)
        is_for_nobody = event.cause is Cause.EVICTED and seats.leaving > seats.waiting
        if is_for_nobody and not has_another_reason:
            self.report(event, f"{seats.leaving} leave, and {seats.waiting} wait for a slot")

    def _may_evict(self, event: Transition) -> bool:
        """A keep-alive server must not be evicted, unless a reload has just changed that."""
        assert event.address is not None
        server = event.address.server
        changes = ("disabled", "removed", "reload", "drained")
        return not self._is_kept(server) or any(self.truth.asked(what, server, event.at) for what in changes)

    def _was_idle(self, life: Life, event: Transition) -> bool:
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

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _on_call(self, event: CallEvent) -> None:
        assert event.address is not None
        life, number = self.life(event.address), event.call
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

    def _on_sent(self, life: Life, number: int, event: CallSent) -> None:
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

    def _check_probe(self, life: Life, event: CallSent) -> None:
        """A tripped gate lets only one call through at a time, until an answer has opened it."""
        gate = self.gate(life.address)
        if gate.is_tripped:
            before = [
                number
                for other in self.lives.values()
                if self.gate(other.address) is gate
                for number, since in other.open.items()
                if since > gate.tripped_at
            ]
            # The answer that opens a gate lets the next go before its own end is told. That it did is believed for this
            # one moment; what is in flight decides who is there besides.
            if before and event.in_flight > 1 and gate.said_open_at < event.at:
                self.report(event, f"call {before[0]} is the probe already")

    def _may_overtake(self, life: Life) -> bool:
        """A full pipe takes what comes when it takes again; the fake one forgets what it did not take."""
        return self.truth.was("full pipe", life.address.server, life.connected_at)

    def _on_ended(self, life: Life, number: int, event: CallEnded) -> None:
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
        gate = self.gate(life.address)
        if outcome in ("result", "remote_error"):
            gate.answered(event.at, event.at - life.connected_at)
        elif outcome == "timeout" and (was_sent or life.state is State.CONNECTED):
            gate.timed_out(event.at)

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def _on_note(self, event: Note) -> None:
        if event.code in (NoteCode.BUG, NoteCode.CALLBACK, NoteCode.READER):
            self.report(event, "an error of our own")

    def _on_gate(self, event: GateDecision) -> None:
        assert event.address is not None
        gate = self.gate(event.address)
        if event.is_open or event.move in (GateMove.FAILED, GateMove.SILENT, GateMove.QUARANTINED):
            gate.shut_by = None if event.is_open else event.move
        if event.is_open:
            gate.said_open_at = event.at
        elif event.move is GateMove.FAILED:
            gate.said_failed_at = event.at
        elif event.move is GateMove.QUARANTINED:
            gate.quarantined(event.at)


def _is_for_good(life: Life) -> bool:
    return life.address.is_call or life.leaves[-1].cause in (Cause.REMOVED, Cause.SCOPE_ENDED)
