"""The circuit breaker by itself: every number and rule, with no clock but the one passed in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models import histories
from tests.models.circuit_breaker import BreakerModel, Failure
from tests.support.profiles import examples
from tests.support.rows import for_each

from greenroom.config.model import Settings
from greenroom.protocol.status import OpenBreaker
from greenroom.supervisor.policy.breaker import Admission, BreakerPolicy, CircuitBreaker

POLICY = BreakerPolicy(jitter=0.0)
MIDDLE = 0.5  # the draw that jitters by nothing


def fail(breaker: CircuitBreaker, now: float) -> CircuitBreaker:
    return breaker.connect_failed(POLICY, now, "refused", MIDDLE)


def trip(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(POLICY.threshold):
        breaker = fail(breaker, now)
    return breaker


def test_a_new_breaker_admits_all() -> None:
    assert CircuitBreaker().admit(0.0) == (CircuitBreaker(), Admission.ALL)
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


def test_a_connect_failure_makes_it_refuse_for_its_delay_exactly() -> None:
    breaker = fail(CircuitBreaker(), 100.0)

    assert breaker.admit(100.999)[1] is Admission.NONE
    assert breaker.retry_in(100.25) == pytest.approx(0.75)
    assert breaker.admit(101.0)[1] is Admission.ALL


def test_the_first_death_of_a_streak_costs_nothing_the_second_does() -> None:
    once = CircuitBreaker().died(POLICY, 0.0, "exited", MIDDLE)
    twice = once.died(POLICY, 0.0, "exited", MIDDLE)
    thrice = twice.died(POLICY, 0.0, "exited", MIDDLE)

    assert [breaker.refuses_until for breaker in (once, twice, thrice)] == [0.0, 1.0, 2.0]
    assert once.admit(0.0)[1] is Admission.ALL


def test_timeouts_refuse_nothing_below_the_threshold() -> None:
    breaker = CircuitBreaker()
    for _ in range(POLICY.threshold - 1):
        breaker = breaker.timed_out(POLICY, 5.0, "silent")

    assert breaker.admit(5.0)[1] is Admission.ALL

    breaker = breaker.timed_out(POLICY, 5.0, "silent")
    assert breaker.tripped
    assert breaker.refuses_until == 5.0 + POLICY.cooldown


def test_at_the_threshold_it_refuses_for_the_cooldown_at_least() -> None:
    assert trip(10.0).refuses_until == 40.0
    long = BreakerPolicy(jitter=0.0, flat=90.0, threshold=1)

    assert CircuitBreaker().connect_failed(long, 0.0, "", MIDDLE).refuses_until == 90.0


def test_half_open_passes_exactly_one_probe() -> None:
    breaker, first = trip().admit(30.0)
    _, second = breaker.admit(30.0)

    assert (first, second) == (Admission.PROBE, Admission.NONE)
    assert breaker.retry_in(30.0) == 1.0


def test_the_probes_answer_resets_it() -> None:
    breaker, _ = trip().admit(30.0)

    assert breaker.answered(POLICY, connected_for=0.0) == CircuitBreaker()


def test_after_the_probes_failure_it_refuses_again() -> None:
    breaker, _ = trip().admit(30.0)
    breaker = fail(breaker, 31.0)

    assert not breaker.probing
    assert breaker.admit(60.9)[1] is Admission.NONE
    assert breaker.admit(63.0)[1] is Admission.PROBE


def test_a_probe_that_left_is_passed_on() -> None:
    breaker, _ = trip().admit(30.0)

    assert breaker.probe_left().admit(30.0)[1] is Admission.PROBE


def test_an_early_answer_forgives_nothing_a_late_one_everything() -> None:
    breaker = fail(fail(CircuitBreaker(), 0.0), 5.0)

    assert breaker.answered(POLICY, connected_for=29.9) == breaker
    assert breaker.answered(POLICY, connected_for=30.0) == CircuitBreaker()


def test_quarantine_is_a_trip_for_its_cooldown_and_never_for_ever() -> None:
    breaker = CircuitBreaker().quarantined(POLICY, 7.0, "6 restarts in 60 s")

    assert breaker.tripped
    assert breaker.admit(36.9)[1] is Admission.NONE
    assert breaker.admit(37.0)[1] is Admission.PROBE
    assert fail(breaker, 37.0).too_often == "6 restarts in 60 s", "until it answers"
    assert not fail(breaker, 37.0).answered(POLICY, 0.0).too_often


def test_connected_by_name_it_is_half_open_at_once() -> None:
    assert trip(0.0).half_open().admit(0.0)[1] is Admission.PROBE


def test_the_policy_is_the_settings() -> None:
    settings = Settings(
        backoff_min=2.0, backoff_max=9.0, backoff_jitter=0.1, failure_backoff=3.0, failure_threshold=7, cooldown=11.0,
        stable_after=13.0,
    )  # fmt: skip

    assert BreakerPolicy.of(settings) == BreakerPolicy(2.0, 9.0, 0.1, 3.0, 7, 11.0, 13.0)


EVENTS = st.sampled_from(["connect failed", "died", "silent", "answered", "left", "quarantined", "admit"])


@given(st.lists(st.tuples(EVENTS, st.floats(0, 100), st.floats(0, 1, exclude_max=True)), max_size=40))
def test_it_never_refuses_for_ever_and_never_passes_two_probes(moves: list[tuple[str, float, float]]) -> None:
    policy, breaker, now, probes = BreakerPolicy(), CircuitBreaker(), 0.0, 0
    for event, step, draw in moves:
        now += step
        match event:
            case "connect failed":
                breaker, probes = breaker.connect_failed(policy, now, "", draw), 0
            case "died":
                breaker, probes = breaker.died(policy, now, "", draw), 0
            case "silent":
                breaker, probes = breaker.timed_out(policy, now, ""), 0
            case "quarantined":
                breaker, probes = breaker.quarantined(policy, now, ""), 0
            case "answered":
                breaker, probes = (
                    breaker.answered(policy, step),
                    0 if breaker.tripped or step >= 30 else probes,
                )
            case "left":
                breaker, probes = breaker.probe_left(), 0
            case _:
                breaker, passed = breaker.admit(now)
                probes += passed is Admission.PROBE
        assert probes <= 1
        assert breaker.probing == (probes == 1)
        assert (
            breaker.refuses_until - now <= max(policy.backoff_max * 1.2, policy.cooldown) + 1e-6
        )  # times are floats
    assert breaker.probe_left().admit(now + 73.0)[1] is not Admission.NONE
    assert not math.isnan(breaker.refuses_until)


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
BREAKER_STEPS = st.tuples(
    st.one_of(
        FAILURES,
        st.sampled_from(["answers", "probe leaves", "quarantine", "by name", "asks", "asks", "asks"]),
    ),
    CLOCK_STEPS,
    st.sampled_from([0.0, 0.25, 0.5, 1 - 2**-53]),
)


@examples(200)
@given(POLICIES, histories(BREAKER_STEPS))
def test_it_is_the_breaker_of_the_design(
    policy: BreakerPolicy, steps: list[tuple[Failure | str, float, float]]
) -> None:
    """Ties, clocks that step back or a long way ahead, probes nobody sent: the same answer as with pencil and paper."""
    breaker, model, now = CircuitBreaker(), BreakerModel(policy), 0.0
    for what, pause, draw in steps:
        now += pause
        match what:
            case Failure():
                breaker = _fail(breaker, policy, what, now, draw)
                model.fails(what, now, draw)
            case "answers":
                connected_for = max(pause, 0.0)
                breaker = breaker.answered(policy, connected_for)
                model.answers(connected_for)
            case "probe leaves":
                breaker = breaker.probe_left()
                model.probe_leaves()
            case "quarantine":
                breaker = breaker.quarantined(policy, now, "too often")
                model.is_quarantined(now)
            case "by name":
                breaker = breaker.half_open()
                model.is_connected_by_name()
            case _:
                now = _apart_from_rounding(now, breaker)
                breaker, passed = breaker.admit(now)
                assert passed.value == model.asks(now)
        assert (breaker.tripped, breaker.probing, breaker.failures) == (
            model.tripped,
            model.probe_out,
            len(model.streak),
        )
        assert breaker.refuses_until == pytest.approx(model.latest, rel=1e-12)
        assert breaker.is_troubled == bool(model.streak or model.tripped)
        assert breaker.retry_in(now) == max(breaker.refuses_until - now, 1.0 if model.probe_out else 0.0)


def _fail(
    breaker: CircuitBreaker, policy: BreakerPolicy, kind: Failure, now: float, draw: float
) -> CircuitBreaker:
    match kind:
        case Failure.CONNECT:
            return breaker.connect_failed(policy, now, "refused", draw)
        case Failure.DEATH:
            return breaker.died(policy, now, "exited", draw)
        case Failure.SILENCE:
            return breaker.timed_out(policy, now, "silent")


def _apart_from_rounding(now: float, breaker: CircuitBreaker) -> float:
    """The model reckons exactly: within a rounding of the moment it admits again, ask a little later."""
    near = math.isclose(now, breaker.refuses_until, rel_tol=1e-12) and now != breaker.refuses_until
    return breaker.refuses_until + abs(breaker.refuses_until) * 1e-9 if near else now


@pytest.mark.parametrize("failures", [65, 1000, 5000])
def test_a_long_row_of_failures_reaches_the_maximum_from_the_smallest_minimum(failures: int) -> None:
    policy = BreakerPolicy(backoff_min=1e-30, jitter=0.0)
    model = BreakerModel(policy, [Failure.CONNECT] * (failures - 1))

    model.fails(Failure.CONNECT, 0.0, MIDDLE)

    assert policy.delay(failures, MIDDLE) == pytest.approx(model.refuses_until[0])


def test_a_failure_and_its_reason_are_kept_to_be_told() -> None:
    breaker = CircuitBreaker().timed_out(POLICY, 7.0, "did not answer")
    assert (breaker.failed_at, breaker.reason) == (7.0, "did not answer")
    breaker = breaker.died(POLICY, 8.0, "exited", MIDDLE)
    assert (breaker.failed_at, breaker.reason) == (8.0, "exited")
    breaker = breaker.connect_failed(POLICY, 9.0, "refused", MIDDLE)
    assert (breaker.failed_at, breaker.reason) == (9.0, "refused")
    breaker = breaker.quarantined(POLICY, 11.0, "6 restarts in 60 s")
    assert (breaker.failed_at, breaker.reason) == (11.0, "quarantined: 6 restarts in 60 s")


def test_whatever_ends_a_probe_no_probe_is_out_any_more() -> None:
    breaker, _ = trip().admit(30.0)

    assert breaker.probing
    for after in (
        fail(breaker, 31.0),
        breaker.died(POLICY, 31.0, "exited", MIDDLE),
        breaker.timed_out(POLICY, 31.0, "silent"),
        breaker.quarantined(POLICY, 31.0, "too often"),
        breaker.half_open(),
        breaker.probe_left(),
        breaker.answered(POLICY, 0.0),
    ):
        assert not after.probing


# ---- what hosts tell each other -------------------------------------------------------------------------------------

OPEN_BREAKERS = st.builds(OpenBreaker, st.integers(1, 9), st.floats(0, 60), st.just("exited"))


def test_what_another_host_says_makes_starts_wait_and_counts_for_the_next_failure() -> None:
    breaker = CircuitBreaker().told(POLICY, 10.0, OpenBreaker(3, 5.0, "exited"))

    assert breaker.admit(14.9)[1] is Admission.NONE
    assert breaker.admit(15.0) == (breaker, Admission.ALL), "it does not trip: nobody has tried here"
    assert (breaker.is_troubled, breaker.failed_at, breaker.reason) == (
        True,
        10.0,
        "exited (on another host)",
    )
    assert fail(breaker, 20.0).refuses_until == 20.0 + 8.0, "the fourth in a row"
    assert breaker.answered(POLICY, POLICY.stable_after) == CircuitBreaker()


@for_each(
    ("theirs", "seconds", "counted"),
    [(3, 5.0, 3), (0, 5.0, 1), (99, 5.0, POLICY.threshold - 1), (3, 1.0, 3), (3, 0.9, 0)],
)
def test_what_is_told_counts_at_least_once_and_never_trips(theirs: int, seconds: float, counted: int) -> None:
    breaker = CircuitBreaker().told(POLICY, 10.0, OpenBreaker(theirs, seconds, "exited"))
    assert (breaker.failures, breaker.tripped) == (counted, False)


def test_only_what_happened_here_is_told() -> None:
    assert CircuitBreaker().open_here(0.0) is None
    assert fail(CircuitBreaker(), 10.0).open_here(10.25) == OpenBreaker(1, 0.75, "refused")
    assert fail(CircuitBreaker(), 10.0).open_here(11.0) is None, "it does not refuse any more"
    told = CircuitBreaker().told(POLICY, 10.0, OpenBreaker(3, 5.0, "exited"))
    assert told.open_here(11.0) is None
    assert fail(told, 11.0).open_here(12.0) == OpenBreaker(4, 7.0, "refused")
    quarantined = told.quarantined(POLICY, 11.0, "too often")
    assert (quarantined.is_told, quarantined.open_here(11.0) is None) == (False, False)
    assert trip(0.0).told(POLICY, 0.0, OpenBreaker(9, 90.0, "")).half_open().open_here(0.0) is None


@given(st.integers(0, 9), OPEN_BREAKERS, st.floats(0, 100), st.booleans())
def test_it_never_refuses_less_after_it_was_told(
    failures: int, theirs: OpenBreaker, now: float, probing: bool
) -> None:
    before = CircuitBreaker()
    for _ in range(failures):
        before = fail(before, 0.0)
    if probing:
        before, _ = before.admit(now)
    after = before.told(POLICY, now, theirs)

    assert after.refuses_until >= before.refuses_until
    assert after.failures >= before.failures
    assert (after.tripped, after.probing) == (before.tripped, before.probing)
    assert after == before or after.refuses_until == now + theirs.seconds


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 5), st.floats(0, 4)), max_size=30))
def test_hosts_that_tell_each_other_do_not_keep_each_other_open(
    steps: list[tuple[int, float, float]],
) -> None:
    """Each says what it found to all others, which hear it late; the last failure ends the refusals of all."""
    hosts, now, latest = [CircuitBreaker()] * 3, 0.0, -math.inf
    late = 4.0
    for host, pause, delay in [*steps, *[(9, 2.0, late)] * 40]:
        now += pause
        if host < len(hosts):
            hosts[host] = fail(hosts[host], now)
            latest = max(latest, hosts[host].refuses_until)
        said = [breaker.open_here(now) for breaker in hosts]
        for speaker, theirs in enumerate(said):
            for hearer in range(len(hosts)):
                if theirs is not None and hearer != speaker:
                    hosts[hearer] = hosts[hearer].told(POLICY, now + delay, theirs)
        assert all(breaker.refuses_until <= latest + late + 1e-6 for breaker in hosts)
    assert all(breaker.admit(now)[1] is not Admission.NONE for breaker in hosts)
