"""Limits of rates in a cluster: what fronts tell one another, and that it counts."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.test_fronts import SERVER, TOKEN, front
from tests.support import run
from tests.support.profiles import examples

from greenroom.cluster.front import ClusterRoom
from greenroom.cluster.leases import LeaseTimes, Register, SpentLimits
from greenroom.errors import RateLimited

KEY = ("a limit", "", "", "", "")
# Of a report: which front, how many calls, whether its answer arrives.
REPORTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans()), max_size=40)


@examples(300)
@given(reports=REPORTS)
def test_each_front_hears_of_each_call_of_the_others_exactly_once(
    reports: list[tuple[str, int, bool]],
) -> None:
    register = Register(1, LeaseTimes(), 0.0)
    made, heard, numbers = (dict.fromkeys("abc", 0) for _ in range(3))
    untold = dict[str, SpentLimits | None].fromkeys("abc")

    def report(name: str, calls: int, *, arrives: bool) -> None:
        if untold[name] is None:
            untold[name], numbers[name] = {KEY: calls}, numbers[name] + 1
            made[name] += calls
        said = register.spend(name, numbers[name], untold[name] or {}, 1.0)
        if arrives:
            heard[name] += int(said.get(KEY, 0))
            untold[name] = None

    for name in "abc":
        report(name, 0, arrives=True)
    for name, calls, arrives in reports:
        report(name, calls, arrives=arrives)
    for name in "abcabc":
        report(name, 0, arrives=True)
    for name in "abc":
        assert heard[name] == sum(made.values()) - made[name]


def test_a_front_that_is_gone_is_owed_nothing() -> None:
    register = Register(1, LeaseTimes(), 0.0)
    register.spend("gone", 1, {}, 0.0)
    register.spend("here", 1, {KEY: 1}, 100.0)
    assert register.spend("gone", 2, {}, 101.0) == {}


def test_a_limit_holds_for_all_fronts_together() -> None:
    async def body() -> None:
        config = {"mcpServers": {"one": {**SERVER, "limits": "40/h"}}}
        async with front(config) as first:
            directory = first.membership.directory
            second = ClusterRoom.open(
                config, directory=directory, token=TOKEN, cache_path=":memory:", bootstrap=False
            )
            async with second:
                for number in range(40):
                    await first.call("one_echo", {"n": number})
                passed = list[float]()

                async def call_on() -> None:
                    while True:
                        await second.call("one_echo", {})
                        passed.append(anyio.current_time())
                        await anyio.sleep(0.25)

                with pytest.raises(RateLimited, match="40/h"):
                    await call_on()
                assert len(passed) < 40

    run("asyncio", body)
