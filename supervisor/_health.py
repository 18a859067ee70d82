"""Health: is a keep-alive server that says nothing still there?

Rules (DESIGN, Policies). Any byte from the server is proof, so a busy server is never asked. One that has been silent
for an interval is asked (ping, where its era has one); any answer, an error too, is proof. Slow is not dead: the first
question that brings nothing within the next interval is a suspicion, and it is asked again; only the second is a loss.

Pure: `look` takes what is known now and says what to do and when to look again. Rejected: a fixed timeout on the
question, which is what makes slow servers restart for ever in the field.
"""

from __future__ import annotations

import enum

import attrs


class Verdict(enum.Enum):
    WELL = "well"
    ASK = "ask"  # send a question
    LOST = "lost"


@attrs.frozen
class Health:
    asked_at: float | None = None  # when the question that is open was asked
    misses: int = 0  # questions in a row that brought nothing

    def look(self, now: float, last_heard: float, interval: float) -> tuple[Health, Verdict, float]:
        """The next health, what to do, and when to look again (absolute, seconds)."""
        if self.asked_at is not None and last_heard <= self.asked_at:
            if self.misses:
                return Health(), Verdict.LOST, now
            return Health(now, misses=1), Verdict.ASK, now + interval
        if now - last_heard < interval:
            return Health(), Verdict.WELL, last_heard + interval
        return Health(now), Verdict.ASK, now + interval
