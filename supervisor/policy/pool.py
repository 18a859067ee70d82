"""The pool: a limit on the number of live connections in a room. One pure function says what to do next.

`decide` reads a `Snapshot` (which connections are live, idle since when, ending, overdue; who waits since when; the
limits; the time) and answers with grants and evictions. It remembers nothing, so it cannot forget or miss an update.

The children of sessions have slots of their own, and a `Snapshot` of their own: what one session keeps never stands in
the way of a server that all share, of a call apart, or of a discovery.

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
* The calls apart of one server (a `group`) hold at most half the slots, so one server cannot fill the room.
* The child of a session may hold what its client is in the middle of. So it makes room only after `rest` seconds of
  idleness. (Its session is told when it meets a new process: `actors.call_queue`.)
* Of those that wait, only as many are read as a decision needs: of a group that holds its half, none.

Rejected: eviction inside the caller's request (the evicted process still runs then, so the limit is exceeded while it
ends); a pool with lists of its own (they drifted from what the actors knew); one pool for both (18 of 20 slots were
idle children of sessions, which made no room).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


def _no_group(_group: str) -> int:
    return 0


class PoolLimits(msgspec.Struct, frozen=True):
    slots: int = 20
    reserve: int = 0
    reserve_timeout: float = 5.0
    minimum: int = 0
    rest: float = 0.0  # seconds of idleness before a connection may be asked to make room


class SlotWaiter(msgspec.Struct, Generic[K], frozen=True):
    """An actor that waits for a slot."""

    who: K
    since: float
    number: int = 0  # of its arrival: those that came at one time have an order, too
    group: str | None = None  # the server, for the child of a call
    is_kept: bool = False  # a slot is set aside for it


class SlotLine(Generic[K]):
    """Waiters of one group, in order of arrival. Read only as far as needed."""

    __slots__ = ("group", "waiters")

    def __init__(self, group: str | None, waiters: Iterable[SlotWaiter[K]]) -> None:
        self.group: str | None = group
        self.waiters: Iterable[SlotWaiter[K]] = waiters


class Resting(Generic[K]):
    """Idle connections, the longest idle first. Only as many are read as a decision needs. Those that became idle after
    `by` rest still, and are not among them."""

    def __init__(self, source: Iterable[tuple[K, float]] = (), by: float = math.inf) -> None:
        """`source`: each with the time since which it has been idle."""
        self.next_since: float = math.inf  # of the first one that rests still, once it is read
        self._source = iter(source)
        self._by = by
        self._read: list[K] = []

    def has(self, count: int) -> bool:
        """Whether there are at least this many."""
        while len(self._read) < count and self.next_since == math.inf:
            who, since = next(self._source, (None, math.inf))
            if who is None:
                break
            if since > self._by:
                self.next_since = since
                break
            self._read.append(who)
        return len(self._read) >= count

    def first(self, count: int) -> list[K]:
        """At most this many, the longest idle first."""
        self.has(count)
        return self._read[: max(0, count)]


class Snapshot(msgspec.Struct, Generic[K], frozen=True):
    """All connections at one moment. "Shared" are those without a slot set aside."""

    now: float
    limits: PoolLimits
    kept: int = 0  # slots set aside
    shared: int = 0  # slots that shared connections hold, including those that are ending
    leaving: int = 0  # how many of these are ending: their slots will soon be free, without an eviction
    staying: int = 0  # live connections that are not ending
    # Idle shared connections that may be asked to end.
    idle: Resting[K] = msgspec.field(default_factory=lambda: Resting[K]())
    # Those of `idle` whose idle time is over, the longest overdue first; read only if one may go.
    overdue: Iterable[K] = ()
    groups: Callable[[str], int] = _no_group  # slots that each group holds
    # Groups of lines: all waiters of one come before those of the next, each at its time. Read only as far as needed.
    waiting: Iterable[Iterable[SlotLine[K]]] = ()
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
    wanted = _wanted(it, queue.unserved)
    evictions = _evictions(it, wanted)
    look_at = min(_reserve_opens(it, queue.head), _one_has_rested(it, wanted))
    return Decision(evictions=tuple(evictions), look_at=look_at)


def is_free(limits: PoolLimits, held: int, kept: int = 0, in_group: int = 0) -> bool:
    """Whether a slot is free for one that comes when nobody waits, so that nothing has to be decided. `held`: slots
    that shared connections hold; `kept`: those that are set aside; `in_group`: those that the newcomer's group
    holds."""
    return held < limits.slots - kept and in_group < _half(limits)


def _half(limits: PoolLimits) -> int:
    """The most slots that one group may hold."""
    return max(1, limits.slots // 2)


def both(one: Decision[K], other: Decision[K]) -> Decision[K]:
    """The decisions about two kinds of slots, as one."""
    evictions = one.evictions + other.evictions
    return Decision(one.grants + other.grants, evictions, min(one.look_at, other.look_at))


def may_expire(staying: int, limits: PoolLimits) -> bool:
    """Whether a connection whose idle time is over may go. If not, it goes once the total exceeds the minimum."""
    return staying > limits.minimum


class _Queue(Generic[K]):
    """The waiters: which of them get a slot now, and for how many of the others an idle connection may be evicted."""

    def __init__(self, it: Snapshot[K]) -> None:
        self.grants: list[K] = []
        self.head: SlotWaiter[K] | None = (
            None  # the first shared waiter left in the queue, if it may have a slot
        )
        self.unserved = 0  # waiters that may have a slot and get none now, as far as evictions can help them
        self._it = it
        self._shared = it.shared
        self._granted = Counter[str]()  # slots granted to each group here
        self._read()

    def _read(self) -> None:
        for waiter in self._in_order():
            if self._has_slot(waiter, is_head=self.head is None):
                self._grant(waiter)
            else:
                self.unserved += 1
                if self.head is None and not waiter.is_kept:
                    self.head = waiter
                if self._shared >= self._it.capacity and not self._it.idle.has(
                    self.unserved - self._it.leaving
                ):
                    return

    def _in_order(self) -> Iterator[SlotWaiter[K]]:
        """The waiters that may have a slot. A line whose group holds its half is read no further."""
        for lines in self._it.waiting:
            heads: list[tuple[int, SlotWaiter[K], SlotLine[K], Iterator[SlotWaiter[K]]]] = []
            for line in lines:
                self._next_of(line, iter(line.waiters), heads)
            while heads:
                _, waiter, line, others = heapq.heappop(heads)
                if not self._has_half(line.group):
                    yield waiter
                    self._next_of(line, others, heads)

    def _next_of(
        self,
        line: SlotLine[K],
        waiters: Iterator[SlotWaiter[K]],
        heads: list[tuple[int, SlotWaiter[K], SlotLine[K], Iterator[SlotWaiter[K]]]],
    ) -> None:
        """Put the next of this line among the heads of the lines."""
        if not self._has_half(line.group) and (waiter := next(waiters, None)) is not None:
            heapq.heappush(heads, (waiter.number, waiter, line, waiters))

    def _has_slot(self, waiter: SlotWaiter[K], *, is_head: bool) -> bool:
        capacity, reserve = self._it.capacity, self._it.limits.reserve
        if waiter.is_kept:  # it has its own slot, unless other connections still use it
            return self._shared <= capacity + reserve
        is_open = is_head and self._it.now >= _earned_at(self._it, waiter)
        return self._shared < capacity + (reserve if is_open else 0)

    def _has_half(self, group: str | None) -> bool:
        if group is None:
            return False
        return self._it.groups(group) + self._granted[group] >= _half(self._it.limits)

    def _grant(self, waiter: SlotWaiter[K]) -> None:
        self.grants.append(waiter.who)
        self._shared += not waiter.is_kept
        if waiter.group is not None:
            self._granted[waiter.group] += 1


def _wanted(it: Snapshot[K], unserved: int) -> int:
    """How many connections are to end: those over the limit, or one for each waiter. A waiter replaces what ends for
    it, but meanwhile the total must not sink below the minimum."""
    surplus = it.shared - it.leaving - it.capacity
    return max(surplus, min(unserved - it.leaving, it.staying - it.limits.minimum))


def _evictions(it: Snapshot[K], wanted: int) -> list[K]:
    """Which idle connections to evict: as many as are wanted, and overdue ones that the minimum does not keep."""
    gone = it.idle.first(wanted)
    if it.staying - len(gone) > it.limits.minimum:
        for who in it.overdue:
            if it.staying - len(gone) <= it.limits.minimum:
                break
            if who not in gone:
                gone.append(who)
    return gone


def _one_has_rested(it: Snapshot[K], wanted: int) -> float:
    """When one more may make room; `inf` when time alone changes nothing."""
    return math.inf if it.idle.has(wanted) else it.idle.next_since + it.limits.rest


def _earned_at(it: Snapshot[K], waiter: SlotWaiter[K]) -> float:
    """The time at which this waiter has waited long enough for the reserve."""
    return max(waiter.since, it.reserve_from) + it.limits.reserve_timeout


def _reserve_opens(it: Snapshot[K], head: SlotWaiter[K] | None) -> float:
    """When the reserve opens to the head of the queue; `inf` when time alone changes nothing."""
    is_left = it.shared < it.capacity + it.limits.reserve
    return _earned_at(it, head) if head is not None and is_left else math.inf
