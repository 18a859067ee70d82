"""A referee for the pool: it watches what happens and what is decided, and blows the whistle.

It decides nothing itself. After each event it knows who holds a slot, who waits, who rests and for how long, and holds
the decisions against the rules of the design, both ways: nothing was done that a rule forbids, and nothing was left
undone that a rule asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from greenroom.supervisor._pool import Evict, Grant, PoolLimits

Decision = Grant[str] | Evict[str]


@attrs.define
class Seat:
    group: str | None = None
    leaving: bool = False
    spared: bool = False  # no victim of pressure: a session's child


@attrs.define
class Referee:
    limits: PoolLimits
    aside: set[str] = attrs.field(factory=set[str])  # who has a slot set aside
    held: dict[str, Seat] = attrs.field(factory=dict[str, Seat])
    queue: dict[str, str | None] = attrs.field(factory=dict[str, "str | None"])  # who waits, and its group
    since: dict[str, float] = attrs.field(factory=dict[str, float])
    resting: list[str] = attrs.field(factory=list[str])  # longest idle first
    expired: list[str] = attrs.field(factory=list[str])  # oldest first

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
        patient = now - self.since[who] >= self.limits.reserve_timeout
        in_reserve = who == next(iter(self.queue)) and patient
        return shared < self.capacity + (self.limits.reserve if in_reserve else 0)

    def victims(self) -> list[str]:
        return [who for who in self.resting if not self.held[who].spared]

    # ---- what happens -----------------------------------------------------------------------------------------------

    # Each says whether anything happened at all.

    def comes(self, who: str, group: str | None, now: float) -> bool:
        if who in self.held or who in self.queue:
            return False
        self.queue[who], self.since[who] = group, now
        return True

    def leaves_the_queue(self, who: str) -> bool:
        return self.queue.pop(who, self) is not self

    def is_gone(self, who: str, now: float) -> bool:
        if self.held.pop(who, None) is None:
            return False
        self.wakes(who)
        if len(self.shared) >= self.capacity and self.queue:  # one too many: the reserve must be earned anew
            self.since[next(iter(self.queue))] = now
        return True

    def rests(self, who: str, spared: bool) -> bool:
        if who not in self.held or self.held[who].leaving or who in self.aside:
            return False
        self.resting = [other for other in self.resting if other != who] + [who]
        self.held[who].spared = spared
        return True

    def wakes(self, who: str) -> None:
        self.resting = [other for other in self.resting if other != who]
        self.expired = [other for other in self.expired if other != who]

    def walks_out(self, who: str) -> None:
        if who in self.held:
            self.held[who].leaving = True
            self.wakes(who)

    def outstays(self, who: str, may_go: bool) -> None:
        assert may_go == (who not in self.held or self.staying > self.limits.minimum)
        if not may_go:
            self.resting += [who] * (who not in self.resting)
            self.expired += [who] * (who not in self.expired)

    def sees_resting(self, spared: dict[str, bool]) -> None:
        """The list of who rests is read anew, longest first."""
        self.resting = [
            who for who in spared if who in self.held and who not in self.aside and not self.held[who].leaving
        ]
        self.expired = [who for who in self.expired if who in self.resting]
        for who in self.resting:
            self.held[who].spared = spared[who]

    def sets_aside(self, who: str) -> bool:
        if who not in self.aside and self.capacity < 2:
            return False  # one is left for the rest
        self.aside.add(who)
        self._is_in_use(who)
        return True

    def gives_back(self, who: str) -> bool:
        if who not in self.aside:
            return False
        self.aside.remove(who)
        self._is_in_use(who)
        return True

    def _is_in_use(self, who: str) -> None:
        if who in self.held:
            self.held[who].spared = False
            self.wakes(who)

    # ---- what was decided -------------------------------------------------------------------------------------------

    def watch(self, decisions: Sequence[Decision], now: float, *, served: bool) -> None:
        """`served`: something happened, so everybody's turn was looked at."""
        for decision in decisions:
            if isinstance(decision, Grant):
                self._granted(decision.who, now)
            else:
                self._evicted(decision.who)
        if served:
            self._nothing_left_undone(now)

    def _granted(self, who: str, now: float) -> None:
        assert who in self.queue, "a grant to nobody"
        assert self.may_have_more(self.queue[who]), "more than half for one server"
        assert self.has_a_slot(who, now), "over the bound"
        before = [other for other in self.queue if other != who][: list(self.queue).index(who)]
        for other in before:
            assert not (self.may_have_more(self.queue[other]) and self.has_a_slot(other, now)), "out of turn"
        self.held[who] = Seat(self.queue.pop(who))

    def _evicted(self, who: str) -> None:
        seat = self.held[who]
        assert not seat.leaving, "asked to go twice"
        assert who not in self.aside, "it has a slot of its own"
        if not self._was_held_too_long(who):
            assert self.victims()[:1] == [who], "not the longest idle"
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
        assert not (self.victims() and self._is_in_the_way()), "nobody was asked to make room"
        assert not (self.expired and self.staying > self.limits.minimum), "outstays the minimum"

    def next_look(self) -> float:
        """Time opens nothing but the reserve, and that to nobody but the head, when all else is taken."""
        is_reserve_left = self.capacity <= len(self.shared) < self.capacity + self.limits.reserve
        if not self.queue or not is_reserve_left or not self.may_have_more(next(iter(self.queue.values()))):
            return math.inf
        return self.since[next(iter(self.queue))] + self.limits.reserve_timeout
