"""Health: is a silent server still there?

Rules (why: `docs/decisions/health.md`). Any byte from the server is proof, so a busy server is never asked. A server
that has been silent for one interval is asked (`ping`, or `server/discover` in the era that has no ping). Any answer
is proof, even an error. Slow is not dead: when nothing comes within the next interval, that is a suspicion, and the
server is asked again. Only a second miss is a loss. While calls are in flight nothing is asked: the server may be
busy with them and silent, and calls have their own clocks.

`Health` is pure: what is known now goes in; what to do, and when to look again, comes out. `HealthCheck` belongs to one
incarnation: it has the timer and sends the ping. The supervisor says which servers are checked, and how often.

Rejected: a fixed timeout on the ping, which makes slow servers restart for ever.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final

import msgspec

from ..protocol.jsonrpc.terms import MODERN_VERSIONS
from .peer import EndCallback, Exchange

if TYPE_CHECKING:
    from .connection import Incarnation
    from .timers import Timer


class HealthFinding(enum.Enum):
    WELL = "well"
    ASK = "ask"  # send a ping
    LOST = "lost"


class Health(msgspec.Struct, frozen=True):
    asked_at: float | None = None  # when the open ping was sent
    misses: int = 0  # pings in a row without an answer

    def look(self, now: float, last_heard: float, interval: float) -> tuple[Health, HealthFinding, float]:
        """The next health, what to do, and when to look again (absolute, seconds)."""
        # What was heard in the very tick of the ping is an answer: earlier bytes are an interval older.
        if self.asked_at is not None and last_heard < self.asked_at:
            if self.misses:
                return _WELL, HealthFinding.LOST, math.inf
            return Health(now, misses=1), HealthFinding.ASK, now + interval
        # Not `now - last_heard < interval`: rounding must not yield this very moment again.
        if last_heard + interval > now:
            return _WELL, HealthFinding.WELL, last_heard + interval
        return Health(now), HealthFinding.ASK, now + interval


_WELL: Final = Health()
# Any answer will do: that bytes came shows that the server is there.
_ANY_ANSWER: Final = EndCallback(lambda _exchange, _result, _error: None)


class HealthCheck:
    """Checks one incarnation, from `start` to `stop`."""

    __slots__ = ("_health", "_incarnation", "_ping", "_timer")

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._health: Health = _WELL
        self._timer: Timer | None = None
        self._ping: Exchange | None = None

    def start(self) -> None:
        """Begin the checks, or begin again with another interval."""
        self.stop()
        self._begin()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._health = _WELL
        actor = self._incarnation.actor
        self._look_at(actor.context.backend.now() + actor.record.health_interval(actor))

    def _look(self) -> None:
        self._timer = None
        actor, peer = self._incarnation.actor, self._incarnation.peer
        if actor.in_flight:
            self._begin()
            return
        now, interval = actor.context.backend.now(), actor.record.health_interval(actor)
        self._health, verdict, again = self._health.look(now, peer.last_heard, interval)
        if self._ping is not None:
            peer.abandon(self._ping, "no longer wanted")
            self._ping = None
        if verdict is HealthFinding.LOST:
            self._incarnation.found_dead("failed its health check: two requests in a row got no answer")
        elif verdict is HealthFinding.ASK:
            is_modern = peer.protocol_version in MODERN_VERSIONS
            self._ping = Exchange(_ANY_ANSWER, "server/discover" if is_modern else "ping", None)
            peer.request(self._ping)
        self._look_at(again)

    def _look_at(self, when: float) -> None:
        if when < math.inf:
            self._timer = self._incarnation.actor.context.timers.at(when, self._look)
