"""The gateway's loop: steps are taken inside its poll, and nothing else waits longer for that."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from greenroom.actors.backend import current_backend
from greenroom.gateway.event_loop import new_loop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asyncio's own loop is used elsewhere")


def run(main: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """`main(loop)`, within ten seconds."""

    async def bounded() -> None:
        async with asyncio.timeout(10):
            await main(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bounded())


@contextmanager
def pipe(*, ready: bool = False) -> Generator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        if ready:
            os.write(writing, b"x")
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def looks(loop: Any) -> list[float]:
    """One entry from now on for each time asyncio looks at its clock: twice a pass."""
    looked: list[float] = []
    real = loop.time

    def time() -> float:
        looked.append(real())
        return looked[-1]

    loop.time = time
    return looked


def test_a_hundred_steps_take_no_pass_of_asyncios() -> None:
    async def main(loop: Any) -> None:
        over, taken = loop.create_future(), 0

        def step() -> None:
            nonlocal taken
            taken += 1
            if taken == 100:
                loop.remove_step(reading)
                over.set_result(None)

        with pipe(ready=True) as (reading, _):
            loop.add_step(reading, step)
            looked = looks(loop)
            await over
            assert taken == 100
            assert len(looked) < 10

    run(main)


def test_a_step_that_never_ends_keeps_no_timer_and_no_task_waiting() -> None:
    async def main(loop: Any) -> None:
        steps = 0

        def step() -> None:  # the byte stays where it is: the descriptor is always ready
            nonlocal steps
            steps += 1

        with pipe(ready=True) as (reading, _):
            loop.add_step(reading, step)
            rang: asyncio.Future[None] = loop.create_future()
            loop.call_later(0.001, rang.set_result, None)
            await rang
            await asyncio.create_task(asyncio.sleep(0))
            loop.remove_step(reading)
        assert steps

    run(main)


@pytest.mark.parametrize("how", ["call_soon", "call_later", "future"])
def test_what_a_step_schedules_is_done_at_once(how: str) -> None:
    """There is no other wake-up: without one the wait would last until the time is out."""

    async def main(loop: Any) -> None:
        done: asyncio.Future[None] = loop.create_future()

        def step() -> None:
            os.read(reading, 1)
            if how == "call_soon":
                loop.call_soon(done.set_result, None)
            elif how == "call_later":
                loop.call_later(0.001, done.set_result, None)
            else:
                done.set_result(None)

        with pipe(ready=True) as (reading, _):
            loop.add_step(reading, step)
            await done
            loop.remove_step(reading)

    run(main)


def test_another_thread_and_another_descriptor_are_heard_beside_steps() -> None:
    async def main(loop: Any) -> None:
        with pipe(ready=True) as (busy, _), pipe() as (quiet, writing):
            loop.add_step(busy, lambda: None)
            heard: asyncio.Future[None] = loop.create_future()

            def read() -> None:
                loop.remove_reader(quiet)
                heard.set_result(None)

            loop.add_reader(quiet, read)
            told: asyncio.Future[None] = loop.create_future()
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(told.set_result, None))
            thread.start()
            await told
            thread.join()
            os.write(writing, b"x")
            await heard
            loop.remove_step(busy)

    run(main)


def test_a_step_that_is_removed_in_the_same_poll_is_not_taken() -> None:
    async def main(loop: Any) -> None:
        taken: list[int] = []
        done: asyncio.Future[None] = loop.create_future()

        def step(own: int, other: int) -> None:
            taken.append(own)
            loop.remove_step(own)
            loop.remove_step(other)
            if not done.done():
                done.set_result(None)

        with pipe(ready=True) as (first, _), pipe(ready=True) as (second, _):
            loop.add_step(first, lambda: step(first, second))
            loop.add_step(second, lambda: step(second, first))
            await done
            await asyncio.sleep(0)
        assert len(taken) == 1

    run(main)


def test_removing_is_idempotent_also_when_the_descriptor_is_closed() -> None:
    async def main(loop: Any) -> None:
        with pipe() as (reading, _):
            loop.add_step(reading, lambda: None)
        loop.remove_step(reading)
        loop.remove_step(reading)

    run(main)


def test_the_rim_reads_by_steps_and_raises_what_they_raise() -> None:
    async def main(loop: Any) -> None:
        loop_backend, heard = current_backend(), list[bytes]()

        def read() -> bool:
            heard.append(os.read(reading, 1))
            if heard == [b"a", b"b", b"c"]:
                raise ValueError("the third")
            return True

        with pipe() as (reading, writing):
            os.write(writing, b"abc")
            looked = looks(loop)
            with pytest.raises(ValueError, match="the third"):
                await loop_backend.read_forever(reading, read)
            assert len(looked) < 10

    run(main)


def test_a_reader_that_has_enough_is_not_asked_again() -> None:
    """It may be readable still, and be found so before its task has had its turn."""

    async def main(loop: Any) -> None:
        with pipe(ready=True) as (reading, _):
            asked: list[int] = []
            steps = loop._steps._steps
            done = asyncio.ensure_future(
                current_backend().read_forever(reading, lambda: bool(asked.append(1)))
            )
            await asyncio.sleep(0)
            step = steps[reading]
            step()
            step()
            await done
            assert asked == [1]

    run(main)
