"""Health, with pencil and paper: what was heard when, and which questions were put."""

from __future__ import annotations

import attrs


@attrs.define
class HealthModel:
    """`look` at any moment, late or early: what is to be done, and when to look again."""

    interval: float
    unanswered: list[float] = attrs.field(factory=list[float])  # questions in a row that brought nothing
    question: float | None = None  # when the open one was put

    def look(self, now: float, heard: list[float]) -> tuple[str, float | None]:
        if self.question is not None and not any(at >= self.question for at in heard):
            self.unanswered.append(self.question)
            if len(self.unanswered) == 2:
                return "lost", None
            return self._ask(now)
        self.unanswered = []
        self.question = None
        if any(at + self.interval > now for at in heard):
            return "well", max(heard) + self.interval
        return self._ask(now)

    def _ask(self, now: float) -> tuple[str, float]:
        self.question = now
        return "ask", now + self.interval
