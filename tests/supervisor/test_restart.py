"""What follows an ending: the table, cell by cell, and the restart intensity."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models import histories
from tests.models.intensity import IntensityModel
from tests.support.rows import for_each

from greenroom.actors.server import ClosingAction
from greenroom.config.model import Lifecycle, RestartPolicy, ServerDefinition, restart_policy
from greenroom.protocol.lifecycle import Cause, Means
from greenroom.supervisor.policy.breaker import Intensity
from greenroom.supervisor.policy.endings import AFTERMATH, ClosedIncarnation, after, what_follows

I, C, D, G = ClosingAction.IDLE, ClosingAction.CONNECT, ClosingAction.DOWN, ClosingAction.GONE  # noqa: E741  # the table reads better so
TABLE = {  # cause: (lazy, eager, keep-alive), and whether queued calls fail
    Cause.IDLE_TIMEOUT: ((I, I, I), False),
    Cause.EVICTED: ((I, I, I), False),
    Cause.CONNECT_FAILED: ((I, I, C), True),
    Cause.LOST: ((I, I, C), False),
    Cause.MOVED: ((I, C, C), False),
    Cause.RESTART: ((I, C, C), False),
    Cause.RELOAD: ((I, C, C), False),
    Cause.DRAINED: ((D, D, D), True),
    Cause.DISABLED: ((D, D, D), True),
    Cause.NEEDS_AUTH: ((D, D, D), True),
    Cause.BUG: ((I, I, C), False),
    Cause.SHUTDOWN: ((D, D, D), True),
    Cause.REMOVED: ((G, G, G), True),
    Cause.SCOPE_ENDED: ((G, G, G), True),
}


def server(lifecycle: Lifecycle, policy: RestartPolicy | None = None) -> ServerDefinition:
    return ServerDefinition("a", command="x", lifecycle=lifecycle, restart_policy=policy)


@for_each("cause", list(Cause), ids=lambda cause: cause.value)
def test_the_aftermath_is_the_design_s_table(cause: Cause) -> None:
    then, fails = TABLE[cause]

    found = [after(cause, server(lifecycle)) for lifecycle in Lifecycle]

    assert tuple(one.then for one in found) == then
    assert {one.fails_queued for one in found} == {fails}


def test_every_cause_and_lifecycle_has_a_cell() -> None:
    assert {(cause, lifecycle) for cause, row in AFTERMATH.items() for lifecycle in row} == {
        (cause, lifecycle) for cause in Cause for lifecycle in Lifecycle
    }


@for_each(
    ("policy", "then", "fails"),
    [
        (RestartPolicy.NEVER, ClosingAction.DOWN, True),
        (RestartPolicy.ON_DEMAND, ClosingAction.IDLE, False),
        (RestartPolicy.ALWAYS, ClosingAction.CONNECT, False),
    ],
)
@for_each("lifecycle", list(Lifecycle))
def test_the_restart_policy_refines_losses_and_nothing_else(
    lifecycle: Lifecycle, policy: RestartPolicy, then: ClosingAction, fails: bool
) -> None:
    losses = {Cause.LOST, Cause.BUG}
    for cause in losses:
        lost = after(cause, server(lifecycle, policy))
        assert (lost.then, lost.fails_queued) == (then, fails)
    for cause in set(Cause) - losses:
        assert after(cause, server(lifecycle, policy)) == after(cause, server(lifecycle))


def test_keep_alive_restarts_always_by_default_the_others_on_demand() -> None:
    assert [restart_policy(server(lifecycle)) for lifecycle in Lifecycle] == [
        RestartPolicy.ON_DEMAND,
        RestartPolicy.ON_DEMAND,
        RestartPolicy.ALWAYS,
    ]


def test_intensity_is_one_too_many_only_within_the_period() -> None:
    intensity, verdicts = Intensity(), list[bool]()
    for now in (0, 1, 2, 3, 4, 5, 64.5):
        intensity, too_often = intensity.restarted(now, 5, 60.0)
        verdicts.append(too_often)

    assert verdicts == [False] * 5 + [True, False]
    assert intensity.times == (5, 64.5)


TICKS = st.integers(0, 240).map(
    lambda quarters: quarters / 4
)  # exact, so ties and bounds are hit and not missed


@given(
    start=st.sampled_from([0.0, 1e9, 2.0**48]),
    steps=histories(TICKS | st.just(0.0) | st.just(1e12)),
    limit=st.sampled_from([0, 1, 2, 5, 5000]),
    period=st.sampled_from([0.25, 60.0, 1e9]),
)
def test_intensity_is_that_of_the_design(start: float, steps: list[float], limit: int, period: float) -> None:
    intensity, model, now = Intensity(), IntensityModel(limit, period), start
    for step in steps:
        now += step
        intensity, too_often = intensity.restarted(now, limit, period)
        assert too_often == model.restarts_at(now)
        assert all(now - at < period for at in intensity.times), "what is over is forgotten"


def test_a_restart_a_whole_period_ago_is_over() -> None:
    intensity, _ = Intensity().restarted(0.0, 1, 60.0)

    assert intensity.restarted(59.75, 1, 60.0)[1] is True
    assert intensity.restarted(60.0, 1, 60.0) == (Intensity((60.0,)), False)


def test_what_is_left_of_the_intensity() -> None:
    intensity = Intensity((0.0, 50.0, 55.0))
    assert [intensity.left(60.0, limit, 60.0) for limit in (5, 2, 1)] == [3, 0, 0]


def test_five_hundred_restarts_in_one_tick_are_each_counted() -> None:
    intensity, verdicts = Intensity(), list[bool]()
    for _ in range(500):
        intensity, too_often = intensity.restarted(1.0, 490, 60.0)
        verdicts.append(too_often)

    assert verdicts == [False] * 490 + [True] * 10


def test_a_clock_that_steps_back_forgets_nothing_and_quarantines_nobody_by_itself() -> None:
    intensity, _ = Intensity().restarted(100.0, 1, 60.0)

    assert intensity.restarted(40.0, 1, 60.0) == (Intensity((100.0, 40.0)), True)
    assert intensity.restarted(40.0, 2, 60.0)[1] is False


def test_the_settings_restart_policy_is_for_servers_that_have_none() -> None:
    own, none = server(Lifecycle.LAZY, RestartPolicy.ON_DEMAND), server(Lifecycle.KEEP_ALIVE, None)

    assert restart_policy(own, RestartPolicy.NEVER) is RestartPolicy.ON_DEMAND
    assert restart_policy(none, RestartPolicy.NEVER) is RestartPolicy.NEVER
    assert after(Cause.LOST, none, RestartPolicy.NEVER).then is ClosingAction.DOWN


FACTS = (
    *("is_closing", "is_down", "is_discovery", "is_shared", "is_of_call", "is_awaited"),
    "is_asked_by_name",
)


@for_each("lifecycle", Lifecycle)
@for_each("cause", Cause)
def test_what_follows_an_ending_whatever_else_is_known(cause: Cause, lifecycle: Lifecycle) -> None:
    for known in product([False, True], repeat=len(FACTS)):
        facts = dict(zip(FACTS, known, strict=True))
        then = what_follows(ClosedIncarnation(cause, server(lifecycle), None, **facts)).then
        is_kept_discovery = facts["is_discovery"] and cause.has(Means.KEEPS_DISCOVERIES)

        if facts["is_closing"] or cause is Cause.SHUTDOWN:
            assert then is ClosingAction.GONE, "a closing room starts nothing any more"
        elif facts["is_of_call"] and not is_kept_discovery:
            waits = cause is Cause.MOVED and facts["is_awaited"]
            assert waits or then is ClosingAction.GONE, "a call's own child ends with its call"
        elif facts["is_asked_by_name"] and cause is not Cause.CONNECT_FAILED and not cause.has(Means.FINAL):
            assert then is ClosingAction.CONNECT, "who asked by name gets the next connection"
        elif not any(facts[one] for one in ("is_discovery", "is_asked_by_name")) and facts["is_down"]:
            assert then is after(cause, server(lifecycle)).then, "the table decides everything else"


@for_each(
    ("cause", "lifecycle", "facts", "then", "fails"),
    [
        (Cause.LOST, Lifecycle.LAZY, {"is_closing": True}, G, True),
        (Cause.LOST, Lifecycle.LAZY, {"general": RestartPolicy.NEVER}, D, True),
        (Cause.IDLE_TIMEOUT, Lifecycle.LAZY, {"is_of_call": True}, G, True),
        (Cause.LOST, Lifecycle.LAZY, {"is_asked_by_name": True}, C, False),
        (Cause.NEEDS_AUTH, Lifecycle.LAZY, {"is_asked_by_name": True}, C, True),
        (Cause.LOST, Lifecycle.LAZY, {"is_discovery": True}, C, False),
        (Cause.CONNECT_FAILED, Lifecycle.LAZY, {"is_discovery": True}, I, True),
        (Cause.CONNECT_FAILED, Lifecycle.LAZY, {"is_discovery": True, "is_of_call": True}, G, True),
        (Cause.CONNECT_FAILED, Lifecycle.LAZY, {"is_discovery": True, "is_asked_by_name": True}, C, True),
        (Cause.CONNECT_FAILED, Lifecycle.KEEP_ALIVE, {"is_discovery": True}, C, True),
        (Cause.CONNECT_FAILED, Lifecycle.KEEP_ALIVE, {"is_discovery": True, "is_shared": False}, I, True),
    ],
)
def test_the_rules_before_the_table(
    cause: Cause, lifecycle: Lifecycle, facts: dict[str, Any], then: ClosingAction, fails: bool
) -> None:
    what = what_follows(ClosedIncarnation(cause, server(lifecycle, None), **facts))
    assert (what.then, what.fails_queued) == (then, fails)


@pytest.mark.parametrize("cause", [Cause.DRAINED, Cause.DISABLED, Cause.REMOVED])
def test_a_server_brought_back_while_it_drains_is_only_replaced(cause: Cause) -> None:
    for lifecycle in Lifecycle:
        brought_back = what_follows(ClosedIncarnation(cause, server(lifecycle)))
        assert brought_back == after(Cause.RELOAD, server(lifecycle))
        assert what_follows(ClosedIncarnation(cause, server(lifecycle), is_down=True)).fails_queued
