"""Work that is begun at once and awaited only if it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import anyio
import pytest
from tests.support import run, run_virtual

from greenroom.gateway.doors.eager_await import Begun


def test_what_does_not_wait_has_ended_and_what_waits_goes_on() -> None:
    async def at_once() -> int:
        return 1

    async def later() -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        return 2

    async def body() -> None:
        ended, waiting = Begun(at_once()), Begun(later())
        assert (ended.has_ended, ended.value, await ended) == (True, 1, 1)
        assert not waiting.has_ended
        assert await waiting == 2

    run("asyncio", body)


def test_errors_and_time_limits_reach_the_work_and_its_caller() -> None:
    seen: list[str] = []

    async def fails(waits: bool) -> None:
        if waits:
            await asyncio.sleep(1)
        raise ValueError

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("left")

    async def body() -> None:
        with pytest.raises(ValueError):  # noqa: PT011
            Begun(fails(waits=False))
        with pytest.raises(ValueError):  # noqa: PT011
            await Begun(fails(waits=True))
        waiting = Begun(for_ever())
        with pytest.raises(TimeoutError), anyio.fail_after(2):
            await waiting
        assert seen == ["left"]

    run_virtual("asyncio", body)


def test_what_the_work_waits_for_is_passed_on_and_what_it_gets_is_passed_back() -> None:
    class Asks:
        def __await__(self) -> Generator[str, int, tuple[int, int]]:
            first = yield "one"
            return first, (yield "two")

    steps = Begun(Asks()).__await__()
    assert next(steps) == "one"
    assert steps.send(1) == "two"
    with pytest.raises(StopIteration) as ended:
        steps.send(2)
    assert ended.value.value == (1, 2)
