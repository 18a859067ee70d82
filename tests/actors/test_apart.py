"""Work beside the loop: the loop goes on, what is raised is raised where it is waited for, and nobody has to wait."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.loops import on_asyncio
from tests.support.patience import PATIENCE

from greenroom.actors.workers import CATALOGUE, all_of, apart, aside, in_turns


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@in_real_time
async def test_the_loop_goes_on_meanwhile() -> None:
    may_end, results = threading.Event(), list[str]()

    def work() -> str:
        assert may_end.wait(PATIENCE), "the loop stood still"
        return threading.current_thread().name

    async def wait() -> None:
        results.append(await apart(work))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        may_end.set()
    assert results == ["greenroom apart"]


@in_real_time
async def test_a_message_does_not_wait_for_a_long_list_and_who_is_cancelled_does_not_wait_for_either() -> (
    None
):
    may_end, done = threading.Event(), list[str]()

    def work() -> None:
        assert may_end.wait(PATIENCE), "the loop stood still"
        done.append("list")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(aside, work, CATALOGUE)
        await anyio.wait_all_tasks_blocked()
        done.append(await aside(lambda: "message"))
        with anyio.CancelScope() as scope:
            tasks.start_soon(in_a_moment, scope.cancel)
            await aside(lambda: done.append("never"), CATALOGUE)
        assert scope.cancelled_caught
        may_end.set()
    assert done == ["message", "list"]


async def in_a_moment(act: Callable[[], object]) -> None:
    await anyio.wait_all_tasks_blocked()
    act()


@in_real_time
async def test_who_is_cancelled_while_a_thread_works_goes_no_further_at_its_end() -> None:
    begun, may_end, after = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        assert may_end.wait(PATIENCE), "the loop stood still"

    async def go_on() -> None:
        await aside(work)
        after.append("went on")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        while not begun.is_set():
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
        may_end.set()
    assert after == []


@in_real_time
async def test_nobody_waits_for_its_thread_and_none_that_cannot_start_leaves_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread = await apart(threading.current_thread)
    assert thread.daemon, "it would hold up the end of the process"
    thread.join()  # and has closed what is its own
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            await apart(int)
    assert open_files() == before


@in_real_time
async def test_what_it_raises_is_raised_and_a_cancelled_wait_leaves_at_once() -> None:
    await apart(int)  # the loop's own descriptors are there now
    before = open_files()
    with pytest.raises(KeyError, match="gone"):
        await apart(lambda: {}["gone"])
    may_end, ended = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(PATIENCE)
        ended.set()

    with anyio.move_on_after(0.01) as scope:
        await apart(work)
    assert scope.cancelled_caught
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(PATIENCE)
    with anyio.fail_after(PATIENCE):
        while open_files() > before:
            await anyio.sleep(0.001)


@in_real_time
async def test_however_many_are_at_long_work_one_part_is_done_in_a_pass() -> None:
    parts, passes, most = 0, 0, 0

    def work(number: int) -> int:
        nonlocal parts, most
        parts += 1
        most = max(most, parts)
        return number

    async def count(is_over: Callable[[], bool]) -> None:
        nonlocal parts, passes
        while not is_over():
            passes += 1
            parts = 0
            await anyio.lowlevel.checkpoint()

    results: list[list[int]] = []

    async def one() -> None:
        results.append(await in_turns(range(30), work, 1))

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(one)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        parts = most = 0  # the first part is done at once
        tasks.start_soon(count, lambda: len(results) == 6)
    assert results == [list(range(30))] * 6
    assert most <= 2, f"{most} parts while somebody waited for one turn"
    assert passes > 100


@in_real_time
async def test_work_of_one_part_is_done_at_once_whoever_is_at_long_work() -> None:
    done: list[int] = []

    async def one(items: int) -> None:
        done.append(len(await in_turns(range(items), str, 2)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, 40)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await one(1)  # not even a checkpoint
        assert done == [1]
    assert done == [1, 40]


def test_a_door_has_the_function_and_not_its_module() -> None:
    """A package gives the name of a module in it to the module, once that is imported."""
    found = "import greenroom.supervisor.room, greenroom.gateway.config_watch as watch; print(callable(watch.apart))"
    shown = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True)
    assert shown.stdout == "True\n"


@in_virtual_time
async def test_work_that_has_to_be_done_is_done_whatever_becomes_of_its_task() -> None:
    did: list[int] = []

    def fail_at_first(number: int) -> None:
        did.append(number)
        if number == 0:
            raise ValueError("its own")

    went_on = False
    with anyio.CancelScope() as scope:
        scope.cancel()
        await all_of(range(5), did.append, 1)
        went_on = True  # it was not cancelled in between
    assert (went_on, did) == (True, list(range(5)))
    did.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(all_of, range(5), did.append, 1)
        await anyio.lowlevel.checkpoint()
        assert len(did) < 5  # others have their turn meanwhile
        tasks.cancel_scope.cancel()
    assert did == list(range(5))
    did.clear()
    with pytest.raises(ValueError, match="its own"):
        await all_of(range(3), fail_at_first, 1)
    assert did == list(range(3))


@on_asyncio
@in_virtual_time
async def test_not_even_a_task_that_is_cancelled_by_its_loop_leaves_such_work_undone() -> None:
    """No scope of ours can hold that off, so the rest is done at once."""
    did: list[int] = []
    task = asyncio.create_task(all_of(range(5), did.append, 1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert did == list(range(5))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("no")])
@in_real_time
async def test_whatever_ends_the_work_ends_the_wait_and_leaves_no_descriptor(error: BaseException) -> None:
    def work() -> None:
        raise error

    assert await apart(lambda: None) is None
    before = open_files()
    with pytest.raises(type(error)) as caught:
        await apart(work)
    assert caught.value is error
    assert await apart(lambda: 0) == 0
    with anyio.fail_after(PATIENCE):
        while open_files() > before:
            await anyio.sleep(0.001)
