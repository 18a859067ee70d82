"""Where each start of a room is, how many there are, and what the pool decides from.

The place of a start says what it waits for and what it holds (`protocol.events`). One function moves a start
(`Places.move`). Every move is an event, and changes the few numbers that a decision is read from. So whether there is
anything to decide is known without looking at anybody, and leaving every queue is one move.

A `Snapshot` is made for each decision of the pool. What only some decisions need is found when it is asked for: the
idle actors one by one (`IdleOrder`), those that are overdue, how many slots a group holds, who waits.

Rejected: queues and a pool with lists of their own, beside the places (they drifted from what the actors knew); numbers
that are read off all actors at each decision (one start asked a hundred and thirty times who holds a slot); to look at
every live connection for the one that has been idle longest (at a thousand, more than a millisecond for each decision);
a list in the order of becoming idle (one more step for every call).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ..config.model import Settings
from ..protocol.address import DISCOVERY, SHARED, Address
from ..protocol.events import HOLDS_SLOT, Place, StartMoved
from .policy.pool import PoolLimits, Resting, SlotLine, SlotWaiter, Snapshot, is_free, may_expire

if TYPE_CHECKING:
    from ..actors.room_context import RoomContext
    from ..actors.server import ServerActor
    from .servers import ServerRecord

SESSION_REST: Final = 60.0  # seconds that the child of a session keeps its slot after its last call


class WaitingPlace(NamedTuple):
    """A line of actors that wait for a slot. `group`: the server of calls apart."""

    group: str | None = None
    of_sessions: bool = False
    may_be_discovery: bool = True


OF_SHARED: Final = WaitingPlace()
OF_SESSIONS: Final = WaitingPlace(of_sessions=True, may_be_discovery=False)


def waiting_place(address: Address) -> WaitingPlace:
    if address.is_common:
        return OF_SHARED
    if address.is_session:
        return OF_SESSIONS
    return WaitingPlace(address.server, may_be_discovery=address.scope == DISCOVERY)


Entries = Mapping["ServerActor", "ServerRecord"]  # actors in order of arrival, each with its server's record


class Places:
    """The actors of each place, in order of arrival, with their records, and how many hold what."""

    def __init__(self, context: RoomContext) -> None:
        self.kept: Mapping[str, ServerRecord] = {}  # the servers that have a slot set aside
        self._context = context
        self._at: dict[Place, dict[ServerActor, ServerRecord]] = {place: {} for place in Place}
        self._lines: dict[WaitingPlace, dict[ServerActor, ServerRecord]] = {}  # those at `Place.SLOT`, again
        self._behind: dict[
            ServerRecord, dict[ServerActor, ServerRecord]
        ] = {}  # those at `Place.BREAKER`, again
        self.waiting: int = 0  # how many wait for a turn, a slot or a permit
        self._counts = Counter[tuple[Place, bool]]()  # how many are at each; True: children of sessions
        self._held = {False: 0, True: 0}  # slots; True: by children of sessions
        self._kept_held = 0  # those of them that were set aside
        self._groups = Counter[str]()  # slots that the calls apart of each server hold
        self._arrivals = 0
        self._idle_orders = {False: IdleOrder(), True: IdleOrder()}  # True: of the children of sessions
        self._bounds: tuple[Settings, PoolLimits, PoolLimits] | None = None

    # ---- who is where -----------------------------------------------------------------------------------------------

    def at(self, place: Place) -> Entries:
        """The actors in this place. Those in `OUT` are not listed."""
        return self._at[place]

    def first(self, place: Place) -> tuple[ServerActor, ServerRecord]:
        """Who has been in this place longest."""
        return next(iter(self._at[place].items()))

    def behind(self, record: ServerRecord) -> Entries:
        """The actors whose starts wait for the circuit breaker of this record."""
        return self._behind.get(record, _NOBODY)

    def count(self, place: Place) -> int:
        return len(self._at[place])

    def count_of(self, place: Place, *, of_sessions: bool) -> int:
        """The same for children of sessions alone, or for all others."""
        return self._counts[place, of_sessions]

    def holders(self) -> list[ServerActor]:
        """The actors that hold a slot."""
        return [actor for place in Place if place in HOLDS_SLOT for actor in self._at[place]]

    def held(self, *, of_sessions: bool) -> int:
        """How many slots children of sessions hold, or all others."""
        return self._held[of_sessions]

    def may_be_discoveries(self, places: Iterable[Place]) -> Iterator[tuple[ServerActor, ServerRecord]]:
        """The actors in these places, without those that only wait for a slot and are no discovery, of which there may
        be many."""
        for place in places:
            if place is not Place.SLOT:
                yield from self._at[place].items()
        if Place.SLOT in places:
            yield from chain.from_iterable(
                line.items() for place, line in self._lines.items() if place.may_be_discovery
            )

    def move(self, record: ServerRecord, actor: ServerActor, place: Place) -> None:
        """Move the actor's start to the end of the queue at `place`. Nothing happens when it is there
        already."""
        start, now = actor.start, self._context.backend.now()
        if start.place is place:
            return
        if start.place is Place.OUT:
            start.began = now
        else:
            self._take_off(record, actor, start.place)
        if start.deadline is not None:
            start.deadline.cancel()
            start.deadline = None
        start.place, start.since = place, now
        if place is not Place.OUT:
            self._put(record, actor, place)
        self._context.events.emit(StartMoved, actor.address, actor.life.incarnation, place=place)

    def _take_off(self, record: ServerRecord, actor: ServerActor, place: Place) -> None:
        del self._at[place][actor]
        self._count(actor, place, -1)
        if place is Place.SLOT:
            _leave(self._lines, waiting_place(actor.address), actor)
        elif place is Place.BREAKER:
            _leave(self._behind, record, actor)

    def _put(self, record: ServerRecord, actor: ServerActor, place: Place) -> None:
        self._at[place][actor] = record
        self._count(actor, place, 1)
        if place is Place.SLOT:
            self._arrivals += 1
            actor.start.number = self._arrivals
            self._lines.setdefault(waiting_place(actor.address), {})[actor] = record
        elif place is Place.BREAKER:
            self._behind.setdefault(record, {})[actor] = record

    def _count(self, actor: ServerActor, place: Place, by: int) -> None:
        address = actor.address
        of_session = address.is_session
        self._counts[place, of_session] += by
        self.waiting += by if place in _QUEUES else 0
        if place in HOLDS_SLOT:
            self._held[of_session] += by
            self._kept_held += by if self.is_kept(actor) else 0
            if address.is_call:
                self._groups[address.server] += by
                if not self._groups[address.server]:
                    del self._groups[address.server]

    # ---- the slots that are set aside -------------------------------------------------------------------------------

    def set_aside(self, kept: Mapping[str, ServerRecord]) -> None:
        """These servers have a slot set aside, from now on."""
        self.kept = kept
        self._kept_held = sum(actor.start.place in HOLDS_SLOT for actor in self._kept_actors())

    def is_kept(self, actor: ServerActor) -> bool:
        """Whether a slot is set aside for it."""
        return actor.address.server in self.kept and actor.address.is_shared

    def _kept_actors(self) -> list[ServerActor]:
        found = (record.actors.get(SHARED) for record in self.kept.values())
        return [actor for actor in found if actor is not None]

    # ---- limits and numbers -----------------------------------------------------------------------------------------

    @property
    def limits(self) -> PoolLimits:
        return self._all_limits()[1]

    @property
    def session_limits(self) -> PoolLimits:
        """Those of the children of sessions."""
        return self._all_limits()[2]

    def _all_limits(self) -> tuple[Settings, PoolLimits, PoolLimits]:
        settings = self._context.settings
        if self._bounds is None or self._bounds[0] is not settings:
            # As in PgBouncer: no time, no reserve.
            reserve = settings.reserve_connections if settings.reserve_timeout else 0
            limits = PoolLimits(
                settings.max_connections, reserve, settings.reserve_timeout, settings.min_connections
            )
            self._bounds = settings, limits, PoolLimits(settings.max_session_connections, rest=SESSION_REST)
        return self._bounds

    def slots_for(self, actor: ServerActor) -> int:
        """How many slots there are for such actors."""
        return (self.session_limits if actor.address.is_session else self.limits).slots

    @property
    def capacity(self) -> int:
        """Slots for servers that have none set aside."""
        return self._context.settings.max_connections - len(self.kept)

    @property
    def shared(self) -> int:
        """How many actors hold a slot that is neither set aside nor one for children of sessions."""
        return self._held[False] - self._kept_held

    def staying(self) -> int:
        """How many actors hold a slot and are not stopping, apart from children of sessions."""
        return self._held[False] - self._leaving(of_sessions=False)

    def _leaving(self, *, of_sessions: bool) -> int:
        """How many of the actors that hold a slot are stopping."""
        failed = (one for one in self._at[Place.STARTING] if one.address.is_session is of_sessions)
        return self._counts[Place.LEAVING, of_sessions] + sum(map(_is_leaving, failed))

    # ---- what the pool decides from ---------------------------------------------------------------------------------

    def is_free_for(self, actor: ServerActor) -> bool:
        """Whether a slot is free for the only one that waits, so that nothing has to be decided."""
        address = actor.address
        if address.is_session:
            return is_free(self.session_limits, self._held[True])
        in_group = self._groups[address.server] if address.is_call else 0
        return not self.is_kept(actor) and is_free(self.limits, self.shared, len(self.kept), in_group)

    def needs_decision(self, *, of_sessions: bool) -> bool:
        """Whether anybody waits for a slot, or more slots are held than there are: by children of sessions, or by all
        others."""
        settings = self._context.settings
        if self._counts[Place.SLOT, of_sessions]:
            return True
        if of_sessions:
            return self._held[True] > settings.max_session_connections
        if self._held[False] - self._kept_held > settings.max_connections - len(self.kept):
            return True
        return bool(settings.min_connections) and may_expire(self.staying(), self.limits)

    def snapshot(self, reserve_from: float) -> Snapshot[ServerActor]:
        """The snapshot that the pool decides from, of all but the children of sessions."""
        leaving, limits = self._leaving(of_sessions=False), self.limits
        kept_leaving = sum(map(_is_leaving, self._kept_actors()))
        return Snapshot(
            self._context.backend.now(),
            limits,
            kept=len(self.kept),
            shared=self.shared,
            leaving=leaving - kept_leaving,
            staying=self._held[False] - leaving,
            idle=Resting(self._idle()),
            overdue=self._overdue() if limits.minimum else (),
            groups=self._groups.__getitem__,
            waiting=self._waiting(),
            reserve_from=reserve_from,
        )

    def session_snapshot(self) -> Snapshot[ServerActor]:
        """The snapshot that the pool decides from, of the children of sessions."""
        now, limits = self._context.backend.now(), self.session_limits
        held, leaving = self._held[True], self._leaving(of_sessions=True)
        return Snapshot(
            now,
            limits,
            shared=held,
            leaving=leaving,
            staying=held - leaving,
            idle=Resting(self._idle_of_sessions(), now - limits.rest),
            waiting=((SlotLine(None, _waiters(self._lines.get(OF_SESSIONS, _NOBODY))),),),
        )

    def became_idle(self, actor: ServerActor) -> None:
        """List an actor that is idle and not listed."""
        self._idle_orders[actor.address.is_session].add(actor, len(self._at[Place.LIVE]))

    def forget(self, actor: ServerActor) -> None:
        """The actor's address is gone."""
        if not actor.address.is_call:  # these are not listed, see `Starts.became_idle`
            self._idle_orders[actor.address.is_session].forget(actor)

    def _idle(self) -> Iterator[tuple[ServerActor, float]]:
        idle = self._idle_orders[False].longest_idle()
        return ((actor, actor.idle_since) for actor in idle if not self.is_kept(actor))

    def _idle_of_sessions(self) -> Iterator[tuple[ServerActor, float]]:
        """One whose client wants news of a resource is in use: it would be started again at once."""
        idle = self._idle_orders[True].longest_idle()
        return ((actor, actor.idle_since) for actor in idle if not actor.subscriptions.uris)

    def _overdue(self) -> Iterator[ServerActor]:
        """The idle ones that only the minimum keeps. All connections are looked at, when the first is asked for."""
        now = self._context.backend.now()
        idle = [actor for actor in self._at[Place.LIVE] if actor.is_idle and actor.idle_until <= now]
        shared = [actor for actor in idle if actor.address.is_common and not self.is_kept(actor)]
        yield from sorted(shared, key=_idle_until)

    def _waiting(self) -> Iterator[Iterable[SlotLine[ServerActor]]]:
        """The actors that wait for a slot: those with one set aside, then called ones, then those to be discovered."""
        kept = [actor for actor in self._kept_actors() if actor.start.place is Place.SLOT]
        yield (SlotLine(None, _waiters(kept, is_kept=True)),)
        for is_discovery in (False, True):
            yield (
                SlotLine(place.group, self._of_line(place, is_discovery=is_discovery))
                for place in self._lines
                if not place.of_sessions and (place.may_be_discovery or not is_discovery)
            )

    def _of_line(self, place: WaitingPlace, *, is_discovery: bool) -> Iterator[SlotWaiter[ServerActor]]:
        found = (
            actor
            for actor, record in self._lines[place].items()
            if record.is_discovery(actor) is is_discovery and not self.is_kept(actor)
        )
        return _waiters(found, group=place.group)


