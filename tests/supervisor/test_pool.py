"""The pool's rules, one by one; for every small world there is; and over histories, against a naive model of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.models import histories
from tests.models.pool import Referee, Seat
from tests.support.profiles import examples

from greenroom.supervisor.policy.pool import (
    Decision,
    IdleConnections,
    PoolLimits,
    SlotWaiter,
    Snapshot,
    both,
    decide,
)


class Pool:
    """A small world and its pool: what happens to it, and what the pool then decides."""

    def __init__(
        self,
        slots: int = 2,
        reserve: int = 0,
        reserve_timeout: float = 5.0,
        minimum: int = 0,
        rest: float = 0.0,
    ) -> None:
        self.referee = Referee(PoolLimits(slots, reserve, reserve_timeout, minimum, rest))

    @property
    def live(self) -> int:
        return len(self.referee.held)

    @property
    def waiting(self) -> int:
        return len(self.referee.queue)

    @property
    def look_at(self) -> float:
        return self.referee.look_at

    def limit(self, **limits: Any) -> None:
        self.referee.limits = replace(self.referee.limits, **limits)

    def look(self, now: float) -> list[str]:
        return self.referee.settle(now)

    def comes(self, who: str, now: float, group: str | None = None) -> list[str]:
        self.referee.comes(who, group, now)
        return self.look(now)

    def leaves_the_queue(self, who: str, now: float) -> list[str]:
        self.referee.leaves_the_queue(who)
        return self.look(now)

    def is_gone(self, who: str, now: float) -> list[str]:
        self.referee.is_gone(who, now)
        return self.look(now)

    def becomes_idle(self, who: str, now: float) -> list[str]:
        self.referee.becomes_idle(who, now)
        return self.look(now)

    def outstays(self, who: str) -> bool:
        return self.referee.outstays(who)


def _fill(pool: Pool, *names: str, rest: bool = True) -> None:
    for name in names:
        assert pool.comes(name, 0.0) == [f"grant {name}"]
        if rest:
            assert pool.becomes_idle(name, 0.0) == []


def test_a_slot_is_granted_at_once_while_there_is_one() -> None:
    pool = Pool(2)

    assert pool.comes("a", 0) == ["grant a"]
    assert pool.comes("b", 0) == ["grant b"]
    assert pool.comes("c", 0) == []

    assert (pool.live, pool.waiting) == (2, 1)


def test_the_longest_idle_goes_and_its_slot_is_free_only_when_it_is_gone() -> None:
    pool = Pool(3)
    _fill(pool, "a", "b", "c")

    assert pool.comes("d", 1) == ["evict a"]
    assert pool.live == 3
    assert pool.is_gone("a", 2) == ["grant d"]

    assert pool.live == 3


def test_a_busy_connection_is_never_a_victim() -> None:
    pool = Pool(2)
    _fill(pool, "a", "b", rest=False)

    assert pool.comes("c", 0) == []
    assert pool.becomes_idle("b", 1) == ["evict b"]
    assert pool.is_gone("b", 2) == ["grant c"]


def test_waiters_are_served_in_their_order() -> None:
    pool = Pool(1)
    _fill(pool, "a", rest=False)
    for name in ("b", "c", "d"):
        assert pool.comes(name, 0) == []

    assert pool.is_gone("a", 1) == ["grant b"]
    assert pool.is_gone("b", 2) == ["grant c"]


def test_each_waiter_makes_one_place_and_no_more() -> None:
    pool = Pool(3)
    _fill(pool, "a", "b", "c")

    assert pool.comes("d", 1) == ["evict a"]
    assert pool.comes("e", 1) == ["evict b"]
    assert pool.look(2) == []


def test_two_who_wait_get_two_places() -> None:
    pool = Pool(2)
    _fill(pool, "a", "b", rest=False)
    pool.comes("c", 0)
    pool.comes("d", 0)
    for name in ("a", "b"):
        pool.referee.becomes_idle(name, 0.0)

    assert pool.look(1) == ["evict a", "evict b"]


def test_when_the_first_in_line_leaves_the_next_is_served() -> None:
    pool = Pool(2)
    assert pool.comes("s0", 0, "memory") == ["grant s0"]
    assert pool.comes("a", 0) == ["grant a"]
    pool.limit(reserve=1)
    pool.comes("b", 0)
    pool.comes("c", 0)

    assert pool.leaves_the_queue("b", 5) == ["grant c"]
    assert pool.waiting == 0


def test_the_reserve_opens_only_to_a_head_waiter_that_has_waited_its_time() -> None:
    pool = Pool(1, reserve=1, reserve_timeout=5)
    _fill(pool, "a", rest=False)
    assert pool.comes("b", 1) == []
    assert pool.comes("c", 2) == []
    assert pool.look_at == 6
    assert pool.look(5.9) == []
    assert pool.look(6) == ["grant b"]

    assert pool.live == 2
    assert pool.look_at == math.inf
    assert pool.look(100) == []


def test_while_the_reserve_is_in_use_the_first_idle_connection_goes_and_its_slot_is_not_handed_on() -> None:
    pool = Pool(1, reserve=1, reserve_timeout=5)
    _fill(pool, "a", rest=False)
    pool.comes("b", 0)
    pool.look(5)
    pool.comes("c", 5)

    assert pool.becomes_idle("a", 6) == ["evict a"]
    assert pool.is_gone("a", 7) == []

    assert pool.live == 1
    assert pool.look(11.9) == []  # the reserve must be earned anew
    assert pool.look(12) == ["grant c"]


def test_behind_a_head_that_must_earn_the_reserve_anew_nobody_else_gets_it() -> None:
    pool = Pool(1, reserve=1, reserve_timeout=5)
    _fill(pool, "a", rest=False)
    for name in ("b", "c", "d"):
        pool.comes(name, 0)
    assert pool.look(5) == ["grant b"]
    pool.becomes_idle("a", 6)
    assert pool.is_gone("a", 7) == []

    assert pool.look(8) == []  # `d` has waited eight seconds, and is not the head
    assert pool.look(12) == ["grant c"]


def test_the_minimum_holds_against_pressure_and_idle_time() -> None:
    pool = Pool(3, minimum=2)
    _fill(pool, "a", "b")

    assert not pool.outstays("a")
    assert pool.look(1) == []
    assert pool.comes("c", 1) == ["grant c", "evict a"]  # the total exceeds it: the oldest it held goes
    assert not pool.outstays("b")


def test_pressure_never_takes_the_total_below_the_minimum() -> None:
    pool = Pool(2, minimum=1)
    _fill(pool, "a", "b")

    assert pool.comes("c", 1) == ["evict a"]
    assert pool.comes("d", 1) == []  # with `b` gone too, none would be left

    assert pool.is_gone("a", 2) == ["grant c", "evict b"]


def test_with_more_live_than_slots_the_longest_idle_goes_not_the_last_to_rest() -> None:
    pool = Pool(2)
    _fill(pool, "a", "b", rest=False)
    pool.referee.becomes_idle("a", 0.0)
    pool.limit(slots=1)

    assert pool.becomes_idle("b", 1) == ["evict a"]


def test_a_surplus_of_one_sends_one_away() -> None:
    pool = Pool(2, reserve=1, reserve_timeout=5)
    _fill(pool, "a", "b", rest=False)
    pool.comes("c", 0)
    assert pool.look(5) == ["grant c"]

    assert pool.becomes_idle("a", 6) == ["evict a"]
    assert pool.becomes_idle("b", 6) == []  # `a` still stops, and is the one too many


def test_who_is_too_many_and_outstays_besides_is_asked_once() -> None:
    pool = Pool(3, minimum=2)
    _fill(pool, "a", "b")
    assert not pool.outstays("a")
    pool.limit(slots=1)

    assert pool.look(1) == ["evict a"]


def test_the_last_slot_a_server_s_scopes_may_have_is_at_least_one() -> None:
    pool = Pool(1)
    assert pool.comes("s0", 0, "memory") == ["grant s0"]
    assert pool.comes("s1", 0, "memory") == []

    odd = Pool(3)
    assert odd.comes("s0", 0, "memory") == ["grant s0"]
    assert odd.comes("s1", 0, "memory") == []


def test_sessions_of_one_server_hold_at_most_half_and_do_not_block_others() -> None:
    pool = Pool(4)
    for n in range(2):
        assert pool.comes(f"s{n}", 0, "memory") == [f"grant s{n}"]

    assert pool.comes("s2", 0, "memory") == []
    assert pool.comes("other", 0) == ["grant other"]
    assert pool.is_gone("s0", 1) == ["grant s2"]


def test_nobody_makes_room_for_one_who_may_not_have_it() -> None:
    pool = Pool(4)
    for name in ("s0", "s1"):
        pool.comes(name, 0, "memory")
    _fill(pool, "a", "b")

    assert pool.comes("s2", 1, "memory") == []


def test_a_call_s_child_is_no_victim_of_pressure() -> None:
    pool = Pool(2)
    pool.comes("call", 0, "memory")
    pool.becomes_idle("call", 0)
    pool.comes("a", 0)
    pool.becomes_idle("a", 1)

    assert pool.comes("b", 2) == ["evict a"]
    assert pool.comes("c", 2) == []


def test_who_has_not_rested_makes_no_room_yet_and_the_pool_looks_again_when_it_has() -> None:
    pool = Pool(2, rest=60)
    _fill(pool, "a", rest=False)
    _fill(pool, "b", rest=False)
    pool.becomes_idle("b", 10)
    pool.becomes_idle("a", 20)

    assert pool.comes("c", 30) == []
    assert pool.look_at == 70
    assert pool.look(69.9) == []
    assert pool.look(70) == ["evict b"]
    assert pool.look_at == math.inf  # one is enough

    pool.comes("d", 75)
    assert pool.look_at == 80
    pool.referee.wakes("a")
    assert pool.look(80) == []
    assert pool.look_at == math.inf
    assert pool.becomes_idle("a", 90) == []
    assert pool.look_at == 150


def test_one_that_leaves_by_itself_counts_as_room_on_its_way() -> None:
    pool = Pool(2)
    _fill(pool, "a", "b")
    pool.referee.walks_out("b")

    assert pool.comes("c", 1) == []
    assert pool.is_gone("b", 2) == ["grant c"]


def test_a_kept_slot_is_set_aside_for_good() -> None:
    pool = Pool(2)
    pool.referee.sets_aside("keep")

    assert pool.comes("a", 0) == ["grant a"]
    assert pool.comes("b", 0) == []  # the slot of `keep` is not for it
    assert pool.comes("keep", 1) == ["grant keep"]
    assert pool.becomes_idle("keep", 2) == []
    assert pool.becomes_idle("a", 2) == ["evict a"]  # never `keep`


def test_a_slot_given_back_is_anybodys() -> None:
    pool = Pool(2)
    pool.referee.sets_aside("keep")
    pool.comes("keep", 0)
    pool.comes("a", 0)
    assert pool.comes("b", 0) == []

    pool.referee.aside.clear()

    assert pool.becomes_idle("keep", 1) == ["evict keep"]
    assert pool.is_gone("keep", 2) == ["grant b"]


def test_set_aside_while_all_are_in_use_it_waits_for_its_slot_and_the_bound_holds() -> None:
    pool = Pool(2)
    _fill(pool, "a", "b", rest=False)
    pool.referee.sets_aside("keep")

    assert pool.comes("keep", 1) == []
    assert pool.becomes_idle("a", 2) == ["evict a"]
    assert pool.is_gone("a", 3) == ["grant keep"]
    assert pool.live == 2


def test_one_that_is_live_already_keeps_the_slot_it_has() -> None:
    pool = Pool(2)
    _fill(pool, "a", "b")
    pool.referee.sets_aside("a")

    assert pool.look(1) == []
    assert pool.comes("c", 2) == ["evict b"]


# ---- every small world ---------------------------------------------------------------------------------------------

LIVE = ("busy", "idle", "overdue", "leaving", "child", "kept")
QUEUED = ("early", "late", "child", "kept")


def _small_worlds() -> Iterator[Referee]:
    """Up to three are live and up to two wait, in all the ways there are."""
    limits = [
        PoolLimits(slots, reserve, 5.0, minimum)
        for slots in (1, 2, 3)
        for reserve in (0, 1)
        for minimum in (0, 1, 2)
        if minimum < slots
    ]
    for bound, count, more in itertools.product(limits, range(4), range(3)):
        for live in itertools.combinations_with_replacement(LIVE, count):
            for queued in itertools.product(QUEUED, repeat=more):
                kept = (*live, *queued).count("kept")
                if kept < bound.slots:
                    yield _world(bound, live, queued)


def _world(limits: PoolLimits, live: tuple[str, ...], queued: tuple[str, ...]) -> Referee:
    world = Referee(limits)
    for n, how in enumerate(live):
        name = f"{how}{n}"
        world.held[name] = Seat("memory" if how == "child" else None, leaving=how == "leaving")
        if how == "kept":
            world.aside.add(name)
        if how not in ("busy", "leaving"):
            world.idle.append(name)
        if how == "overdue":
            world.expired.append(name)
    for n, how in enumerate(queued):
        name = f"{how} waiter {n}"
        world.queue[name] = "memory" if how == "child" else None
        world.since[name] = 9.0 if how == "late" else 0.0
        if how == "kept":
            world.aside.add(name)
    return world


def test_in_every_small_world_the_rules_are_kept_and_nothing_is_left_undone() -> None:
    """Also when some were live before the limits allowed so many."""
    count = 0
    for world in _small_worlds():
        bound = max(len(world.held), world.limits.slots + world.limits.reserve)
        world.settle(10.0)
        assert len(world.held) <= bound
        count += 1
    assert count > 8_000


def test_a_decision_changes_nothing_and_the_same_world_gets_the_same() -> None:
    for world in itertools.islice(_small_worlds(), 0, None, 7):
        before = attrs.asdict(world)
        assert decide(world.snapshot(10.0)) == decide(world.snapshot(10.0))
        assert attrs.asdict(world) == before


# ---- histories -----------------------------------------------------------------------------------------------------

NAMED = "abcdefgh"
NAMES = st.sampled_from(NAMED)
LIMITS = st.builds(
    PoolLimits,
    slots=st.integers(1, 5),
    reserve=st.integers(0, 2),
    reserve_timeout=st.sampled_from([0.0, 5.0, 1e9]),
    minimum=st.integers(0, 2),
    rest=st.sampled_from([0.0, 0.0, 2.5, 60.0]),
).filter(lambda limits: limits.minimum < limits.slots)
PAUSES = st.sampled_from([0.0, 0.0, 1.0, 2.5, 5.0, 1e12, -1.0])
POOL_EVENTS = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                "comes",
                "becomes idle",
                "is gone",
                "comes",
                "becomes idle",
                "leaves",
                "wakes",
                "walks out",
                "outstays",
            ]
        ),
        NAMES,
    ),
    st.tuples(st.sampled_from(["set aside", "give back", "look", "look"]), NAMES),
    st.tuples(st.just("limits"), LIMITS),
)


@examples(200)
@given(LIMITS, histories(st.tuples(POOL_EVENTS, PAUSES)))
def test_a_referee_who_knows_the_rules_has_nothing_to_whistle_at(
    limits: PoolLimits, events: list[tuple[tuple[str, Any], float]]
) -> None:
    world, now = Referee(limits), 0.0
    for (what, whom), pause in events:
        now += pause
        _happens(world, what, whom, now)
        if world.capacity >= 1:  # as whoever reads configurations sees to
            world.settle(now)


def _happens(world: Referee, what: str, whom: Any, now: float) -> None:
    """Who is of the second half of the alphabet is a call's child of `memory`."""
    match what:
        case "comes":
            world.comes(whom, "memory" if whom > "d" else None, now)
        case "leaves":
            world.leaves_the_queue(whom)
        case "is gone":
            world.is_gone(whom, now)
        case "becomes idle":
            world.becomes_idle(whom, now)
        case "wakes":
            world.wakes(whom)
        case "walks out":
            world.walks_out(whom)
        case "outstays" if whom in world.makes_room():
            world.outstays(whom)
        case "set aside" if whom <= "d":
            world.sets_aside(whom)
        case "give back":
            world.aside.discard(whom)
        case "limits":
            world.limits = whom
        case _:
            pass


