"""Virtual time for both backends: trio's own `MockClock`, and for asyncio a loop with `testing`'s `JumpingSelector`."""

from __future__ import annotations

import asyncio
from typing import Any

import sniffio
import trio
from trio.testing import MockClock

from greenroom.testing.virtual_time import JumpingSelector

from .checked import CheckedLoop


def virtual_options(backend: str) -> dict[str, Any]:
    """`backend_options` for `anyio.run`: a fresh virtual clock that starts at 0.0."""
    if backend == "trio":
        return {"clock": MockClock(autojump_threshold=0)}
    return {"debug": True, "loop_factory": VirtualLoop}


class VirtualLoop(CheckedLoop):
    """An asyncio loop that never waits for time to pass."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def stand_still(seconds: float) -> None:
    """The clock goes on, and the loop does nothing meanwhile."""
    if sniffio.current_async_library() == "trio":
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(seconds)
    else:
        loop: Any = asyncio.get_running_loop()
        loop._jumping.now += seconds