_NOBODY: Final[Entries] = {}
_QUEUES: Final = frozenset({Place.INSTALL_TURN, Place.TURN, Place.SLOT, Place.PERMIT})
_K = TypeVar("_K")


def _leave(lines: dict[_K, dict[ServerActor, ServerRecord]], line: _K, actor: ServerActor) -> None:
    del lines[line][actor]
    if not lines[line]:
        del lines[line]


def _waiters(
    actors: Iterable[ServerActor], *, group: str | None = None, is_kept: bool = False
) -> Iterator[SlotWaiter[ServerActor]]:
    return (
        SlotWaiter(actor, actor.start.since, actor.start.number, group=group, is_kept=is_kept)
        for actor in actors
    )


def _is_leaving(actor: ServerActor) -> bool:
    """Whether it holds a slot and is stopping. A failed attempt to connect keeps its place until it is cleaned up."""
    place = actor.start.place
    return place is Place.LEAVING or (place is Place.STARTING and actor.is_stopping)


def _idle_until(actor: ServerActor) -> float:
    return actor.idle_until


_SPARE = 64  # how many entries of actors that are gone may be left


class IdleOrder:
    """The connections that may be asked to end, the longest idle first, found without looking at all of them.

    The actor itself knows whether it is idle, and since when. This is an index to that: a heap of actors. Each entry
    has the time since which its actor had been idle when the entry was made. That time of an actor only grows, so the
    entry's is a lower bound. The first entry whose time is still right belongs to the actor that has been idle longest.
    An entry whose time is too early is put back with the actor's present time. An entry whose actor is busy is removed:
    then the actor is no longer `is_listed_idle`, and reports when it is idle again. So a listed actor has nothing to do
    when it is called, or when it becomes idle again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ServerActor]] = []
        self._read: list[tuple[float, int, ServerActor]] = []  # taken off the heap and not put back yet
        self._number = 0  # orders the entries of one time

    def add(self, actor: ServerActor, live: int) -> None:
        """List an actor that is idle and not listed. `live`: the number of connections."""
        if len(self._heap) > 2 * live + _SPARE:
            self._forget_gone()
        actor.is_listed_idle = True
        self._put(actor)

    def longest_idle(self) -> Iterator[ServerActor]:
        """The idle actors, the longest idle first. Read it once, and before you ask for another."""
        while self._read:
            heapq.heappush(self._heap, self._read.pop())
        while self._heap:
            entry = heapq.heappop(self._heap)
            since, _, actor = entry
            if not actor.is_idle:
                actor.is_listed_idle = False
            elif actor.idle_since > since:
                self._put(actor)
            else:
                self._read.append(entry)
                yield actor

    def forget(self, actor: ServerActor) -> None:
        """Its address is gone."""
        if actor.is_listed_idle:
            actor.is_listed_idle = False
            self._heap = [entry for entry in (*self._heap, *self._read) if entry[2] is not actor]
            self._read = []
            heapq.heapify(self._heap)

    def _put(self, actor: ServerActor) -> None:
        self._number += 1
        heapq.heappush(self._heap, (actor.idle_since, self._number, actor))

    def _forget_gone(self) -> None:
        gone = [actor for _, _, actor in self._heap if actor.start.place is not Place.LIVE]
        for actor in gone:
            actor.is_listed_idle = False
        self._heap = [entry for entry in self._heap if entry[2].is_listed_idle]
        heapq.heapify(self._heap)
