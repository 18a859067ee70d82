"""Health: is a server that says nothing still there?

Rules (DESIGN, Policies). Any byte from the server is proof, so a busy server is never asked. One that has been silent
for an interval is asked (`ping`, or `server/discover` in the era that has no ping); any answer, an error too, is proof.
Slow is not dead: the first question that brings nothing within the next interval is a suspicion, and it is asked again;
only the second is a loss. While calls are in flight nothing is asked: a server may well be busy with them and silent,
and they have their own clocks.

`Health` is pure: what is known now goes in, what to do and when to look again comes out. `Pulse` is one incarnation's:
it has the timer and puts the question. Who is looked after, and how often, is the supervisor's to say. Rejected: a
fixed timeout on the question, which is what makes slow servers restart for ever in the field.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

import attrs

from ..protocol.jsonrpc import MODERN_VERSIONS, RpcError
from ._peer import Exchange

if TYPE_CHECKING:
    from ._incarnation import Incarnation
    from ._timers import Timer


class Finding(enum.Enum):
    WELL = "well"
    ASK = "ask"  # put a question
    LOST = "lost"


@attrs.frozen
class Health:
    asked_at: float | None = None  # when the question that is open was put
    misses: int = 0  # questions in a row that brought nothing

    def look(self, now: float, last_heard: float, interval: float) -> tuple[Health, Finding, float]:
        """The next health, what to do, and when to look again (absolute, seconds)."""
        # Heard in the very tick of the question is an answer: what was heard before it is an interval older.
        if self.asked_at is not None and last_heard < self.asked_at:
            if self.misses:
                return Health(), Finding.LOST, math.inf
            return Health(now, misses=1), Finding.ASK, now + interval
        if (
            last_heard + interval > now
        ):  # not `now - last_heard < interval`: rounding must not ask for this very moment
            return Health(), Finding.WELL, last_heard + interval
        return Health(now), Finding.ASK, now + interval


class _Question(Exchange):
    """Any answer will do: that there is one is what was asked."""

    def end(self, result: bytes | None, error: RpcError | None) -> None:
        pass


class Pulse:
    """Looks after one incarnation, from `start` to `stop`."""

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._health = Health()
        self._timer: Timer | None = None
        self._question: _Question | None = None

    def start(self) -> None:
        """Begin, or begin anew: how often may be another now."""
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
        self._question = _Question("server/discover" if is_modern else "ping", None)
        peer.request(self._question)

    def _look_at(self, when: float) -> None:
        if when < math.inf:
            self._timer = self._incarnation.actor.context.timers.at(when, self._look)

    def _interval(self) -> float:
        return self._incarnation.actor.supervisor.health_interval(self._incarnation.actor)

    def _now(self) -> float:
        return self._incarnation.actor.context.backend.now()
