"""One run of a scenario, on trio or asyncio, in virtual time, with the choices of one plan.

trio asks for the order of each turn (`ordered_by`), and its instruments say when a turn begins and a task is made.
asyncio runs what is ready first come, first served. Before each turn the loop below puts those handles that step a
task into the order of the tasks' ages, and then asks; all other callbacks keep their places. So both have the same
default order, and it is the same in each run: who was woken first often follows from the address of an object, because
the tasks of a cancelled scope are a set.

The scenario fails when it raises, when all its tasks wait for each other, when they run without end, and on asyncio
when a task outlives it.

asyncio's `_run_once` and `_ready` are private. They have been there since its first release; a loop without them is
refused (`ScheduleError`).
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, cast

import anyio
import attrs
import trio
from trio.testing import MockClock

from ._choices import Choices, deciding, short_name
from ._plan import Plan
from ._schedule import ScheduleError, ordered_by
from ._virtual_loop import STUCK, JumpingSelector
from ._virtual_run import TOO_LONG, StuckError

Body = Callable[[], Awaitable[object]]

_OURS: Final = {"_main", "main"}
_PAUSE: Final = 0.001  # real seconds between two looks whether a thread has brought something


@attrs.frozen
class Run:
    """What one run has shown."""

    plan: Plan
    choices: Choices
    error: BaseException | None


def run_once(plan: Plan, body: Body, wanted: list[str], most: int) -> Run:
    """Run it. `wanted` and `most`: see `Choices`. Raises nothing but what is meant for this process
    (`KeyboardInterrupt`, `SystemExit`), and `ScheduleError`."""
    run = _OneRun(Choices(plan, wanted, most), body)
    collects, chance = gc.isenabled(), random.getstate()
    gc.disable()  # what it collects may call back, and when it does depends on all runs before
    random.seed(0)
    error: BaseException | None = None
    try:
        with deciding(run.choices):
            (run.on_trio if plan.backend == "trio" else run.on_asyncio)()
    except (KeyboardInterrupt, SystemExit, ScheduleError):
        raise
    except BaseException as raised:  # pytest's own outcomes are no Exceptions
        error = raised
    finally:
        random.setstate(chance)
        if collects:
            gc.enable()
    run.choices.finish()
    return Run(plan, run.choices, error)


class _OneRun:
    def __init__(self, choices: Choices, body: Body) -> None:
        self.choices = choices
        self._body = body
        self._stuck = ""
        self._scope: anyio.CancelScope | None = None
        self._turns = 0
        self._is_hopeless = False

    def on_trio(self) -> None:
        def order(batch: list[trio.lowlevel.Task]) -> list[trio.lowlevel.Task]:
            self.count_turn()
            return self.choices.order(batch, [task.name for task in batch])

        options = {"clock": MockClock(autojump_threshold=0), "instruments": [_Watch(self)]}
        with ordered_by(order):
            anyio.run(self._main, backend="trio", backend_options=options)

    def on_asyncio(self) -> None:
        async def main() -> None:
            await self._main()
            left = sorted(
                task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()
            )
            assert not left, f"tasks outlive the scenario: {', '.join(left)}"

        if not hasattr(asyncio.BaseEventLoop, "_run_once") or not hasattr(asyncio.Handle, "_run"):
            raise ScheduleError(
                "This asyncio does not let its order be decided: use CPython's own event loop."
            )
        anyio.run(main, backend="asyncio", backend_options={"loop_factory": lambda: _Loop(self)})

    async def _main(self) -> None:
        with anyio.CancelScope() as self._scope:
            await self._body()
        if self._stuck:
            raise StuckError(self._stuck)

    def count_turn(self) -> None:
        self._turns += 1
        if self._is_hopeless:
            raise StuckError(f"{self._stuck}, and the scenario cannot be cancelled")
        if self._turns % TOO_LONG == 0:
            self._end("tasks run without end")

    def _end(self, why: str) -> None:
        """The scenario goes no further."""
        self._is_hopeless = bool(self._stuck) or self._scope is None
        self._stuck = self._stuck or why
        if self._scope is not None:
            self._scope.cancel()

    def is_stuck(self, waiting: Iterable[str]) -> None:
        """`waiting`: the names of all tasks. Those of the loop, and the one that awaits the scenario, are not told."""
        names = sorted({short_name(name) for name in waiting} - _OURS)
        self._end(f"every task waits, and no deadline is set: {', '.join(names) or 'the scenario'}")


class _Watch(trio.abc.Instrument):
    """Must not raise: trio would only log it."""

    def __init__(self, run: _OneRun) -> None:
        self._run = run
        self._steps = 0
        self._idle_since: float | None = None

    def before_io_wait(self, timeout: float) -> None:
        choices = self._run.choices
        if choices.steps == self._steps and self._is_waiting():
            if self._idle_since is None:
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > STUCK:
                self._idle_since = None
                root = trio.lowlevel.current_root_task()
                self._run.is_stuck(_names_below(root) if root is not None else ())
            time.sleep(_PAUSE)
            return
        self._idle_since = None
        self._steps = choices.steps
        choices.turn()

    def _is_waiting(self) -> bool:
        now = trio.lowlevel.current_statistics()
        return not now.tasks_runnable and now.seconds_to_next_deadline == float("inf")

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        if self._run.choices.may_cancel(task.name):
            task.coro = self._run.choices.cancellable(task.coro, task.name)


def _names_below(task: trio.lowlevel.Task) -> Iterator[str]:
    if not task.name.startswith("<"):
        yield task.name
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _names_below(child)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, run: _OneRun) -> None:
        self._jumping = JumpingSelector(
            lambda: run.is_stuck(task.get_name() for task in asyncio.all_tasks(self))
        )
        super().__init__(self._jumping)
        self._run = run
        self._ages: dict[asyncio.Task[Any], int] = {}
        self._inside: Any = super()
        self.set_task_factory(self._make)

    def time(self) -> float:
        return self._jumping.now

    def _make(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(self._cancellable(coro), loop=loop, **options)
        task.add_done_callback(lambda _: coro.close())  # it was cancelled before it began
        self._ages[task] = len(self._ages)
        return task

    async def _cancellable(self, coro: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if self._run.choices.may_cancel(task.get_name()):
            return await self._run.choices.cancellable(coro, task.get_name())
        return await coro

    def _run_once(self) -> None:
        self._run.count_turn()
        self._run.choices.turn()
        ready: Any = self.__dict__["_ready"]
        steps: dict[asyncio.Task[Any], Any] = {}
        places: list[int] = []
        for place, handle in enumerate(ready):
            task = self._task_of(handle)
            if task is not None:
                steps[task] = handle
                places.append(place)
        tasks = sorted(steps, key=self._ages.__getitem__)
        now = self._run.choices.order(tasks, [task.get_name() for task in tasks])
        for place, task in zip(places, now, strict=False):
            ready[place] = steps[task]
        for place in reversed(places[len(now) :]):
            del ready[place]
        self._inside._run_once()
        ready.extendleft(steps[task] for task in tasks if task not in now)

    def _task_of(self, handle: Any) -> asyncio.Task[Any] | None:
        """The task that this handle steps, if it steps one."""
        task = None if handle._cancelled else getattr(handle._callback, "__self__", None)
        return (
            cast("asyncio.Task[Any]", task) if isinstance(task, asyncio.Task) and task in self._ages else None
        )
