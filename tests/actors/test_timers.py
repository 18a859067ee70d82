"""The one timer: exact, in order, robust against what callbacks do, and bounded."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_virtual_time, run_virtual
from tests.support.timers import timers_at_work
from tests.support.virtual import stand_still

from greenroom.actors.backend import current_backend
from greenroom.actors.timers import Alarm, Timer, at_most, in_time


@in_virtual_time
async def test_they_fire_at_their_instant_in_order_ties_in_the_order_they_were_set() -> None:
    fired: list[tuple[str, float]] = []
    async with timers_at_work() as timers:
        for name, when in (("late", 9.0), ("one", 3.0), ("two", 3.0), ("early", 1.0), ("three", 3.0)):
            timers.at(when, lambda name=name: fired.append((name, anyio.current_time())))
        assert len(timers) == 5
        await anyio.sleep(10.0)
    assert fired == [("early", 1.0), ("one", 3.0), ("two", 3.0), ("three", 3.0), ("late", 9.0)]


@in_virtual_time
async def test_an_earlier_one_set_while_sleeping_is_not_late() -> None:
    fired: list[float] = []
    async with timers_at_work() as timers:
        timers.at(100.0, lambda: fired.append(anyio.current_time()))
        await anyio.sleep(1.0)
        timers.at(2.0, lambda: fired.append(anyio.current_time()))
        await anyio.sleep(5.0)
        assert fired == [2.0]


@in_virtual_time
async def test_one_set_for_the_past_fires_soon_but_never_inside_the_setting() -> None:
    fired: list[float] = []
    async with timers_at_work() as timers:
        await anyio.sleep(5.0)
        timers.at(1.0, lambda: fired.append(anyio.current_time()))
        assert not fired
        await anyio.sleep(0.001)
        assert fired == [5.0]


@in_virtual_time
async def test_a_callback_that_sets_one_for_this_very_instant_starves_nobody() -> None:
    count = 0
    async with timers_at_work() as timers:

        def again() -> None:
            nonlocal count
            count += 1
            if count < 50:
                timers.at(anyio.current_time(), again)

        timers.at(1.0, again)
        await anyio.sleep(2.0)
        assert count == 50


@in_virtual_time
async def test_a_raising_callback_is_reported_and_stops_no_other() -> None:
    bugs: list[BaseException] = []
    fired: list[str] = []
    async with timers_at_work(bugs.append) as timers:
        timers.at(1.0, lambda: fired.append(str(1 / 0)))
        timers.at(1.0, lambda: fired.append("next"))
        await anyio.sleep(2.0)
        timers.at(3.0, lambda: fired.append("later"))
        await anyio.sleep(2.0)
    assert fired == ["next", "later"]
    assert [type(bug) for bug in bugs] == [ZeroDivisionError]


@in_virtual_time
async def test_cancelled_ones_do_not_fire_and_do_not_pile_up() -> None:
    fired: list[int] = []
    async with timers_at_work() as timers:
        keep = timers.at(2.0, lambda: fired.append(0))
        for n in range(10_000):
            timers.at(1.0 + n, lambda n=n: fired.append(n)).cancel()
        assert len(timers) == 1
        assert len(timers._heap) < 200
        await anyio.sleep(3.0)
        assert fired == [0]
        keep.cancel()
        keep.cancel()
        assert len(timers) == 0


@in_virtual_time
async def test_a_few_cancelled_ones_are_left_lying_until_they_come_up() -> None:
    """To look through all of them for each that is cancelled would cost more than it saves."""
    async with timers_at_work() as timers:
        for n in range(64):
            timers.at(1.0 + n, lambda: None).cancel()
        assert (len(timers), len(timers._heap)) == (0, 64)
        timers.at(99.0, lambda: None).cancel()
        assert (len(timers), len(timers._heap)) == (0, 0)
        many = [timers.at(1.0 + n, lambda: None) for n in range(200)]
        for timer in many[:100]:
            timer.cancel()
        assert (len(timers), len(timers._heap)) == (100, 200)
        many[100].cancel()
        assert (len(timers), len(timers._heap)) == (99, 99)


@in_virtual_time
async def test_one_may_cancel_another_of_the_same_instant() -> None:
    fired: list[str] = []
    async with timers_at_work() as timers:

        def first() -> None:
            fired.append("first")
            victim.cancel()

        timers.at(1.0, first)
        victim = timers.at(1.0, lambda: fired.append("victim"))
        await anyio.sleep(2.0)
        assert len(timers) == 0
    assert fired == ["first"]


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=200))
def test_whatever_is_set_and_cancelled_the_rest_fires_once_in_order(plan: list[tuple[float, bool]]) -> None:
    fired: list[tuple[float, int]] = []
    expected = sorted((when, n) for n, (when, cancel) in enumerate(plan) if not cancel)

    async def body() -> None:
        async with timers_at_work() as timers:
            made: list[Timer] = [
                timers.at(when, lambda when=when, n=n: fired.append((when, n)))
                for n, (when, _) in enumerate(plan)
            ]
            for timer, (_, cancel) in zip(made, plan, strict=True):
                if cancel:
                    timer.cancel()
            assert len(timers) == len(expected)
            await anyio.sleep(11.0)
            assert len(timers) == 0

    run_virtual("trio", body)

    assert fired == expected


@in_virtual_time
async def test_an_alarm_rings_once_at_the_earliest_of_its_times_and_may_be_set_again_while_it_rings() -> None:
    async with timers_at_work() as timers:
        rang: list[tuple[float, float]] = []

        def ring() -> None:
            rang.append((anyio.current_time(), alarm.when))
            if len(rang) < 3:
                alarm.wake_by(anyio.current_time() + 5.0)

        alarm = Alarm(timers, ring)
        assert alarm.when == math.inf
        for when in (9.0, 4.0, 6.0, 4.0, math.inf):
            alarm.wake_by(when)
        assert (alarm.when, len(timers)) == (4.0, 1), "one alarm is one timer"
        await anyio.sleep(4.5)
        assert (alarm.when, len(timers)) == (9.0, 1)
        await anyio.sleep(95.5)
        assert rang == [(4.0, math.inf), (9.0, math.inf), (14.0, math.inf)]
        assert (alarm.when, len(timers)) == (math.inf, 0)


# ---- A process that stood still -------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_came_while_the_process_stood_still_is_read_before_a_deadline_is_judged() -> None:
    backend, read = current_backend(), list[bytes]()
    ours, theirs = os.pipe()
    seen: dict[str, int] = {}

    def readable() -> bool:
        read.append(os.read(ours, 1))
        return True

    async with timers_at_work() as timers, anyio.create_task_group() as tasks:
        tasks.start_soon(backend.read_forever, ours, readable)
        timers.at(5.0, lambda: seen.update(timer=len(read)))
        alarm = Alarm(timers, lambda: seen.update(alarm=len(read)))
        alarm.wake_by(6.0)

        async def limit() -> None:
            with timers.limited(7.0) as within:
                await anyio.sleep_forever()
            assert within.scope.cancelled_caught
            seen["limit"] = len(read)

        tasks.start_soon(limit)
        await anyio.sleep(1.0)
        os.write(theirs, b"answer")
        stand_still(60.0)
        await anyio.sleep(1.0)
        tasks.cancel_scope.cancel()
    os.close(ours)
    os.close(theirs)
    assert seen == {"timer": 6, "alarm": 6, "limit": 6}


@in_virtual_time
async def test_so_it_is_where_there_is_no_room_and_an_answer_that_takes_several_turns_counts() -> None:
    backend, (ours, theirs) = current_backend(), os.pipe()
    read, said = list[bytes](), list[bytes]()

    def readable() -> bool:
        read.append(os.read(ours, 1))
        return len(read) < 6

    async def ask(within: AbstractAsyncContextManager[object]) -> None:
        async with within:
            await backend.read_forever(ours, readable)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            said.append(b"".join(read))
            read.clear()

    for limit in (at_most, in_time):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, limit(5.0))
            await anyio.sleep(1.0)
            os.write(theirs, b"answer")
            stand_still(60.0)
    os.close(ours)
    os.close(theirs)
    assert said == [b"answer", b"answer"]


async def _fails_while_it_handles_another() -> None:
    async with in_time(5.0):
        try:
            raise ValueError
        except ValueError:
            {}["mine"]


@in_virtual_time
async def test_nothing_came_then_the_wait_ends_on_time_and_an_error_in_it_is_raised_as_it_is() -> None:
    began = anyio.current_time()
    async with at_most(5.0) as limit:
        await anyio.sleep_forever()
    assert (limit.cancelled_caught, anyio.current_time() - began) == (True, 5.0)
    with pytest.raises(TimeoutError):
        async with in_time(-1.0):
            await anyio.sleep_forever()
    assert anyio.current_time() - began == 5.0
    async with at_most(math.inf) as limit:
        await anyio.sleep(100.0)
    assert not limit.cancelled_caught
    with pytest.raises(KeyError) as raised:
        async with in_time(5.0):
            raise KeyError("mine") from ValueError("its cause")
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(KeyError) as raised:
        await _fails_while_it_handles_another()
    assert isinstance(raised.value.__context__, ValueError), "what led to it is told, too"
    with anyio.move_on_after(3.0) as outer:
        async with in_time(5.0):
            await anyio.sleep_forever()
    assert outer.cancelled_caught, "who is cancelled from outside is not late"


@in_virtual_time
async def test_a_limit_may_be_moved_and_ends_with_its_context() -> None:
    async with timers_at_work() as timers:
        with timers.limited(3.0) as within:
            within.move(9.0)
            await anyio.sleep(5.0)
            within.move(math.inf)
            await anyio.sleep(5.0)
        assert not within.scope.cancelled_caught
        assert len(timers) == 0
        began = anyio.current_time()
        with timers.limited(began + 2.0) as within:
            await anyio.sleep_forever()
        assert within.scope.cancelled_caught
        assert anyio.current_time() - began == 2.0


@in_virtual_time
async def test_what_was_had_in_time_is_not_lost_to_who_cancels_meanwhile() -> None:
    for limit in (at_most, in_time):
        had = False
        with anyio.CancelScope() as outer:
            async with limit(5.0):
                outer.cancel()  # the body does not wait any more: what it has is to be handed on
            had = True
            await anyio.lowlevel.checkpoint()
        assert had
        assert outer.cancelled_caught


def test_a_wait_is_left_when_its_loop_is_shut_down_around_it() -> None:
    """`asyncio.run` cancels every task by itself, the timer of the wait, too; it hung there."""

    async def wait() -> None:
        async with at_most(60.0):
            await anyio.sleep_forever()

    async def main() -> None:
        waits = asyncio.create_task(wait())
        await anyio.wait_all_tasks_blocked()
        assert not waits.done()

    asyncio.run(main())
