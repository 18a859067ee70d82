"""One alarm for all deadlines of an actor: queued calls, sent calls, idling, draining.

The alarm is set to the earliest deadline and only ever moved to an earlier time. When it rings, its owner handles
what is due and sets it again. So in the common case accepting or ending a call touches no timer, and an idle actor is
woken at most once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._timers import Timer, Timers


class Alarm:
    __slots__ = ("_ring", "_timer", "_timers", "when")

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self.when = math.inf  # in the room's time; `inf` while it is not set
        self._timers = timers
        self._ring = ring
        self._timer: Timer | None = None

    def wake_by(self, when: float) -> None:
        """Ring at this time, unless the alarm rings earlier anyway."""
        if self.when <= when:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.when = when
        self._timer = self._timers.at(when, self._rang)

    def _rang(self) -> None:
        self._timer = None
        self.when = math.inf
        self._ring()
