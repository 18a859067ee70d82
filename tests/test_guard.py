"""The guard: what is ours dies with us, whatever way we go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.support import run
from tests.support.stdio import SERVERS, definition_of, gone_within, lives, logged, on_stage, until

from greenroom.actors._guard import Guard
from greenroom.actors._rim import current_rim

ROOT = SERVERS.parents[1]
SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


def _sleeper(**environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEPER, env=environ, start_new_session=True)


def _has_begun(process: subprocess.Popen[bytes]) -> bool:
    return b"TAG=" in Path(f"/proc/{process.pid}/environ").read_bytes()


def _owner(backend: str, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER.format(root=str(ROOT), log=str(log), backend=backend)]
    )


# An owner for SIGKILL: it connects a child per faulty option and then only lives.
OWNER = """
import sys, anyio
sys.path.insert(0, {root!r})
from tests.support.stdio import definition_of, on_stage
async def main():
    async with anyio.create_task_group() as tasks:
        for kind in ("group", "setsid", "double"):
            tasks.start_soon(one, kind)
async def one(kind):
    faults = ("--ignore-eof", "--ignore-term", "--fork", kind, "--log", {log!r})
    async with on_stage(definition_of("faulty.py", *faults)) as stage:
        await stage.greet()
        await anyio.sleep_forever()
anyio.run(main, backend={backend!r})
"""


def test_t32_a_killed_owner_takes_everything_with_it_within_a_second(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def body() -> None:
        owner = _owner(backend, log)
        try:
            pids = await logged(log, "start", 3) + await logged(log, "child", 3)
            assert all(map(lives, pids))
        finally:
            owner.kill()
            owner.wait()
        start = time.perf_counter()
        assert await gone_within(1.0, pids)
        assert time.perf_counter() - start < 1.0

    run("trio", body)


def test_a_sweep_kills_what_carries_the_tag_and_nothing_else(backend: str) -> None:
    async def body() -> None:
        guard = Guard(current_rim(), "sweeps")
        mine, other = _sleeper(TAG="a:b#1"), _sleeper(TAG="a:b#12")
        try:
            guard.start()
            assert await until(lambda: all(map(_has_begun, (mine, other))))
            assert await guard.sweep("TAG=a:b#1", 2.0) == 1
            assert mine.wait(1) == -signal.SIGKILL
            assert other.poll() is None
            assert await guard.sweep("TAG=a:b#1", 2.0) == 0
        finally:
            guard.close()
            for each in (mine, other):
                each.kill()
                each.wait()

    run(backend, body)


def test_sweeps_asked_for_at_once_are_each_answered(backend: str) -> None:
    async def body() -> None:
        guard = Guard(current_rim(), "many")
        answers: list[int] = []

        async def one(at: int) -> None:
            answers.append(await guard.sweep(f"NOBODY={at}", 2.0))

        try:
            async with anyio.create_task_group() as tasks:
                for at in range(40):
                    tasks.start_soon(one, at)
        finally:
            guard.close()
        assert answers == [0] * 40

    run(backend, body)


def test_a_dead_guard_is_restarted_and_told_again(backend: str) -> None:
    async def body() -> None:
        guard = Guard(current_rim(), "restart")
        child = _sleeper()
        try:
            guard.add(child.pid)
            first = guard.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            assert await guard.sweep("NOBODY=1", 2.0) == 0
            assert guard.pid not in (None, first)
            guard.close()  # with a group still on its list: that is what it must remember
            assert child.wait(1) == -signal.SIGKILL
        finally:
            guard.close()
            child.kill()
            child.wait()

    run(backend, body)


def test_a_watched_guard_is_restarted_at_once(backend: str) -> None:
    async def body() -> None:
        guard = Guard(current_rim(), "watch")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(guard.watch)
                guard.start()
                first = guard.pid
                assert first is not None
                await anyio.lowlevel.checkpoint()
                os.kill(first, signal.SIGKILL)
                assert await until(lambda: guard.pid not in (None, first))
                tasks.cancel_scope.cancel()
        finally:
            guard.close()

    run(backend, body)


def test_a_removed_group_is_left_alone(backend: str) -> None:
    async def body() -> None:
        guard = Guard(current_rim(), "removed")
        child = _sleeper()
        try:
            guard.add(child.pid)
            guard.remove(child.pid)
            guard.close()
            assert child.poll() is None
        finally:
            guard.close()
            child.kill()
            child.wait()

    run(backend, body)


def test_the_guard_outlives_the_signals_that_end_its_owner(backend: str) -> None:
    async def body() -> None:
        async with on_stage(definition_of("echo.py")) as stage:
            await stage.guard.sweep("NOBODY=1", 2.0)  # it is up
            pid = stage.guard.pid
            assert pid is not None
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(pid, number)
            assert await stage.guard.sweep("NOBODY=1", 2.0) == 0
            assert stage.guard.pid == pid

    run(backend, body)


def test_a_guard_that_cannot_run_is_said_so(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        guard = Guard(current_rim(), "nowhere")
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(OSError, match="python"):
            guard.start()
        guard.close()

    run(backend, body)
