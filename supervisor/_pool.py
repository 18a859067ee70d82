"""The pool: at most so many live connections, whoever they belong to.

Rules (DESIGN, Policies; the contract of the pool that the originals document and do not keep).

* A slot is held from the grant until nothing of the process tree is left: a stopping child still counts.
* Who finds no free slot waits, first come first served; who gives way (it was not called, only to be visited) waits
  behind those who do not. For each that waits, one idle connection is asked to go:
  the one that has been idle longest. The idle list is LIFO: what was just used goes to its head, victims come from
  its tail.
* The reserve opens only to the head of the queue, and only after it has waited `reserve_timeout`. While more than
  `slots` are live, whatever becomes idle goes at once, and the slot it frees is not handed on.
* `minimum` guards idle and pressure eviction alike: no eviction takes the total to below it. A connection that has
  outstayed its idle time and is held by the guard goes, the oldest first, as soon as the total exceeds it.
* A slot for each keep-alive server is set aside (`set_aside`) until it is no such server any more (`give_back`), and at
  least one is left for the rest. Set aside while all are in use, it is its own once others have gone: the bound holds.
* The sessions and calls of one server (a `group`) hold at most half the slots, so one server cannot fill the room.
* A waiter that leaves, leaves no trace.

`Pool` decides and does nothing: each method returns what is now to be done, as `Grant`s and `Evict`s, in order. It has
no clock; `now` (seconds) comes in where time matters, and `next_look` says when to ask again. Rejected: evicting from
inside the caller's acquire (the victim's process is not gone by then, and the bound is broken while it dies).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)


@attrs.frozen
class Grant(Generic[K]):
    """It holds a slot now."""

    who: K


@attrs.frozen
class Evict(Generic[K]):
    """Ask it to go; its slot is free once `free` is told."""

    who: K


@attrs.frozen
class PoolLimits:
    slots: int = 20
    reserve: int = 0
    reserve_timeout: float = 5.0
    minimum: int = 0


@attrs.define
class _Waiter:
    since: float
    group: str | None
    gives_way: bool = False


@attrs.define
class _Holder:
    group: str | None
    is_kept: bool = False  # in a slot set aside for it
    is_victim: bool = True  # may be evicted to make room
    is_leaving: bool = False


class Pool(Generic[K]):
    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self._holders: dict[K, _Holder] = {}
        self._idle: dict[K, None] = {}  # longest idle first: the tail of the LIFO list is its beginning
        self._expired: dict[K, None] = {}  # held by the minimum although their idle time is over
        self._waiting: dict[K, _Waiter] = {}
        self._kept: set[K] = set()

    # ---- what can be seen -------------------------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """Slots that are held, those of stopping children included."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def holders(self) -> tuple[K, ...]:
        return tuple(self._holders)

    @property
    def is_pressed(self) -> bool:
        """Whether anybody's coming to rest would change anything."""
        return bool(self._waiting or self._expired or self._shared_live > self.capacity)

    @property
    def idle(self) -> tuple[K, ...]:
        """The idle list, its head (most recently used) first."""
        return tuple(reversed(self._idle))

    @property
    def capacity(self) -> int:
        """Slots for those that have none set aside."""
        return self.limits.slots - len(self._kept)

    def holds(self, who: K) -> bool:
        return who in self._holders

    def is_held(self, who: K) -> bool:
        """Its idle time is over, and the minimum keeps it."""
        return who in self._expired

    # ---- what happens -----------------------------------------------------------------------------------------------

    def set_aside(self, who: K) -> bool:
        """A slot for `who` alone, for good. False when only one would be left for the rest: it is one of them."""
        if who not in self._kept and self.capacity <= 1:
            return False
        self._kept.add(who)
        self._keep(who, is_kept=True)
        return True

    def give_back(self, who: K) -> bool:
        """No slot is set aside for `who` any more; one it holds is the rest's. False when there was none."""
        if who not in self._kept:
            return False
        self._kept.discard(who)
        self._keep(who, is_kept=False)
        return True

    def _keep(self, who: K, *, is_kept: bool) -> None:
        holder = self._holders.get(who)
        if holder is not None:
            holder.is_kept, holder.is_victim = is_kept, True  # while kept it is on no list to be taken from
            self.busy(who)

    def acquire(
        self, who: K, now: float, group: str | None = None, *, gives_way: bool = False
    ) -> list[Grant[K] | Evict[K]]:
        """Somebody wants a slot: granted now, or queued. `group`: the server, for a session's or a call's child."""
        if who in self._holders or who in self._waiting:
            return []
        patient = {} if gives_way else {who: each for who, each in self._waiting.items() if each.gives_way}
        for each in patient:
            del self._waiting[each]
        self._waiting[who] = _Waiter(now, group, gives_way)
        self._waiting |= patient
        return self._serve(now)

    def abandon(self, who: K, now: float) -> list[Grant[K] | Evict[K]]:
        """It no longer waits. Harmless when it did not."""
        if self._waiting.pop(who, None) is None:
            return []
        return self._serve(now)

    def free(self, who: K, now: float) -> list[Grant[K] | Evict[K]]:
        """Nothing of it is left. Harmless when it held nothing."""
        if self._holders.pop(who, None) is None:
            return []
        self._idle.pop(who, None)
        self._expired.pop(who, None)
        if self._shared_live >= self.capacity and self._waiting:
            # It was one too many: its slot is not handed on, and the reserve must be earned anew.
            next(iter(self._waiting.values())).since = now
        return self._serve(now)

    def rested(self, who: K, now: float, *, is_victim: bool = True) -> list[Grant[K] | Evict[K]]:
        """Its last call is over: to the head of the idle list. `is_victim` False: only its own idle time ends it."""
        holder = self._holders.get(who)
        if holder is None or holder.is_leaving or holder.is_kept:
            return []
        self._idle.pop(who, None)
        self._idle[who] = None
        holder.is_victim = is_victim
        return self.look(now)

    def busy(self, who: K) -> None:
        """It has a call: off the idle list, in the same step."""
        self._idle.pop(who, None)
        self._expired.pop(who, None)

    def see_idle(self, resting: Mapping[K, bool]) -> None:
        """The idle list as it is now (the owner keeps it elsewhere): who rests, the longest first, and whether
        it may be a victim. Decides nothing; what follows from it comes with the next event."""
        self._idle = {who: None for who in resting if who in self._holders and not self._is_off_limits(who)}
        self._expired = {who: None for who in self._expired if who in self._idle}
        for who in self._idle:
            self._holders[who].is_victim = resting[who]

    def _is_off_limits(self, who: K) -> bool:
        holder = self._holders[who]
        return holder.is_leaving or holder.is_kept

    def leaving(self, who: K) -> None:
        """It is on its way out, for whatever reason; its slot comes with `free`. Decides nothing; may be said again."""
        holder = self._holders.get(who)
        if holder is not None:
            holder.is_leaving = True
            self.busy(who)

    def may_expire(self, who: K) -> bool:
        """Its idle time is over: may it go? If not, it goes as soon as the total exceeds the minimum.

        What holds no slot (it was returned) may go: it counts for no minimum. Not asked of one
        with a slot set aside: it has no idle time.
        """
        if who not in self._holders or self._staying > self.limits.minimum:
            return True
        self._idle[who] = None
        self._expired[who] = None
        return False

    def still_goes(self, who: K) -> bool:
        """Whether an eviction still stands: a grant that was decided with it may have been given back at once, and
        without that the total would sink below the minimum. False: it stays."""
        holder = self._holders.get(who)
        if holder is None:
            return False
        if self._staying < self.limits.minimum and self._shared_live <= self.capacity:
            holder.is_leaving = False
            self._idle[who] = None
            return False
        return True

    def look(self, now: float) -> list[Grant[K] | Evict[K]]:
        """Time has passed, or the limits are others: the reserve may open, the surplus goes."""
        return [*self._shed(), *self._serve(now)]

    def _shed(self) -> list[Grant[K] | Evict[K]]:
        """More are live than there are slots: the longest idle go at once."""
        victims = [who for who in self._idle if self._holders[who].is_victim]
        return [self._evict(who) for who in victims[: max(0, self._surplus)]]

    def next_look(self) -> float:
        """When the reserve may open next; `inf` when time alone changes nothing."""
        head = next(iter(self._waiting.values()), None)
        is_reserve_left = self.capacity <= self._shared_live < self.capacity + self.limits.reserve
        if head is None or not is_reserve_left or self._is_over_half(head.group):
            return math.inf
        return head.since + self.limits.reserve_timeout

    # ---- how it decides ---------------------------------------------------------------------------------------------

    @property
    def _shared_live(self) -> int:
        return sum(not holder.is_kept for holder in self._holders.values())

    @property
    def _leaving(self) -> int:
        """Shared slots that will be free without anybody being asked."""
        return sum(holder.is_leaving and not holder.is_kept for holder in self._holders.values())

    @property
    def _surplus(self) -> int:
        """How many more than there are slots will be left."""
        return self._shared_live - self._leaving - self.capacity

    @property
    def _staying(self) -> int:
        """The total once all who are on their way out are out."""
        return sum(not holder.is_leaving for holder in self._holders.values())

    def _serve(self, now: float) -> list[Grant[K] | Evict[K]]:
        """Grants as far as there are slots, then one eviction for each that still waits."""
        decisions: list[Grant[K] | Evict[K]] = []
        for who in tuple(self._waiting):
            if not self._is_over_half(self._waiting[who].group) and self._has_slot(who, now):
                decisions.append(self._grant(who))
        decisions += self._make_room()
        return decisions + self._release_expired()

    def _has_slot(self, who: K, now: float) -> bool:
        if who in self._kept:  # its own, unless the others have not yet made the place it was set aside in
            return self._shared_live <= self.capacity + self.limits.reserve
        if self._shared_live < self.capacity:
            return True
        is_head = next(iter(self._waiting)) == who
        patient = now - self._waiting[who].since >= self.limits.reserve_timeout
        return is_head and patient and self._shared_live < self.capacity + self.limits.reserve

    def _grant(self, who: K) -> Grant[K]:
        is_kept = who in self._kept
        self._holders[who] = _Holder(self._waiting.pop(who).group, is_kept)
        return Grant(who)

    def _is_over_half(self, group: str | None) -> bool:
        if group is None:
            return False
        held = sum(holder.group == group for holder in self._holders.values())
        return held >= max(1, self.limits.slots // 2)

    def _make_room(self) -> list[Evict[K]]:
        wanted = sum(not self._is_over_half(waiter.group) for waiter in self._waiting.values())
        on_their_way = self._leaving
        evictions: list[Evict[K]] = []
        for who in tuple(self._idle):
            # A waiter takes the victim's place: the total comes back, but in between it must not sink too low.
            if on_their_way >= wanted or self._staying <= self.limits.minimum:
                break
            if self._holders[who].is_victim:
                evictions.append(self._evict(who))
                on_their_way += 1
        return evictions

    def _release_expired(self) -> list[Evict[K]]:
        evictions: list[Evict[K]] = []
        for who in tuple(self._expired):
            if self._staying <= self.limits.minimum:
                break
            evictions.append(self._evict(who))
        return evictions

    def _evict(self, who: K) -> Evict[K]:
        self._idle.pop(who, None)
        self._expired.pop(who, None)
        self._holders[who].is_leaving = True
        return Evict(who)
