"""Virtual time that a plain test drives, and the order of tasks that follows from one number."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import trio
import trio._core._run as trio_run

from greenroom.testing import ScheduleError, StuckError, VirtualRun, seed_schedule


@pytest.fixture
def virtual() -> Iterator[VirtualRun]:
    run = VirtualRun()
    yield run
    run.close()


def test_a_step_settles_and_then_everything_stands_still(virtual: VirtualRun) -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        await trio.sleep(3)
        seen.append("done")

    async def start() -> None:
        virtual.nursery.start_soon(work)

    virtual.run(start)
    assert seen == ["begun"]
    virtual.advance(2.9)
    assert seen == ["begun"]
    virtual.advance(0.1)
    assert seen == ["begun", "done"]
    assert virtual.now == 3.0


def test_every_deadline_sees_its_own_moment(virtual: VirtualRun) -> None:
    seen: list[float] = []

    async def at(when: float) -> None:
        await trio.sleep_until(when)
        seen.append(trio.current_time())

    async def start() -> None:
        for when in (5.0, 1.0, 2.5):
            virtual.nursery.start_soon(at, when)

    virtual.run(start)
    virtual.advance(100.0)
    assert seen == [1.0, 2.5, 5.0]


def test_what_a_step_returns_and_raises_comes_out(virtual: VirtualRun) -> None:
    async def answer() -> int:
        return 42

    async def fail() -> None:
        raise LookupError("no")

    assert virtual.run(answer) == 42
    with pytest.raises(LookupError):
        virtual.run(fail)
    assert virtual.run(answer) == 42


def test_a_step_that_waits_for_time_is_an_error_not_a_hang(
    virtual: VirtualRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep() -> None:
        await trio.sleep(1)

    monkeypatch.setattr("greenroom.testing.virtual_time.STUCK", 0.05)
    with pytest.raises(StuckError, match="waits for time"):
        virtual.run(sleep)


def test_tasks_that_never_settle_are_an_error_not_a_hang(
    virtual: VirtualRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def start() -> None:
        virtual.nursery.start_soon(spin)

    monkeypatch.setattr("greenroom.testing.virtual_time.TOO_LONG", 1_000)
    with pytest.raises(StuckError, match="without end"):
        virtual.run(start)


def test_closing_waits_in_virtual_time_for_what_is_shielded() -> None:
    run = VirtualRun()
    ended: list[float] = []

    async def stubborn() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(500)
                ended.append(trio.current_time())

    async def start() -> None:
        run.nursery.start_soon(stubborn)

    run.run(start)
    run.close()
    run.close()
    assert ended == [500.0]


@pytest.mark.parametrize("knob", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_without_the_private_knob_is_named_and_refused(
    knob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(trio_run, knob)
    with pytest.raises(ScheduleError, match=r"trio \d+\.\d+.* constraints"):
        seed_schedule(1)


def test_this_trio_has_the_knob() -> None:
    seed_schedule(1)


def test_one_seed_is_one_order_of_tasks_and_one_source_of_chance() -> None:
    def drawn(seed: int) -> tuple[float, float]:
        seed_schedule(seed)
        return random.random(), trio_run._r.random()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert all(one != other for one, other in zip(drawn(1), drawn(2), strict=True))


def test_what_is_due_at_the_very_end_of_an_advance_has_happened() -> None:
    run, woken = VirtualRun(), list[float]()

    async def sleeper() -> None:
        await trio.sleep(2.0)
        woken.append(trio.current_time())

    try:

        async def begin() -> None:
            run.nursery.start_soon(sleeper)

        run.run(begin)
        run.advance(1.0)
        run.advance(1.0)
        assert (woken, run.now) == ([2.0], 2.0)
    finally:
        run.close()
