"""Backoff and circuit breaker of one server, in one pure value.

Rules (why: `docs/decisions/circuit-breaker.md`):

* It counts failures to connect, deaths, and timeouts of calls if nothing at all was heard meanwhile. It does not
  count error answers, a 401, Busy, Drained or a wait for a slot.
* After a failure to connect it refuses for `min · 2ⁿ⁻¹`, at most `max`, with jitter. The same after a death that is
  not the first failure of a streak, timeouts included.
* Timeouts alone refuse nothing: below the threshold, calls to a connected server are never refused.
* At the threshold it *trips*: it refuses for at least the cooldown, and is then half-open: it admits exactly one
  probe. The probe's answer resets it, and the probe's failure makes it refuse again. If the caller of the probe
  cancels it, the next call is the probe.
* An answer from a server that has been connected for `stable_after` clears the count. A handshake does not: a
  server that initializes and dies must not reset its own backoff.

* Hosts of a cluster tell each other which of their breakers refuse. What a breaker is told makes starts wait, and
  counts for the next backoff. It never ends an earlier refusal, never trips, and is never told on: otherwise each
  would keep the others open.

`CircuitBreaker` is immutable and knows no clock; `now` and the random draw are arguments. Rejected: two mechanisms (a
backoff per connection and a breaker per call), which fight each other in practice and disagree about what a
failure is.
"""

from __future__ import annotations

import enum
import math
from typing import Final

import msgspec
from msgspec.structs import replace

from ...config.model import Settings
from ...protocol.status import OpenBreaker


class Admission(enum.Enum):
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

    def admit(self, now: float) -> tuple[CircuitBreaker, Admission]:
        """Which calls it admits now, and its state after one call (or one attempt to connect) has asked."""
        if now < self.refuses_until or self.probing:
            return self, Admission.NONE
        if self.tripped:
            return replace(self, probing=True), Admission.PROBE
        return self, Admission.ALL

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
        return replace(self, refuses_until=-math.inf, probing=False)

    def open_here(self, now: float) -> OpenBreaker | None:
        """What to tell other hosts: that it refuses, if it has found so itself."""
        seconds = self.refuses_until - now
        return OpenBreaker(self.failures, seconds, self.reason) if seconds > 0 and not self.is_told else None

    def told(self, policy: BreakerPolicy, now: float, theirs: OpenBreaker) -> CircuitBreaker:
        """Another host refuses for so long."""
        until = now + theirs.seconds
        if until < max(self.refuses_until, now) + _STALE:
            return self
        failures = max(self.failures, min(theirs.failures, policy.threshold - 1), 1)
        return replace(
            self,
            failures=failures,
            failed_at=now,
            reason=f"{theirs.words} (on another host)",
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
UNTROUBLED: Final = CircuitBreaker()  # of every server that has not failed


class Intensity(msgspec.Struct, frozen=True):
    """Times of restarts within the period, oldest first."""

    times: tuple[float, ...] = ()

    def restarted(self, now: float, limit: int, period: float) -> tuple[Intensity, bool]:
        """Count one restart. True when that was one too many."""
        times = (*self._within(now, period), now)
        return Intensity(times), len(times) > limit

    def left(self, now: float, limit: int, period: float) -> int:
        """How many more restarts are not one too many."""
        return max(0, limit - len(self._within(now, period)))

    def _within(self, now: float, period: float) -> tuple[float, ...]:
        return tuple(t for t in self.times if t > now - period)


NO_RESTARTS: Final = Intensity()
