"""Health: is a silent server still there?

Rules (why: `docs/decisions/health.md`). Any byte from the server is proof, so a busy server is never asked. A server
that has been silent for one interval is asked (`ping`, or `server/discover` in the era that has no ping). Any answer is
proof, even an error. Slow is not dead: when nothing comes within the next interval, that is a suspicion, and the
server is asked again. Only a second miss is a loss. While calls are in flight nothing is asked: the server may be
busy with them and silent, and calls have their own clocks.

`Health` is pure: what is known now goes in; what to do, and when to look again, comes out. `Pulse` belongs to one
incarnation: it has the timer and sends the question. The supervisor says which servers are checked, and how often.
Rejected: a fixed timeout on the question, which makes slow servers restart for ever.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

import attrs

from ..protocol.jsonrpc import MODERN_VERSIONS
from ._peer import Exchange, WhenEnded

if TYPE_CHECKING:
    from ._incarnation import Incarnation
    from ._timers import Timer


class Finding(enum.Enum):
    WELL = "well"
    ASK = "ask"  # send a question
    LOST = "lost"


@attrs.frozen
class Health:
    asked_at: float | None = None  # when the open question was sent
    misses: int = 0  # questions in a row without an answer

    def look(self, now: float, last_heard: float, interval: float) -> tuple[Health, Finding, float]:
        """The next health, what to do, and when to look again (absolute, seconds)."""
        # What was heard in the very tick of the question is an answer: earlier bytes are an interval older.
        if self.asked_at is not None and last_heard < self.asked_at:
            if self.misses:
                return Health(), Finding.LOST, math.inf
            return Health(now, misses=1), Finding.ASK, now + interval
        if (
            last_heard + interval > now
        ):  # not `now - last_heard < interval`: rounding must not yield this very moment again
            return Health(), Finding.WELL, last_heard + interval
        return Health(now), Finding.ASK, now + interval


# Any answer will do: that bytes came shows that the server is there.
_ANY_ANSWER = WhenEnded(lambda _exchange, _result, _error: None)


class Pulse:
    """Checks one incarnation, from `start` to `stop`."""

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._health = Health()
        self._timer: Timer | None = None
        self._question: Exchange | None = None

    def start(self) -> None:
        """Begin, or begin again: the interval may have changed."""
        self.stop()
        self._health = Health()
        self._look_at(self._now() + self._interval())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        actor, peer, now = self._incarnation.actor, self._incarnation.peer, self._now()
        if actor.in_flight:
            self._health = Health()
            self._look_at(now + self._interval())
            return
        self._health, finding, again = self._health.look(now, peer.last_heard, self._interval())
        if self._question is not None:
            peer.abandon(self._question, "no longer wanted")
            self._question = None
        if finding is Finding.LOST:
            self._incarnation.found_dead("failed its health check: two questions in a row brought nothing")
        elif finding is Finding.ASK:
            self._ask()
        self._look_at(again)

    def _ask(self) -> None:
        peer = self._incarnation.peer
        is_modern = peer.protocol_version in MODERN_VERSIONS
        self._question = Exchange(_ANY_ANSWER, "server/discover" if is_modern else "ping", None)
        peer.request(self._question)

    def _look_at(self, when: float) -> None:
        if when < math.inf:
            self._timer = self._incarnation.actor.context.timers.at(when, self._look)

    def _interval(self) -> float:
        return self._incarnation.actor.supervisor.health_interval(self._incarnation.actor)

    def _now(self) -> float:
        return self._incarnation.actor.context.backend.now()
