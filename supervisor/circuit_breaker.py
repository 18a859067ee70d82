"""The gatekeeper of one server: its gate, its restarts, its probe, and the time of the next look.

The policies are pure (`Gate`, `Intensity`); their state is kept here. When it changes, calls that were held
back for the probe are sent, and the starts that wait at the gate apply again. Which starts wait there is read
off the starts.

The probe of a half-open gate is one call, or one attempt to connect that no call asked for; the gatekeeper
knows which. Only the end of that call or attempt ends the probe. A probe that ends without an answer passes
its turn to the next waiting call.

A session's child has a gatekeeper of its own, behind its server's. What the child does after connecting
counts in its own gate. What keeps any child from starting counts in the server's gate, and the server's bound
limits the starts around a shut gate.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Collection, Iterable

import attrs

from ..actors.call import Call
from ..actors.room_context import RoomContext
from ..actors.server import Record, ServerActor
from ..actors.timers import Timer
from ..config.model import Settings
from ..protocol.address import Address
from ..protocol.errors import Unavailable
from ..protocol.events import GateDecision, GateMove, Place
from ..protocol.lifecycle import Cause, Ending, Reason, State
from ..protocol.safe_text import counted
from .pool import Starts

# ---- The gate: backoff and circuit breaker of one server, in one pure object ----------------------------------------
#
# Rules (why: `docs/decisions/circuit-breaker.md`):
#
# * It counts connect failures, deaths, and timeouts of calls if nothing at all was heard meanwhile. It does not
#   count error answers, a 401, Busy, Drained or a wait for a slot.
# * A connect failure shuts it for `min · 2ⁿ⁻¹`, at most `max`, with jitter. So does a death, except the first
#   of a streak.
# * Timeouts alone do not shut it: below the threshold, calls to a connected server are never refused.
# * At the threshold it *trips*: it is shut for at least the cooldown, and then half-open, when exactly one
#   probe may pass. The probe's answer opens it, and its failure shuts it again. If the caller of the probe
#   cancels it, the next call is the probe.
# * An answer from a server that has been connected for `stable_after` clears the count. A handshake does not: a
#   server that greets and dies must not reset its own backoff.
#
# `Gate` is immutable and knows no clock; `now` and the random draw are arguments. Rejected: two mechanisms (a
# backoff per connection and a breaker per call), which fight each other in practice and disagree about what a
# failure is.


class Pass(enum.Enum):
    OPEN = "open"
    PROBE = "probe"  # half-open: only this one passes
    SHUT = "shut"


@attrs.frozen
class GatePolicy:
    """The numbers of the gate. Times are in seconds."""

    backoff_min: float = 1.0
    backoff_max: float = 60.0
    jitter: float = 0.2
    flat: float | None = None
    threshold: int = 5
    cooldown: float = 30.0
    stable_after: float = 30.0

    @classmethod
    def of(cls, settings: Settings) -> GatePolicy:
        return cls(
            settings.backoff_min,
            settings.backoff_max,
            settings.backoff_jitter,
            settings.failure_backoff,
            settings.failure_threshold,
            settings.cooldown,
            settings.stable_after,
        )

    def delay(self, failures: int, draw: float) -> float:
        """Seconds after the n-th failure in a row; `draw` in [0, 1)."""
        if self.flat is not None:
            return self.flat
        # The exponent is capped, for a large one would overflow a float.
        delay = min(self.backoff_max, self.backoff_min * 2.0 ** min(failures - 1, 1023))
        return delay * (1.0 + self.jitter * (2.0 * draw - 1.0))


@attrs.frozen
class Gate:
    failures: int = 0  # in a row
    failed_at: float = -math.inf
    reason: str = ""
    shut_until: float = -math.inf
    tripped: bool = False  # the threshold was reached; only an answer opens it
    probing: bool = False  # half-open, and the only probe is under way
    too_often: str = ""  # quarantined: it was restarted so often; until an answer opens it

    @property
    def is_troubled(self) -> bool:
        """Whether the gate has to look at calls and answers at all."""
        return self.failures > 0 or self.tripped

    def admit(self, now: float) -> tuple[Gate, Pass]:
        """Whether one call (or one attempt to connect) may pass."""
        if now < self.shut_until or self.probing:
            return self, Pass.SHUT
        if self.tripped:
            return attrs.evolve(self, probing=True), Pass.PROBE
        return self, Pass.OPEN

    def retry_in(self, now: float) -> float:
        """Seconds until a retry can help. A guess while a probe is under way."""
        return max(self.shut_until - now, 1.0 if self.probing else 0.0)

    def connect_failed(self, policy: GatePolicy, now: float, reason: str, draw: float) -> Gate:
        return self._failed(policy, now, reason, policy.delay(self.failures + 1, draw))

    def died(self, policy: GatePolicy, now: float, reason: str, draw: float) -> Gate:
        delay = policy.delay(self.failures, draw) if self.failures else 0.0
        return self._failed(policy, now, reason, delay)

    def timed_out(self, policy: GatePolicy, now: float, reason: str) -> Gate:
        """A call was not answered, and nothing else was heard either."""
        return self._failed(policy, now, reason, 0.0)

    def answered(self, policy: GatePolicy, connected_for: float) -> Gate:
        """An answer came over a connection that is `connected_for` seconds old."""
        if self.tripped or connected_for >= policy.stable_after:
            return Gate()
        return self

    def probe_left(self) -> Gate:
        """The probe has ended without an answer: the next call is the probe."""
        return attrs.evolve(self, probing=False)

    def half_open(self) -> Gate:
        """A connect by name succeeded: the next call is the probe, without waiting."""
        return attrs.evolve(self, shut_until=-math.inf, probing=False)

    def quarantined(self, policy: GatePolicy, now: float, reason: str) -> Gate:
        """Restart intensity was exceeded. This is treated like reaching the threshold, so it is not for ever."""
        until = max(self.shut_until, now + policy.cooldown)
        return attrs.evolve(
            self,
            failed_at=now,
            reason=f"quarantined: {reason}",
            shut_until=until,
            tripped=True,
            probing=False,
            too_often=reason,
        )

    def _failed(self, policy: GatePolicy, now: float, reason: str, delay: float) -> Gate:
        failures = self.failures + 1
        tripped = self.tripped or failures >= policy.threshold
        if tripped:
            delay = max(delay, policy.cooldown)
        until = max(self.shut_until, now + delay)
        return Gate(failures, now, reason, until, tripped, too_often=self.too_often)  # no probe is out


BYPASS_EVERY = 1.0  # seconds between two starts that bypass a shut gate
# From these states a call leads to an attempt to connect, about which the server's own gate decides too.
_BETWEEN = (State.IDLE, State.DRAINING)


@attrs.define(eq=False)
class Gates:
    """What the gatekeepers of one room share."""

    context: RoomContext
    starts: Starts
    actors: Callable[[], Iterable[ServerActor]]
    apply: Callable[[ServerActor], None]  # called for a start at its gate: pass, or go on waiting
    # For jitter, not for secrets. It is seeded from `random` itself, so seeding that repeats a run.
    chance: random.Random = attrs.field(factory=lambda: random.Random(random.getrandbits(64)))  # noqa: S311

    @property
    def policy(self) -> GatePolicy:
        return GatePolicy.of(self.context.settings)

    def waiting_at(self, keeper: Gatekeeper) -> list[ServerActor]:
        return [actor for actor in self.starts.at(Place.GATE) if keeper_of(actor) is keeper]

    def sessions_behind(self, keeper: Gatekeeper) -> Collection[Gatekeeper]:
        """The gatekeepers of sessions behind this one in which a start waits now."""
        found = dict.fromkeys(map(keeper_of, self.starts.at(Place.GATE)))
        return [each for each in found if each.parent is keeper]

    def serve_held(self, keeper: Gatekeeper) -> None:
        """The gate has opened: other scopes may have calls that were held back for the probe."""
        for actor in self.actors():
            if keeper_of(actor) is keeper and actor.is_connected and actor.queued:
                actor.calls.call_over()


class Gatekeeper:
    def __init__(
        self, record: Record, address: Address, gates: Gates, parent: Gatekeeper | None = None
    ) -> None:
        self.gate: Gate = Gate()
        self.intensity: Intensity = Intensity()
        self.parent = parent  # for a session's gatekeeper: its server's
        self.probe: Call | ServerActor | None = None  # the probe, while the gate is half-open
        self.timer: Timer | None = None  # set to when the waiting starts apply again
        self.last_start: float = -math.inf  # the last start of any child of the server
        self._record = record
        self._address = address
        self._gates = gates

    # ---- calls ------------------------------------------------------------------------------------------------------

    def refuses_start(self) -> Unavailable | None:
        """Why no call may cause a start now: its own gate, or its server's, is shut."""
        for each in (self.parent, self):
            if each is not None and each._is_shut():
                return each._unavailable()
        return None

    def refuses(self, actor: ServerActor, call: Call) -> Unavailable | None:
        """Why this call may not be accepted now; None when it may. May make it the probe."""
        state = actor.life.state
        if state in _BETWEEN and self.parent is not None and self.parent._is_shut():
            return self.parent._unavailable()
        if not self.gate.tripped and state in (State.CONNECTED, State.CONNECTING):
            return None
        return None if self._admits(call) else self._unavailable()

    def may_send(self, call: Call) -> bool:
        """Whether a call that was queued may be sent now. May make it the probe."""
        return not self.gate.tripped or self.probe is call or self._admits(call)

    def call_unanswered(self, actor: ServerActor, call: Call) -> None:
        """The call ends without an answer. If it was the probe, the next waiting call becomes the probe."""
        if self.probe is not call:
            return
        successor = next((waiting for waiting in actor.mailbox.user if waiting is not call), None)
        if successor is not None:
            self._let_probe(self.gate, successor)
        else:
            self.probe_left(call)

    def answered(self, connected_for: float) -> None:
        gate = self.gate.answered(self._gates.policy, connected_for)
        if gate != self.gate:
            self._set(gate, GateMove.ANSWERED)

    def timed_out(self) -> bool:
        """Nothing at all was heard. Returns whether the gate is tripped now: the server hangs."""
        self._set(self.gate.timed_out(self._gates.policy, self._now(), "did not answer"), GateMove.SILENT)
        return self.gate.tripped

    # ---- starts -----------------------------------------------------------------------------------------------------

    def lets_start(self, actor: ServerActor) -> bool:
        """Whether this actor may start now. Its start may become the probe, or bring it."""
        if self.parent is not None and self.parent._is_shut():
            return False  # even for a session's probe: the server's gate may have shut meanwhile
        if self.probe is actor or any(call is self.probe for call in actor.mailbox.user):
            return True  # let through before
        if actor.is_asked_for_by_name:
            return not self._is_shut() or self._now() >= self._around_at()
        return self._admits(actor.mailbox.user[0] if actor.mailbox.user else actor)

    def may_restart(self, *, by_name: bool) -> bool:
        """Count one start after a loss or a failure. False: that was one too many, and the gate is shut now."""
        settings, now = self._gates.context.settings, self._now()
        self.intensity, is_too_intense = self.intensity.restarted(
            now, settings.restart_intensity, settings.restart_period
        )
        if is_too_intense and not by_name:
            self.quarantine()
            return False
        return True

    def quarantine(self) -> None:
        """The server was restarted too often: the gate shuts for its cooldown, then passes a probe."""
        period = self._gates.context.settings.restart_period
        reason = f"{counted(len(self.intensity.times), 'restart')} in {period:g}s"
        gate = self.gate.quarantined(self._gates.policy, self._now(), reason)
        self._set(gate, GateMove.QUARANTINED, words=reason)

    def note_start(self) -> None:
        """A child of the server starts now."""
        (self.parent or self).last_start = self._now()

    def connected(self, actor: ServerActor) -> None:
        if self.parent is not None and self.parent.gate.is_troubled:
            # The server's children connect again; what a session's own child does next counts in its own gate.
            self.parent._set(Gate(), GateMove.SESSION_CONNECTED)
        # A handshake is no proof: if the attempt was the probe, the next call becomes the probe.
        self.probe_left(actor)
        if actor.is_asked_for_by_name and self.gate.tripped and self.probe is None:
            self._set(self.gate.half_open(), GateMove.BY_NAME)

    def failed(self, ending: Ending) -> None:
        """A connect failed, or a connection was lost; both count at once. A hang was counted when its calls
        timed out, and a server that forgot our session has not died."""
        policy, now, draw = self._gates.policy, self._now(), self._gates.chance.random()
        if ending.cause is Cause.CONNECT_FAILED:
            gate = self.gate.connect_failed(policy, now, ending.detail, draw)
        elif ending.reason in (Reason.UNRESPONSIVE, Reason.EXPIRED):
            gate = self.gate.probe_left()
        else:
            gate = self.gate.died(policy, now, ending.detail, draw)
        if self.parent is not None and ending.cause is Cause.CONNECT_FAILED:
            shared = self.parent.gate.connect_failed(policy, now, ending.detail, draw)
            self.parent._set(shared, GateMove.FAILED, ending.cause, ending.detail)
        self._set(gate, GateMove.FAILED, ending.cause, ending.detail)

    def probe_left(self, who: Call | ServerActor) -> None:
        """The probe is over without an answer. Harmless for a call or actor that was not the probe."""
        if self.probe is who:
            self._set(self.gate.probe_left(), GateMove.PROBE_LEFT)

    def set_timer(self, now: float) -> None:
        """Set the timer at which the waiting starts apply again: when the gate opens, or may be bypassed
        again.

        `now` was read before the gate was found shut. So an opening between two looks at the clock is still
        to come.
        """
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        when = self.shut_until
        waiting = self._gates.waiting_at(self)
        if any(actor.is_asked_for_by_name for actor in waiting):
            around = self._around_at()
            when = min(when, around) if when > now else around
        if waiting and when > now:
            self.timer = self._gates.context.timers.at(when, self._reopen)

    @property
    def shut_until(self) -> float:
        """When a start may pass: its own gate, and its server's."""
        return max(
            self.gate.shut_until, self.parent.gate.shut_until if self.parent is not None else -math.inf
        )

    # ---- how --------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._gates.context.backend.now()

    def _is_shut(self) -> bool:
        return self.gate.admit(self._now())[1] is Pass.SHUT

    def _around_at(self) -> float:
        """When a start by name may bypass a shut gate."""
        return (self.parent or self).last_start + BYPASS_EVERY

    def _admits(self, who: Call | ServerActor) -> bool:
        gate, passed = self.gate.admit(self._now())
        if passed is Pass.PROBE:
            self._let_probe(gate, who)
        return passed is not Pass.SHUT

    def _let_probe(self, gate: Gate, who: Call | ServerActor) -> None:
        self.probe = who
        if isinstance(who, Call):
            who.is_probe = True
        self._set(gate, GateMove.HALF_OPEN)

    def _unavailable(self) -> Unavailable:
        gate, now = self.gate, self._now()
        return Unavailable(
            self._address.server,
            failed_ago=now - gate.failed_at,
            retry_in=gate.retry_in(now),
            reason=gate.reason,
        )

    def _set(self, gate: Gate, move: GateMove, cause: Cause | None = None, words: str = "") -> None:
        """Set the gate, report it, and let starts and held calls apply again. `cause`: the cause of the
        ending that led to this."""
        was_tripped, self.gate = self.gate.tripped, gate
        self._record.guarded = gate.is_troubled or bool(self._record.quarantined)
        if not gate.probing:
            self.probe = None
        self._gates.context.events.emit(
            GateDecision,
            self._address,
            move=move,
            failures=gate.failures,
            shut_for=max(gate.shut_until - self._now(), 0.0),
            tripped=gate.tripped,
            cause=cause,
            words=words,
        )
        self._ring()
        for session in self._gates.sessions_behind(self):
            session._ring()
        if was_tripped and not gate.tripped:
            self._gates.serve_held(self)

    def _ring(self) -> None:
        now = self._now()
        is_open = not self.gate.probing and self.gate.shut_until <= now
        if is_open and self._gates.waiting_at(self):
            self._reopen()
        else:
            self.set_timer(now)

    def _reopen(self) -> None:
        """The gate may have opened: the starts that wait at it apply again."""
        for actor in self._gates.waiting_at(self):
            if actor.start.place is Place.GATE:  # an earlier one may have ended its wait
                self._gates.apply(actor)


@attrs.define(eq=False)
class GuardedRecord(Record):
    """The record of the actors of one server, or of one session of it, with their gatekeeper."""

    gatekeeper: Gatekeeper = attrs.field(init=False)


def keeper_of(actor: ServerActor) -> Gatekeeper:
    assert isinstance(actor.record, GuardedRecord)
    return actor.record.gatekeeper


@attrs.frozen
class Intensity:
    """Times of restarts within the period, oldest first."""

    times: tuple[float, ...] = ()

    def restarted(self, now: float, limit: int, period: float) -> tuple[Intensity, bool]:
        """Count one restart. True when that was one too many."""
        times = (*(t for t in self.times if t > now - period), now)
        return Intensity(times), len(times) > limit
