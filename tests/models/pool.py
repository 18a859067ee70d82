"""A referee for the pool: it keeps the books of a small world, lets the pool decide, and blows the whistle.

It decides nothing itself. After each event it knows who holds a slot, who waits, who is idle and for how long. It shows
that to the pool and holds the decisions against the rules of the design, both ways: nothing was done that a rule
forbids, and nothing was left undone that a rule asks for.
"""

from __future__ import annotations

import math

import attrs

from greenroom.supervisor.policy.pool import (
    IdleConnections,
    PoolLimits,
    SlotWaiter,
    Snapshot,
    decide,
    may_expire,
)


@attrs.define
class Seat:
    group: str | None = None
    leaving: bool = False


@attrs.define
class Referee:
    limits: PoolLimits
    aside: set[str] = attrs.field(factory=set[str])  # who has a slot set aside
    held: dict[str, Seat] = attrs.field(factory=dict[str, Seat])
    queue: dict[str, str | None] = attrs.field(factory=dict[str, "str | None"])  # who waits, and its group
    since: dict[str, float] = attrs.field(factory=dict[str, float])
    idle: list[str] = attrs.field(factory=list[str])  # longest idle first
    idle_since: dict[str, float] = attrs.field(factory=dict[str, float])
    expired: list[str] = attrs.field(factory=list[str])  # overdue, oldest first
    reserve_from: float = -math.inf
    look_at: float = math.inf  # as the pool said last

    # ---- what there is ----------------------------------------------------------------------------------------------

    @property
    def shared(self) -> list[str]:
        """Who holds a slot that is not set aside."""
        return [who for who in self.held if who not in self.aside]

    @property
    def capacity(self) -> int:
        return self.limits.slots - len(self.aside)

    @property
    def staying(self) -> int:
        return sum(not seat.leaving for seat in self.held.values())

    @property
    def on_their_way(self) -> int:
        return sum(self.held[who].leaving for who in self.shared)

    @property
    def head(self) -> str | None:
        """The first in the queue who needs a slot of the shared ones, and may have one."""
        may = (who for who, group in self.queue.items() if self.may_have_more(group))
        return next((who for who in may if who not in self.aside), None)

    def snapshot(self, now: float) -> Snapshot[str]:
        """What the pool is shown: those with a slot of their own first, then the others as they came, also those whose
        group may have no more."""
        groups = [seat.group for seat in self.held.values() if seat.group is not None]
        return Snapshot(
            now,
            self.limits,
            kept=len(self.aside),
            shared=len(self.shared),
            leaving=self.on_their_way,
            staying=self.staying,
            idle=IdleConnections(
                [(who, self.idle_since.get(who, 0.0)) for who in self.makes_room()], now - self.limits.rest
            ),
            overdue=tuple(self.expired),
            groups=groups.count,
            waiting=[*self._waiters(own=True), *self._waiters(own=False)],
            candidates=sum(map(self.may_have_more, self.queue.values())),
            reserve_from=self.reserve_from,
        )

    def _waiters(self, *, own: bool) -> list[SlotWaiter[str]]:
        """Those who have a slot of their own, or all others."""
        return [
            SlotWaiter(who, self.since[who], group, own)
            for who, group in self.queue.items()
            if (who in self.aside) is own
        ]

    def may_have_more(self, group: str | None) -> bool:
        """The scopes of one server hold at most half the slots (and may always hold one)."""
        if group is None:
            return True
        mine = sum(seat.group == group for seat in self.held.values())
        return mine + 1 <= max(1, self.limits.slots / 2)

    def has_a_slot(self, who: str, now: float) -> bool:
        shared = len(self.shared)
        if who in self.aside:
            return shared <= self.capacity + self.limits.reserve
        patient = now - max(self.since[who], self.reserve_from) >= self.limits.reserve_timeout
        in_reserve = who == self.head and patient
        return shared < self.capacity + (self.limits.reserve if in_reserve else 0)

    def makes_room(self) -> list[str]:
        """A call's child ends with its call; who has a slot of its own makes no room."""
        return [who for who in self.idle if self.held[who].group is None and who not in self.aside]

    def victims(self, now: float) -> list[str]:
        """Those who make room and have rested."""
        return [who for who in self.makes_room() if self.idle_since.get(who, 0.0) <= now - self.limits.rest]

    # ---- what happens -----------------------------------------------------------------------------------------------

    def comes(self, who: str, group: str | None, now: float) -> None:
        if who not in self.held and who not in self.queue:
            self.queue[who], self.since[who] = group, now

    def leaves_the_queue(self, who: str) -> None:
        self.queue.pop(who, None)

    def is_gone(self, who: str, now: float) -> None:
        was_shared = who in self.shared
        if self.held.pop(who, None) is None:
            return
        self.wakes(who)
        if was_shared and len(self.shared) >= self.capacity:  # one too many: the reserve must be earned anew
            self.reserve_from = now

    def becomes_idle(self, who: str, now: float) -> None:
        if who in self.held and not self.held[who].leaving:
            self.wakes(who)
            self.idle.append(who)
            self.idle_since[who] = now
            self.idle.sort(key=self.idle_since.__getitem__)  # a clock may be set back

    def wakes(self, who: str) -> None:
        self.idle = [other for other in self.idle if other != who]
        self.expired = [other for other in self.expired if other != who]

    def walks_out(self, who: str) -> None:
        if who in self.held:
            self.held[who].leaving = True
            self.wakes(who)

    def outstays(self, who: str) -> bool:
        """Its idle time is over. Whether it may go."""
        may_go = may_expire(self.staying, self.limits)
        assert may_go == (self.staying > self.limits.minimum)
        if may_go:
            self.walks_out(who)
        elif who not in self.expired:
            self.expired.append(who)
        return may_go

    def sets_aside(self, who: str) -> None:
        if self.capacity >= 2:  # one is left for the rest: who reads configurations sees to that
            self.aside.add(who)
            self.expired = [other for other in self.expired if other != who]

    # ---- what is decided --------------------------------------------------------------------------------------------

    def settle(self, now: float) -> list[str]:
        """Let the pool decide until it has nothing to say; what it decided, in words."""
        told: list[str] = []
        while True:
            decision = decide(self.snapshot(now))
            for who in decision.grants:
                self._granted(who, now)
                told.append(f"grant {who}")
            if not decision.grants:
                break
        for who in decision.evictions:
            self._evicted(who, now)
            told.append(f"evict {who}")
        self.look_at = decision.look_at
        self._nothing_left_undone(now)
        assert self.look_at == self._next_look()
        return told

    def _granted(self, who: str, now: float) -> None:
        assert who in self.queue, "a grant to nobody"
        assert self.may_have_more(self.queue[who]), "more than half for one server"
        assert self.has_a_slot(who, now), "over the bound"
        if who not in self.aside:
            for other in list(self.queue)[: list(self.queue).index(who)]:
                may = self.may_have_more(self.queue[other]) and self.has_a_slot(other, now)
                assert not may, "out of turn"
        self.held[who] = Seat(self.queue.pop(who))

    def _evicted(self, who: str, now: float) -> None:
        seat = self.held[who]
        assert not seat.leaving, "asked to go twice"
        assert who not in self.aside, "it has a slot of its own"
        if not self._was_held_too_long(who):
            assert self.victims(now)[:1] == [who], "not the longest idle, or it has not rested"
            assert self._is_surplus() or self._is_in_the_way(), "for nobody"
        seat.leaving = True
        self.wakes(who)

    def _was_held_too_long(self, who: str) -> bool:
        return self.expired[:1] == [who] and self.staying > self.limits.minimum

    def _is_surplus(self) -> bool:
        return len(self.shared) - self.on_their_way > self.capacity

    def _is_in_the_way(self) -> bool:
        waiting = sum(self.may_have_more(group) for group in self.queue.values())
        return waiting > self.on_their_way and self.staying > self.limits.minimum

    def _nothing_left_undone(self, now: float) -> None:
        for who, group in self.queue.items():
            assert not (self.may_have_more(group) and self.has_a_slot(who, now)), "waits beside a free slot"
        assert not (self.victims(now) and self._is_surplus()), "one too many is idle"
        assert not (self.victims(now) and self._is_in_the_way()), "nobody was asked to make room"
        assert not (self.expired and self.staying > self.limits.minimum), "outstays the minimum"

    def _next_look(self) -> float:
        """Time opens the reserve, and that to nobody but the head, when all else is taken. And it makes the next one
        fit to make room, if one more shall."""
        rests = self.makes_room() if self._is_surplus() or self._is_in_the_way() else []
        rested = min((self.idle_since.get(who, 0.0) + self.limits.rest for who in rests), default=math.inf)
        is_reserve_left = self.capacity <= len(self.shared) < self.capacity + self.limits.reserve
        if self.head is None or not is_reserve_left:
            return rested
        return min(rested, max(self.since[self.head], self.reserve_from) + self.limits.reserve_timeout)
