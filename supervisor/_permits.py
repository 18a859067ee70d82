"""Start permits: at most so many servers connect at once, first come, first served.

A permit is held from the cue to connect until the attempt is over, either way. A connect's deadline counts from its
permit, so servers that wait here are not late because others were before them. Leaving the queue leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Permits(Generic[K]):
    def __init__(self, places: int) -> None:
        self.places = places
        self._held: set[K] = set()
        self._queue: dict[K, Callable[[], None]] = {}  # in order of arrival

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def resize(self, places: int) -> None:
        """So many at once from here on. Whoever has a permit keeps it; new places are filled at once."""
        self.places = places
        self._grant()

    def acquire(self, who: K, granted: Callable[[], None]) -> None:
        """Call `granted()` when there is a place: now, or from somebody's `release`."""
        if who in self._held or who in self._queue:
            return
        self._queue[who] = granted
        self._grant()

    def give_up(self, who: K) -> None:
        """It no longer waits for a place. One that it has, it keeps."""
        self._queue.pop(who, None)

    def release(self, who: K) -> None:
        """The attempt is over, or its place in the queue is given up. Harmless when it has neither."""
        self._queue.pop(who, None)
        if who in self._held:
            self._held.discard(who)
            self._grant()

    def _grant(self) -> None:
        while self._queue and len(self._held) < self.places:
            who = next(iter(self._queue))
            granted = self._queue.pop(who)
            self._held.add(who)
            granted()