# ---- its price -----------------------------------------------------------------------------------------------------


def counted(items: list[Any], read: list[Any]) -> Iterator[Any]:
    """The items, each noted in `read` when it is read."""
    for item in items:
        read.append(item)
        yield item


def _idle(*who: int) -> IdleConnections[int]:
    return IdleConnections([(each, 0.0) for each in who])


def test_of_the_idle_only_as_many_are_read_as_were_asked_for_and_that_once() -> None:
    read: list[tuple[int, float]] = []
    idle = IdleConnections(counted([(n, float(n)) for n in (1, 2, 3, 4, 5)], read), by=4.0)
    for count, seen in ((0, 0), (2, 2), (1, 2), (2, 2), (3, 3), (-1, 3)):
        assert idle.has(count)
        assert len(read) == seen, count
    assert not idle.has(5)
    assert not idle.has(5)
    assert len(read) == 5
    assert (idle.first(9), idle.first(2), idle.first(-1), idle.next_since) == ([1, 2, 3, 4], [1, 2], [], 5.0)


def test_of_those_that_wait_only_the_first_that_may_have_a_slot_is_read() -> None:
    """However many wait, in a room that is full or not, whether others are idle or on their way out, and behind those
    whose group holds its half."""
    read: list[SlotWaiter[int]] = []
    calls = [SlotWaiter(who, 0.0, "g") for who in range(3)]
    others = [SlotWaiter(who, 0.0) for who in range(10, 1000)]
    for shared, idle, leaving, evicted in ((20, (), 0, ()), (20, (1, 2), 0, (1, 2)), (20, (1,), 2, (1,))):
        del read[:]
        full = Snapshot[int](
            1.0,
            PoolLimits(),
            shared=shared,
            leaving=leaving,
            staying=20,
            idle=_idle(*idle),
            groups=lambda _: 10,
            waiting=counted([*calls, *others], read),
            candidates=len(others),
        )
        assert decide(full).evictions == evicted
        assert read == [*calls, others[0]], (shared, idle, leaving)
    assert decide(replace(full, shared=19, waiting=[*calls, *others])).grants == (10,)


