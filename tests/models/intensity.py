"""Restart intensity, with pencil and paper: every restart there ever was."""

from __future__ import annotations

import attrs


@attrs.define
class IntensityModel:
    limit: int
    period: float
    restarts: list[float] = attrs.field(factory=list[float])

    def restarts_at(self, now: float) -> bool:
        """One more. Whether that makes more than `limit` within the last `period` seconds, this one included."""
        self.restarts.append(now)
        return sum(now - at < self.period for at in self.restarts) > self.limit
