"""A model of a gate, as seen from outside. It is written from `docs/decisions/circuit-breaker.md`, not from the
code.

Two things cannot be seen from outside: the random jitter, and whether anything else was heard of the server while a
call timed out. So each figure is a pair of bounds. `must_be_shut` is true when the gate is certainly shut,
`may_be_shut` when it is possibly shut. All times are in seconds.
"""

from __future__ import annotations

import math

import attrs

from ..protocol.events import GateMove

JITTER = 0.2
HUGE = 64  # doublings
EPS = 1e-6  # seconds; sums of floats


@attrs.define
class Span:
    """The least and the most that one figure can be."""

    least: float = 0.0
    most: float = 0.0


@attrs.define
class GateModel:
    threshold: int
    cooldown: float
    backoff_min: float = 1.0
    backoff_max: float = 60.0
    stable_after: float = 30.0
    flat: float | None = None
    failures: Span = attrs.field(factory=Span)
    shut_until: Span = attrs.field(factory=lambda: Span(-math.inf, -math.inf))
    is_tripped: bool = False  # for sure
    may_be_tripped: bool = False
    tripped_at: float = -math.inf  # or failed again since
    was_shut_until: float = -math.inf  # before it was last opened
    counted_at: float = -math.inf  # the last failure we know of
    said_open_at: float = -math.inf  # by the room itself
    said_failed_at: float = -math.inf
    shut_by: GateMove | None = None  # what it was last told, as the room says

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
            self.shut_until.most = max(self.shut_until.most, now + self.cooldown)

    def quarantined(self, now: float) -> None:
        self.may_be_tripped = True
        self.shut_until.most = max(self.shut_until.most, now + self.cooldown)

    def answered(self, now: float, connected_for: float) -> None:
        if connected_for >= self.stable_after or self.is_tripped:
            self.reopened(now)
        elif self.may_be_tripped:  # it may have been the probe's answer
            self.failures.least, self.shut_until.least = 0.0, -math.inf

    def reopened(self, now: float) -> None:
        """The gate has opened, and all failures are forgotten."""
        if self.may_be_shut(now):
            self.was_shut_until = now
        self.failures, self.shut_until = Span(), Span(-math.inf, -math.inf)
        self.is_tripped = self.may_be_tripped = False

    def connected_by_name(self) -> None:
        """Half-open, without waiting."""
        self.shut_until.least = -math.inf

    def must_be_shut(self, now: float) -> bool:
        return now < self.shut_until.least - EPS

    def may_be_shut(self, at: float) -> bool:
        # The room knows of a failure that we do not.
        is_behind = self.counted_at + EPS < self.said_failed_at <= at + EPS
        was_shut = at <= max(self.shut_until.most, self.was_shut_until) + EPS
        return self.may_be_tripped or was_shut or is_behind

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
        self.shut_until.least = max(self.shut_until.least, since + least)
        self.shut_until.most = max(self.shut_until.most, now + most)

    def _delay(self, failures: float) -> float:
        if failures < 1:
            return 0.0
        if self.flat is not None:
            return self.flat
        return min(self.backoff_max, self.backoff_min * 2.0 ** min(failures - 1, HUGE))
