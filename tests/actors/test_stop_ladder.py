"""The ladder by which a child is stopped, each step at its time. (Real children: test_stdio_connection.)"""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import pairwise
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.stdio import Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.transports import child_process
from greenroom.actors.transports.child_environment import child_environment
from greenroom.actors.transports.child_process import tree_signs
from greenroom.actors.transports.stdio import StdioConnection, _in_words
from greenroom.config.model import ServerDefinition, Settings

NOBODY = (1 << 22) + 1  # above every process id
NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGKILL: "SIGKILL"}


class In:
    """Its stdin."""

    def __init__(self, far: Far) -> None:
        self.far = far
        self.fd = os.open(os.devnull, os.O_WRONLY)
        self.closed = False

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        os.close(self.fd)
        self.far.did("stdin")

    def __enter__(self) -> In:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.closed:
            os.close(self.fd)


class Far:
    """A child that ends at one step of the ladder, and the guard. `steps`: (when, what was done to it)."""

    def __init__(self, ends_at: str) -> None:
        self.steps: list[tuple[float, str]] = []
        self.ends_at = ends_at
        self.pid = NOBODY
        self.is_reaped = False
        self.is_dead = False
        self.exit_code: int | None = None
        self.stdout = self.stderr = open(os.devnull, "rb")  # noqa: SIM115
        self.stdin = In(self)
        self.over = lambda: None

    def did(self, what: str) -> None:
        self.steps.append((round(anyio.current_time(), 3), what))
        if what == self.ends_at:
            self.is_dead, self.exit_code = True, 0
            self.over()

    # of the child

    def signal_group(self, number: int) -> None:
        self.did(NAMES[signal.Signals(number)])

    def reap(self) -> None:
        self.is_reaped = True
        self.did("reaped")

    async def wait_group_gone(self, seconds: float) -> bool:
        assert seconds == 2.0
        self.did("group gone")
        return True

    # of the guard

    def add(self, pgid: int) -> None:
        assert pgid == NOBODY

    def enclose(self, pid: int) -> None:
        assert pid == NOBODY

    def remove(self, pgid: int) -> None:
        assert not self.is_reaped, "its id may belong to another by now"
        self.did("guard told")

    async def sweep(self, tag: str, timeout: float) -> int:
        self.did(f"swept for {tag}")
        return 0

    def sweep_soon(self, tag: str) -> None:
        raise AssertionError("stopped already")

    def tell(self, text: str) -> None:
        raise AssertionError(text)


LAST = ["guard told", "reaped", "group gone", "swept for T=1"]


@pytest.mark.parametrize(
    ("installs", "has_spoken", "ends_at", "steps"),
    [
        (False, False, "stdin", [(0.0, "stdin"), (0.0, "SIGKILL")]),
        (True, True, "stdin", [(0.0, "stdin"), (0.0, "SIGKILL")]),
        (False, False, "SIGTERM", [(0.0, "stdin"), (4.0, "SIGTERM"), (4.0, "SIGKILL")]),
        (False, True, "SIGKILL", [(0.0, "stdin"), (4.0, "SIGTERM"), (8.0, "SIGKILL")]),
        (True, True, "SIGKILL", [(0.0, "stdin"), (4.0, "SIGTERM"), (8.0, "SIGKILL")]),
        (True, False, "SIGTERM", [(0.0, "stdin"), (0.0, "SIGTERM"), (0.0, "SIGKILL")]),
        (True, False, "SIGKILL", [(0.0, "stdin"), (0.0, "SIGTERM"), (8.0, "SIGKILL")]),
        (False, False, "nothing", [(0.0, "stdin"), (4.0, "SIGTERM"), (8.0, "SIGKILL")]),
    ],
)
@in_virtual_time
async def test_each_step_of_a_stop_has_its_share_of_the_time_and_is_taken_once(
    installs: bool, has_spoken: bool, ends_at: str, steps: list[tuple[float, str]]
) -> None:
    far: Any = Far(ends_at)
    with far.stdout, far.stdin:
        connection = StdioConnection(
            far,
            Recorder(),
            backend=current_backend(),
            guard=far,
            settings=Settings(),
            tag="T=1",
            installs=installs,
        )
        far.over = connection._exited.set
        if has_spoken:
            connection.peer.last_heard += 1
        await connection.stop(10.0)
        is_dead = ends_at != "nothing"
        assert far.steps[: len(steps)] == steps
        done = [what for _, what in far.steps[len(steps) :]]
        assert done == (LAST if is_dead else LAST[2:])
        assert anyio.current_time() == (steps[-1][0] if is_dead else 10.0)
        await connection.stop(10.0)
        if is_dead:
            connection.kill_now()
            connection.kill_now()
        assert len(far.steps) == len(steps) + len(done), "it was gone already"


@in_virtual_time
async def test_of_several_signs_of_the_end_the_first_is_told_unless_it_exited() -> None:
    for code, told in (
        (None, "closed its stdout"),
        (3, "exited with code 3"),
        (-9, "killed by SIGKILL"),
    ):
        far: Any = Far("")
        with far.stdout, far.stdin:
            hooks = Recorder()
            connection = StdioConnection(
                far, hooks, backend=current_backend(), guard=far, settings=Settings(), tag="T=1"
            )
            far.exit_code = code
            for sign in ("closed its stdout", "closed its stdin", "exited"):
                connection._see_end(sign)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connection._watch_end)
            assert [reason.text for reason in hooks.reasons] == [told]
    assert _in_words(-250, "") == "killed by signal 250"


def ended_child() -> child_process.Child:
    """A real one, which has ended before anybody looks at the clock."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(["true"], stdin=pipe, stdout=pipe, stderr=pipe)
    child = child_process.Child(process)
    process.wait()
    return child


@in_virtual_time
async def test_a_group_that_ends_is_looked_at_soon_and_then_steadily(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def group_lives(_pgid: int) -> bool:
        looks.append(anyio.current_time())
        return len(looks) < 12

    monkeypatch.setattr(child_process, "group_lives", group_lives)
    child = ended_child()
    assert await child.wait_group_gone(10.0)
    pauses = [round(after - before, 4) for before, after in pairwise(looks)]
    assert pauses == [0.001, 0.002, 0.004, 0.008, 0.016, *[0.02] * 6]
    looks.clear()
    assert not await child.wait_group_gone(0.01)
    child.close()
    assert [round(after - before, 4) for before, after in pairwise(looks)] == [0.001, 0.002, 0.004, 0.003]


def test_an_exported_function_is_no_variable_that_a_child_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_X", "TERM", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "() { :; }")
    monkeypatch.setenv("LC_Y", "C")
    found = child_environment(ServerDefinition("a", command="x"), "T=1", "run")
    assert found["LC_Y"] == "C"
    assert not {"LC_X", "TERM", "HTTPS_PROXY"} & found.keys()
    asked = ServerDefinition("a", command="x", inherit_env=("LC_X",), env={"T": "mine"})
    found = child_environment(asked, "T=1", "run")
    assert (found["LC_X"], found["T"]) == ("() { :; }", "1"), "asked for by name; and our tags stand"


def test_the_time_that_a_process_has_used_is_its_own_and_the_systems() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    before = os.times()
    found: Any = tree_signs(os.getpid())
    after = os.times()
    user, system = map(int, found[os.getpid()].split())
    assert before.user * tick - 1 <= user <= after.user * tick + 1
    assert before.system * tick - 1 <= system <= after.system * tick + 1
