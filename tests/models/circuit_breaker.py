"""The circuit breaker, with pencil and paper.

Every failure in a row is written down, and until when each of them makes the breaker refuse. It refuses while any of
those times is still ahead, or while a probe is out.
"""

from __future__ import annotations

import enum
import math
from fractions import Fraction

import attrs

from greenroom.supervisor.policy.breaker import BreakerPolicy


class Failure(enum.Enum):
    CONNECT = "connect failed"
    DEATH = "died"
    SILENCE = "a call timed out and nothing was heard"


@attrs.define
class BreakerModel:
    policy: BreakerPolicy
    streak: list[Failure] = attrs.field(factory=list[Failure])
    refuses_until: list[float] = attrs.field(factory=list[float])
    tripped: bool = False
    probe_out: bool = False

    def fails(self, kind: Failure, now: float, draw: float) -> None:
        self.streak.append(kind)
        self.probe_out = False
        self.refuses_until.append(now + self._delay(kind, draw))
        if len(self.streak) >= self.policy.threshold:
            self.tripped = True
        if self.tripped:
            self.refuses_until.append(now + self.policy.cooldown)

    def is_quarantined(self, now: float) -> None:
        self.tripped, self.probe_out = True, False
        self.refuses_until.append(now + self.policy.cooldown)

    def answers(self, connected_for: float) -> None:
        if self.tripped or connected_for >= self.policy.stable_after:
            self.streak, self.refuses_until, self.tripped, self.probe_out = [], [], False, False

    def probe_leaves(self) -> None:
        self.probe_out = False

    def is_connected_by_name(self) -> None:
        self.refuses_until, self.probe_out = [], False

    def asks(self, now: float) -> str:
        if self.probe_out or any(now < until for until in self.refuses_until):
            return "none"
        if not self.tripped:
            return "all"
        self.probe_out = True
        return "probe"

    @property
    def latest(self) -> float:
        return max(self.refuses_until, default=-math.inf)

    def _delay(self, kind: Failure, draw: float) -> float:
        """1 s, 2 s, 4 s … up to a minute; a death's place in the row is one less, so the first costs nothing."""
        place = len(self.streak) - (kind is Failure.DEATH)
        if kind is Failure.SILENCE or place == 0:
            return 0.0
        if self.policy.flat is not None:
            return self.policy.flat
        doubled = Fraction(self.policy.backoff_min) * 2 ** (place - 1)  # exact, however many failures
        jitter = 1 + Fraction(self.policy.jitter) * (2 * Fraction(draw) - 1)
        return float(min(Fraction(self.policy.backoff_max), doubled) * jitter)
