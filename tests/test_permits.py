"""Start permits: so many at once, first come, first served, and no trace of who left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.models import histories
from tests.models.permits import PermitsModel

from greenroom.supervisor._permits import Permits


def test_ten_at_once_then_in_the_order_of_arrival() -> None:
    permits, granted = Permits[int](10), list[int]()
    for who in range(13):
        permits.acquire(who, lambda who=who: granted.append(who))

    assert granted == list(range(10))
    assert (permits.held, permits.waiting) == (10, 3)

    permits.release(4)
    permits.release(0)
    assert granted[10:] == [10, 11]


def test_one_that_leaves_the_queue_leaves_no_trace() -> None:
    permits, granted = Permits[str](1), list[str]()
    for who in ("a", "b", "c"):
        permits.acquire(who, lambda who=who: granted.append(who))

    permits.release("b")
    permits.release("a")

    assert granted == ["a", "c"]
    assert (permits.held, permits.waiting) == (1, 0)


def test_asking_twice_is_asking_once() -> None:
    permits, granted = Permits[str](1), list[str]()
    for _ in range(3):
        permits.acquire("a", lambda: granted.append("a"))

    assert granted == ["a"]
    permits.release("a")
    permits.release("a")
    assert (permits.held, permits.waiting) == (0, 0)


def test_who_waits_and_asks_again_is_told_as_it_asked_first() -> None:
    permits, granted = Permits[str](1), list[str]()
    permits.acquire("a", lambda: None)
    permits.acquire("b", lambda: granted.append("first"))
    permits.acquire("c", lambda: granted.append("c"))
    permits.acquire("b", lambda: granted.append("again"))
    assert permits.waiting == 2
    permits.give_up("a")
    assert (permits.held, granted) == (1, []), "what it has it keeps"
    permits.release("a")
    permits.release("b")
    assert granted == ["first", "c"]


def test_one_that_gives_its_permit_back_while_it_is_granted_passes_it_on() -> None:
    permits, granted = Permits[str](1), list[str]()
    permits.acquire("first", lambda: None)
    permits.acquire("moot", lambda: permits.release("moot"))
    permits.acquire("next", lambda: granted.append("next"))

    permits.release("first")

    assert granted == ["next"]
    assert permits.held == 1


STEPS = st.tuples(st.sampled_from(["comes", "comes", "goes", "resize"]), st.integers(0, 9))


@given(st.integers(0, 4), histories(STEPS))
def test_permits_are_those_of_the_design(places: int, steps: list[tuple[str, int]]) -> None:
    permits, model, entered = Permits[int](places), PermitsModel(places), list[int]()
    for what, who in steps:
        entered.clear()
        match what:
            case "comes":
                permits.acquire(who, lambda who=who: entered.append(who))
                expected = model.comes(who)
            case "goes":
                permits.release(who)
                expected = model.goes(who)
            case _:
                permits.resize(who)
                expected = model.resize(who)
        assert entered == expected
        assert (permits.held, permits.waiting) == (len(model.holders), len(model.line))


def test_more_places_are_filled_at_once_and_fewer_send_nobody_away() -> None:
    permits, granted = Permits[str](1), list[str]()
    for who in ("a", "b", "c"):
        permits.acquire(who, lambda who=who: granted.append(who))

    permits.resize(3)
    assert granted == ["a", "b", "c"]

    permits.resize(1)
    permits.acquire("d", lambda: granted.append("d"))
    permits.release("a")
    permits.release("b")
    assert granted == ["a", "b", "c"]
    permits.release("c")
    assert granted == ["a", "b", "c", "d"]
