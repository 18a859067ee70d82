"""Where each start of a room is, how many there are, and what the pool decides from.

The place of a start says what it waits for and what it holds (`protocol.events`). One function moves a start
(`Places.move`). Every move is an event, and changes the few numbers that a decision is read from. So whether there is
anything to decide is known without looking at anybody, and leaving every queue is one move.

A `Snapshot` is made for each decision of the pool, at a price that does not grow with the room. What only some
decisions need is found when it is asked for: the idle actors one by one (`IdleOrder`), those that are overdue, and who
is the first that waits (`SlotQueue`). Whether an actor only discovers changes without a move, so those that may are
listed by themselves, and each is asked. They are few: `DiscoveryQueue` begins no more than some dozens at a time.

Rejected: queues and a pool with lists of their own, beside the places (they drifted from what the actors knew); numbers
that are read off all actors at each decision (one start asked a hundred and thirty times who holds a slot); to look at
every live connection for the one that has been idle longest (at a thousand, more than a millisecond for each decision);
a list in the order of becoming idle (one more step for every call).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, Union

from ..config.model import Settings
from ..protocol.address import SHARED
from ..protocol.events import HOLDS_SLOT, Place, StartMoved
from .policy.pool import IdleConnections, PoolLimits, SlotWaiter, Snapshot, may_expire
from .slot_queue import SlotQueue

if TYPE_CHECKING:
    from ..actors.room_context import RoomContext
    from ..actors.server import ServerActor
    from .servers import ServerRecord
    from .warm_pool import WarmChild

SESSION_REST: Final = 60.0  # seconds that the child of a session keeps its slot after its last call


SlotHolder = Union["ServerActor", "WarmChild"]
Entries = Mapping["ServerActor", "ServerRecord"]  # actors in order of arrival, each with its server's record


class Places:
    """The actors of each place, in order of arrival, with their records, and how many hold what."""

    def __init__(self, context: RoomContext) -> None:
        self.kept: Mapping[str, ServerRecord] = {}  # the servers that have a slot set aside
        self._context = context
        # Ordered ones find their first at once, also after many have left.
        self._at: dict[Place, OrderedDict[ServerActor, ServerRecord]] = {
            place: OrderedDict() for place in Place
        }
        # Those at `Place.SLOT`, again: with a slot set aside, children of sessions, the others. Without those in
        # `_discovering`, which are wherever they are on their way.
        self._kept_queue: SlotQueue[ServerActor] = SlotQueue()
        self._session_queue: SlotQueue[ServerActor] = SlotQueue()
        self._queue: SlotQueue[ServerActor] = SlotQueue()
        self._discovering: dict[ServerActor, ServerRecord] = {}
        self._behind: dict[
            ServerRecord, dict[ServerActor, ServerRecord]
        ] = {}  # those at `Place.BREAKER`, again
        self.waiting: int = 0  # how many wait for a turn, a slot or a permit
        self._counts = Counter[tuple[Place, bool]]()  # how many are at each; True: children of sessions
        self._held = {False: 0, True: 0}  # slots; True: by children of sessions
        self._kept_held = 0  # those of them that were set aside
        # How many of the actors that hold a slot are stopping. A failed attempt to connect keeps its place until it is
        # cleaned up, so those that stop while they start are marked.
        self._leaving = {False: 0, True: 0}  # True: children of sessions
        self._kept_leaving = 0
        self._failing: set[ServerActor] = set()
        self._overdue: dict[
            ServerActor, None
        ] = {}  # those whose idle time was over when the minimum kept them
        # Children that are started ahead and hold a slot themselves.
        self._warm: dict[bool, dict[WarmChild, None]] = {False: {}, True: {}}
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
        """How many actors are in this place: children of sessions, or all others."""
        return self._counts[place, of_sessions]

    def holders(self) -> list[ServerActor]:
        """The actors that hold a slot."""
        return [actor for place in Place if place in HOLDS_SLOT for actor in self._at[place]]

    def held(self, *, of_sessions: bool) -> int:
        """How many slots children of sessions hold, or all others."""
        return self._held[of_sessions]

    def discoveries(self, places: Collection[Place]) -> Iterator[ServerActor]:
        """The actors in these places that start only for discovery."""
        for actor, record in self._discovering.items():
            if actor.start.place in places and record.is_discovery(actor):
                yield actor

    def discovers(self, record: ServerRecord, actor: ServerActor) -> None:
        """The actor is to discover what its server has, from now on."""
        if actor.start.place is not Place.OUT:
            self._queue.discard(actor, _group(actor))
            self._discovering[actor] = record

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
        self._discovering.pop(actor, None)
        if place is Place.SLOT:
            for queue in (self._queue, self._session_queue, self._kept_queue):
                queue.discard(actor, _group(actor))
        elif place is Place.BREAKER:
            waiting = self._behind[record]
            del waiting[actor]
            if not waiting:
                del self._behind[record]

    def _put(self, record: ServerRecord, actor: ServerActor, place: Place) -> None:
        self._at[place][actor] = record
        self._count(actor, place, 1)
        if record.discovery is actor:
            self._discovering[actor] = record
        if place is Place.SLOT:
            self._arrivals += 1
            actor.start.number = self._arrivals
            self._line_up(actor)
        elif place is Place.BREAKER:
            self._behind.setdefault(record, {})[actor] = record

    def _line_up(self, actor: ServerActor) -> None:
        """The actor waits for a slot, and has come last."""
        if self.is_kept(actor):
            self._kept_queue.add(actor, actor.start.number)
        elif actor.address.is_session:
            self._session_queue.add(actor, actor.start.number)
        elif actor not in self._discovering:
            self._queue.add(actor, actor.start.number, _group(actor))

    def _count(self, actor: ServerActor, place: Place, by: int) -> None:
        address = actor.address
        of_session = address.is_session
        self._counts[place, of_session] += by
        self.waiting += by if place in _QUEUES else 0
        if place in HOLDS_SLOT:
            self._held[of_session] += by
            self._kept_held += by if self.is_kept(actor) else 0
            if address.is_call:
                self._count_group(address.server, by)
        if place is Place.LEAVING or (place is Place.STARTING and actor in self._failing):
            self._failing.discard(actor)
            self._count_leaving(actor, by)

    def _count_group(self, server: str, by: int) -> None:
        self._groups[server] += by
        self._heed_share(server)
        if not self._groups[server]:
            del self._groups[server]

    def _count_leaving(self, actor: ServerActor, by: int) -> None:
        self._leaving[actor.address.is_session] += by
        self._kept_leaving += by if self.is_kept(actor) else 0

    def _heed_share(self, group: str) -> None:
        """The calls apart of this server hold more slots than before, or fewer, or may hold another number."""
        if self.limits.has_half(self._groups[group]):
            self._queue.close(group)
        else:
            self._queue.reopen(group)

    def begins_to_leave(self, record: ServerRecord, actor: ServerActor) -> None:
        """The actor begins to stop, or has been told to stop."""
        if actor.start.place is Place.LIVE:
            self.move(record, actor, Place.LEAVING)
        elif actor.start.place is Place.STARTING and actor not in self._failing:
            self._failing.add(actor)
            self._count_leaving(actor, 1)

    # ---- the slots of what is started ahead ------------------------------------------------------------------------

    def hold(self, child: WarmChild) -> None:
        """The child holds a slot from now on, until `release`."""
        self._warm[child.of_sessions][child] = None
        self._count_warm(child, 1)

    def release(self, child: WarmChild) -> None:
        """Nothing is left of the child, or somebody has taken it over with its slot."""
        del self._warm[child.of_sessions][child]
        self._count_warm(child, -1)

    def _count_warm(self, child: WarmChild, by: int) -> None:
        self._held[child.of_sessions] += by
        if not child.of_sessions:
            self._count_group(child.address.server, by)

    def _free_warm(self, *, of_sessions: bool) -> list[WarmChild]:
        """Those that are not ending, the newest first."""
        return [child for child in reversed(self._warm[of_sessions]) if not child.is_leaving]

    # ---- the slots that are set aside -------------------------------------------------------------------------------

    def set_aside(self, kept: Mapping[str, ServerRecord]) -> None:
        """These servers have a slot set aside, from now on."""
        changed = self.kept.keys() ^ kept.keys()
        if not changed:
            return
        records = {**self.kept, **kept}
        found = [records[server].actors.get(SHARED) for server in changed]
        actors = [actor for actor in found if actor is not None]
        for actor in actors:
            self._count_kept(actor, -1)
        self.kept = kept
        for actor in actors:
            self._count_kept(actor, 1)
            self._heed_idle(actor)
        if any(actor.start.place is Place.SLOT for actor in actors):
            self._kept_queue, self._queue = SlotQueue(), SlotQueue()
            for group in self._groups:
                self._heed_share(group)
            for actor in self._at[Place.SLOT]:
                if not actor.address.is_session:
                    self._line_up(actor)

    def _count_kept(self, actor: ServerActor, by: int) -> None:
        """Count the slot that the actor may hold as one set aside, if it is; `by` -1: no longer."""
        if self.is_kept(actor) and actor.start.place in HOLDS_SLOT:
            self._kept_held += by
            is_leaving = actor.start.place is Place.LEAVING or actor in self._failing
            self._kept_leaving += by if is_leaving else 0

    def _heed_idle(self, actor: ServerActor) -> None:
        """A slot is set aside for the actor now, or no longer: it makes no room, or may have to."""
        order = self._idle_orders[False]
        order.forget(actor)
        if self.is_kept(actor):
            actor.is_listed_idle = True
        elif actor.is_idle:
            order.add(actor, len(self._at[Place.LIVE]))

    def is_kept(self, actor: ServerActor) -> bool:
        """Whether a slot is set aside for it."""
        return actor.address.server in self.kept and actor.address.is_shared

    # ---- limits and numbers -----------------------------------------------------------------------------------------

    @property
    def limits(self) -> PoolLimits:
        return self._all_limits()[1]

    @property
    def session_limits(self) -> PoolLimits:
        """The limits for the children of sessions."""
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
            for group in self._groups:
                self._heed_share(group)
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
        return self._held[False] - len(self._warm[False]) - self._leaving[False]

    def free(self, *, of_sessions: bool) -> int:
        """How many slots nobody holds that are set aside for nobody; none while somebody waits for one."""
        if self._counts[Place.SLOT, of_sessions]:
            return 0
        free = self.session_limits.slots - self._held[True] if of_sessions else self.capacity - self.shared
        return max(0, free)

    def in_group(self, server: str) -> int:
        """How many slots the calls apart of this server hold, with the children that are warm for them."""
        return self._groups[server]

    # ---- what the pool decides from ---------------------------------------------------------------------------------

    def is_free_for(self, actor: ServerActor) -> bool:
        """Whether a slot is free for the only one that waits, so that nothing has to be decided."""
        address = actor.address
        if address.is_session:
            return self.session_limits.is_free(self._held[True])
        in_group = self._groups[address.server] if address.is_call else 0
        return not self.is_kept(actor) and self.limits.is_free(self.shared, len(self.kept), in_group)

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

    def snapshot(self, reserve_from: float) -> Snapshot[SlotHolder]:
        """The snapshot that the pool decides from, of all but the children of sessions."""
        limits, warm = self.limits, self._free_warm(of_sessions=False)
        waiting, in_lines = self._waiting()
        return Snapshot(
            self._context.backend.now(),
            limits,
            kept=len(self.kept),
            shared=self.shared,
            leaving=self._leaving[False] - self._kept_leaving + len(self._warm[False]) - len(warm),
            staying=self.staying() + len(warm),
            warm=len(warm),
            idle=IdleConnections(chain(_never_used(warm), self._idle())),
            overdue=self._longest_overdue() if limits.minimum else (),
            groups=self._groups.__getitem__,
            waiting=waiting,
            candidates=in_lines,
            reserve_from=reserve_from,
        )

    def session_snapshot(self) -> Snapshot[SlotHolder]:
        """The snapshot that the pool decides from, of the children of sessions."""
        now, limits, warm = (
            self._context.backend.now(),
            self.session_limits,
            self._free_warm(of_sessions=True),
        )
        held, first = self._held[True], self._session_queue.first()
        leaving = self._leaving[True] + len(self._warm[True]) - len(warm)
        return Snapshot(
            now,
            limits,
            shared=held,
            leaving=leaving,
            staying=held - leaving,
            warm=len(warm),
            idle=IdleConnections(chain(_never_used(warm), self._idle_of_sessions()), now - limits.rest),
            waiting=() if first is None else (_waiter(first),),
            candidates=self._session_queue.open,
        )

    def became_idle(self, actor: ServerActor) -> None:
        """List an actor that is idle and not listed. Nobody looks for one with a slot set aside."""
        if self.is_kept(actor):
            actor.is_listed_idle = True
            return
        self._idle_orders[actor.address.is_session].add(actor, len(self._at[Place.LIVE]))

    def forget(self, actor: ServerActor) -> None:
        """The actor's address is gone."""
        self._overdue.pop(actor, None)
        if not actor.address.is_call:  # these are not listed, see `Starts.became_idle`
            self._idle_orders[actor.address.is_session].forget(actor)

    def _idle(self) -> Iterator[tuple[SlotHolder, float]]:
        idle = self._idle_orders[False].longest_idle()
        return ((actor, actor.idle_since) for actor in idle)

    def _idle_of_sessions(self) -> Iterator[tuple[SlotHolder, float]]:
        """One whose client wants news of a resource is in use: it would be started again at once."""
        idle = self._idle_orders[True].longest_idle()
        return ((actor, actor.idle_since) for actor in idle if not actor.subscriptions.uris)

    def became_overdue(self, actor: ServerActor) -> None:
        """List an actor whose idle time is over, and that the minimum keeps."""
        self._overdue[actor] = None

    def _longest_overdue(self) -> Iterator[SlotHolder]:
        """Those that only the minimum keeps, the longest overdue first. One that has been called since is not overdue
        any more, and is listed again (`became_overdue`) when its next idle time is over."""
        now = self._context.backend.now()
        overdue = [actor for actor in self._overdue if actor.is_idle and actor.idle_until <= now]
        self._overdue = dict.fromkeys(overdue)
        shared = [actor for actor in overdue if actor.address.is_common and not self.is_kept(actor)]
        yield from sorted(shared, key=_idle_until)

    def _waiting(self) -> tuple[list[SlotWaiter[SlotHolder]], int]:
        """The first of those that wait for a slot and may have one, of all but the children of sessions, and how many
        such there are: those with a slot set aside come first, then called ones, then those to be discovered."""
        kept, first, limits = self._kept_queue, self._queue.first(), self.limits
        called: list[ServerActor] = [] if first is None else [first]
        discovered: list[ServerActor] = []
        count = kept.open + self._queue.open
        for actor, record in self._discovering.items():
            if actor.start.place is not Place.SLOT or self.is_kept(actor):
                continue
            if actor.address.is_call and limits.has_half(self._groups[actor.address.server]):
                continue
            count += 1
            (discovered if record.is_discovery(actor) else called).append(actor)
        head = kept.first() or min(called or discovered, key=_number, default=None)
        return ([] if head is None else [_waiter(head, is_kept=bool(kept.open))]), count


_NOBODY: Final[Entries] = {}
_QUEUES: Final = frozenset({Place.INSTALL_TURN, Place.TURN, Place.SLOT, Place.PERMIT})


def _group(actor: ServerActor) -> str | None:
    """The server of a call apart."""
    return actor.address.server if actor.address.is_call else None


def _never_used(warm: Iterable[WarmChild]) -> Iterator[tuple[SlotHolder, float]]:
    """Those that are started ahead, as connections that have been idle longest: nobody has used them."""
    return ((child, -math.inf) for child in warm)


def _waiter(actor: ServerActor, *, is_kept: bool = False) -> SlotWaiter[SlotHolder]:
    return SlotWaiter(actor, actor.start.since, _group(actor), is_kept)


def _number(actor: ServerActor) -> int:
    return actor.start.number


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
