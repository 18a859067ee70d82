"""The places of all starts of a room. One function moves a start, and every move is an event.

The place of a start says what it waits for and what it holds (`protocol.start`). `Starts` keeps the actors of
each place in order of arrival, so the queues and the number of used slots and permits are read from it. Only
`move` changes a place and these lists.
"""

from __future__ import annotations

from collections.abc import KeysView

from ..actors import RoomContext, ServerActor
from ..protocol.events import StartMoved
from ..protocol.start import HOLDS_SLOT, Place


class Starts:
    def __init__(self, context: RoomContext) -> None:
        self._context = context
        self._at: dict[Place, dict[ServerActor, None]] = {place: {} for place in Place}

    def at(self, place: Place) -> KeysView[ServerActor]:
        """The actors in this place, in order of arrival. Actors in `OUT` are not listed."""
        return self._at[place].keys()

    def count(self, place: Place) -> int:
        return len(self._at[place])

    @property
    def slots_held(self) -> int:
        return sum(len(self._at[place]) for place in HOLDS_SLOT)

    def holders(self) -> list[ServerActor]:
        """The actors that hold a slot."""
        return [actor for place in Place if place in HOLDS_SLOT for actor in self._at[place]]

    def move(self, actor: ServerActor, place: Place) -> None:
        """Move the actor's start to the end of the queue at `place`. Nothing happens when it is there
        already."""
        start, now = actor.start, self._context.backend.now()
        if start.place is place:
            return
        if start.place is Place.OUT:
            start.began = now
        self._at[start.place].pop(actor, None)
        if place is not Place.OUT:
            self._at[place][actor] = None
        if start.deadline is not None:
            start.deadline.cancel()
            start.deadline = None
        start.place, start.since = place, now
        self._context.events.emit(StartMoved, actor.address, actor.life.incarnation, place=place)
