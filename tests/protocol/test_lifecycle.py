"""The lifecycle, exhaustively: every state with every trigger, every effect for every combination of its inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.models import histories
from tests.models.lifecycle import LifeModel
from tests.support.profiles import examples
from tests.support.rows import for_each

from greenroom.protocol.lifecycle import (
    TABLE,
    Cause,
    Effect,
    Ending,
    IllegalTransition,
    Life,
    Means,
    Reason,
    State,
    Trigger,
    is_late,
    settle,
    step,
    words_of,
)

# The table of the design, written a second time on purpose: a change has to be made twice to pass.
EXPECTED = {
    ("idle", "connect"): "connecting",
    ("idle", "stop"): "closed",
    ("connecting", "ready"): "connected",
    ("connecting", "failed"): "draining",
    ("connecting", "stop"): "draining",
    ("connected", "drain"): "draining",
    ("connected", "stop"): "draining",
    ("connected", "lost"): "draining",
    ("draining", "drain"): "draining",
    ("draining", "stop"): "draining",
    ("draining", "lost"): "draining",
    ("draining", "deadline"): "draining",
    ("draining", "gone"): "closed",
}
NEEDS_ENDING = {Trigger.STOP, Trigger.DRAIN, Trigger.LOST, Trigger.FAILED}
WEAK, STRONG = Ending(Cause.IDLE_TIMEOUT), Ending(Cause.SHUTDOWN)
ENDS_CALLS = {Effect.LOSE_CALLS, Effect.EXPIRE_CALLS}

legal = [(state, trigger) for state, row in TABLE.items() for trigger in row]
illegal = [pair for pair in itertools.product(State, Trigger) if pair not in legal]


def a_life(
    state: State, *, stopping: bool = False, ending: Ending = WEAK, deadline: float | None = 50.0
) -> Life:
    if state in (State.DRAINING, State.CLOSED):
        return Life(state=state, ending=ending, deadline=deadline, stopping=stopping)
    return Life(state=state)


def move(
    life: Life, trigger: Trigger, *, in_flight: int = 0, deadline: float = 40.0, ending: Ending = STRONG
):
    return step(
        life,
        trigger,
        ending=ending if trigger in NEEDS_ENDING else None,
        deadline=deadline if trigger is Trigger.DRAIN else None,
        in_flight=in_flight,
    )


def ids(value: object) -> str:
    return value.value if isinstance(value, State | Trigger | Cause) else str(value)


# What each cause means, a second time on purpose: failed, no start, requeues, keeps names, keeps discoveries, final,
# taken down.
MEANS = {
    Cause.IDLE_TIMEOUT: "...nv..",
    Cause.EVICTED: "...nv..",
    Cause.CONNECT_FAILED: "fs..v..",
    Cause.LOST: "f.rnv..",
    Cause.NEEDS_AUTH: ".s.....",
    Cause.MOVED: "..rnv..",
    Cause.RESTART: "..rnv..",
    Cause.RELOAD: "..rnv..",
    Cause.DRAINED: "...n.!d",
    Cause.DISABLED: ".....!d",
    Cause.REMOVED: ".....!d",
    Cause.SCOPE_ENDED: ".....!.",
    Cause.BUG: "f..n...",
    Cause.SHUTDOWN: ".....!.",
}


@for_each("cause", list(Cause), ids=ids)
def test_each_cause_means_what_the_design_says(cause: Cause) -> None:
    found = (letter if cause.has(means) else "." for letter, means in zip("fsrnv!d", Means, strict=True))
    assert "".join(found) == MEANS[cause]


def test_the_table_is_the_one_of_the_design() -> None:
    assert {(s.value, t.value): to.value for s, row in TABLE.items() for t, to in row.items()} == EXPECTED


@for_each(("state", "trigger"), legal, ids=ids)
def test_a_legal_move_goes_where_the_table_says(state: State, trigger: Trigger) -> None:
    life, effects = move(a_life(state), trigger)

    assert life.state is TABLE[state][trigger]
    assert len(effects) == len(set(effects))
    assert life.incarnation == 1


@for_each(("state", "trigger"), illegal, ids=ids)
def test_what_the_table_lacks_raises_and_nothing_happens(state: State, trigger: Trigger) -> None:
    life = a_life(state)
    before = replace(life)

    with pytest.raises(IllegalTransition) as raised:
        move(life, trigger)

    assert (raised.value.state, raised.value.trigger) == (state, trigger)
    assert str(raised.value) == f"the lifecycle has no '{trigger.value}' in '{state.value}'"
    assert life == before


def test_connected_ends_only_through_draining() -> None:
    assert {*TABLE[State.CONNECTED].values()} == {State.DRAINING}
    assert {*TABLE[State.CONNECTING].values()} == {State.CONNECTED, State.DRAINING}
    assert not TABLE[State.CLOSED]


@for_each("state", State, ids=ids)
@for_each("trigger", Trigger, ids=ids)
def test_late_news_is_that_of_an_attempt_being_left(state: State, trigger: Trigger) -> None:
    expected = trigger in (Trigger.READY, Trigger.FAILED) and state in (State.DRAINING, State.CLOSED)

    assert is_late(a_life(state), trigger) is expected
    assert not (expected and trigger in TABLE[state])


@for_each("in_flight", [0, 1])
@for_each("stopping", [False, True])
@for_each(("state", "trigger"), [p for p in legal if TABLE[p[0]][p[1]] is State.DRAINING], ids=ids)
def test_every_way_into_and_through_draining(
    state: State, trigger: Trigger, stopping: bool, in_flight: int
) -> None:
    stopping = stopping and state is State.DRAINING
    life, effects = move(a_life(state, stopping=stopping), trigger, in_flight=in_flight)

    waits = trigger is Trigger.DRAIN and in_flight > 0
    assert (Effect.STOP_TREE in effects) == (not stopping and not waits), "told to stop exactly once"
    assert life.stopping == (stopping or Effect.STOP_TREE in effects)
    assert bool(ENDS_CALLS & set(effects)) == (in_flight > 0 and not waits)
    assert (Effect.LOSE_CALLS in effects) == (in_flight > 0 and trigger is Trigger.LOST)
    assert (Effect.ARM_DEADLINE in effects) == (waits and not stopping)
    assert not {Effect.OPEN, Effect.SERVE, Effect.ANNOUNCE} & set(effects)
    assert list(effects) == sorted(effects, key=list(Effect).index), "effects come in the order they are done"


def test_what_an_actor_does_at_each_step_of_a_life_without_trouble() -> None:
    assert move(a_life(State.IDLE), Trigger.CONNECT)[1] == (Effect.OPEN,)
    assert move(a_life(State.CONNECTING), Trigger.READY)[1] == (Effect.SERVE,)
    assert move(a_life(State.IDLE), Trigger.STOP)[1] == (Effect.ANNOUNCE,)
    assert move(a_life(State.DRAINING, stopping=True), Trigger.GONE)[1] == (Effect.ANNOUNCE,)


@for_each("first", Cause, ids=ids)
@for_each("second", Cause, ids=ids)
def test_the_stronger_cause_wins_and_the_first_of_equals_stays(first: Cause, second: Cause) -> None:
    life = a_life(State.DRAINING, ending=Ending(first, "first"))

    after, _ = move(life, Trigger.STOP, ending=Ending(second, "second"))

    order = list(Cause)
    winner = "second" if order.index(second) > order.index(first) else "first"
    assert after.ending is not None
    assert after.ending.detail == winner


@pytest.mark.parametrize(
    ("standing", "asked", "then"), [(None, 40.0, 40.0), (50.0, 40.0, 40.0), (30.0, 40.0, 30.0)]
)
def test_the_deadline_only_shrinks(standing: float | None, asked: float, then: float) -> None:
    life, effects = move(
        a_life(State.DRAINING, deadline=standing), Trigger.DRAIN, deadline=asked, in_flight=1
    )

    assert life.deadline == then
    assert (Effect.ARM_DEADLINE in effects) == (standing != then)


def test_the_deadline_keeps_the_cause() -> None:
    life, _ = step(a_life(State.DRAINING, ending=STRONG), Trigger.DEADLINE, in_flight=1)

    assert life.ending == STRONG


@pytest.mark.parametrize("trigger", [Trigger.STOP, Trigger.LOST, Trigger.DRAIN], ids=ids)
def test_leaving_needs_a_reason(trigger: Trigger) -> None:
    with pytest.raises(AssertionError, match="needs an ending"):
        step(a_life(State.CONNECTED), trigger, deadline=1.0)


def test_an_ending_says_its_cause_and_what_is_known_of_it() -> None:
    assert str(Ending(Cause.LOST)) == "lost"
    assert str(Ending(Cause.LOST, "exited with code 3")) == "lost: exited with code 3"
    idle = Ending(Cause.IDLE_TIMEOUT, reason=Reason.NO_CALL, seconds=90.0)
    assert idle.detail == "no call for 90 s"
    assert msgspec.structs.replace(idle, words="said so").detail == "said so"


def test_draining_without_calls_keeps_the_deadline_it_had() -> None:
    life, _ = step(a_life(State.DRAINING, deadline=30.0), Trigger.LOST, ending=STRONG, in_flight=1)
    assert life.deadline == 30.0

    life, _ = step(a_life(State.DRAINING, stopping=True, deadline=30.0), Trigger.GONE)
    assert life.deadline is None


def test_draining_with_calls_needs_a_deadline() -> None:
    with pytest.raises(AssertionError, match=r"^drain needs a deadline$"):
        step(a_life(State.CONNECTED), Trigger.DRAIN, ending=WEAK, in_flight=1)


def test_gone_is_not_announced_over_a_call_in_flight() -> None:
    with pytest.raises(AssertionError, match=r"^gone is announced only when no call is in flight$"):
        step(a_life(State.DRAINING, stopping=True), Trigger.GONE, in_flight=1)


@for_each("state", State, ids=ids)
@for_each("stopping", [False, True])
def test_the_last_call_ends_a_drain_and_nothing_else(state: State, stopping: bool) -> None:
    life = a_life(state, stopping=stopping)

    after, effects = settle(life)

    starts = state is State.DRAINING and not stopping
    assert effects == ((Effect.STOP_TREE,) if starts else ())
    assert after == (replace(life, stopping=True) if starts else life)


# ---- against a model, and through every life there can be ---------------------------------------------------------


TRIGGERS = st.sampled_from([*Trigger, *Trigger, "call comes", "call ends"])
MOMENTS = st.sampled_from([0.0, 10.0, 10.0, 1e300, -5.0])


@examples(200)
@given(histories(st.tuples(TRIGGERS, st.sampled_from(Cause), MOMENTS), longest=40))
def test_a_life_is_that_of_the_design(events: list[tuple[Trigger | str, Cause, float]]) -> None:
    life, model, orders = Life(), LifeModel(), list[Effect]()
    for what, cause, deadline in events:
        if what == "call comes":
            model.in_flight += life.state is State.CONNECTED
        elif what == "call ends":
            if model.in_flight:
                model.a_call_ends()
                if not model.in_flight:
                    life, effects = settle(life)
                    orders += effects
        elif isinstance(what, Trigger) and what.value == "gone" and not model.allows("gone"):
            continue  # its owner never says so then
        elif isinstance(what, Trigger):
            life = _happen(life, model, what, cause, deadline, orders)
        assert life.state.value == model.state
        assert (life.ending and life.ending.cause) is model.cause
        assert life.stopping == model.told_to_stop
        if life.state is State.DRAINING:
            assert (math.inf if life.deadline is None else life.deadline) == model.deadline
    for once in (Effect.OPEN, Effect.SERVE, Effect.STOP_TREE, Effect.ANNOUNCE):
        assert orders.count(once) <= 1
    assert orders.count(Effect.ANNOUNCE) == (life.state is State.CLOSED)


def _happen(
    life: Life, model: LifeModel, trigger: Trigger, cause: Cause, deadline: float, orders: list[Effect]
) -> Life:
    ending = Ending(cause) if trigger in NEEDS_ENDING else None
    in_flight = model.in_flight
    if not model.allows(trigger.value):
        with pytest.raises(IllegalTransition):
            step(life, trigger, ending=ending, deadline=deadline, in_flight=in_flight)
        return life
    after, effects = step(life, trigger, ending=ending, deadline=deadline, in_flight=in_flight)
    model.happens(trigger.value, ending and ending.cause, deadline)
    assert bool(ENDS_CALLS & set(effects)) == (in_flight > model.in_flight)
    orders += effects
    return after


def test_closed_is_reached_from_every_life_that_can_be() -> None:
    """Not from every state only: from every state with whatever is remembered and in flight there."""
    ways: dict[tuple[Life, int], set[tuple[Life, int]]] = {}
    ahead = [(Life(), 0)]
    while ahead:
        here = ahead.pop()
        if here not in ways:
            ways[here] = set(_next_lives(*here))
            ahead += ways[here]

    closing = {here for here in ways if here[0].state is State.CLOSED}
    while new := {here for here, there in ways.items() if there & closing} - closing:
        closing |= new

    assert {life.state for life, _ in ways} == set(State)
    assert ways.keys() == closing


def _next_lives(life: Life, in_flight: int) -> Iterator[tuple[Life, int]]:
    """Every move there is, with a weak and a strong cause, two deadlines, and up to two calls."""
    if life.state is State.CONNECTED and in_flight < 2:
        yield life, in_flight + 1
    if in_flight:
        yield (settle(life)[0] if in_flight == 1 else life), in_flight - 1
    for trigger, ending, deadline in itertools.product(TABLE[life.state], (WEAK, STRONG), (40.0, 50.0)):
        if trigger is Trigger.GONE and not (life.stopping and not in_flight):
            continue
        after, effects = move(life, trigger, in_flight=in_flight, deadline=deadline, ending=ending)
        yield after, 0 if ENDS_CALLS & set(effects) else in_flight


def test_a_caller_without_a_token_says_nothing_of_the_server() -> None:
    assert Ending(Cause.CONNECT_FAILED, reason=Reason.NO_IDENTITY).is_of_caller
    assert not Ending(Cause.CONNECT_FAILED).is_of_caller


def test_every_reason_has_words_for_a_person() -> None:
    assert words_of(None) == ""
    assert words_of(Reason.NO_CALL, 2.5) == "no call for 2.5 s"
    assert words_of(Reason.MAKES_ROOM) == "to make room"
    assert words_of(Reason.DIED) == "died"
    assert all(words_of(reason, 1.0) for reason in Reason)
