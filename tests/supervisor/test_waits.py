"""Who waits for a connection: who is told of a failure, and who goes on waiting, in every state there is."""

from __future__ import annotations

import math

import pytest

from greenroom.actors.server import Waits
from greenroom.protocol.errors import CallError
from greenroom.protocol.lifecycle import Cause, Ending, Life, Means, State


class Clock:
    """Waits of an actor, and what they were told."""

    def __init__(self) -> None:
        self.waits = Waits()
        self.told: list[tuple[str, CallError | None]] = []

    def add(self, name: str, life: Life, now: float = 0.0, *, by_name: bool = False):
        return self.waits.add(lambda error: self.told.append((name, error)), now, life, by_name=by_name)


def _draining(cause: Cause, incarnation: int = 1) -> Life:
    return Life(incarnation, State.DRAINING, Ending(cause))


@pytest.mark.parametrize("cause", list(Cause), ids=lambda cause: cause.value)
def test_an_attempt_that_failed_is_over_for_those_who_waited_for_it_and_no_others(cause: Cause) -> None:
    clock = Clock()
    clock.add("before", Life(state=State.CONNECTING), by_name=True)
    clock.add("after", _draining(cause))

    is_over = cause.has(Means.NO_START)
    assert len(list(clock.waits.open(_draining(cause)))) == (1 if is_over else 2)
    assert any(wait.by_name for wait in clock.waits.open(_draining(cause))) != is_over

    error = CallError("no", server="a")
    clock.waits.tell(error, up_to=1)
    assert clock.told == [("before", error)]
    clock.waits.tell(None)
    assert clock.told[1:] == [("after", None)]


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.value)
def test_each_waits_for_the_incarnation_that_can_still_connect(state: State) -> None:
    clock = Clock()
    ending = Ending(Cause.CONNECT_FAILED) if state in (State.DRAINING, State.CLOSED) else None
    clock.add("a", Life(4, state, ending))

    clock.waits.tell(None, up_to=4)
    assert bool(clock.told) == (state not in (State.DRAINING, State.CLOSED))


def test_whoever_leaves_is_not_told_also_when_one_before_it_makes_it_leave() -> None:
    waits, told = Waits(), list[str]()

    def hear(_error: CallError | None) -> None:
        told.append("first")
        leave()

    waits.add(hear, 0.0, Life(), by_name=False)
    leave = waits.add(lambda _error: told.append("second"), 0.0, Life(), by_name=False)
    waits.tell(None)
    leave()
    assert told == ["first"]


def test_those_who_have_waited_long_enough_are_told_and_the_others_wait_on() -> None:
    clock, life = Clock(), Life()
    for when, name in enumerate("abc"):
        clock.add(name, life, float(when))
    assert clock.waits.since(life) == 0.0

    clock.waits.tell_early(CallError("late", server="a"), 1.0, life)

    assert [name for name, _ in clock.told] == ["a", "b"]
    assert clock.waits.since(life) == 2.0
    clock.waits.tell(None)
    assert clock.waits.since(life) == math.inf


def test_what_was_asked_by_name_before_it_was_taken_down_is_so_no_more() -> None:
    clock, life = Clock(), Life()
    clock.add("a", life, by_name=True)
    clock.waits.forget_names()
    assert not any(wait.by_name for wait in clock.waits.open(life))
    clock.add("b", life, by_name=True)
    assert sum(wait.by_name for wait in clock.waits.open(life)) == 1
