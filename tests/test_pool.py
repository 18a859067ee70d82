"""The pool's rules, one by one, and against a naive model of them."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.models import histories
from tests.models.pool import Referee
from tests.support.profiles import examples

from greenroom.supervisor._pool import Evict, Grant, Pool, PoolLimits


def _pool(slots: int = 2, reserve: int = 0, reserve_timeout: float = 5.0, minimum: int = 0) -> Pool[str]:
    return Pool(PoolLimits(slots, reserve, reserve_timeout, minimum))


def _fill(pool: Pool[str], *names: str, rest: bool = True) -> None:
    for name in names:
        assert pool.acquire(name, 0.0) == [Grant(name)]
        if rest:
            assert pool.rested(name, 0.0) == []


def test_a_slot_is_granted_at_once_while_there_is_one() -> None:
    pool = _pool(2)

    assert pool.acquire("a", 0) == [Grant("a")]
    assert pool.acquire("b", 0) == [Grant("b")]
    assert pool.acquire("c", 0) == []

    assert (pool.live, pool.waiting) == (2, 1)


def test_asking_twice_is_asking_once() -> None:
    pool = _pool(1)
    assert pool.acquire("a", 0) == [Grant("a")]
    assert pool.acquire("a", 0) == []
    assert pool.acquire("b", 0) == []
    assert pool.acquire("b", 0) == []
    assert pool.waiting == 1


def test_the_longest_idle_goes_and_its_slot_is_free_only_when_it_is_gone() -> None:
    pool = _pool(3)
    _fill(pool, "a", "b", "c")
    assert pool.idle == ("c", "b", "a")

    assert pool.acquire("d", 1) == [Evict("a")]
    assert pool.live == 3
    assert pool.free("a", 2) == [Grant("d")]

    assert pool.live == 3


def test_use_moves_a_connection_to_the_head_of_the_idle_list() -> None:
    pool = _pool(3)
    _fill(pool, "a", "b", "c")
    pool.busy("a")
    pool.rested("a", 1)

    assert pool.idle == ("a", "c", "b")
    assert pool.acquire("d", 2) == [Evict("b")]


def test_a_busy_connection_is_never_a_victim() -> None:
    pool = _pool(2)
    _fill(pool, "a", "b", rest=False)

    assert pool.acquire("c", 0) == []
    assert pool.rested("b", 1) == [Evict("b")]
    assert pool.free("b", 2) == [Grant("c")]


def test_waiters_are_served_in_their_order() -> None:
    pool = _pool(1)
    _fill(pool, "a", rest=False)
    for name in ("b", "c", "d"):
        assert pool.acquire(name, 0) == []

    assert pool.free("a", 1) == [Grant("b")]
    assert pool.free("b", 2) == [Grant("c")]


def test_each_waiter_makes_one_place_and_no_more() -> None:
    pool = _pool(3)
    _fill(pool, "a", "b", "c")

    assert pool.acquire("d", 1) == [Evict("a")]
    assert pool.acquire("e", 1) == [Evict("b")]
    assert pool.look(2) == []


def test_a_waiter_that_leaves_leaves_no_trace() -> None:
    pool = _pool(1)
    _fill(pool, "a", rest=False)
    pool.acquire("b", 0)
    pool.acquire("c", 0)

    assert pool.abandon("b", 1) == []
    assert pool.abandon("b", 1) == []

    assert pool.free("a", 2) == [Grant("c")]
    assert pool.waiting == 0


def test_the_reserve_opens_only_to_a_head_waiter_that_has_waited_its_time() -> None:
    pool = _pool(1, reserve=1, reserve_timeout=5)
    _fill(pool, "a", rest=False)
    assert pool.acquire("b", 1) == []
    assert pool.acquire("c", 2) == []
    assert pool.next_look() == 6
    assert pool.look(5.9) == []
    assert pool.look(6) == [Grant("b")]

    assert pool.live == 2
    assert pool.next_look() == math.inf
    assert pool.look(100) == []


def test_while_the_reserve_is_in_use_the_first_idle_connection_goes_and_its_slot_is_not_handed_on() -> None:
    pool = _pool(1, reserve=1, reserve_timeout=5)
    _fill(pool, "a", rest=False)
    pool.acquire("b", 0)
    pool.look(5)
    pool.acquire("c", 5)

    assert pool.rested("a", 6) == [Evict("a")]
    assert pool.free("a", 7) == []

    assert pool.live == 1
    assert pool.look(11.9) == []  # the reserve must be earned anew
    assert pool.look(12) == [Grant("c")]


def test_the_minimum_holds_against_pressure_and_idle_time() -> None:
    pool = _pool(3, minimum=2)
    _fill(pool, "a", "b")

    assert not pool.may_expire("a")
    assert pool.look(1) == []
    assert pool.acquire("c", 1) == [
        Grant("c"),
        Evict("a"),
    ]  # now the total exceeds it: the oldest it held goes
    assert not pool.may_expire("b")


def test_pressure_never_takes_the_total_below_the_minimum() -> None:
    pool = _pool(2, minimum=1)
    _fill(pool, "a", "b")

    assert pool.acquire("c", 1) == [Evict("a")]
    assert pool.acquire("d", 1) == []  # with `b` gone too, none would be left

    assert pool.free("a", 2) == [Grant("c"), Evict("b")]


def test_a_connection_that_is_used_again_is_no_longer_expired() -> None:
    pool = _pool(4, minimum=2)
    _fill(pool, "a", "b")
    assert not pool.may_expire("a")
    pool.busy("a")

    assert pool.acquire("c", 1) == [Grant("c")]


def test_what_returned_its_slot_may_expire_and_is_forgotten() -> None:
    pool = _pool(1)

    assert pool.may_expire("a")

    assert pool.acquire("b", 0) == [Grant("b")]


def test_a_kept_slot_is_set_aside_for_good_and_one_is_left_for_the_rest() -> None:
    pool = _pool(2)
    assert pool.set_aside("keep")
    assert not pool.set_aside("second")

    assert pool.acquire("a", 0) == [Grant("a")]
    assert pool.acquire("b", 0) == []  # the slot of `keep` is not for it
    assert pool.acquire("keep", 1) == [Grant("keep")]
    assert pool.rested("keep", 2) == []
    assert pool.rested("a", 2) == [Evict("a")]  # never `keep`


def test_with_more_live_than_slots_the_longest_idle_goes_not_the_last_to_rest() -> None:
    pool = _pool(2)
    _fill(pool, "a", "b", rest=False)
    pool.see_idle({"a": True})
    pool.limits = PoolLimits(slots=1)

    assert pool.rested("b", 1) == [Evict("a")]


def test_the_last_slot_a_server_s_scopes_may_have_is_at_least_one() -> None:
    pool = _pool(1)
    assert pool.acquire("s0", 0, group="memory") == [Grant("s0")]
    assert pool.acquire("s1", 0, group="memory") == []

    odd = _pool(3)
    assert odd.acquire("s0", 0, group="memory") == [Grant("s0")]
    assert odd.acquire("s1", 0, group="memory") == []


def test_it_is_pressed_while_the_minimum_holds_one_back() -> None:
    pool = _pool(3, minimum=2)
    _fill(pool, "a")
    assert not pool.is_pressed

    assert not pool.may_expire("a")
    assert pool.is_pressed
    pool.busy("a")
    assert not pool.is_pressed


def test_when_the_first_in_line_leaves_the_next_is_served() -> None:
    pool = _pool(2)
    assert pool.acquire("s0", 0, group="memory") == [Grant("s0")]
    assert pool.acquire("a", 0) == [Grant("a")]
    pool.limits = PoolLimits(slots=2, reserve=1, reserve_timeout=5)
    pool.acquire("b", 0)
    pool.acquire("c", 0)

    assert pool.abandon("b", 5) == [Grant("c")]


def test_who_goes_or_is_in_use_is_on_no_list() -> None:
    pool = _pool(4, minimum=3)
    _fill(pool, "a", "b", "c")
    for name in ("a", "b", "c"):
        assert not pool.may_expire(name)

    pool.free("a", 1)
    pool.leaving("b")
    pool.set_aside("c")

    assert pool.idle == ()
    assert not any(map(pool.is_held, "abc"))


def test_rest_after_rest_is_the_newest_rest() -> None:
    pool = _pool(3)
    _fill(pool, "a", "b")
    pool.rested("a", 1)

    assert pool.idle == ("a", "b")


def test_one_too_many_goes_and_nobody_waits() -> None:
    pool = _pool(1, reserve=1, reserve_timeout=5)
    _fill(pool, "a", rest=False)
    pool.acquire("b", 0)
    assert pool.look(5) == [Grant("b")]

    assert pool.free("a", 6) == []
    assert pool.live == 1


def test_nobody_makes_room_for_one_who_may_not_have_it() -> None:
    pool = _pool(4)
    for name in ("s0", "s1"):
        pool.acquire(name, 0, group="memory")
    _fill(pool, "a", "b")

    assert pool.acquire("s2", 1, group="memory") == []
    assert pool.idle == ("b", "a")


def test_two_who_wait_get_two_places() -> None:
    pool = _pool(2)
    _fill(pool, "a", "b", rest=False)
    pool.acquire("c", 0)
    pool.acquire("d", 0)
    pool.see_idle({"a": True, "b": True})

    assert pool.look(1) == [Evict("a"), Evict("b")]


def test_who_is_too_many_and_outstays_besides_is_asked_once() -> None:
    pool = _pool(3, minimum=2)
    _fill(pool, "a", "b")
    assert not pool.may_expire("a")
    pool.limits = PoolLimits(slots=1)

    assert pool.look(1) == [Evict("a")]
    assert not pool.is_held("a")


def test_sessions_of_one_server_hold_at_most_half_and_do_not_block_others() -> None:
    pool = _pool(4)
    for n in range(2):
        assert pool.acquire(f"s{n}", 0, group="memory") == [Grant(f"s{n}")]

    assert pool.acquire("s2", 0, group="memory") == []
    assert pool.acquire("other", 0) == [Grant("other")]
    assert pool.free("s0", 1) == [Grant("s2")]


def test_a_session_is_no_victim_of_pressure() -> None:
    pool = _pool(2)
    pool.acquire("session", 0, group="memory")
    pool.rested("session", 0, is_victim=False)
    pool.acquire("a", 0)
    pool.rested("a", 1)

    assert pool.acquire("b", 2) == [Evict("a")]
    assert pool.acquire("c", 2) == []


def test_one_that_leaves_by_itself_counts_as_room_on_its_way() -> None:
    pool = _pool(2)
    _fill(pool, "a", "b")
    pool.leaving("b")

    assert pool.acquire("c", 1) == []
    assert pool.free("b", 2) == [Grant("c")]


NAMED = "abcdefgh"
NAMES = st.sampled_from(NAMED)
LIMITS = st.builds(
    PoolLimits,
    slots=st.integers(1, 5),
    reserve=st.integers(0, 2),
    reserve_timeout=st.sampled_from([0.0, 5.0, 1e9]),
    minimum=st.integers(0, 2),
).filter(lambda limits: limits.minimum < limits.slots)
PAUSES = st.sampled_from([0.0, 0.0, 1.0, 2.5, 5.0, 1e12, -1.0])
POOL_EVENTS = st.one_of(
    st.tuples(
        st.sampled_from(
            ["acquire", "rested", "free", "acquire", "rested", "abandon", "busy", "leaving", "expire"]
        ),
        NAMES,
    ),
    st.tuples(st.sampled_from(["set aside", "give back", "look", "look"]), NAMES),
    st.tuples(st.just("see idle"), st.lists(NAMES, unique=True, max_size=5)),
    st.tuples(st.just("limits"), LIMITS),
)


@examples(200)
@given(LIMITS, histories(st.tuples(POOL_EVENTS, PAUSES)))
def test_a_referee_who_knows_the_rules_has_nothing_to_whistle_at(
    limits: PoolLimits, events: list[tuple[tuple[str, Any], float]]
) -> None:
    pool, referee, now = Pool[str](limits), Referee(limits), 0.0
    for (what, whom), pause in events:
        now += pause
        _play(pool, referee, what, whom, now)
        assert pool.holders == tuple(referee.held)
        assert [pool.holds(name) for name in NAMED] == [name in referee.held for name in NAMED]
        assert pool.waiting == len(referee.queue)
        assert pool.idle == tuple(reversed(referee.resting))
        assert [pool.is_held(name) for name in NAMED] == [name in referee.expired for name in NAMED]
        assert (pool.capacity, pool.next_look()) == (referee.capacity, referee.next_look())
        pressed = referee.queue or referee.expired or len(referee.shared) > referee.capacity
        assert pool.is_pressed == bool(pressed)


def _play(pool: Pool[str], referee: Referee, what: str, whom: Any, now: float) -> None:
    """One event for both. Who is of the second half of the alphabet is a session's child of `memory`."""
    who: str = whom if isinstance(whom, str) else ""
    is_child = who > "d"
    match what:
        case "acquire":
            group = "memory" if is_child else None
            comes = referee.comes(who, group, now)
            referee.watch(pool.acquire(who, now, group), now, served=comes)
        case "abandon":
            left = referee.leaves_the_queue(who)
            referee.watch(pool.abandon(who, now), now, served=left)
        case "free":
            gone = referee.is_gone(who, now)
            referee.watch(pool.free(who, now), now, served=gone)
        case "rested":
            rests = referee.rests(who, is_child)
            referee.watch(pool.rested(who, now, is_victim=not is_child), now, served=rests)
        case "busy":
            pool.busy(who)
            referee.wakes(who)
        case "leaving":
            pool.leaving(who)
            referee.walks_out(who)
        case "expire" if who in referee.aside:
            pass  # keep-alive: its idle time is never over
        case "expire":
            referee.outstays(who, pool.may_expire(who))
        case "see idle":
            pool.see_idle({name: name <= "d" for name in whom})
            referee.sees_resting({name: name > "d" for name in whom})
        case "set aside":
            assert pool.set_aside(who) == referee.sets_aside(who)
        case "give back":
            assert pool.give_back(who) == referee.gives_back(who)
        case "limits":
            limits: Any = whom
            pool.limits = referee.limits = limits
        case _:
            referee.watch(pool.look(now), now, served=True)


