"""Health, with pencil and paper: what was heard when, and which checks were sent."""

from __future__ import annotations

import attrs


@attrs.define
class HealthModel:
    """`look` at any moment, late or early: what is to be done, and when to look again."""

    interval: float
    unanswered: list[float] = attrs.field(factory=list[float])  # checks in a row that brought nothing
    check: float | None = None  # when the open one was sent

    def look(self, now: float, heard: list[float]) -> tuple[str, float | None]:
        if self.check is not None and not any(at >= self.check for at in heard):
            self.unanswered.append(self.check)
            if len(self.unanswered) == 2:
                return "lost", None
            return self._ask(now)
        self.unanswered = []
        self.check = None
        if any(at + self.interval > now for at in heard):
            return "well", max(heard) + self.interval
        return self._ask(now)

    def _ask(self, now: float) -> tuple[str, float]:
        self.check = now
        return "ask", now + self.interval
