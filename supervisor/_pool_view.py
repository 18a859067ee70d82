"""What the pool decides from: the connections of a room, read off the actors and their starts.

A `Snapshot` is made for each decision. What only some decisions need is found when it is asked for: the idle actors one
by one (`_rest_order`), those that are overdue, how many slots a group holds, who waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import Protocol

from ..actors import RoomContext, ServerActor
from ..protocol.start import HOLDS_SLOT, Place
from ._pool import InOrder, PoolLimits, Snapshot, Waiter
from ._rest_order import RestOrder
from ._start import Starts


class Sees(Protocol):
    """What the view asks others."""

    def kept(self) -> Collection[str]:
        """The servers that have a slot set aside."""
        ...

    def shared_actor(self, server: str) -> ServerActor | None:
        """The actor of the server's shared address, if it exists already."""
        ...

    def is_visit(self, actor: ServerActor) -> bool:
        """Whether the actor only starts for a visit: nobody has called it."""
        ...


class PoolView:
    def __init__(self, context: RoomContext, starts: Starts, sees: Sees) -> None:
        self.rest_order = RestOrder()
        self._context = context
        self._starts = starts
        self._asks = sees

    @property
    def limits(self) -> PoolLimits:
        settings = self._context.settings
        return PoolLimits(
            settings.max_connections,
            settings.reserve_connections
            if settings.reserve_timeout
            else 0,  # as in PgBouncer: no time, no reserve
            settings.reserve_timeout,
            settings.min_connections,
        )

    @property
    def capacity(self) -> int:
        """Slots for servers that have none set aside."""
        return self._context.settings.max_connections - len(self._asks.kept())

    def is_kept(self, actor: ServerActor) -> bool:
        """Whether a slot is set aside for it."""
        return actor.address.is_shared and actor.address.server in self._asks.kept()

    def _kept_actors(self) -> Iterator[ServerActor]:
        found = map(self._asks.shared_actor, self._asks.kept())
        return (actor for actor in found if actor is not None)

    def shared(self) -> int:
        """How many actors hold a slot that is not set aside."""
        own = sum(map(_holds_slot, self._kept_actors()))
        return self._starts.slots_held - own

    def _leaving(self) -> int:
        """How many of the actors that hold a slot are stopping."""
        starts = self._starts
        return starts.count(Place.LEAVING) + sum(map(_is_leaving, starts.at(Place.STARTING)))

    def staying(self) -> int:
        """How many actors hold a slot and are not stopping."""
        return self._starts.slots_held - self._leaving()

    def snapshot(self, reserve_from: float) -> Snapshot[ServerActor]:
        """The snapshot that the pool decides from."""
        leaving, kept_leaving = self._leaving(), sum(map(_is_leaving, self._kept_actors()))
        return Snapshot(
            self._context.backend.now(),
            self.limits,
            kept=len(self._asks.kept()),
            shared=self.shared(),
            leaving=leaving - kept_leaving,
            staying=self._starts.slots_held - leaving,
            resting=InOrder(self._resting()),
            overdue=self._overdue() if self.limits.minimum else (),
            groups=cache(self._held_by),
            waiting=self._queue(),
            reserve_from=reserve_from,
        )

    def _resting(self) -> Iterator[ServerActor]:
        kept = self._asks.kept()
        return (actor for actor in self.rest_order.longest_idle() if actor.address.server not in kept)

    def _overdue(self) -> Iterator[ServerActor]:
        """The idle ones that only the minimum keeps. All connections are looked at, when the first is asked for."""
        now, kept = self._context.backend.now(), self._asks.kept()
        idle = [actor for actor in self._starts.at(Place.LIVE) if actor.is_idle and actor.idling.until <= now]
        shared = [actor for actor in idle if actor.address.is_shared and actor.address.server not in kept]
        yield from sorted(shared, key=_idle_until)

    def _held_by(self, server: str) -> int:
        """How many slots the sessions and calls of a server hold."""
        actors = self._starts.holders()
        return sum(not actor.address.is_shared and actor.address.server == server for actor in actors)

    def _queue(self) -> Iterator[Waiter[ServerActor]]:
        """The actors that wait for a slot: those with one set aside, then called ones, then visited ones."""
        for actor in self._kept_actors():
            if actor.start.place is Place.SLOT:
                yield Waiter(actor, actor.start.since, is_kept=True)
        for is_visit in (False, True):
            for actor in self._starts.at(Place.SLOT):
                if self._asks.is_visit(actor) is is_visit and not self.is_kept(actor):
                    group = None if actor.address.is_shared else actor.address.server
                    yield Waiter(actor, actor.start.since, group)


def _holds_slot(actor: ServerActor) -> bool:
    return actor.start.place in HOLDS_SLOT


def _is_leaving(actor: ServerActor) -> bool:
    """Whether it holds a slot and is stopping. A failed attempt to connect keeps its place until it is cleaned up."""
    place = actor.start.place
    return place is Place.LEAVING or (place is Place.STARTING and actor.is_stopping)


def _idle_until(actor: ServerActor) -> float:
    return actor.idling.until
