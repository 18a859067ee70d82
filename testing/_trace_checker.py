"""The trace checker: reads the event stream of a room and notes every violation of the rules.

It reads each event as it is emitted. The laws about transitions and about who comes first are here. What is known of
each address and gate is in `_lives`, the laws about calls are in `_call_laws`, and `_reasons` tells whether an ending
had a reason. When the rules (`docs/decisions`) do not allow an event, it notes a violation, in words; the driver of the
room reads the violations after each step. It never raises inside the step that emits, for that would change what it
watches.

A `GroundTruth` tells whether an ending had a reason: it is the part that hurts the servers, so it knows what was done.
"""

from __future__ import annotations

import math

from ..protocol.address import Address
from ..protocol.events import CallEvent, Event, GateDecision, GateMove, Note, NoteCode, StartMoved, Transition
from ..protocol.lifecycle import TABLE, Cause, Reason, State
from ..protocol.start import Place
from ._call_laws import CallLaws
from ._lives import EPS, GroundTruth, Leave, Life, Lives
from ._reasons import Reasons

_QUEUE_BEFORE = {
    Place.PERMIT: "slot",
    Place.STARTING: "permit",
}  # the queue that a start has left for this place


class TraceChecker:
    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth
        self.violations: list[str] = []
        self.lives = Lives(truth)
        self.calls = CallLaws(truth, self.lives, self.report)
        self.reasons = Reasons(truth)
        self.last_start: dict[str, float] = {}
        self.restarts: dict[str, list[float]] = {}
        self._seq: int | None = None
        self._lines: dict[str, tuple[Address, ...]] = {}

    def begin(self, address: Address, state: State, incarnation: int) -> None:
        """An actor that was there before the first event."""
        self.lives.all[address] = Life(address, state, incarnation)

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
            case GateDecision():
                self._on_gate(event)
            case _:
                pass

    def _look_at_queues(self, event: Event) -> None:
        """First come, first served. Every move out of a queue is an event, and the queues are compared with what they
        were at the event before. Servers that were asked for by name may pass."""
        left = _QUEUE_BEFORE.get(event.place) if isinstance(event, StartMoved) else None
        lines = self.truth.lines()
        for what, line in lines.items():
            before, self._lines[what] = self._lines.get(what, ()), line
            if what != left or event.address not in before:
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

    def forget(self, server: str) -> None:
        """The server was removed and configured again, so its gate and its restarts begin anew."""
        self.lives.gates.pop(server, None)
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

    def _life_of(self, event: Transition) -> Life:
        assert event.address is not None
        life = self.lives.of(event.address)
        if life.state is State.CLOSED and event.before is State.IDLE and _is_for_good(life):
            life.state, life.incarnation = State.IDLE, 1  # the address was gone, and is made anew
            if life.address.is_session:
                self.lives.gates.pop(str(life.address), None)
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
        shared = self.lives.gate(Address(server))
        if self.lives.gate(life.address).must_be_shut(now) or shared.must_be_shut(now):
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
        return self.lives.gate(life.address).may_be_tripped

    def _on_connected(self, life: Life, event: Transition) -> None:
        life.connected_at = life.rested_at = event.at
        # Each again in the order of acceptance, and calls are numbered in that order. So replays stand first, except
        # behind a call that a full pipe had not taken.
        life.unsent, life.open = dict.fromkeys(sorted((*life.open, *life.unsent))), {}
        life.failed_last = False
        if life.address.is_session:
            self.lives.gate(Address(life.address.server)).reopened(event.at)
        if self.truth.asked("connect", life.address.server, event.at):
            self.lives.gate(life.address).connected_by_name()

    def _on_leaving(self, life: Life, event: Transition) -> None:
        assert event.cause is not None
        life.end_leave(event.at)
        life.leaves.append(Leave(event.at, event.cause))
        self._tell_gate(life, event)
        if not self.reasons.has_reason(life, event, event.cause):
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
        """A failure counts at once, while the rest of the process tree is still being stopped. A loss during draining
        is only told when the incarnation has closed."""
        since = life.leaves[-2].at if event.before is State.DRAINING else event.at
        if event.cause is Cause.CONNECT_FAILED:
            self.lives.gate(life.address).connect_failed(event.at)
            if life.address.is_session:
                self.lives.gate(Address(life.address.server)).connect_failed(event.at)
        elif event.cause is Cause.LOST and event.reason not in (Reason.UNRESPONSIVE, Reason.EXPIRED):
            # The one was counted before; the other is no death.
            self.lives.gate(life.address).died(event.at, since)

    def _check_seats(self, life: Life, event: Transition) -> None:
        """An idle or evicted connection may only end if the minimum is still held, and an eviction must serve a
        waiter."""
        seats = self.truth.seats()
        if seats.staying < seats.minimum:
            self.report(event, f"{seats.staying} are left, and the minimum is {seats.minimum}")
        has_another_reason = seats.shared > seats.capacity or self.reasons.was_idle(life, event)
        is_for_nobody = event.cause is Cause.EVICTED and seats.leaving > seats.waiting
        if is_for_nobody and not has_another_reason:
            self.report(event, f"{seats.leaving} leave, and {seats.waiting} wait for a slot")

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def _on_note(self, event: Note) -> None:
        if event.code in (NoteCode.BUG, NoteCode.CALLBACK, NoteCode.READER):
            self.report(event, "an error of our own")

    def _on_gate(self, event: GateDecision) -> None:
        assert event.address is not None
        gate = self.lives.gate(event.address)
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
