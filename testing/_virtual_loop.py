"""Virtual time on asyncio: a loop that never waits for time to pass. (trio has its own, `MockClock`.)

When nothing is readable, the selector does not wait, but adds the requested wait to the clock. When nothing is ready
and no timer is set, the loop waits for something that cannot happen. After a second of real time (threads may still
bring something) `on_stuck` is called, which by default is an error and not a hang. Time starts at 0.0.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Final

STUCK: Final = 1.0  # real seconds


def _is_stuck() -> None:
    raise RuntimeError("virtual time: every task waits and no timer is set")


class JumpingSelector(selectors.DefaultSelector):
    """A loop that has it says `now` as its time."""

    def __init__(self, on_stuck: Callable[[], None] = _is_stuck) -> None:
        super().__init__()
        self.now = 0.0
        self._on_stuck = on_stuck

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(STUCK if timeout is None else 0)
        if ready:
            return ready
        if timeout is None:
            self._on_stuck()
        else:
            self.now += max(timeout, 0.0)
        return ready
