"""The pool: a limit on the number of live connections in a room. One pure function says what to do next.

`decide` reads a `Snapshot` (which connections are live, idle since when, ending, overdue; who waits since when; the
limits; the time) and answers with grants and evictions. It remembers nothing, so it cannot forget or miss an update.

Rules (why: `docs/decisions/pool.md`):

* A slot is held from the grant until nothing of the process tree is left. A child that is being stopped still counts.
* If no slot is free, servers wait: first come, first served. A server that starts only for discovery waits behind those
  that are called. For each one that waits, one idle connection is asked to end: the one that has been idle longest.
* The reserve opens only to the head of the queue, and only after it has waited `reserve_timeout`. While more than
  `slots` are live, a connection that becomes idle ends at once, and its slot is not granted again. From then on the
  head waits for the reserve afresh (`reserve_from`).
* `minimum` limits idle eviction and eviction under pressure alike: neither takes the total below it. A connection whose
  idle time is over but that is kept by the minimum is *overdue*. Overdue connections end, the longest overdue first, as
  soon as the total exceeds the minimum.
* Each keep-alive server has a slot set aside, and at least one slot is left for the others. If a slot is set aside
  while all are in use, the server gets it when another connection has ended, so the limit holds.
* The sessions and calls of one server (a `group`) hold at most half the slots, so one server cannot fill the room.

Rejected: eviction inside the caller's request (the evicted process still runs then, so the limit is exceeded while it
ends); a pool with lists of its own (they drifted from what the actors knew).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, KeysView
from functools import cache
from itertools import islice
from typing import Generic, Protocol, TypeVar

import msgspec

from ..actors.room_context import RoomContext
from ..actors.server import ServerActor
from ..protocol.events import HOLDS_SLOT, Place, StartMoved

K = TypeVar("K", bound=Hashable)


def _no_group(_group: str) -> int:
    return 0


class PoolLimits(msgspec.Struct, frozen=True):
    slots: int = 20
    reserve: int = 0
    reserve_timeout: float = 5.0
    minimum: int = 0


class Waiter(msgspec.Struct, Generic[K], frozen=True):
    """An actor that waits for a slot."""

    who: K
    since: float
    group: str | None = None  # the server, for the child of a session or a call
    is_kept: bool = False  # a slot is set aside for it


class InOrder(Generic[K]):
    """Actors in an order. Only as many are read as a decision needs."""

    def __init__(self, source: Iterable[K] = ()) -> None:
        self._source = iter(source)
        self._read: list[K] = []

    def has(self, count: int) -> bool:
        """Whether there are at least this many."""
        self._read.extend(islice(self._source, max(0, count - len(self._read))))
        return len(self._read) >= count

    def __iter__(self) -> Iterator[K]:
        at = 0
        while self.has(at + 1):
            yield self._read[at]
            at += 1


class Snapshot(msgspec.Struct, Generic[K], frozen=True):
    """All connections at one moment. "Shared" are those without a slot set aside."""

    now: float
    limits: PoolLimits
    kept: int = 0  # slots set aside
    shared: int = 0  # slots that shared connections hold, including those that are ending
    leaving: int = 0  # how many of these are ending: their slots will soon be free, without an eviction
    staying: int = 0  # live connections that are not ending
    # Idle shared connections that may be asked to end, the longest idle first; read only as far as needed.
    idle: InOrder[K] = msgspec.field(default_factory=lambda: InOrder[K]())
    # Those of `idle` whose idle time is over, the longest overdue first; read only if one may go.
    overdue: Iterable[K] = ()
    groups: Callable[[str], int] = _no_group  # slots that each group holds
    waiting: Iterable[Waiter[K]] = ()  # in order; read only as far as needed
    reserve_from: float = -math.inf  # when the last slot over the limit came back

    @property
    def capacity(self) -> int:
        """Slots for those that have none set aside."""
        return self.limits.slots - self.kept


class Decision(msgspec.Struct, Generic[K], frozen=True):
    """What to do now. Grants come first: evictions are only decided when no waiter can be granted a slot."""

    grants: tuple[K, ...] = ()
    evictions: tuple[K, ...] = ()  # ask these to end; their slots are free when they have ended
    look_at: float = math.inf  # when time alone may change the answer


def decide(it: Snapshot[K]) -> Decision[K]:
    """Which waiters get a slot, and which connections are asked to end, now.

    Evictions are only decided when no waiter can be granted a slot. So carry out the grants and ask again: a grant may
    be given back at once, and the choice of evictions depends on the state after that.
    """
    queue = _Queue(it)
    if queue.grants:
        return Decision(grants=tuple(queue.grants))
    return Decision(evictions=tuple(_evictions(it, queue.unserved)), look_at=_reserve_opens(it, queue.head))


def may_expire(staying: int, limits: PoolLimits) -> bool:
    """Whether a connection whose idle time is over may go. If not, it goes once the total exceeds the minimum."""
    return staying > limits.minimum


class _Queue(Generic[K]):
    """The waiters: which of them get a slot now, and for how many of the others an idle connection may be evicted."""

    def __init__(self, it: Snapshot[K]) -> None:
        self.grants: list[K] = []
        self.head: Waiter[K] | None = None  # the first shared waiter left in the queue, if it may have a slot
        self.unserved = 0  # waiters that may have a slot and get none now, as far as evictions can help them
        self._it = it
        self._shared = it.shared
        self._granted = Counter[str]()  # slots granted to each group here
        self._read()

    def _read(self) -> None:
        is_head = True
        for waiter in self._it.waiting:
            if self._has_half(waiter.group):
                is_head = False
            elif self._has_slot(waiter, is_head=is_head):
                self._grant(waiter)
            else:
                self.unserved += 1
                if is_head and not waiter.is_kept:
                    self.head, is_head = waiter, False
                if self._shared >= self._it.capacity and not self._it.idle.has(
                    self.unserved - self._it.leaving
                ):
                    return

    def _has_slot(self, waiter: Waiter[K], *, is_head: bool) -> bool:
        capacity, reserve = self._it.capacity, self._it.limits.reserve
        if waiter.is_kept:  # it has its own slot, unless other connections still use it
            return self._shared <= capacity + reserve
        is_open = is_head and self._it.now >= _earned_at(self._it, waiter)
        return self._shared < capacity + (reserve if is_open else 0)

    def _has_half(self, group: str | None) -> bool:
        if group is None:
            return False
        return self._it.groups(group) + self._granted[group] >= max(1, self._it.limits.slots // 2)

    def _grant(self, waiter: Waiter[K]) -> None:
        self.grants.append(waiter.who)
        self._shared += not waiter.is_kept
        if waiter.group is not None:
            self._granted[waiter.group] += 1


def _evictions(it: Snapshot[K], unserved: int) -> list[K]:
    """Which idle connections to evict: those over the limit, then one for each waiter, then overdue ones that the
    minimum does not keep."""
    gone: list[K] = []
    surplus = it.shared - it.leaving - it.capacity
    for who in it.idle:
        # The waiter replaces the evicted connection, but meanwhile the total must not sink below the minimum.
        makes_room = it.leaving + len(gone) < unserved and it.staying - len(gone) > it.limits.minimum
        if len(gone) >= surplus and not makes_room:
            break
        gone.append(who)
    if it.staying - len(gone) > it.limits.minimum:
        for who in it.overdue:
            if it.staying - len(gone) <= it.limits.minimum:
                break
            if who not in gone:
                gone.append(who)
    return gone


def _earned_at(it: Snapshot[K], waiter: Waiter[K]) -> float:
    """The time at which this waiter has waited long enough for the reserve."""
    return max(waiter.since, it.reserve_from) + it.limits.reserve_timeout


def _reserve_opens(it: Snapshot[K], head: Waiter[K] | None) -> float:
    """When the reserve opens to the head of the queue; `inf` when time alone changes nothing."""
    is_left = it.shared < it.capacity + it.limits.reserve
    return _earned_at(it, head) if head is not None and is_left else math.inf


# ---- What the pool decides from: the connections of a room, read off the actors and their starts --------------------
#
# A `Snapshot` is made for each decision. What only some decisions need is found when it is asked for: the idle actors
# one by one (`IdleOrder`), those that are overdue, how many slots a group holds, who waits.


class Sees(Protocol):
    """What the pool asks the directory of servers."""

    def kept(self) -> Collection[str]:
        """The servers that have a slot set aside."""
        ...

    def shared_actor(self, server: str) -> ServerActor | None:
        """The actor of the server's shared address, if it exists already."""
        ...


