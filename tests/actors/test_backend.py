"""The backend: one body on both loops, the same behaviour."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar

import anyio
import pytest
import sniffio
from tests.support import in_real_time, in_virtual_time
from tests.support.patience import PATIENCE
from tests.support.rooms import settle

from greenroom.actors import backend as _backend
from greenroom.actors.backend import AGAIN, PAUSE, Backend, More, current_backend, sole
from greenroom.gateway.event_loop import GatewayLoop


@in_virtual_time
async def test_it_knows_its_loop_and_its_time(backend: str) -> None:
    loop_backend = current_backend()
    assert loop_backend.name == backend
    await anyio.sleep(12.5)
    assert loop_backend.now() == anyio.current_time() == pytest.approx(12.5)


@in_real_time
async def test_what_another_thread_posts_is_done_in_the_loop_and_in_that_threads_context(
    backend: str,
) -> None:
    said, loop_backend, done = ContextVar[str]("said"), current_backend(), anyio.Event()
    seen: list[tuple[str, bool, str]] = []

    def do() -> None:
        seen.append((said.get(), loop_backend.is_here(), sniffio.current_async_library()))
        done.set()

    def post() -> None:
        said.set("by the thread")
        loop_backend.post(do)

    threading.Thread(target=post).start()
    await done.wait()
    assert seen == [("by the thread", True, backend)]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_nothing_can_be_posted_to_a_loop_that_has_ended(loop: str) -> None:
    async def body() -> Backend:
        return current_backend()

    with pytest.raises(RuntimeError):
        anyio.run(body, backend=loop).post(int)


@in_real_time
async def test_its_time_is_the_loops() -> None:
    loop_backend = current_backend()
    before = anyio.current_time()
    assert before <= loop_backend.now() <= anyio.current_time()


@pytest.mark.parametrize("when", ["before", "during", "twice"])
@in_virtual_time
async def test_a_waiter_may_be_set_at_any_time_and_any_number_of_times(when: str) -> None:
    waiter, woken = current_backend().waiter(), list[float]()

    async def wait() -> None:
        await waiter.wait()
        woken.append(anyio.current_time())

    async with anyio.create_task_group() as tasks:
        if when == "before":
            waiter.set()
        tasks.start_soon(wait)
        await anyio.sleep(1.0)
        waiter.set()
        if when == "twice":
            waiter.set()
    waiter.set()
    await waiter.wait()
    assert woken == [0.0 if when == "before" else 1.0]


@in_virtual_time
async def test_waiting_on_a_set_waiter_is_still_a_checkpoint() -> None:
    waiter = current_backend().waiter()
    waiter.set()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await waiter.wait()
    assert scope.cancelled_caught


@in_virtual_time
async def test_a_cancelled_wait_leaves_the_waiter_usable() -> None:
    waiter = current_backend().waiter()
    with anyio.move_on_after(1.0) as scope:
        await waiter.wait()
    assert scope.cancelled_caught
    waiter.set()
    with anyio.fail_after(1.0):
        await waiter.wait()


@in_virtual_time
async def test_set_and_cancelled_in_the_same_tick_nothing_is_lost() -> None:
    waiter, scope = current_backend().waiter(), anyio.CancelScope()

    async def wait() -> None:
        with scope:
            await waiter.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await settle()
        scope.cancel()
        waiter.set()
    await waiter.wait()


@in_real_time
async def test_a_descriptor_is_read_until_the_reader_has_enough() -> None:
    loop_backend, (read_end, write_end), got = current_backend(), os.pipe(), list[bytes]()
    os.set_blocking(read_end, False)

    def on_readable() -> bool:
        got.append(os.read(read_end, 100))
        return bool(got[-1])

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(loop_backend.read_forever, read_end, on_readable)
            for chunk in (b"one", b"two"):
                os.write(write_end, chunk)
                while not b"".join(got).endswith(chunk):
                    await settle(1)
            os.close(write_end)
        assert got == [b"one", b"two", b""]
    finally:
        os.close(read_end)


@pytest.mark.parametrize("ending", ["an exception", "a cancellation"])
@in_real_time
async def test_reading_ends_by_an_exception_or_a_cancellation_and_lets_go_of_the_descriptor(
    ending: str,
) -> None:
    loop_backend, (read_end, write_end) = current_backend(), os.pipe()
    os.set_blocking(read_end, False)

    def broken() -> bool:
        raise ZeroDivisionError

    try:
        if ending == "an exception":
            os.write(write_end, b"x")
            with pytest.raises(ZeroDivisionError):
                await loop_backend.read_forever(read_end, broken)
        else:
            with anyio.move_on_after(0.01) as scope:
                await loop_backend.read_forever(read_end, broken)
            assert scope.cancelled_caught
            os.write(write_end, b"x")
        with anyio.fail_after(PATIENCE):
            await loop_backend.read_forever(read_end, lambda: os.read(read_end, 9) != b"x")
            await anyio.wait_writable(write_end)
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("loop", ["trio", "asyncio", "the gateway's"])
def test_a_pause_is_a_pause_whatever_turn_was_due(loop: str) -> None:
    """A reader is asked on a readable descriptor and once more for each `AGAIN`; a pause is the end of both."""
    said: list[More] = [AGAIN, AGAIN, PAUSE, PAUSE, True, False]
    asked: list[float] = []

    def on_readable() -> More:
        asked.append(anyio.current_time())
        return said[len(asked) - 1]

    async def body() -> None:
        reader, writer = os.pipe()
        try:
            os.write(writer, b"x")
            await current_backend().read_forever(reader, on_readable)
        finally:
            os.close(reader)
            os.close(writer)
        await anyio.sleep(2 * _backend._PAUSE)  # what is due twice comes then

    options = {"loop_factory": GatewayLoop} if loop == "the gateway's" else {}
    anyio.run(body, backend="trio" if loop == "trio" else "asyncio", backend_options=options)
    assert len(asked) == len(said)
    assert asked[3] - asked[2] >= 0.9 * _backend._PAUSE
    assert asked[4] - asked[3] >= 0.9 * _backend._PAUSE


def test_the_only_one_of_wrapped_exceptions_comes_out_and_of_several_none_is_lost() -> None:
    one, two = ValueError("1"), KeyError("2")
    assert sole(ExceptionGroup("", [one])) is one
    assert sole(ExceptionGroup("", [ExceptionGroup("", [ExceptionGroup("", [one])])])) is one
    both = ExceptionGroup("", [one, two])
    assert sole(both) is both
    assert sole(ExceptionGroup("", [both])) is both
