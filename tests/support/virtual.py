"""Virtual time for both backends.

trio has its own (`MockClock`). asyncio gets a selector loop whose `time()` jumps: when nothing is readable, the
selector does not wait, but adds the requested wait to the clock. When nothing is ready and no timer is set, the body
waits for something that cannot happen; after a second of real time that is an error, not a hang.
"""

from __future__ import annotations

import selectors
from typing import Any

from trio.testing import MockClock

from .checked import CheckedLoop

STUCK = 1.0  # real seconds


def virtual_options(backend: str) -> dict[str, Any]:
    """`backend_options` for `anyio.run`: a fresh virtual clock that starts at 0.0."""
    if backend == "trio":
        return {"clock": MockClock(autojump_threshold=0)}
    return {"debug": True, "loop_factory": VirtualLoop}


class VirtualLoop(CheckedLoop):
    """An asyncio loop that never waits for time to pass."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(STUCK if timeout is None else 0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("virtual time: every task waits and no timer is set")
        self.now += max(timeout, 0.0)
        return ready
