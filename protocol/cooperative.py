"""Long work in slices: a generator that yields wherever others may run first, and returns its result. It is for what
only a loop may do: status, search, a reload. Whatever needs nothing but its arguments is a plain function, and work for
a thread where it is long (`actors/workers.py`, `aside`).

Nothing here waits. In an event loop, `actors/workers.py` lets others run at each yield. Without a loop, or when time
does not matter, `finish` does the work in one go. So the same code makes an index for a program that embeds a room and
for a gateway in which nobody may wait for five thousand tools.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Slices = Generator[None, None, T]


def finish(work: Slices[T]) -> T:
    """Do all of `work` now."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


class Pace:
    """Counts pieces of work, each about a tenth of a millisecond, and says when they make a slice. The first slice is
    short: when many pieces of work are begun at once, their first slices run one after the other without a pause."""

    def __init__(self, size: int = 20) -> None:
        self._size = size
        self._done = size - size // 4

    def due(self, cost: int = 1) -> bool:
        """Count `cost` more; True when it is time to yield."""
        self._done += cost
        if self._done < self._size:
            return False
        self._done = 0
        return True
