"""Long work in slices: a generator that yields wherever others may run first, and returns its result.

Nothing here waits. In an event loop, `actors/workers.py` lets others run at each yield. Without a loop, or when time
does not matter, `finish` does the work in one go. So the same code makes an index for a program that embeds a room and
for a gateway in which nobody may wait for five thousand tools.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar, cast

T = TypeVar("T")
Slices = Generator[None, None, T]


def finish(work: Slices[T]) -> T:
    """Do all of `work` now."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def letting_go(value: object) -> Slices[None]:
    """Free a large value that nobody else holds, part by part. Freed at once, half a million values take ten
    milliseconds."""
    rest, pace = [value], Pace(5_000)
    while rest:
        top = rest.pop()
        if isinstance(top, dict):
            found = cast("dict[str, Any]", top)
            while found:
                rest.append(found.popitem()[1])
                if pace.due():
                    yield
        elif isinstance(top, list):
            items = cast("list[Any]", top)
            while items:
                rest += items[-1_000:]
                del items[-1_000:]
                if pace.due(200):
                    yield
        if pace.due():
            yield


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
