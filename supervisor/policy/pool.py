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
* Children that are started ahead (`policy.warm`) hold slots, too, and are asked to end before all others.
* The calls apart of one server (a `group`) hold at most half the slots, so one server cannot fill the room.
* The child of a session may hold what its client is in the middle of. So it makes room only after `rest` seconds of
  idleness. (Its session is told when it meets a new process: `actors.call_queue`.)
* A decision gives one slot at most, and is asked for again until it gives none. So it reads one of those that wait: the
  first that may have a slot. If there is none for that one, there is none for those behind it.

Rejected: eviction inside the caller's request (the evicted process still runs then, so the limit is exceeded while it
ends); a pool with lists of its own (they drifted from what the actors knew); one pool for both (18 of 20 slots were
idle children of sessions, which made no room).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
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

    def is_free(self, held: int, kept: int = 0, in_group: int = 0) -> bool:
        """Whether a slot is free for one that comes when nobody waits, so that nothing has to be decided. `held`: slots
        that shared connections hold; `kept`: those that are set aside; `in_group`: those that the newcomer's group
        holds."""
        return held < self.slots - kept and not self.has_half(in_group)

    def has_half(self, held: int) -> bool:
        """Whether a group that holds so many slots may have no more."""
        return held >= self.most_of_group

    @property
    def most_of_group(self) -> int:
        """How many slots one group may hold."""
        return max(1, self.slots // 2)


class SlotWaiter(msgspec.Struct, Generic[K], frozen=True):
    """An actor that waits for a slot."""

    who: K
    since: float
    group: str | None = None  # the server, for the child of a call
    is_kept: bool = False  # a slot is set aside for it


class IdleConnections(Generic[K]):
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
                return False
            if since > self._by:
                self.next_since = since
                return False
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
    warm: int = 0  # how many of these nobody has used: they come first in `idle`, and no minimum keeps them
    # Idle shared connections that may be asked to end.
    idle: IdleConnections[K] = msgspec.field(default_factory=lambda: IdleConnections[K]())
    # Those of `idle` whose idle time is over, the longest overdue first; read only if one may go.
    overdue: Iterable[K] = ()
    groups: Callable[[str], int] = _no_group  # slots that each group holds
    # In the order in which they are served. Read as far as the first that may have a slot: its group, if it has one,
    # holds less than half. How many such there are is `candidates`; the others may be left out of both.
    waiting: Iterable[SlotWaiter[K]] = ()
    candidates: int = 0
    reserve_from: float = -math.inf  # when the last slot over the limit came back

    @property
    def capacity(self) -> int:
        """Slots for those that have none set aside."""
        return self.limits.slots - self.kept


class Decision(msgspec.Struct, Generic[K], frozen=True):
    """What to do now. A grant comes first: evictions are only decided when no waiter can be granted a slot."""

    grants: tuple[K, ...] = ()
    evictions: tuple[K, ...] = ()  # ask these to end; their slots are free when they have ended
    look_at: float = math.inf  # when time alone may change the answer


def decide(it: Snapshot[K]) -> Decision[K]:
    """Which waiter gets a slot, or which connections are asked to end, now.

    Evictions are only decided when no waiter can be granted a slot. So carry out the grant and ask again: it may be
    given back at once, and the choice of evictions depends on the state after that.
    """
    head = next((one for one in it.waiting if _may_have_more(it, one.group)), None)
    if head is not None and _has_slot(it, head):
        return Decision(grants=(head.who,))
    wanted = _wanted(it)
    evictions = _evictions(it, wanted)
    look_at = min(_reserve_opens(it, head), _one_has_rested(it, wanted))
    return Decision(evictions=tuple(evictions), look_at=look_at)


def both(one: Decision[K], other: Decision[K]) -> Decision[K]:
    """The decisions about two kinds of slots, as one."""
    evictions = one.evictions + other.evictions
    return Decision(one.grants + other.grants, evictions, min(one.look_at, other.look_at))


def may_expire(staying: int, limits: PoolLimits) -> bool:
    """Whether a connection whose idle time is over may go. If not, it goes once the total exceeds the minimum."""
    return staying > limits.minimum


def _may_have_more(it: Snapshot[K], group: str | None) -> bool:
    return group is None or not it.limits.has_half(it.groups(group))


def _has_slot(it: Snapshot[K], head: SlotWaiter[K]) -> bool:
    """Whether there is a slot for the first that may have one."""
    capacity, reserve = it.capacity, it.limits.reserve
    if head.is_kept:  # it has its own slot, unless other connections still use it
        return it.shared <= capacity + reserve
    is_open = it.now >= _earned_at(it, head)
    return it.shared < capacity + (reserve if is_open else 0)


def _wanted(it: Snapshot[K]) -> int:
    """How many connections are to end: those over the limit, or one for each waiter. A waiter replaces what ends for
    it, but meanwhile the total must not sink below the minimum."""
    surplus = it.shared - it.leaving - it.capacity
    return max(surplus, min(it.candidates - it.leaving, max(it.warm, it.staying - it.limits.minimum)))


def _evictions(it: Snapshot[K], wanted: int) -> list[K]:
    """Which idle connections to evict: as many as are wanted, and overdue ones that the minimum does not keep."""
    gone = it.idle.first(wanted)
    left = it.staying - max(len(gone), it.warm)  # of those that somebody has used
    if left > it.limits.minimum:
        for who in it.overdue:
            if left <= it.limits.minimum:
                break
            if who not in gone:
                gone.append(who)
                left -= 1
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