def test_a_group_is_granted_up_to_half_the_slots() -> None:
    waiting = [SlotWaiter(who, 0.0, "g") for who in range(8)]
    free = Snapshot[int](
        1.0, PoolLimits(slots=8), waiting=waiting, candidates=8
    )  # by default no group holds anything
    assert decide(free).grants == (0,)
    assert decide(replace(free, groups=lambda _: 3)).grants == (0,)
    assert decide(replace(free, groups=lambda _: 4, candidates=0)).grants == ()
    assert decide(replace(free, limits=PoolLimits(slots=2))).grants == (0,)


def test_those_overdue_are_looked_at_only_if_one_may_go() -> None:
    read: list[int] = []
    kept = Snapshot[int](1.0, PoolLimits(slots=2, minimum=2), shared=3, staying=3, idle=_idle(1, 2, 3))
    gone = decide(replace(kept, overdue=counted([1, 2, 3], read)))
    assert (gone.evictions, read) == ((1,), [])  # the surplus; with it the minimum is reached
    more = replace(kept, staying=4, overdue=counted([1, 2, 3], read))
    assert (decide(more).evictions, read) == ((1, 2), [1, 2, 3])


@given(
    st.integers(1, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.sampled_from([None, "g"])
)
def test_whoever_comes_while_nobody_waits_gets_a_free_slot_as_if_all_had_been_asked(
    slots: int, held: int, kept: int, in_group: int, group: str | None
) -> None:
    limits, taken = PoolLimits(slots), min(in_group, held) if group else 0
    snapshot = Snapshot(
        0.0,
        limits,
        kept=min(kept, slots - 1),
        shared=held,
        staying=held,
        groups=lambda _group: taken,
        waiting=[SlotWaiter("new", 0.0, group)],
        candidates=1,
    )

    assert limits.is_free(held, snapshot.kept, taken) == (decide(snapshot).grants == ("new",))
    assert limits.is_free(held) == limits.is_free(held, 0, 0)


def test_of_idle_connections_there_are_so_many() -> None:
    idle = IdleConnections([("a", 0.0), ("b", 1.0), ("c", 9.0)], by=5.0)
    assert [idle.has(count) for count in (1, 2, 3)] == [True, True, False]
    assert IdleConnections[str]().has(1) is False


def test_two_kinds_of_slots_are_looked_at_again_when_the_first_may_change() -> None:
    sooner, later = Decision[str](look_at=1.0), Decision[str](look_at=2.0)
    assert both(sooner, later) == both(later, sooner) == sooner