class PoolView:
    def __init__(
        self,
        context: RoomContext,
        starts: Starts,
        directory: Sees,
        is_discovery: Callable[[ServerActor], bool],
    ) -> None:
        """`is_discovery`: whether an actor starts only for discovery, and nobody has called it."""
        self.idle_order: IdleOrder = IdleOrder()
        self._context = context
        self._starts = starts
        self._directory = directory
        self._is_discovery = is_discovery

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
        return self._context.settings.max_connections - len(self._directory.kept())

    def is_kept(self, actor: ServerActor) -> bool:
        """Whether a slot is set aside for it."""
        return actor.address.is_shared and actor.address.server in self._directory.kept()

    def _kept_actors(self) -> Iterator[ServerActor]:
        found = map(self._directory.shared_actor, self._directory.kept())
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
            kept=len(self._directory.kept()),
            shared=self.shared(),
            leaving=leaving - kept_leaving,
            staying=self._starts.slots_held - leaving,
            idle=InOrder(self._idle()),
            overdue=self._overdue() if self.limits.minimum else (),
            groups=cache(self._held_by),
            waiting=self._queue(),
            reserve_from=reserve_from,
        )

    def _idle(self) -> Iterator[ServerActor]:
        kept = self._directory.kept()
        return (actor for actor in self.idle_order.longest_idle() if actor.address.server not in kept)

    def _overdue(self) -> Iterator[ServerActor]:
        """The idle ones that only the minimum keeps. All connections are looked at, when the first is asked for."""
        now, kept = self._context.backend.now(), self._directory.kept()
        idle = [actor for actor in self._starts.at(Place.LIVE) if actor.is_idle and actor.idling.until <= now]
        shared = [actor for actor in idle if actor.address.is_shared and actor.address.server not in kept]
        yield from sorted(shared, key=_idle_until)

    def _held_by(self, server: str) -> int:
        """How many slots the sessions and calls of a server hold."""
        actors = self._starts.holders()
        return sum(not actor.address.is_shared and actor.address.server == server for actor in actors)

    def _queue(self) -> Iterator[Waiter[ServerActor]]:
        """The actors that wait for a slot: those with one set aside, then called ones, then those to be discovered."""
        for actor in self._kept_actors():
            if actor.start.place is Place.SLOT:
                yield Waiter(actor, actor.start.since, is_kept=True)
        for is_discovery in (False, True):
            for actor in self._starts.at(Place.SLOT):
                if self._is_discovery(actor) is is_discovery and not self.is_kept(actor):
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


# --------------------------------------------------------------------------------------------------------------
#
#
# The connections that may be asked to end, the longest idle first, found without looking at all of them.
#
# The actor itself knows whether it is idle, and since when. This is an index to that: a heap of actors. Each
# entry has the time since which its actor had been idle when the entry was made. That time of an actor only
# grows, so the entry's is a lower bound. The first entry whose time is still right belongs to the actor that
# has been idle longest. An entry whose time is too early is put back with the actor's present time. An entry
# whose actor is busy is removed: then the actor is no longer `is_listed`, and reports when it is idle again. So
# a listed actor has nothing to do when it is called, or when it becomes idle again.
#
# Rejected: to look at every live connection (at a thousand, more than a millisecond for each decision), and to
# keep a list in the order of becoming idle (one more step for every call).

_SPARE = 64  # how many entries of actors that are gone may be left


class IdleOrder:
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


# --------------------------------------------------------------------------------------------------------------
#
#
# The places of all starts of a room. One function moves a start, and every move is an event.
#
# The place of a start says what it waits for and what it holds (`protocol.events`). `Starts` keeps the actors of
# each place in order of arrival, so the queues and the number of used slots and permits are read from it. Only
# `move` changes a place and these lists.


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
