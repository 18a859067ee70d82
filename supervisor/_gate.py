"""The gate: backoff and circuit breaker of one server, in one pure object.

Rules (why: `docs/decisions/circuit-breaker.md`):

* It counts connect failures, deaths, and timeouts of calls if nothing at all was heard meanwhile. It does not
  count error answers, a 401, Busy, Drained or a wait for a slot.
* A connect failure shuts it for `min · 2ⁿ⁻¹`, at most `max`, with jitter. So does a death, except the first
  of a streak.
* Timeouts alone do not shut it: below the threshold, calls to a connected server are never refused.
* At the threshold it *trips*: it is shut for at least the cooldown, and then half-open, when exactly one
  probe may pass. The probe's answer opens it, and its failure shuts it again. If the caller of the probe
  cancels it, the next call is the probe.
* An answer from a server that has been connected for `stable_after` clears the count. A handshake does not: a
  server that greets and dies must not reset its own backoff.

`Gate` is immutable and knows no clock; `now` and the random draw are arguments. Rejected: two mechanisms (a
backoff per connection and a breaker per call), which fight each other in practice and disagree about what a
failure is.
"""

from __future__ import annotations

import enum
import math

import attrs

from ..protocol.config import Settings


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
