"""The pool: a limit on the number of live connections in a room. One pure function says what to do next.

`decide` reads a `Snapshot` (which connections are live, idle since when, ending, overdue; who waits since when; the
limits; the time) and answers with grants and evictions. It remembers nothing, so it cannot forget or miss an update.

Rules (why: `docs/decisions/pool.md`):

* A slot is held from the grant until nothing of the process tree is left. A child that is being stopped still counts.
* If no slot is free, servers wait: first come, first served. A server that is only visited waits behind those that are
  called. For each one that waits, one idle connection is asked to end: the one that has been idle longest.
* The reserve opens only to the head of the queue, and only after it has waited `reserve_timeout`. While more than
  `slots` are live, a connection that becomes idle ends at once, and its slot is not granted again. From then on the
  head waits for the reserve afresh (`reserve_from`).
* `minimum` limits idle eviction and eviction under pressure alike: neither takes the total below it. A connection whose
  idle time is over but that is kept by the minimum is *overdue*. Overdue connections end, the longest overdue first, as
  soon as the total exceeds the minimum.
* Each keep-alive server has a slot set aside, and at least one slot is left for the rest. If a slot is set aside while
  all are in use, the server gets it when another connection has ended, so the limit holds.
* The sessions and calls of one server (a `group`) hold at most half the slots, so one server cannot fill the room.

Rejected: eviction inside the caller's request (the evicted process still runs then, so the limit is exceeded while it
ends); a pool with lists of its own (they drifted from what the actors knew).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)


def _no_group(_group: str) -> int:
    return 0


@attrs.frozen
class PoolLimits:
    slots: int = 20
    reserve: int = 0
    reserve_timeout: float = 5.0
    minimum: int = 0


@attrs.frozen
class Waiter(Generic[K]):
    """An actor that waits for a slot."""

    who: K
    since: float
    group: str | None = None  # the server, for the child of a session or a call
    is_kept: bool = False  # a slot is set aside for it


class InOrder(Generic[K]):
    """Actors in an order, of which only as many are read as a decision needs."""

    def __init__(self, source: Iterable[K] = ()) -> None:
        self._source = iter(source)
        self._read: list[K] = []

    def has(self, count: int) -> bool:
        """Whether there are this many."""
        self._read.extend(islice(self._source, max(0, count - len(self._read))))
        return len(self._read) >= count

    def __iter__(self) -> Iterator[K]:
        at = 0
        while self.has(at + 1):
            yield self._read[at]
            at += 1


@attrs.frozen
class Snapshot(Generic[K]):
    """All connections at one moment. "Shared" are those without a slot set aside."""

    now: float
    limits: PoolLimits
    kept: int = 0  # slots set aside
    shared: int = 0  # slots that shared connections hold, including those that are ending
    leaving: int = 0  # how many of these are ending: their slots will soon be free, without an eviction
    staying: int = 0  # live connections that are not ending
    # Idle shared connections that may be asked to end, the longest idle first; read only as far as needed.
    resting: InOrder[K] = attrs.field(factory=lambda: InOrder[K]())
    # Those of `resting` whose idle time is over, the longest overdue first; read only if one may go.
    overdue: Iterable[K] = ()
    groups: Callable[[str], int] = _no_group  # slots that each group holds
    waiting: Iterable[Waiter[K]] = ()  # in order; read only as far as needed
    reserve_from: float = -math.inf  # when the last slot over the limit came back

    @property
    def capacity(self) -> int:
        """Slots for those that have none set aside."""
        return self.limits.slots - self.kept


@attrs.frozen
class Decision(Generic[K]):
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
    """The waiters: which of them get a slot, and how many others are allowed one."""

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
                if self._shared >= self._it.capacity and not self._it.resting.has(
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
    """First the surplus over the limit, then one for each waiter, then overdue ones that the minimum does not keep."""
    gone: list[K] = []
    surplus = it.shared - it.leaving - it.capacity
    for who in it.resting:
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
