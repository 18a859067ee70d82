"""Start permits: so many at once, first come, first served, and no trace of who left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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


def test_one_that_gives_its_permit_back_while_it_is_granted_passes_it_on() -> None:
    permits, granted = Permits[str](1), list[str]()
    permits.acquire("first", lambda: None)
    permits.acquire("moot", lambda: permits.release("moot"))
    permits.acquire("next", lambda: granted.append("next"))

    permits.release("first")

    assert granted == ["next"]
    assert permits.held == 1


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_permits_are_conserved(places: int, moves: list[tuple[bool, int]]) -> None:
    permits, holders, queue = Permits[int](places), set[int](), list[int]()

    def granted(who: int) -> None:
        assert queue.pop(0) == who, "not the first of the queue"
        holders.add(who)

    for comes, who in moves:
        if comes and who not in holders and who not in queue:
            queue.append(who)
            permits.acquire(who, lambda who=who: granted(who))
        elif not comes:
            if who in queue:
                queue.remove(who)
            holders.discard(who)
            permits.release(who)
        assert (permits.held, permits.waiting) == (len(holders), len(queue))
        assert len(holders) <= places
        assert not queue or len(holders) == places
