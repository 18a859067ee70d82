"""The circuit breaker of each server: when it refuses calls and starts, its probe, and the restarts it counts.

The policies are pure (`CircuitBreaker`, `Intensity`). A `ServerBreaker` keeps their state. When the state changes,
calls that were held back for the probe are sent, and the starts that wait for the breaker apply again. Which starts
wait is not stored here: the starts themselves know it (`Starts.at`).

The probe of a half-open breaker is one call, or one attempt to connect that no call asked for; the `ServerBreaker`
knows which. Only the end of that call or attempt ends the probe. A probe that ends without an answer passes its turn
to the next waiting call.

A session's child has a `ServerBreaker` of its own, behind its server's. What the child does after connecting counts in
its own breaker. What keeps any child from starting counts in the server's breaker, and the server's bound limits the
starts that bypass it.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Collection, Iterable
from typing import Final

import attrs
import msgspec
from msgspec.structs import replace

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
from ..protocol.status import Shut
from .pool import Starts

# ---- Backoff and circuit breaker of one server, in one pure object --------------------------------------------------
#
# Rules (why: `docs/decisions/circuit-breaker.md`):
#
# * It counts failures to connect, deaths, and timeouts of calls if nothing at all was heard meanwhile. It does not
#   count error answers, a 401, Busy, Drained or a wait for a slot.
# * After a failure to connect it refuses for `min · 2ⁿ⁻¹`, at most `max`, with jitter. The same after a death, except
#   the first of a streak.
# * Timeouts alone refuse nothing: below the threshold, calls to a connected server are never refused.
# * At the threshold it *trips*: it refuses for at least the cooldown, and is then half-open: it admits exactly one
#   probe. The probe's answer resets it, and the probe's failure makes it refuse again. If the caller of the probe
#   cancels it, the next call is the probe.
# * An answer from a server that has been connected for `stable_after` clears the count. A handshake does not: a
#   server that initializes and dies must not reset its own backoff.
#
# * Hosts of a cluster tell each other which of their breakers refuse. What a breaker is told makes starts wait, and
#   counts for the next backoff. It never ends an earlier refusal, never trips, and is never told on: otherwise each
#   would keep the others shut.
#
# `CircuitBreaker` is immutable and knows no clock; `now` and the random draw are arguments. Rejected: two mechanisms (a
# backoff per connection and a breaker per call), which fight each other in practice and disagree about what a
# failure is.


class Admits(enum.Enum):
    """Which calls and starts the breaker admits now."""

    ALL = "all"
    PROBE = "probe"  # half-open: only the one that asks now
    NONE = "none"


class BreakerPolicy(msgspec.Struct, frozen=True):
    """The numbers of a circuit breaker. Times are in seconds."""

    backoff_min: float = 1.0
    backoff_max: float = 60.0
    jitter: float = 0.2
    flat: float | None = None
    threshold: int = 5
    cooldown: float = 30.0
    stable_after: float = 30.0

    @classmethod
    def of(cls, settings: Settings) -> BreakerPolicy:
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


class CircuitBreaker(msgspec.Struct, frozen=True):
    failures: int = 0  # in a row
    failed_at: float = -math.inf
    reason: str = ""
    refuses_until: float = -math.inf
    tripped: bool = False  # the threshold was reached; only an answer resets it
    probing: bool = False  # half-open, and the only probe is under way
    too_often: str = ""  # quarantined: it was restarted so often; until an answer resets it
    is_told: bool = False  # it refuses as long as it does because another host said so

    @property
    def is_troubled(self) -> bool:
        """Whether the breaker has to look at calls and answers at all."""
        return self.failures > 0 or self.tripped

    def admit(self, now: float) -> tuple[CircuitBreaker, Admits]:
        """Which calls it admits now, and its state after one call (or one attempt to connect) has asked."""
        if now < self.refuses_until or self.probing:
            return self, Admits.NONE
        if self.tripped:
            return replace(self, probing=True), Admits.PROBE
        return self, Admits.ALL

    def retry_in(self, now: float) -> float:
        """Seconds until a retry can help. A guess while a probe is under way."""
        return max(self.refuses_until - now, 1.0 if self.probing else 0.0)

    def connect_failed(self, policy: BreakerPolicy, now: float, reason: str, draw: float) -> CircuitBreaker:
        return self._failed(policy, now, reason, policy.delay(self.failures + 1, draw))

    def died(self, policy: BreakerPolicy, now: float, reason: str, draw: float) -> CircuitBreaker:
        delay = policy.delay(self.failures, draw) if self.failures else 0.0
        return self._failed(policy, now, reason, delay)

    def timed_out(self, policy: BreakerPolicy, now: float, reason: str) -> CircuitBreaker:
        """A call was not answered, and nothing else was heard either."""
        return self._failed(policy, now, reason, 0.0)

    def answered(self, policy: BreakerPolicy, connected_for: float) -> CircuitBreaker:
        """An answer came over a connection that is `connected_for` seconds old."""
        if self.tripped or connected_for >= policy.stable_after:
            return CircuitBreaker()
        return self

    def probe_left(self) -> CircuitBreaker:
        """The probe has ended without an answer: the next call is the probe."""
        return replace(self, probing=False)

    def half_open(self) -> CircuitBreaker:
        """A connect by name succeeded: the next call is the probe, without waiting."""
        return replace(self, refuses_until=-math.inf, probing=False, is_told=False)

    def shut(self, now: float) -> Shut | None:
        """What to tell other hosts: that it refuses, if it has found so itself."""
        seconds = self.refuses_until - now
        return Shut(self.failures, seconds, self.reason) if seconds > 0 and not self.is_told else None

    def told(self, policy: BreakerPolicy, now: float, shut: Shut) -> CircuitBreaker:
        """Another host refuses for so long."""
        until = now + shut.seconds
        if until < max(self.refuses_until, now) + _STALE:
            return self
        failures = max(self.failures, min(shut.failures, policy.threshold - 1), 1)
        return replace(
            self,
            failures=failures,
            failed_at=now,
            reason=f"{shut.words} (on another host)",
            refuses_until=until,
            is_told=True,
        )

    def quarantined(self, policy: BreakerPolicy, now: float, reason: str) -> CircuitBreaker:
        """Restart intensity was exceeded. This is treated like reaching the threshold, so it is not for ever."""
        until = max(self.refuses_until, now + policy.cooldown)
        return replace(
            self,
            failed_at=now,
            reason=f"quarantined: {reason}",
            refuses_until=until,
            tripped=True,
            probing=False,
            too_often=reason,
            is_told=False,
        )

    def _failed(self, policy: BreakerPolicy, now: float, reason: str, delay: float) -> CircuitBreaker:
        failures = self.failures + 1
        tripped = self.tripped or failures >= policy.threshold
        if tripped:
            delay = max(delay, policy.cooldown)
        until = max(self.refuses_until, now + delay)
        return CircuitBreaker(
            failures, now, reason, until, tripped, too_often=self.too_often
        )  # no probe is out


_STALE: Final = 1.0  # seconds by which what another host says may be too late
_UNTROUBLED: Final = CircuitBreaker()  # of every server that has not failed
BYPASS_EVERY = 1.0  # seconds between two starts that bypass a breaker
# From these states a call leads to an attempt to connect, about which the server's own breaker decides too.
_BETWEEN = (State.IDLE, State.DRAINING)


class Breakers(msgspec.Struct, eq=False):
    """What the circuit breakers of one room share."""

    context: RoomContext
    starts: Starts
    actors: Callable[[], Iterable[ServerActor]]
    apply: Callable[[ServerActor], None]  # called for a waiting start: pass, or go on waiting
    # For jitter, not for secrets. It is seeded from `random` itself, so seeding that repeats a run.
    chance: random.Random = msgspec.field(default_factory=lambda: random.Random(random.getrandbits(64)))  # noqa: S311

    @property
    def policy(self) -> BreakerPolicy:
        return BreakerPolicy.of(self.context.settings)

    def waiting_for(self, breaker: ServerBreaker) -> list[ServerActor]:
        return [actor for actor in self.starts.at(Place.GATE) if breaker_of(actor) is breaker]

    def sessions_behind(self, breaker: ServerBreaker) -> Collection[ServerBreaker]:
        """The breakers of sessions behind this one for which a start waits now."""
        found = dict.fromkeys(map(breaker_of, self.starts.at(Place.GATE)))
        return [each for each in found if each.parent is breaker]

    def serve_held(self, breaker: ServerBreaker) -> None:
        """The breaker admits all again: other scopes may have calls that were held back for the probe."""
        for actor in self.actors():
            if breaker_of(actor) is breaker and actor.is_connected and actor.queued:
                actor.calls.call_over()


class ServerBreaker:
    def __init__(
        self, record: Record, address: Address, breakers: Breakers, parent: ServerBreaker | None = None
    ) -> None:
        self.state: CircuitBreaker = _UNTROUBLED
        self.intensity: Intensity = _NO_RESTARTS
        self.parent = parent  # for a session's breaker: its server's
        self.probe: Call | ServerActor | None = None  # the probe, while the breaker is half-open
        self.timer: Timer | None = None  # set to when the waiting starts apply again
        self.last_start: float = -math.inf  # the last start of any child of the server
        self._record = record
        self._address = address
        self._breakers = breakers

    # ---- calls ------------------------------------------------------------------------------------------------------

    def refuses_start(self) -> Unavailable | None:
        """The error with which no call may cause a start now; None: this breaker and its server's allow it."""
        for each in (self.parent, self):
            if each is not None and each._refuses_all():
                return each._unavailable()
        return None

    def refuses(self, actor: ServerActor, call: Call) -> Unavailable | None:
        """The error with which this call must be refused now; None: it may be accepted. May make it the probe."""
        state = actor.life.state
        if state in _BETWEEN and self.parent is not None and self.parent._refuses_all():
            return self.parent._unavailable()
        if not self.state.tripped and state in (State.CONNECTED, State.CONNECTING):
            return None
        return None if self._admits(call) else self._unavailable()

    def may_send(self, call: Call) -> bool:
        """Whether a call that was queued may be sent now. May make it the probe."""
        return not self.state.tripped or self.probe is call or self._admits(call)

    def call_unanswered(self, actor: ServerActor, call: Call) -> None:
        """The call ends without an answer. If it was the probe, the next waiting call becomes the probe."""
        if self.probe is not call:
            return
        successor = next((waiting for waiting in actor.mailbox.user if waiting is not call), None)
        if successor is not None:
            self._let_probe(self.state, successor)
        else:
            self.probe_left(call)

    def answered(self, connected_for: float) -> None:
        state = self.state.answered(self._breakers.policy, connected_for)
        if state != self.state:
            self._set(state, GateMove.ANSWERED)

    def timed_out(self) -> bool:
        """A call timed out and nothing at all was heard meanwhile. Returns whether the breaker is tripped now, so that
        the server counts as hung."""
        self._set(self.state.timed_out(self._breakers.policy, self._now(), "did not answer"), GateMove.SILENT)
        return self.state.tripped

    # ---- other hosts ------------------------------------------------------------------------------------------------

    def shut(self) -> Shut | None:
        """What to tell other hosts."""
        return self.state.shut(self._now())

    def told(self, shut: Shut) -> None:
        """Another host refuses the server."""
        state = self.state.told(self._breakers.policy, self._now(), shut)
        if state != self.state:
            self._set(state, GateMove.TOLD, words=shut.words)

    # ---- starts -----------------------------------------------------------------------------------------------------

    def lets_start(self, actor: ServerActor) -> bool:
        """Whether this actor may start now. Its start may become the probe, or bring it."""
        if self.parent is not None and self.parent._refuses_all():
            return False  # even for a session's probe: the server's breaker may have tripped meanwhile
        if self.probe is actor or any(call is self.probe for call in actor.mailbox.user):
            return True  # let through before
        if actor.is_asked_for_by_name:
            return not self._refuses_all() or self._now() >= self._bypass_at()
        return self._admits(actor.mailbox.user[0] if actor.mailbox.user else actor)

    def may_restart(self, *, by_name: bool) -> bool:
        """Count one start after a loss or a failure. False: that was one too many, and the breaker is
        tripped now."""
        settings, now = self._breakers.context.settings, self._now()
        self.intensity, is_too_intense = self.intensity.restarted(
            now, settings.restart_intensity, settings.restart_period
        )
        if is_too_intense and not by_name:
            self.quarantine()
            return False
        return True

    def quarantine(self) -> None:
        """The server was restarted too often: the breaker refuses for its cooldown, then admits a probe."""
        period = self._breakers.context.settings.restart_period
        reason = f"{counted(len(self.intensity.times), 'restart')} in {period:g}s"
        state = self.state.quarantined(self._breakers.policy, self._now(), reason)
        self._set(state, GateMove.QUARANTINED, words=reason)

    def note_start(self) -> None:
        """A child of the server starts now."""
        (self.parent or self).last_start = self._now()

    def connected(self, actor: ServerActor) -> None:
        if self.parent is not None and self.parent.state.is_troubled:
            # The server's children connect again; what a session's own child does next counts in its own breaker.
            self.parent._set(CircuitBreaker(), GateMove.SESSION_CONNECTED)
        # A handshake is no proof: if the attempt was the probe, the next call becomes the probe.
        self.probe_left(actor)
        if actor.is_asked_for_by_name and self.state.tripped and self.probe is None:
            self._set(self.state.half_open(), GateMove.BY_NAME)

    def failed(self, ending: Ending) -> None:
        """A connect failed, or a connection was lost; both count at once. A hang was counted when its calls
        timed out, and a server that forgot our session has not died."""
        policy, now, draw = self._breakers.policy, self._now(), self._breakers.chance.random()
        if ending.cause is Cause.CONNECT_FAILED:
            state = self.state.connect_failed(policy, now, ending.detail, draw)
        elif ending.reason in (Reason.UNRESPONSIVE, Reason.EXPIRED):
            state = self.state.probe_left()
        else:
            state = self.state.died(policy, now, ending.detail, draw)
        if self.parent is not None and ending.cause is Cause.CONNECT_FAILED:
            shared = self.parent.state.connect_failed(policy, now, ending.detail, draw)
            self.parent._set(shared, GateMove.FAILED, ending.cause, ending.detail)
        self._set(state, GateMove.FAILED, ending.cause, ending.detail)

    def probe_left(self, who: Call | ServerActor) -> None:
        """The probe is over without an answer. Harmless for a call or actor that was not the probe."""
        if self.probe is who:
            self._set(self.state.probe_left(), GateMove.PROBE_LEFT)

    def set_timer(self, now: float) -> None:
        """Set the timer at which waiting starts apply again: when the breaker stops refusing, or may be bypassed again.

        `now` was read before the breaker refused, so the end of the refusal is always later than `now`.
        """
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        when = self.refuses_until
        waiting = self._breakers.waiting_for(self)
        if any(actor.is_asked_for_by_name for actor in waiting):
            around = self._bypass_at()
            when = min(when, around) if when > now else around
        if waiting and when > now:
            self.timer = self._breakers.context.timers.at(when, self._apply_again)

    @property
    def refuses_until(self) -> float:
        """Until when starts are refused: by its own breaker, or by its server's."""
        return max(
            self.state.refuses_until,
            self.parent.state.refuses_until if self.parent is not None else -math.inf,
        )

    # ---- how --------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._breakers.context.backend.now()

    def _refuses_all(self) -> bool:
        return self.state.admit(self._now())[1] is Admits.NONE

    def _bypass_at(self) -> float:
        """When a start by name may bypass the breaker."""
        return (self.parent or self).last_start + BYPASS_EVERY

    def _admits(self, who: Call | ServerActor) -> bool:
        state, admitted = self.state.admit(self._now())
        if admitted is Admits.PROBE:
            self._let_probe(state, who)
        return admitted is not Admits.NONE

    def _let_probe(self, state: CircuitBreaker, who: Call | ServerActor) -> None:
        self.probe = who
        if isinstance(who, Call):
            who.is_probe = True
        self._set(state, GateMove.HALF_OPEN)

    def _unavailable(self) -> Unavailable:
        state, now = self.state, self._now()
        return Unavailable(
            self._address.server,
            failed_ago=now - state.failed_at,
            retry_in=state.retry_in(now),
            reason=state.reason,
        )

    def _set(
        self, state: CircuitBreaker, move: GateMove, cause: Cause | None = None, words: str = ""
    ) -> None:
        """Set the state, report it, and let waiting starts and held calls apply again. `cause`: the cause of the ending
        behind it."""
        was_tripped, self.state = self.state.tripped, state
        self._record.guarded = state.is_troubled or bool(self._record.quarantined)
        if not state.probing:
            self.probe = None
        self._breakers.context.events.emit(
            GateDecision,
            self._address,
            move=move,
            failures=state.failures,
            shut_for=max(state.refuses_until - self._now(), 0.0),
            tripped=state.tripped,
            cause=cause,
            words=words,
        )
        self._wake()
        for session in self._breakers.sessions_behind(self):
            session._wake()
        if was_tripped and not state.tripped:
            self._breakers.serve_held(self)

    def _wake(self) -> None:
        now = self._now()
        admits = not self.state.probing and self.state.refuses_until <= now
        if admits and self._breakers.waiting_for(self):
            self._apply_again()
        else:
            self.set_timer(now)

    def _apply_again(self) -> None:
        """The breaker may admit starts again, so the waiting starts apply again."""
        for actor in self._breakers.waiting_for(self):
            if actor.start.place is Place.GATE:  # an earlier one may have ended its wait
                self._breakers.apply(actor)


@attrs.define(eq=False)
class GuardedRecord(Record):
    """The record of the actors of one server, or of one session of it, with their circuit breaker."""

    breaker: ServerBreaker = attrs.field(init=False)


def breaker_of(actor: ServerActor) -> ServerBreaker:
    assert isinstance(actor.record, GuardedRecord)
    return actor.record.breaker


class Intensity(msgspec.Struct, frozen=True):
    """Times of restarts within the period, oldest first."""

    times: tuple[float, ...] = ()

    def restarted(self, now: float, limit: int, period: float) -> tuple[Intensity, bool]:
        """Count one restart. True when that was one too many."""
        times = (*(t for t in self.times if t > now - period), now)
        return Intensity(times), len(times) > limit


_NO_RESTARTS: Final = Intensity()
