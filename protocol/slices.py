"""Long work in slices: a generator that yields wherever somebody else may go first, and returns what it made.

Nothing here waits. Who has a loop to keep turning lets it turn at each yield (`actors/_slices.py`); who has none, or
has all the time there is, takes the work in one go with `finish`. So one piece of code makes an index for a program
that embeds a room and for a gateway in which nobody may wait behind five thousand tools.
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
    """Take a large value apart that nobody else holds: dropped whole, half a million values take ten milliseconds."""
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
    """Counts work done, in pieces of a tenth of a millisecond or so, and says when it makes a slice. The first is a
    short one: whoever is asked for many things at once does the first slice of each at once."""

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
