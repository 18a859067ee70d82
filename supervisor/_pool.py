"""The pool: at most so many live connections, whoever they belong to. One pure function says what to do next.

`decide` reads a `Snapshot` (who is live, resting since when, on its way out, overdue; who waits since when; limits;
now) and answers with grants and evictions. It remembers nothing. So nothing has to be told to it, and nothing told to
it can be forgotten: whoever asks, asks about what there is.

Rules (DESIGN, Policies; the contract of the pool that the originals document and do not keep).

* A slot is held from the grant until nothing of the process tree is left: a stopping child still counts.
* Who finds no free slot waits, first come, first served. A server that is only visited waits behind those that are
  called. For each that waits one idle connection is asked to go: the one that has been idle longest.
* The reserve opens only to the head of the queue, and only after it has waited `reserve_timeout`. While more than
  `slots` are live, whatever becomes idle goes at once, and the slot it frees is not handed on: from then on the head
  waits for the reserve anew (`reserve_from`).
* `minimum` guards idle and pressure eviction alike: no eviction takes the total below it. A connection whose idle time
  is over and that the minimum keeps is *overdue*. It goes, the longest overdue first, once the total exceeds that.
* A slot is set aside for each keep-alive server, and at least one is left for the rest. Set aside while all are in use,
  it is its own once others have gone: the bound holds.
* The sessions and calls of one server (a `group`) hold at most half the slots, so one server cannot fill the room.

Rejected: evicting from inside the caller's request (the victim's process is not gone by then, and the bound is broken
while it dies); a pool with lists of its own (they drifted from what the actors knew).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)


@attrs.frozen
class PoolLimits:
    slots: int = 20
    reserve: int = 0
    reserve_timeout: float = 5.0
    minimum: int = 0


@attrs.frozen
class Waiter(Generic[K]):
    """Somebody who waits for a slot."""

    who: K
    since: float
    group: str | None = None  # the server, for the child of a session or a call
    is_kept: bool = False  # a slot is set aside for it


@attrs.frozen
class Snapshot(Generic[K]):
    """What there is, at one moment. Shared: everybody without a slot set aside."""

    now: float
    limits: PoolLimits
    kept: int = 0  # slots set aside
    shared: int = 0  # slots that the shared hold, those on their way out included
    leaving: int = 0  # of these, on their way out: free before long, without anybody being asked
    staying: int = 0  # everybody who is live and not on the way out
    resting: Sequence[K] = ()  # shared ones that may be asked to go, the longest idle first
    overdue: Sequence[K] = ()  # of these, whose idle time is over, the longest overdue first
    groups: Mapping[str, int] = attrs.field(factory=dict[str, int])  # slots that each group holds
    waiting: Iterable[Waiter[K]] = ()  # in order; read only as far as somebody may be served
    reserve_from: float = -math.inf  # when the last slot over the limit came back

    @property
    def capacity(self) -> int:
        """Slots for those that have none set aside."""
        return self.limits.slots - self.kept


@attrs.frozen
class Decision(Generic[K]):
    """What to do now. Grants come first: evictions are only decided once nobody is left who can be served."""

    grants: tuple[K, ...] = ()
    evictions: tuple[K, ...] = ()  # ask these to go; their slots are free when they are gone
    look_at: float = math.inf  # when time alone may change the answer


def decide(it: Snapshot[K]) -> Decision[K]:
    """Whom to grant a slot and whom to ask to go, now.

    Evictions are only decided once nobody is left who can be served. So carry out the grants, and ask again: a grant
    may be given back at once, and whom it costs a place depends on what there is then.
    """
    queue = _Queue(it)
    if queue.grants:
        return Decision(grants=tuple(queue.grants))
    return Decision(evictions=tuple(_evictions(it, queue.unserved)), look_at=_reserve_opens(it, queue.head))


def may_expire(staying: int, limits: PoolLimits) -> bool:
    """Whether a connection whose idle time is over may go. If not, it goes once the total exceeds the minimum."""
    return staying > limits.minimum


class _Queue(Generic[K]):
    """Who waits: whom there is a slot for, and how many others may have one."""

    def __init__(self, it: Snapshot[K]) -> None:
        self.grants: list[K] = []
        self.head: Waiter[K] | None = None  # of the shared ones who stay in the queue, if it may have a slot
        self.unserved = 0  # who may have a slot and gets none now; no further than evictions can help
        self._it = it
        self._shared = it.shared
        self._groups = Counter(it.groups)
        self._read()

    def _read(self) -> None:
        enough = self._it.leaving + len(self._it.resting)
        is_head = True
        for waiter in self._it.waiting:
            if self._has_half(waiter.group):
                is_head = is_head and waiter.is_kept
            elif self._has_slot(waiter, is_head=is_head):
                self._grant(waiter)
            else:
                self.unserved += 1
                if is_head and not waiter.is_kept:
                    self.head, is_head = waiter, False
                if self.unserved > enough and self._shared >= self._it.capacity:
                    return

    def _has_slot(self, waiter: Waiter[K], *, is_head: bool) -> bool:
        capacity, reserve = self._it.capacity, self._it.limits.reserve
        if waiter.is_kept:  # its own, unless the others have not yet made the place it was set aside in
            return self._shared <= capacity + reserve
        is_open = is_head and self._it.now >= _earned_at(self._it, waiter)
        return self._shared < capacity + (reserve if is_open else 0)

    def _has_half(self, group: str | None) -> bool:
        return group is not None and self._groups[group] >= max(1, self._it.limits.slots // 2)

    def _grant(self, waiter: Waiter[K]) -> None:
        self.grants.append(waiter.who)
        self._shared += not waiter.is_kept
        if waiter.group is not None:
            self._groups[waiter.group] += 1


def _evictions(it: Snapshot[K], unserved: int) -> list[K]:
    """The surplus, then one for each that waits, then those that the minimum no longer keeps."""
    gone: list[K] = []
    surplus = it.shared - it.leaving - it.capacity
    for who in it.resting:
        # A waiter takes the victim's place: the total comes back, but in between it must not sink too low.
        makes_room = it.leaving + len(gone) < unserved and it.staying - len(gone) > it.limits.minimum
        if len(gone) >= surplus and not makes_room:
            break
        gone.append(who)
    for who in it.overdue:
        if it.staying - len(gone) <= it.limits.minimum:
            break
        if who not in gone:
            gone.append(who)
    return gone


def _earned_at(it: Snapshot[K], waiter: Waiter[K]) -> float:
    """When it has waited long enough for the reserve."""
    return max(waiter.since, it.reserve_from) + it.limits.reserve_timeout


def _reserve_opens(it: Snapshot[K], head: Waiter[K] | None) -> float:
    """When the reserve opens to the head of the queue; `inf` when time alone changes nothing."""
    is_left = it.capacity <= it.shared < it.capacity + it.limits.reserve
    return _earned_at(it, head) if head is not None and is_left else math.inf
