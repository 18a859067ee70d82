"""The circuit breaker of each server at work: when it refuses calls and starts, and its probe.

The policy is pure (`policy.breaker`), and a `ServerBreaker` keeps its state. When the state changes, calls that were
held back for the probe are sent, and the starts that wait for the breaker apply again. Which starts wait is not stored
here: their places say it (`Places.behind`).

The probe of a half-open breaker is one call, or one attempt to connect that no call asked for; the `ServerBreaker`
knows which. Only the end of that call or attempt ends the probe. A probe that ends without an answer passes its turn
to the next waiting call.

A session's child has a `ServerBreaker` of its own, behind its server's. What the child does after connecting counts in
its own breaker. What keeps any child from starting counts in the server's breaker, and the server's bound limits the
starts that bypass it. That no token can be had for a session's caller keeps nobody else's child from starting.

A server with another definition begins with a closed breaker: only what it does itself counts. Its policy alone
changes nothing here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ..actors.call import Call
from ..protocol.errors import Unavailable
from ..protocol.events import BreakerDecision, BreakerMove, Place
from ..protocol.lifecycle import Cause, Ending, Reason, State
from ..protocol.safe_text import counted
from .policy.breaker import NO_RESTARTS, UNTROUBLED, Admission, CircuitBreaker, Intensity

if TYPE_CHECKING:
    from ..actors.server import ServerActor
    from ..actors.timers import Timer
    from ..protocol.status import OpenBreaker
    from .servers import ServerRecord
    from .starts import Starts

_SILENT: Final = "did not answer"  # the reason of a failure
BYPASS_EVERY = 1.0  # seconds between two starts that bypass a breaker
# From these states a call leads to an attempt to connect, about which the server's own breaker decides too.
LEADS_TO_A_START: Final = (State.IDLE, State.DRAINING)


class ServerBreaker:
    def __init__(self, record: ServerRecord, starts: Starts) -> None:
        self.state: CircuitBreaker = UNTROUBLED
        self.intensity: Intensity = NO_RESTARTS
        # For a session's breaker: its server's.
        self.parent: ServerBreaker | None = record.parent.breaker if record.parent is not None else None
        self.probe: Call | ServerActor | None = None  # the probe, while the breaker is half-open
        self.timer: Timer | None = None  # set to when the waiting starts apply again
        self.last_start: float = -math.inf  # the last start of any child of the server
        self._record = record
        self._starts = starts

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
        if state in LEADS_TO_A_START and self.parent is not None and self.parent._refuses_all():
            return self.parent._unavailable()
        if not self.state.tripped and state in (State.CONNECTED, State.CONNECTING):
            return None
        # The oldest that waits is sent first, so it is the probe: it would wait for one behind it.
        oldest = actor.calls.waiting[0] if actor.calls.waiting else call
        return None if self._admits(oldest) else self._unavailable()

    def may_send(self, call: Call) -> bool:
        """Whether a call that was queued may be sent now. May make it the probe. One that may not is held until the
        breaker admits calls again."""
        now = self._starts.now()
        if not self.state.tripped or self.probe is call or self._admits(call):
            return True
        self.set_timer(now)
        return False

    def call_unanswered(self, actor: ServerActor, call: Call) -> None:
        """The call ends without an answer. If it was the probe, the next waiting call becomes the probe."""
        if self.probe is not call:
            return
        successor = next((waiting for waiting in actor.calls.waiting if waiting is not call), None)
        if successor is not None:
            self._let_probe(self.state, successor)
        else:
            self.probe_left(call)

    def answered(self, connected_for: float) -> None:
        state = self.state.answered(self._starts.policy, connected_for)
        if state != self.state:
            self._set(state, BreakerMove.ANSWERED)

    def timed_out(self) -> bool:
        """A call timed out and nothing at all was heard meanwhile. Returns whether the breaker is tripped now, so that
        the server counts as hung."""
        state = self.state.timed_out(self._starts.policy, self._starts.now(), _SILENT)
        self._set(state, BreakerMove.SILENT)
        return self.state.tripped

    def begin_anew(self) -> None:
        """The server has another definition: what went before says nothing about it."""
        before, self.intensity = self.intensity, NO_RESTARTS
        if self.state != UNTROUBLED or before != NO_RESTARTS:
            self._set(UNTROUBLED, BreakerMove.REDEFINED)
            self.set_timer(self._starts.now())

    # ---- other hosts ------------------------------------------------------------------------------------------------

    def open_here(self) -> OpenBreaker | None:
        """What to tell other hosts."""
        return self.state.open_here(self._starts.now())

    def told(self, theirs: OpenBreaker) -> None:
        """Another host refuses the server."""
        state = self.state.told(self._starts.policy, self._starts.now(), theirs)
        if state != self.state:
            self._set(state, BreakerMove.TOLD, words=theirs.words)

    # ---- starts -----------------------------------------------------------------------------------------------------

    def lets_start(self, actor: ServerActor) -> bool:
        """Whether this actor may start now. Its start may become the probe, or bring it."""
        if self.parent is not None and self.parent._refuses_all():
            return False  # even for a session's probe: the server's breaker may have tripped meanwhile
        if self.probe is not None and (self.probe is actor or self.probe in actor.calls.waiting):
            return True  # let through before
        if actor.is_asked_for_by_name:
            return not self._refuses_all() or self._starts.now() >= self._bypass_at()
        return self._admits(actor.calls.waiting[0] if actor.calls.waiting else actor)

    def may_restart(self, *, by_name: bool) -> bool:
        """Count one start after a loss or a failure. False: that was one too many, and the breaker is
        tripped now."""
        settings = self._starts.context.settings
        self.intensity, is_too_intense = self.intensity.restarted(
            self._starts.now(), settings.restart_intensity, settings.restart_period
        )
        if is_too_intense and not by_name:
            self.quarantine()
            return False
        return True

    def quarantine(self) -> None:
        """The server was restarted too often: the breaker refuses for its cooldown, then admits a probe."""
        period = self._starts.context.settings.restart_period
        reason = f"{counted(len(self.intensity.times), 'restart')} in {period:g} s"
        state = self.state.quarantined(self._starts.policy, self._starts.now(), reason)
        self._set(state, BreakerMove.QUARANTINED, words=reason)

    def connected(self, actor: ServerActor) -> None:
        if self.parent is not None and self.parent.state.is_troubled:
            # The server's children connect again; what a session's own child does next counts in its own breaker.
            self.parent._set(CircuitBreaker(), BreakerMove.SESSION_CONNECTED)
        # A handshake is no proof: if the attempt was the probe, the next call becomes the probe.
        self.probe_left(actor)
        if self.state.tripped and self.probe is None and actor.is_asked_for_by_name:
            self._set(self.state.half_open(), BreakerMove.BY_NAME)

    def failed(self, ending: Ending) -> None:
        """A connect failed, or a connection was lost; both count at once. A hang was counted when its calls
        timed out, and a server that forgot our session has not died."""
        starts, why = self._starts, ending.detail
        policy, now, draw = starts.policy, starts.now(), starts.chance.random()
        if ending.cause is Cause.CONNECT_FAILED:
            state = self.state.connect_failed(policy, now, why, draw)
        elif ending.reason in (Reason.UNRESPONSIVE, Reason.EXPIRED):
            state = self.state.probe_left()
        else:
            state = self.state.died(policy, now, why, draw)
        if self.parent is not None and ending.cause is Cause.CONNECT_FAILED and not ending.is_of_caller:
            shared = self.parent.state.connect_failed(policy, now, why, draw)
            self.parent._set(shared, BreakerMove.FAILED, ending.cause, why)
        self._set(state, BreakerMove.FAILED, ending.cause, why)

    def probe_left(self, who: Call | ServerActor) -> None:
        """The probe is over without an answer. Harmless for a call or actor that was not the probe."""
        if self.probe is who:
            self._set(self.state.probe_left(), BreakerMove.PROBE_LEFT)

    def set_timer(self, now: float) -> None:
        """Set the timer at which waiting starts and held calls apply again: when the breaker stops refusing, or may be
        bypassed again.

        `now` was read before the breaker refused, so the end of the refusal is always later than `now`.
        """
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        waiting = self._starts.places.behind(self._record)
        if not waiting and not self._holds_calls:
            return
        when = self._refuses_until
        if any(actor.is_asked_for_by_name for actor in waiting):
            around = self._bypass_at()
            when = min(when, around) if when > now else around
        if when > now:
            self.timer = self._starts.context.timers.at(when, self._apply_again)

    # ---- how it is, for those who look ------------------------------------------------------------------------------

    @property
    def refusal(self) -> tuple[float, bool]:
        """Until when it or its server's refuses, and whether that one has tripped: then it is half-open afterwards."""
        state = self.state
        if self.parent is not None and self.parent.state.refuses_until > state.refuses_until:
            state = self.parent.state
        return state.refuses_until, state.tripped

    def failed_in_silence(self, actor: ServerActor) -> int:
        """How many failures in a row there were, if the last was a call of this actor's connection that timed out, and
        nothing was heard since. 0: it is not so."""
        heard = actor.last_heard
        is_silent = self.state.reason == _SILENT and heard is not None and heard < self.state.failed_at
        return self.state.failures if is_silent else 0

    def in_words(self, now: float) -> str | None:
        """Its state in a word; None: it is closed."""
        until, tripped = self.refusal
        return "open" if until > now else "half-open" if tripped else None

    def restarts_left(self, now: float) -> int:
        """How many restarts it has before it counts as restarted too often."""
        settings = self._starts.context.settings
        return self.intensity.left(now, settings.restart_intensity, settings.restart_period)

    # ---- how --------------------------------------------------------------------------------------------------------

    @property
    def _refuses_until(self) -> float:
        """Until when starts are refused: by its own breaker, or by its server's."""
        own = self.state.refuses_until
        return own if self.parent is None else max(own, self.parent.state.refuses_until)

    @property
    def _holds_calls(self) -> bool:
        """Whether calls may be held back for the probe, at an address that is connected."""
        return self.state.tripped and bool(self._record.holding())

    def _refuses_all(self) -> bool:
        return self.state.admit(self._starts.now())[1] is Admission.NONE

    def _bypass_at(self) -> float:
        """When a start by name may bypass the breaker."""
        return (self.parent or self).last_start + BYPASS_EVERY

    def _admits(self, who: Call | ServerActor) -> bool:
        state, admitted = self.state.admit(self._starts.now())
        if admitted is Admission.PROBE:
            self._let_probe(state, who)
        return admitted is not Admission.NONE

    def _let_probe(self, state: CircuitBreaker, who: Call | ServerActor) -> None:
        self.probe = who
        if isinstance(who, Call):
            who.is_probe = True
        self._set(state, BreakerMove.HALF_OPEN)

    def _unavailable(self) -> Unavailable:
        state, now = self.state, self._starts.now()
        return Unavailable(
            self._record.address.server,
            failed_ago=now - state.failed_at,
            retry_in=state.retry_in(now),
            reason=state.reason,
        )

    def _set(
        self, state: CircuitBreaker, move: BreakerMove, cause: Cause | None = None, words: str = ""
    ) -> None:
        """Set the state, report it, and let waiting starts and held calls apply again. `cause`: the cause of the ending
        behind it."""
        was_tripped, self.state = self.state.tripped, state
        record, now = self._record, self._starts.now()
        record.guarded = state.is_troubled or bool(record.quarantined)
        if not state.probing:
            self.probe = None
        self._starts.context.events.emit(
            BreakerDecision,
            record.address,
            move=move,
            failures=state.failures,
            open_for=max(state.refuses_until - now, 0.0),
            tripped=state.tripped,
            cause=cause,
            words=words,
        )
        self._wake(now)
        for child in tuple(record.children.values()):
            if self._starts.places.behind(child):
                child.breaker._wake(self._starts.now())
        if was_tripped and not state.tripped:
            record.serve_held()

    def _wake(self, now: float) -> None:
        admits = not self.state.probing and self.state.refuses_until <= now
        if admits and (self._starts.places.behind(self._record) or self._holds_calls):
            self._apply_again()
        else:
            self.set_timer(now)

    def _apply_again(self) -> None:
        """The breaker may admit again, so the held calls and the waiting starts apply again."""
        if self._holds_calls:
            self._record.serve_held()
        for actor in tuple(self._starts.places.behind(self._record)):
            if actor.start.place is Place.BREAKER:  # an earlier one may have ended its wait
                self._starts.apply(self._record, actor)
