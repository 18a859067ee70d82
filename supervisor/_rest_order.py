"""The connections that may be asked to end, the longest idle first, found without looking at all of them.

The actor itself knows whether it is idle, and since when. This is an index to that: a heap of actors. Each
entry has the time since which its actor had been idle when the entry was made. That time of an actor only
grows, so the entry's is a lower bound. The first entry whose time is still right belongs to the actor that
has been idle longest. An entry whose time is too early is put back with the actor's present time. An entry
whose actor is busy is removed: then the actor is no longer `is_listed`, and reports when it is idle again. So
a listed actor has nothing to do when it is called, or when it becomes idle again.

Rejected: to look at every live connection (at a thousand, more than a millisecond for each decision), and to
keep a list in the order of resting (one more step for every call).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..actors import ServerActor
from ..protocol.start import Place

_SPARE = 64  # how many entries of actors that are gone may be left


class RestOrder:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ServerActor]] = []
        self._read: list[tuple[float, int, ServerActor]] = []  # taken off the heap and not put back yet
        self._number = 0  # orders the entries of one time

    def add(self, actor: ServerActor, live: int) -> None:
        """List an actor that is idle and not listed. `live`: the number of connections."""
        if len(self._heap) > 2 * live + _SPARE:
            self._forget_gone()
        actor.idling.is_listed = True
        self._put(actor)

    def longest_idle(self) -> Iterator[ServerActor]:
        """The idle actors, the longest idle first. Read it once, and before you ask for another."""
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