def test_a_surplus_of_one_sends_one_away() -> None:
    pool = _pool(2, reserve=1, reserve_timeout=5)
    _fill(pool, "a", "b", rest=False)
    pool.acquire("c", 0)
    assert pool.look(5) == [Grant("c")]

    assert pool.rested("a", 6) == [Evict("a")]
    assert pool.rested("b", 6) == []  # `a` still stops, and is the one too many


def test_a_slot_given_back_is_anybodys() -> None:
    pool = _pool(2)
    pool.set_aside("keep")
    pool.acquire("keep", 0)
    pool.acquire("a", 0)
    assert pool.acquire("b", 0) == []

    assert pool.give_back("keep")
    assert not pool.give_back("keep")

    assert pool.capacity == 2
    assert pool.rested("keep", 1) == [Evict("keep")]
    assert pool.free("keep", 2) == [Grant("b")]


def test_set_aside_while_all_are_in_use_it_waits_for_its_slot_and_the_bound_holds() -> None:
    pool = _pool(2)
    _fill(pool, "a", "b", rest=False)
    pool.set_aside("keep")

    assert pool.acquire("keep", 1) == []
    assert pool.rested("a", 2) == [Evict("a")]
    assert pool.free("a", 3) == [Grant("keep")]
    assert pool.live == 2


def test_one_that_is_live_already_keeps_the_slot_it_has() -> None:
    pool = _pool(2)
    _fill(pool, "a", "b")
    pool.set_aside("a")

    assert pool.look(1) == []
    assert pool.acquire("c", 2) == [Evict("b")]


def test_behind_a_head_that_must_earn_the_reserve_anew_nobody_else_gets_it() -> None:
    pool = _pool(1, reserve=1, reserve_timeout=5)
    _fill(pool, "a", rest=False)
    for name in ("b", "c", "d"):
        pool.acquire(name, 0)
    assert pool.look(5) == [Grant("b")]
    pool.rested("a", 6)
    assert pool.free("a", 7) == []

    assert pool.look(8) == []  # `d` has waited eight seconds, and is not the head
    assert pool.look(12) == [Grant("c")]
