"""The queue for a slot: those that wait, in order of arrival, and a line of its own for each group.

The calls apart of one server are a group. While a group holds its share of the slots its line is closed: nobody in it
may have one, however many they are. So the queue is not one list that is read past them. Each line keeps its own order,
and a heap has an entry for each open line, with the number of an arrival that is no later than that of its first. An
entry that is too early is put right when it comes to the top, and one whose line is closed or empty is dropped there.
So whoever comes, leaves, or opens and closes a line has little to do, and the first of thousands is found at once.

Rejected: one list of all (a thousand calls of one server stand before the only one that may have a slot); the first of
each line looked for at each decision (a thousand servers with a call apart each: three milliseconds).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class SlotQueue(Generic[K]):
    def __init__(self) -> None:
        self.open: int = 0  # how many wait in lines that are not closed
        # By group, with the number of each arrival. Ordered ones find their first at once, also after many have left.
        self._lines: dict[str | None, OrderedDict[K, int]] = {}
        self._closed: set[str] = set()
        self._heads: list[tuple[int, str | None]] = []
        self._listed: set[str | None] = set()  # the groups that have an entry there

    def add(self, who: K, number: int, group: str | None = None) -> None:
        """`number`: that of its arrival, later than all others of its group."""
        line = self._lines.get(group)
        if line is None:
            line = self._lines[group] = OrderedDict()
        line[who] = number
        if group not in self._closed:
            self.open += 1
            self._list(group, number)

    def discard(self, who: K, group: str | None = None) -> None:
        """Does nothing if it does not wait here."""
        line = self._lines.get(group)
        if line is None or line.pop(who, None) is None:
            return
        if group not in self._closed:
            self.open -= 1
        if not line:
            del self._lines[group]

    def close(self, group: str) -> None:
        """The group holds its share: nobody in its line may have a slot."""
        if group not in self._closed:
            self._closed.add(group)
            self.open -= len(self._lines.get(group, ()))

    def reopen(self, group: str) -> None:
        """The group may have more again."""
        if group in self._closed:
            self._closed.discard(group)
            line = self._lines.get(group)
            if line:
                self.open += len(line)
                self._list(group, next(iter(line.values())))

    def first(self) -> K | None:
        """Who came first of those in open lines."""
        while self._heads:
            number, group = self._heads[0]
            line = self._lines.get(group)
            if not line or group in self._closed:
                heapq.heappop(self._heads)
                self._listed.discard(group)
                continue
            who, arrived = next(iter(line.items()))
            if arrived == number:
                return who
            heapq.heapreplace(self._heads, (arrived, group))
        return None

    def _list(self, group: str | None, number: int) -> None:
        if group not in self._listed:
            self._listed.add(group)
            heapq.heappush(self._heads, (number, group))
