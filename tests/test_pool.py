"""The pool's rules, one by one, and against a naive model of them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

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


NAMES = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["acquire", "abandon", "free", "rested", "busy", "leaving", "expire"]), NAMES
        ),
        st.tuples(st.just("look"), st.floats(0, 20)),
    ),
    max_size=60,
)


@given(steps=STEPS, slots=st.integers(1, 4), reserve=st.integers(0, 2), minimum=st.integers(0, 2))
def test_bounds_order_and_conservation_hold_whatever_happens(
    steps: list[tuple[str, object]], slots: int, reserve: int, minimum: int
) -> None:
    """Reference: sets and a list, kept from the decisions alone."""
    pool = _pool(slots, reserve, 5.0, minimum)
    now = 0.0
    held: set[str] = set()
    evicted: set[str] = set()
    queue: list[str] = []
    for what, who in steps:
        before = set(held)
        match what, who:
            case "look", float():
                now += who
                decisions = pool.look(now)
            case "acquire", str():
                if who not in held and who not in queue:
                    queue.append(who)
                decisions = pool.acquire(who, now)
            case "abandon", str():
                queue = [name for name in queue if name != who]
                decisions = pool.abandon(who, now)
            case "free", str():
                held.discard(who)
                evicted.discard(who)
                decisions = pool.free(who, now)
            case "rested", str():
                decisions = pool.rested(who, now)
            case "busy", str():
                pool.busy(who)
                decisions = []
            case "leaving", str():
                pool.leaving(who)
                decisions = []
            case _, str():
                pool.may_expire(who)
                decisions = []
            case _:
                raise AssertionError(what)
        for decision in decisions:
            if isinstance(decision, Grant):
                assert decision.who == queue.pop(0), "first come, first served"
                assert decision.who not in held
                held.add(decision.who)
                assert len(held) <= slots + reserve
                assert len(held) <= slots or len(before) >= slots
            else:
                assert decision.who in held
                assert decision.who not in evicted, "asked to go once"
                evicted.add(decision.who)
        assert pool.live == len(held)
        assert pool.waiting == len(queue)
        assert not queue or len(held) >= slots, "nobody waits beside a free slot"


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
