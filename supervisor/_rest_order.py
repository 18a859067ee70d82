"""The connections that may be asked to end, the longest idle first, found without looking at all of them.

Whether an actor is idle, and since when, is the actor's own fact. This is an index to it: a heap of actors, each with
the time since when it rested when it was last looked at. An actor's time only grows, so an entry is a lower bound. The
first entry that is still right is the longest idle of all. An entry that is too early is put back with the actor's own
time. One whose actor is busy is taken out: that actor is no longer `is_listed`, so it reports when it next rests.
Nothing is to be done when a listed actor is called, or rests again.

Rejected: to look at every live connection (at a thousand, more than a millisecond for each decision), and to keep a
list in the order of resting (one more step for every call).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..actors import ServerActor
from ..protocol.start import Place

_SPARE = 64  # entries that may be left of actors that have gone


class RestOrder:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ServerActor]] = []
        self._read: list[tuple[float, int, ServerActor]] = []  # taken off the heap, and not put back yet
        self._number = 0  # the order of those that began to rest at the same time

    def add(self, actor: ServerActor, live: int) -> None:
        """The actor rests and is not listed. `live`: how many connections there are."""
        if len(self._heap) > 2 * live + _SPARE:
            self._forget_gone()
        actor.idling.is_listed = True
        self._put(actor)

    def longest_idle(self) -> Iterator[ServerActor]:
        """The idle actors, the longest idle first. To be read once, and before the next is asked for."""
        while self._read:
            heapq.heappush(self._heap, self._read.pop())
        while self._heap:
            entry = heapq.heappop(self._heap)
            since, _, actor = entry
            if not actor.is_idle:
                actor.idling.is_listed = False
            elif actor.idling.since > since:
                self._put(actor)
            else:
                self._read.append(entry)
                yield actor

    def _put(self, actor: ServerActor) -> None:
        self._number += 1
        heapq.heappush(self._heap, (actor.idling.since, self._number, actor))

    def _forget_gone(self) -> None:
        gone = [actor for _, _, actor in self._heap if actor.start.place is not Place.LIVE]
        for actor in gone:
            actor.idling.is_listed = False
        self._heap = [entry for entry in self._heap if entry[2].idling.is_listed]
        heapq.heapify(self._heap)
