"""The gate by itself: every number and rule, with no clock but the one passed in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models import histories
from tests.models.gate import Failure, GateModel
from tests.support.profiles import examples

from greenroom.config.model import Settings
from greenroom.supervisor.circuit_breaker import Admits, BreakerPolicy, CircuitBreaker

POLICY = BreakerPolicy(jitter=0.0)
MIDDLE = 0.5  # the draw that jitters by nothing


def fail(gate: CircuitBreaker, now: float) -> CircuitBreaker:
    return gate.connect_failed(POLICY, now, "refused", MIDDLE)


def trip(now: float = 0.0) -> CircuitBreaker:
    gate = CircuitBreaker()
    for _ in range(POLICY.threshold):
        gate = fail(gate, now)
    return gate


def test_a_new_gate_is_open() -> None:
    assert CircuitBreaker().admit(0.0) == (CircuitBreaker(), Admits.ALL)
    assert not CircuitBreaker().is_troubled


def test_connect_failures_double_the_delay_up_to_the_maximum() -> None:
    delays = [POLICY.delay(failures, MIDDLE) for failures in range(1, 10)]

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(("draw", "factor"), [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)])
def test_jitter_spreads_by_a_fifth_either_way(draw: float, factor: float) -> None:
    assert BreakerPolicy().delay(3, draw) == pytest.approx(4.0 * factor)


def test_a_flat_backoff_replaces_the_doubling() -> None:
    flat = BreakerPolicy(flat=60.0)

    assert [flat.delay(failures, 0.0) for failures in (1, 2, 9)] == [60.0] * 3


def test_a_delay_never_overflows() -> None:
    assert POLICY.delay(10**9, MIDDLE) == 60.0


def test_a_connect_failure_shuts_it_for_its_delay_exactly() -> None:
    gate = fail(CircuitBreaker(), 100.0)

    assert gate.admit(100.999)[1] is Admits.NONE
    assert gate.retry_in(100.25) == pytest.approx(0.75)
    assert gate.admit(101.0)[1] is Admits.ALL


def test_the_first_death_of_a_streak_costs_nothing_the_second_does() -> None:
    once = CircuitBreaker().died(POLICY, 0.0, "exited", MIDDLE)
    twice = once.died(POLICY, 0.0, "exited", MIDDLE)
    thrice = twice.died(POLICY, 0.0, "exited", MIDDLE)

    assert [gate.refuses_until for gate in (once, twice, thrice)] == [0.0, 1.0, 2.0]
    assert once.admit(0.0)[1] is Admits.ALL


def test_timeouts_do_not_shut_it_below_the_threshold() -> None:
    gate = CircuitBreaker()
    for _ in range(POLICY.threshold - 1):
        gate = gate.timed_out(POLICY, 5.0, "silent")

    assert gate.admit(5.0)[1] is Admits.ALL

    gate = gate.timed_out(POLICY, 5.0, "silent")
    assert gate.tripped
    assert gate.refuses_until == 5.0 + POLICY.cooldown


def test_at_the_threshold_it_shuts_for_the_cooldown_at_least() -> None:
    assert trip(10.0).refuses_until == 40.0
    long = BreakerPolicy(jitter=0.0, flat=90.0, threshold=1)

    assert CircuitBreaker().connect_failed(long, 0.0, "", MIDDLE).refuses_until == 90.0


def test_half_open_passes_exactly_one_probe() -> None:
    gate, first = trip().admit(30.0)
    _, second = gate.admit(30.0)

    assert (first, second) == (Admits.PROBE, Admits.NONE)
    assert gate.retry_in(30.0) == 1.0


def test_the_probes_answer_opens_it() -> None:
    gate, _ = trip().admit(30.0)

    assert gate.answered(POLICY, connected_for=0.0) == CircuitBreaker()


def test_the_probes_failure_shuts_it_again() -> None:
    gate, _ = trip().admit(30.0)
    gate = fail(gate, 31.0)

    assert not gate.probing
    assert gate.admit(60.9)[1] is Admits.NONE
    assert gate.admit(63.0)[1] is Admits.PROBE


def test_a_probe_that_left_is_passed_on() -> None:
    gate, _ = trip().admit(30.0)

    assert gate.probe_left().admit(30.0)[1] is Admits.PROBE


def test_an_early_answer_forgives_nothing_a_late_one_everything() -> None:
    gate = fail(fail(CircuitBreaker(), 0.0), 5.0)

    assert gate.answered(POLICY, connected_for=29.9) == gate
    assert gate.answered(POLICY, connected_for=30.0) == CircuitBreaker()


def test_quarantine_is_a_trip_for_its_cooldown_and_never_for_ever() -> None:
    gate = CircuitBreaker().quarantined(POLICY, 7.0, "6 restarts in 60s")

    assert gate.tripped
    assert gate.admit(36.9)[1] is Admits.NONE
    assert gate.admit(37.0)[1] is Admits.PROBE
    assert fail(gate, 37.0).too_often == "6 restarts in 60s", "until it answers"
    assert not fail(gate, 37.0).answered(POLICY, 0.0).too_often


def test_connected_by_name_it_is_half_open_at_once() -> None:
    assert trip(0.0).half_open().admit(0.0)[1] is Admits.PROBE


def test_the_policy_is_the_settings() -> None:
    settings = Settings(
        backoff_min=2.0, backoff_max=9.0, backoff_jitter=0.1, failure_backoff=3.0, failure_threshold=7, cooldown=11.0,
        stable_after=13.0,
    )  # fmt: skip

    assert BreakerPolicy.of(settings) == BreakerPolicy(2.0, 9.0, 0.1, 3.0, 7, 11.0, 13.0)


EVENTS = st.sampled_from(["connect failed", "died", "silent", "answered", "left", "quarantined", "admit"])


@given(st.lists(st.tuples(EVENTS, st.floats(0, 100), st.floats(0, 1, exclude_max=True)), max_size=40))
def test_it_never_shuts_for_ever_and_never_passes_two_probes(moves: list[tuple[str, float, float]]) -> None:
    policy, gate, now, probes = BreakerPolicy(), CircuitBreaker(), 0.0, 0
    for event, step, draw in moves:
        now += step
        match event:
            case "connect failed":
                gate, probes = gate.connect_failed(policy, now, "", draw), 0
            case "died":
                gate, probes = gate.died(policy, now, "", draw), 0
            case "silent":
                gate, probes = gate.timed_out(policy, now, ""), 0
            case "quarantined":
                gate, probes = gate.quarantined(policy, now, ""), 0
            case "answered":
                gate, probes = gate.answered(policy, step), 0 if gate.tripped or step >= 30 else probes
            case "left":
                gate, probes = gate.probe_left(), 0
            case _:
                gate, passed = gate.admit(now)
                probes += passed is Admits.PROBE
        assert probes <= 1
        assert gate.probing == (probes == 1)
        assert (
            gate.refuses_until - now <= max(policy.backoff_max * 1.2, policy.cooldown) + 1e-6
        )  # times are floats
    assert gate.probe_left().admit(now + 73.0)[1] is not Admits.NONE
    assert not math.isnan(gate.refuses_until)


FAILURES = st.sampled_from(Failure)
POLICIES = st.builds(
    BreakerPolicy,
    backoff_min=st.sampled_from([1e-9, 0.5, 1.0, 60.0, 1e9]),
    backoff_max=st.sampled_from([1.0, 60.0, 1e9]),
    jitter=st.sampled_from([0.0, 0.2, 1.0]),
    flat=st.sampled_from([None, None, None, 60.0, 1e9]),
    threshold=st.sampled_from([1, 2, 5, 2**40]),
    cooldown=st.sampled_from([1e-3, 30.0, 1e9]),
    stable_after=st.sampled_from([0.0, 30.0]),
)
CLOCK_STEPS = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 29.0, 30.0, 60.0, -1.0, -100.0, 1e12])
GATE_STEPS = st.tuples(
    st.one_of(
        FAILURES,
        st.sampled_from(["answers", "probe leaves", "quarantine", "by name", "asks", "asks", "asks"]),
    ),
    CLOCK_STEPS,
    st.sampled_from([0.0, 0.25, 0.5, 1 - 2**-53]),
)


@examples(200)
@given(POLICIES, histories(GATE_STEPS))
def test_it_is_the_gate_of_the_design(
    policy: BreakerPolicy, steps: list[tuple[Failure | str, float, float]]
) -> None:
    """Ties, clocks that step back or a long way ahead, probes nobody sent: the same answer as with pencil and paper."""
    gate, model, now = CircuitBreaker(), GateModel(policy), 0.0
    for what, pause, draw in steps:
        now += pause
        match what:
            case Failure():
                gate = _fail(gate, policy, what, now, draw)
                model.fails(what, now, draw)
            case "answers":
                connected_for = max(pause, 0.0)
                gate = gate.answered(policy, connected_for)
                model.answers(connected_for)
            case "probe leaves":
                gate = gate.probe_left()
                model.probe_leaves()
            case "quarantine":
                gate = gate.quarantined(policy, now, "too often")
                model.is_quarantined(now)
            case "by name":
                gate = gate.half_open()
                model.is_connected_by_name()
            case _:
                now = _apart_from_rounding(now, gate)
                gate, passed = gate.admit(now)
                assert passed.value == model.asks(now)
        assert (gate.tripped, gate.probing, gate.failures) == (
            model.tripped,
            model.probe_out,
            len(model.streak),
        )
        assert gate.refuses_until == pytest.approx(model.latest, rel=1e-12)
        assert gate.is_troubled == bool(model.streak or model.tripped)
        assert gate.retry_in(now) == max(gate.refuses_until - now, 1.0 if model.probe_out else 0.0)


def _fail(
    gate: CircuitBreaker, policy: BreakerPolicy, kind: Failure, now: float, draw: float
) -> CircuitBreaker:
    match kind:
        case Failure.CONNECT:
            return gate.connect_failed(policy, now, "refused", draw)
        case Failure.DEATH:
            return gate.died(policy, now, "exited", draw)
        case Failure.SILENCE:
            return gate.timed_out(policy, now, "silent")


def _apart_from_rounding(now: float, gate: CircuitBreaker) -> float:
    """The model reckons exactly: within a rounding of the moment it opens, ask a little later."""
    near = math.isclose(now, gate.refuses_until, rel_tol=1e-12) and now != gate.refuses_until
    return gate.refuses_until + abs(gate.refuses_until) * 1e-9 if near else now


@pytest.mark.parametrize("failures", [65, 1000, 5000])
def test_a_long_row_of_failures_reaches_the_maximum_from_the_smallest_minimum(failures: int) -> None:
    policy = BreakerPolicy(backoff_min=1e-30, jitter=0.0)
    model = GateModel(policy, [Failure.CONNECT] * (failures - 1))

    model.fails(Failure.CONNECT, 0.0, MIDDLE)

    assert policy.delay(failures, MIDDLE) == pytest.approx(model.shut_until[0])


def test_a_failure_and_its_reason_are_kept_to_be_told() -> None:
    gate = CircuitBreaker().timed_out(POLICY, 7.0, "did not answer")
    assert (gate.failed_at, gate.reason) == (7.0, "did not answer")
    gate = gate.died(POLICY, 8.0, "exited", MIDDLE)
    assert (gate.failed_at, gate.reason) == (8.0, "exited")
    gate = gate.connect_failed(POLICY, 9.0, "refused", MIDDLE)
    assert (gate.failed_at, gate.reason) == (9.0, "refused")
    gate = gate.quarantined(POLICY, 11.0, "6 restarts in 60s")
    assert (gate.failed_at, gate.reason) == (11.0, "quarantined: 6 restarts in 60s")


def test_whatever_ends_a_probe_no_probe_is_out_any_more() -> None:
    gate, _ = trip().admit(30.0)

    assert gate.probing
    for after in (
        fail(gate, 31.0),
        gate.died(POLICY, 31.0, "exited", MIDDLE),
        gate.timed_out(POLICY, 31.0, "silent"),
        gate.quarantined(POLICY, 31.0, "too often"),
        gate.half_open(),
        gate.probe_left(),
        gate.answered(POLICY, 0.0),
    ):
        assert not after.probing
