"""One thread and one selector, so that no scheduling of the driver's own can hide the gateway's."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable

_LONGEST_TURN = 0.05  # seconds between two looks at what `run_until` waits for


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def watch(self, fd: int, on_ready: Callable[[], None], *, write: bool = False) -> None:
        event = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        self._selector.register(fd, event, on_ready)

    def forget(self, fd: int) -> None:
        """Idempotent."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def watches(self, fd: int) -> bool:
        return fd in self._selector.get_map()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._alarms, (time.monotonic() + seconds, next(self._order), action))

    def ring_all(self) -> None:
        """Do now what was planned for later: stopped processes go on, broken things are restored."""
        alarms, self._alarms = sorted(self._alarms), []
        for _, _, action in alarms:
            action()

    def forget_alarms(self) -> None:
        self._alarms.clear()

    def run_until(self, done: Callable[[], bool], within: float) -> bool:
        """Turn until `done()`; False when it is not within so many seconds."""
        deadline = time.monotonic() + within
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._turn(min(left, _LONGEST_TURN))
        return True

    def run_for(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def close(self) -> None:
        self._alarms.clear()
        self._selector.close()

    def _turn(self, at_most: float) -> None:
        if self._alarms:
            at_most = min(at_most, max(0.0, self._alarms[0][0] - time.monotonic()))
        if self._selector.get_map():
            for key, _ in self._selector.select(at_most):
                key.data()
        else:
            time.sleep(at_most)
        while self._alarms and self._alarms[0][0] <= time.monotonic():
            heapq.heappop(self._alarms)[2]()
