"""Limits of rates and the loop guard by themselves: every number and rule, with no clock but the one passed in."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.profiles import examples
from tests.support.rows import for_each

from greenroom.config.rate_texts import LIMITS, LOOP_GUARD, limit_of
from greenroom.config.value_kinds import BadValueError
from greenroom.safety.rates import Rates, Repeats

KEY = ("a limit",)
STEPS = st.lists(st.floats(0, 30), max_size=60)


def passed(text: str, gaps: Sequence[float]) -> list[float]:
    """When calls pass that come after these pauses."""
    limit, rates, now, at = limit_of(text), Rates(), 1_000.0, list[float]()
    for gap in gaps:
        now += gap
        if not rates.wait(KEY, limit, now):
            rates.take(KEY, limit, now)
            at.append(now)
    return at


@examples(400)
@given(calls=st.integers(1, 6), seconds=st.integers(1, 40), burst=st.integers(1, 9), gaps=STEPS)
def test_no_time_sees_more_calls_than_a_full_bucket_and_what_flows_in(
    calls: int, seconds: int, burst: int, gaps: list[float]
) -> None:
    at = passed(f"{calls}/{seconds}s burst {burst}", gaps)
    for first in range(len(at)):
        for last in range(first, len(at)):
            most = burst + (at[last] - at[first]) * calls / seconds
            assert last - first + 1 <= most + 1e-3


@examples(400)
@given(calls=st.integers(1, 6), seconds=st.integers(1, 40), gaps=STEPS)
def test_a_call_passes_after_the_time_that_it_is_told_and_not_before(
    calls: int, seconds: int, gaps: list[float]
) -> None:
    limit, rates, now = limit_of(f"{calls}/{seconds}s"), Rates(), 0.0
    for gap in gaps:
        now += gap
        wait = rates.wait(KEY, limit, now)
        if wait:
            assert wait <= limit.period / calls + 1e-6, "one token is enough"
            assert wait < 1e-3 or rates.wait(KEY, limit, now + wait * 0.99) > 0, (
                "what a clock rounds is no time"
            )
            now += wait
        assert rates.wait(KEY, limit, now) == 0
        rates.take(KEY, limit, now)


def test_who_calls_no_faster_than_the_rate_is_never_refused() -> None:
    assert len(passed("30/min", [2.0] * 500)) == 500


def test_a_full_memory_forgets_what_was_not_used_for_longest_and_stays_small() -> None:
    limit, rates = limit_of("1/h"), Rates(most=3)
    for number in range(10):
        rates.take((str(number),), limit, float(number))
    assert len(rates) == 3
    assert rates.wait(("9",), limit, 10.0) > 0
    assert rates.wait(("0",), limit, 10.0) == 0


def test_a_bucket_that_is_full_again_is_not_kept() -> None:
    limit, rates = limit_of("1/s"), Rates()
    for number in range(50):
        rates.take((str(number),), limit, number * 2.0)
    assert len(rates) == 1


def looped(text: str, calls: str, *, every: float = 1.0) -> list[str]:
    """What is said of these calls, each a letter; "" for one that may be made."""
    limit, repeats, said = limit_of(text), Repeats(), list[str]()
    for number, call in enumerate(calls):
        found = repeats.judge("ann", call, limit, number * every)
        said.append("" if found is None else found[0])
        if found is None:
            repeats.note("ann", call, number * every)
    return said


@for_each(
    ("calls", "first_refused"),
    [
        ("aaaaaa", 5),
        ("abacadaeafa", 10),  # others between them do not help
        ("abababab", 6),
        ("abcabcabcabc", 9),
        ("abcdabcdabcdabcd", 12),
        ("abcdeabcdeabcde", None),  # of five, no round is looked for
        ("aabbaabbaabb", 9),  # each by itself
        ("abcabdabeabf", None),  # something changes each time
    ],
)
def test_loops_are_seen_whatever_stands_between(calls: str, first_refused: int | None) -> None:
    said = looped("5/min", calls)
    refused = [at for at, text in enumerate(said) if text]
    assert (refused[0] if refused else None) == first_refused


def test_a_slow_loop_is_none() -> None:
    assert not any(looped("5/min", "a" * 40, every=13.0))
    assert not any(looped("5/min", "ab" * 40, every=13.0))


def test_what_leaves_the_time_counts_no_more() -> None:
    limit, repeats = limit_of("2/10s"), Repeats()
    for at in (0.0, 4.0):
        assert repeats.judge("ann", "a", limit, at) is None
        repeats.note("ann", "a", at)
    assert repeats.judge("ann", "a", limit, 5.0) == (
        "it was made 2 times in 10 s with the same arguments",
        5.0,
    )
    assert repeats.judge("ben", "a", limit, 5.0) is None, "another caller"
    assert repeats.judge("ann", "a", limit, 10.0) is None


@examples(300)
@given(
    calls=st.lists(st.sampled_from("abc"), max_size=60),
    most=st.integers(1, 8),
    gaps=st.lists(st.floats(0, 5), min_size=60, max_size=60),
)
def test_a_refused_call_may_be_made_after_the_time_that_it_is_told(
    calls: list[str], most: int, gaps: list[float]
) -> None:
    limit, repeats, now = limit_of(f"{most}/10s"), Repeats(), 0.0
    made = list[tuple[str, float]]()
    for call, gap in zip(calls, gaps, strict=False):
        now += gap
        found = repeats.judge("ann", call, limit, now)
        if found is not None:
            _, wait = found
            assert 0 < wait <= limit.period
            now += wait + 1e-6
            while (found := repeats.judge("ann", call, limit, now)) is not None:
                now += found[1] + 1e-6  # another rule holds it still
        repeats.note("ann", call, now)
        made.append((call, now))
        same = [at for each, at in made if each == call and at > now - limit.period]
        assert len(same) <= most


def test_the_memory_of_loops_is_bounded() -> None:
    repeats = Repeats(calls=5, callers=2)
    for number in range(100):
        repeats.note(f"caller {number}", f"call {number}", float(number))
    assert len(repeats) == 7


@for_each(
    ("text", "said"),
    [
        ("30/min", (30, 60.0, 30, set[str]())),
        ("5/10s", (5, 10.0, 5, set[str]())),
        ("600/h burst 20", (600, 3600.0, 20, set[str]())),
        ("1/day per principal", (1, 86400.0, 1, {"principal"})),
        ("2 / 3 m per session and tool", (2, 180.0, 2, {"session", "tool"})),
    ],
)
def test_a_limit_reads_as_it_is_said(text: str, said: tuple[object, ...]) -> None:
    limit = limit_of(text)
    assert (limit.calls, limit.period, limit.burst, set(limit.per)) == said


@for_each(
    "text", ["", "30", "0/min", "30/0s", "30/fortnight", "30/min per dog", "-1/s", "1/s burst 0", "٣/s"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="must"):
        limit_of(text)


def test_a_wrong_member_is_left_out_alone_and_told() -> None:
    told = list[BadValueError]()
    read = LIMITS.read({"a_*": "1/s", "b": "often", "c": 3, "d": ["2/s", "9/h"]}, told.append)
    assert read == {"a_*": "1/s", "d": ["2/s", "9/h"]}
    assert [wrong.inside for wrong in told] == [("b",), ("c",)]
    assert all("it is left out" in wrong.what for wrong in told)
    assert LIMITS.read("seldom", told.append) == {}
    assert told[-1].inside == ()
    assert (LIMITS.read("1/s"), LOOP_GUARD.read(False)) == ("1/s", False)
    with pytest.raises(BadValueError, match="10/min"):
        LOOP_GUARD.read("10/min per tool")
    with pytest.raises(BadValueError, match="at most 100"):
        LOOP_GUARD.read({"*": "101/min"})
