"""The tree of an exploration: which runs there are, in which order they are made, and what is kept of them.

A run that follows its plan shows all choices that it met. Each choice after the last deviation of its plan, made
otherwise, is the plan of another run. So each plan comes exactly once, and nothing has to be known in advance. Only the
choices of a run are kept, as numbers; the plans that follow from it are made when it is their turn.

A scenario must do the same when it is run the same: no real time, no threads, no processes, nothing kept from the run
before. Each run is compared with the one that its plan continues, and a failure is run twice. A difference is an error
(`NotRepeatableError`): what cannot be repeated has shown nothing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, overload
from zlib import crc32

import anyio
import attrs
import sniffio
import trio
from trio.testing import MockClock

from ..protocol.errors import UsageError
from ..tape.recorder import recording_all
from ..tape.tape_lines import SUFFIX, Schedule
from ..tape.tape_reader import read_tape
from .sequence_diagram import TaskStep, mermaid
from .virtual_time import LOOP_STUCK, TOO_LONG, JumpingSelector, ScheduleError, StuckError, ordered_by

# ---- Exploration -----------------------------------------------------------------------------------------------------
#
# A small scenario, run under every order of its tasks within bounds, and not under some drawn by chance.
#
# A search at random (`RoomMachine`) is for what is too big to try out. A race in something small needs one particular
# order, and chance draws it seldom. Here the bound is the number of deviations from the default order: all runs with
# none, then all with one, then all with two. Most races need one or two, whatever the number of tasks. So the first
# failure has the fewest deviations, and there is nothing left to shrink. Cancelling a task, and giving a fault, count
# as no deviation: each level is run without and then with a cancel, for each fault in its turn.
#
# What is a deviation: `Choices`. How a run is written: `RunPlan`. How the runs are found: `Search`.
#
# Rejected:
#
# * leaving out orders that differ in nothing (partial order reduction): nobody can see what a step reads and writes;
# * leaving out states that were seen before: the state of a program cannot be compared;
# * real threads: between two checkpoints nothing else runs in an async program, so they would find what cannot happen;
# * a number as the name of a run: it means another run as soon as a bound changes.

F = TypeVar("F")
RUNS: Final = 10_000
CHOICES: Final = 1_000


@overload
def explore(
    scenario: Callable[[], Awaitable[object]],
    *,
    backend: str = ...,
    deviations: int = ...,
    cancel: str | Iterable[str] = ...,
    runs: int = ...,
    choices: int = ...,
    replay: str | os.PathLike[str] | None = ...,
    record: str | os.PathLike[str] | None = ...,
    raises: bool = ...,
) -> Exploration: ...


@overload
def explore(
    scenario: Callable[[F], Awaitable[object]],
    *,
    faults: Mapping[str, F],
    backend: str = ...,
    deviations: int = ...,
    cancel: str | Iterable[str] = ...,
    runs: int = ...,
    choices: int = ...,
    replay: str | os.PathLike[str] | None = ...,
    record: str | os.PathLike[str] | None = ...,
    raises: bool = ...,
) -> Exploration: ...


def explore(
    scenario: Callable[..., Awaitable[object]],
    *,
    faults: Mapping[str, Any] | None = None,
    backend: str = "trio",
    deviations: int = 1,
    cancel: str | Iterable[str] = (),
    runs: int = RUNS,
    choices: int = CHOICES,
    replay: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
    raises: bool = True,
) -> Exploration:
    """Run `scenario` under every order of its tasks that has at most `deviations` deviations from the default order.

    `cancel`: names of tasks (as given to `start_soon`, or the function's own). Each run is repeated with one of them
    cancelled, at each of its turns. `faults`: the scenario is called with each of these values; any value will do, such
    as a `FaultScript`. `runs`: how many runs there are at most. `choices`: how many choices of a run, from its first
    on, are tried in another way. `replay`: only the run of this schedule, as a failure has printed it. `record`: a
    folder for the tapes of the rooms of a run that fails; `replay` may be such a tape: its run is repeated, and if it
    no longer fails, all runs within its bounds are made, because a changed program has other choices.

    Time is virtual, and each run has its own event loop. A run fails if the scenario raises or never ends. Its error
    is raised here, with the schedule in its notes; with `raises=False` it is only in the result.

    Raises `UsageError` for a schedule that this scenario does not have, for a task that it does not have, and for a
    file that is no tape of an exploration;
    `NotRepeatableError` when the scenario is not the same in each run; `ScheduleError` when the order of the installed
    trio or asyncio cannot be decided.
    """
    scenarios: dict[str | None, Body] = (
        {None: scenario}
        if faults is None
        else {name: partial(scenario, value) for name, value in faults.items()}
    )
    refuse_a_loop()
    wanted = [cancel] if isinstance(cancel, str) else list(cancel)
    _refuse_odd(*(name for name in scenarios if name is not None), *wanted)
    schedule = _schedule_on(replay)
    if schedule is not None:
        wanted, deviations, choices = schedule.cancel, schedule.deviations, schedule.choices
    search = Search(scenarios, wanted, runs, choices, record)
    if schedule is not None:
        explored = search.again(parse_plan(schedule.run), deviations)
    elif replay is not None:
        explored = search.only(parse_plan(os.fspath(replay)))
    else:
        explored = search.all(backend_of(backend), deviations)
    if raises and explored.failure is not None:
        raise explored.failure.error
    return explored


def _schedule_on(replay: str | os.PathLike[str] | None) -> Schedule | None:
    """The schedule on this tape; None: it is no tape. Raises `UsageError`."""
    if replay is None or not os.fspath(replay).endswith(SUFFIX):
        return None
    schedule = read_tape(replay).head.schedule
    if schedule is None:
        raise UsageError(
            f"The tape {replay} is not of an exploration: explore(..., record=FOLDER) makes those."
        )
    return schedule


def refuse_a_loop() -> None:
    """Raises `UsageError` where a loop runs already."""
    with suppress(sniffio.AsyncLibraryNotFoundError):
        running = sniffio.current_async_library()
        raise UsageError(
            f"Each run has a loop of its own, and {running} runs already: call explore from a plain function."
        )


def _refuse_odd(*names: str) -> None:
    for name in names:
        if not name or set(name) & set("/@#"):
            raise UsageError(
                f"{name!r} cannot be part of a schedule: give it a name without '/', '@' and '#'."
            )


# ---- Which run of a scenario: all that differs from the default, as data and as a short text ------------------------
#
#     trio                                 every choice in the default order
#     trio:12=1,15=2/cancel=worker@5       choices 12 and 15 are made otherwise; worker is cancelled in its fifth turn
#     asyncio/fault=dies                   the scenario was given the fault of that name
#
# Only deviations are written down: a run has hundreds of choices, and few of them matter. Rejected: the whole list of
# choices (`0.0.1.0…`), which nobody could compare by eye.

Backend = Literal["trio", "asyncio"]
_TEXT: Final = re.compile(
    r"(?P<backend>\w+)(:(?P<picks>\d+=\d+(,\d+=\d+)*))?(/cancel=(?P<task>[^/]+)@(?P<turn>\d+))?(/fault=(?P<fault>[^/]+))?"
)


@attrs.frozen
class Cancel:
    """Cancel this task when it is about to live for its `turn`-th turn of the loop, from 1 (after its first step)."""

    task: str
    turn: int


@attrs.frozen
class RunPlan:
    """One run."""

    backend: Backend
    picks: tuple[tuple[int, int], ...] = ()  # (number of the choice, which way), ascending
    cancel: Cancel | None = None
    fault: str | None = None

    def picking(self, choice: int, pick: int) -> RunPlan:
        """This plan with one more deviation."""
        return attrs.evolve(self, picks=(*self.picks, (choice, pick)))

    def __str__(self) -> str:
        picks = ",".join(f"{choice}={pick}" for choice, pick in self.picks)
        cancel = f"/cancel={self.cancel.task}@{self.cancel.turn}" if self.cancel else ""
        fault = f"/fault={self.fault}" if self.fault is not None else ""
        return f"{self.backend}{':' if picks else ''}{picks}{cancel}{fault}"


def backend_of(name: str) -> Backend:
    """The backend of this name. Raises `UsageError` when there is none."""
    if name not in ("trio", "asyncio"):
        raise UsageError(f"{name!r} is not a backend: say trio or asyncio.")
    return name


def parse_plan(text: str) -> RunPlan:
    """The plan that this text describes. Raises `UsageError` for any other text."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{text!r} is not a schedule: copy the text that a failed exploration has printed, like "
            "trio:12=1,15=2/cancel=worker@5/fault=dies."
        )
    pairs = (pair.split("=") for pair in (found["picks"] or "").split(",") if pair)
    return RunPlan(
        backend_of(found["backend"]),
        tuple((int(choice), int(pick)) for choice, pick in pairs),
        Cancel(found["task"], int(found["turn"])) if found["task"] else None,
        found["fault"],
    )


_CAUSES: Final = (
    "A scenario must start from nothing each time, and must not depend on real time, threads, or the "
    "order of a set."
)


class NotRepeatableError(RuntimeError):
    """The scenario did something else when it was run the same way, so nothing it shows can be repeated."""


@attrs.frozen
class RunFailure:
    """One run that failed. `order`: its deviations, in words. `tape`: that of its first room, if it was recorded.
    `diagram`: the run as a sequence diagram of Mermaid, which a README or an issue on GitHub draws."""

    schedule: str
    error: BaseException
    order: tuple[str, ...]
    tape: Path | None = None
    diagram: str = ""


@attrs.frozen
class Exploration:
    """What `explore` has tried, and what it has found."""

    runs: int  # how many there were
    deviations: int  # up to how many a run could have
    choices: int  # the most that one run had
    cut: str = ""  # the limit that was reached; "": everything within the bounds was run
    failure: RunFailure | None = None  # the first, with the fewest deviations; None: no run failed

    @property
    def exhausted(self) -> bool:
        """Every run within the bounds was made, and none failed."""
        return not self.cut and self.failure is None

    def __str__(self) -> str:
        found = "every one" if self.exhausted else self.cut or "one failed"
        return f"{self.runs} runs, {self.deviations} deviations, up to {self.choices} choices each: {found}"


@attrs.frozen
class _RunTrace:
    """What is kept of a run, from which further runs follow."""

    plan: RunPlan
    widths: array[int]
    prints: array[int]
    first: int  # the choices from here on are its own to do otherwise
    may_deviate: bytearray
    labels: tuple[str, ...]

    def orders(self) -> Iterator[_Made]:
        """Every plan with one deviation more."""
        number = 0
        for index, width in enumerate(self.widths):
            if width > 0:
                if index >= self.first and self.may_deviate[index]:
                    yield from ((self.plan.picking(number, pick), self, index) for pick in range(1, width))
                number += 1

    def cancels(self) -> Iterator[_Made]:
        """Every plan that also cancels."""
        turns: dict[str, int] = {}
        for index, width in enumerate(self.widths):
            if width < 0:
                label = self.labels[-1 - width]
                turns[label] = turns.get(label, 0) + 1
                if index >= self.first and self.may_deviate[index]:
                    yield attrs.evolve(self.plan, cancel=Cancel(label, turns[label])), self, index


# A plan, the run that it continues, and the index of the choice at which it deviates.
_Made = tuple[RunPlan, _RunTrace, int]


class _SearchEnd(Exception):
    """Ends the search."""


class Search:
    def __init__(
        self,
        scenarios: Mapping[str | None, Body],
        wanted: list[str],
        runs: int,
        choices: int,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        self._record = record
        self._deviations = 0
        self._scenarios = scenarios
        self._wanted = wanted
        self._limit = runs
        self._most = choices
        self._runs = self._longest = 0
        self._cut = ""
        self._names: set[str] = set()  # of tasks
        self._failure: RunFailure | None = None

    def again(self, plan: RunPlan, deviations: int) -> Exploration:
        """This run and, if it does not fail, all within the bounds."""
        self._check_fault(plan)
        self._deviations = deviations
        run = self._run(plan)
        with suppress(_SearchEnd):
            if not run.choices.wrong:
                self._look_at(run)
            return self.all(plan.backend, deviations)
        return self._result(deviations)

    def _check_fault(self, plan: RunPlan) -> None:
        if plan.fault not in self._scenarios:
            names = ", ".join(name for name in self._scenarios if name is not None) or "none"
            raise UsageError(f"The schedule {plan} names a fault that is not given; given: {names}.")

    def only(self, plan: RunPlan) -> Exploration:
        """This run alone."""
        self._check_fault(plan)
        self._deviations = len(plan.picks)
        if plan.cancel is not None:
            self._wanted = [plan.cancel.task.partition("#")[0]]
        run = self._run(plan)
        if run.choices.wrong:
            raise UsageError(
                f"The schedule {plan} is not one of this scenario: {run.choices.wrong}. Has the scenario, or what it "
                "runs, changed since? Then explore it again."
            ) from run.error
        with suppress(_SearchEnd):
            self._look_at(run)
        return self._result(len(plan.picks))

    def all(self, backend: Backend, deviations: int) -> Exploration:
        """Level by level, until something fails, a limit is reached or all is done."""
        self._deviations: int = deviations
        with suppress(_SearchEnd):
            kept = self._without_deviation(backend)
            for _ in range(deviations):
                kept = self._with_cancels([self._try(*made) for one in kept for made in one.orders()])
        return self._result(deviations)

    def _without_deviation(self, backend: Backend) -> list[_RunTrace]:
        """The runs without deviation."""
        plain = [self._try(RunPlan(backend, fault=fault)) for fault in self._scenarios]
        if unknown := [name for name in self._wanted if name not in self._names]:
            there = ", ".join(sorted(name for name in self._names if not set(name) & set(".<>")))
            raise UsageError(f"No task is called {unknown[0]!r}; there are: {there}.")
        return self._with_cancels(plain)

    def _with_cancels(self, plain: list[_RunTrace]) -> list[_RunTrace]:
        return [*plain, *(self._try(*made) for one in plain for made in one.cancels())]

    def _try(self, plan: RunPlan, parent: _RunTrace | None = None, at: int = 0) -> _RunTrace:
        """Run a plan that deviates from `parent` last at its choice `at`."""
        if self._runs >= self._limit:
            self._cut = f"cut at the limit of {self._limit} runs, within {len(plan.picks)} deviations"
            raise _SearchEnd
        run = self._run(plan)
        choices = run.choices
        if parent is not None:
            run.compare(parent, at + 1)
        if choices.is_cut:
            self._cut = f"choices after the first {self._most} of a run were left alone"
        self._look_at(run)
        return _RunTrace(
            plan,
            choices.widths,
            choices.prints,
            choices.last + 1,
            choices.inside if choices.is_marked else bytearray(b"\1" * len(choices.widths)),
            tuple(choices.labels),
        )

    def _run(self, plan: RunPlan) -> ExploredRun:
        run = run_once(plan, self._scenarios[plan.fault], self._wanted, self._most)
        self._names |= run.choices.names
        return run

    def _look_at(self, run: ExploredRun) -> None:
        self._runs += 1
        self._longest = max(self._longest, sum(width > 0 for width in run.choices.widths))
        if run.error is None:
            return
        again, tape = self._recorded(run.plan)
        if isinstance(again.error, UsageError) and not isinstance(run.error, UsageError):
            raise again.error  # no tape can be recorded there
        if again.error is None or again.choices.prints != run.choices.prints:
            raise NotRepeatableError(
                f"{run.plan} failed, and did something else when it was run again. {_CAUSES}"
            ) from run.error
        order = tuple(run.choices.told)
        diagram = mermaid(run.choices.steps_made, f"{type(run.error).__name__}: {run.error}")
        run.error.add_note(
            "\n".join(
                [
                    f"schedule: {run.plan}  (run {self._runs} of its exploration)",
                    *(f"  {it}" for it in order),
                    f'to repeat it: explore(..., replay="{tape or run.plan}")',
                    diagram,
                ]
            )
        )
        self._failure = RunFailure(str(run.plan), run.error, order, tape, diagram)
        raise _SearchEnd

    def _recorded(self, plan: RunPlan) -> tuple[ExploredRun, Path | None]:
        """This run once more, with a tape if that is wanted and it has a room."""
        if self._record is None:
            return self._run(plan), None
        schedule = Schedule(str(plan), self._deviations, self._most, self._wanted)
        with recording_all(self._record, schedule) as recorders:
            run = self._run(plan)
        return run, next((recorder.path for recorder in recorders if recorder.path is not None), None)

    def _result(self, deviations: int) -> Exploration:
        return Exploration(self._runs, deviations, self._longest, self._cut, self._failure)


# ---- One run of a scenario, on trio or asyncio, in virtual time, with the choices of one plan -----------------------
#
# trio asks for the order of each turn (`ordered_by`), and its instruments say when a turn begins and a task is made.
# asyncio runs what is ready first come, first served. Before each turn the loop below puts those handles that step a
# task into the order of the tasks' ages, and then asks; all other callbacks keep their places. So both have the same
# default order, and it is the same in each run: who was woken first often follows from the address of an object,
# because the tasks of a cancelled scope are a set.
#
# The scenario fails when it raises, when all its tasks wait for each other, when they run without end, and on asyncio
# when a task outlives it.
#
# asyncio's `_run_once` and `_ready` are private. They have been there since its first release; a loop without them is
# refused (`ScheduleError`).

Body = Callable[[], Awaitable[object]]
_OURS: Final = {"_main", "main"}
_PAUSE: Final = 0.001  # real seconds between two looks whether a thread has brought something


@attrs.frozen
class ExploredRun:
    """What one run has shown."""

    plan: RunPlan
    choices: Choices
    error: BaseException | None

    def compare(self, parent: _RunTrace, until: int) -> None:
        """Up to its last deviation, the run must have met what its parent met."""
        ours, theirs = self.choices.prints[:until], parent.prints[:until]
        if self.choices.wrong or ours != theirs or self.choices.widths[:until] != parent.widths[:until]:
            differs = next(
                (i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other),
                len(ours),
            )
            raise NotRepeatableError(
                f"{self.plan} did not repeat what {parent.plan} had done before: they differ at choice {differs} of "
                f"{until}. {_CAUSES}"
            )


def run_once(plan: RunPlan, body: Body, wanted: list[str], most: int) -> ExploredRun:
    """Make one run. `wanted` and `most`: see `Choices`. Raises only exceptions that are meant for this process
    (`KeyboardInterrupt`, `SystemExit`), and `ScheduleError`."""
    run = _ScenarioRun(Choices(plan, wanted, most), body)
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
    return ExploredRun(plan, run.choices, error)


class _ScenarioRun:
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

        options = {"clock": MockClock(autojump_threshold=0), "instruments": [_TaskWatch(self)]}
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

    def got_stuck(self, waiting: Iterable[str]) -> None:
        """`waiting`: the names of all tasks. Those of the loop, and the one that awaits the scenario, are not told."""
        names = sorted({short_name(name) for name in waiting} - _OURS)
        self._end(f"every task waits, and no deadline is set: {', '.join(names) or 'the scenario'}")


class _TaskWatch(trio.abc.Instrument):
    """Must not raise: trio would only log it."""

    def __init__(self, run: _ScenarioRun) -> None:
        self._run = run
        self._steps = 0
        self._idle_since: float | None = None

    def before_io_wait(self, timeout: float) -> None:
        choices = self._run.choices
        if choices.steps == self._steps and self._is_waiting():
            if self._idle_since is None:
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > LOOP_STUCK:
                self._idle_since = None
                root = trio.lowlevel.current_root_task()
                self._run.got_stuck(_names_below(root) if root is not None else ())
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
    def __init__(self, run: _ScenarioRun) -> None:
        self._jumping = JumpingSelector(
            lambda: run.got_stuck(task.get_name() for task in asyncio.all_tasks(self))
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
        """The task of which this handle runs a step; None for any other callback."""
        task = None if handle._cancelled else getattr(handle._callback, "__self__", None)
        return (
            cast("asyncio.Task[Any]", task) if isinstance(task, asyncio.Task) and task in self._ages else None
        )


# ---- What one run of an exploration decides, and what it could have decided otherwise -------------------------------
#
# A run meets choices, always in the same order. They are of three kinds, and are written down in one list, so that the
# search can say "the same up to here, then something else":
#
# * **Hold.** In each turn of the loop some tasks are ready. When it is more than one, one of them may be held: it goes
#   on when all others wait, before time passes, and after `LONGEST` turns at the latest. How many steps a task is away
#   from something is an accident: one checkpoint more in a library, or an answer that comes later, moves it. So a held
#   task is late by as many turns as it takes. A pick of `k` holds the `k`-th; then another one may be held.
# * **Order.** While more than one task of a turn has not run yet, the next one is a choice. By default it is the
#   oldest. A pick of `k` puts off the first `k` of them to the end of this turn. So with one deviation any task goes
#   first, or the oldest goes last, and each order of a turn can be had.
# * **Cancel.** At the beginning of each turn, if anything has happened since the last one, each task that may be
#   cancelled and has begun could be cancelled now. One run cancels at most once.
#
# A run also notes who stood for choice (`prints`): a run that shares a prefix with another one must have met the same
# choices up to there. These are numbers, not names, since there are many runs. Beyond `most` choices, all is done by
# default.

T = TypeVar("T")
LONGEST: Final = 100  # turns
_COUNTED: Final = re.compile(r"Task-\d+")  # asyncio numbers tasks that have no name, through all runs


class Choices:
    """Makes the choices of one run by its plan, and writes them down.

    `wanted`: the names of tasks that may be cancelled. `widths`: for each choice how many ways there are, for each
    moment at which a task could be cancelled `-i` (`labels[i - 1]` is the task). `inside`: for each, whether it was
    within `exploring()`. `last`: the index of the last one at which the plan deviates.
    """

    def __init__(self, plan: RunPlan, wanted: Sequence[str], most: int) -> None:
        self.widths: array[int] = array("i")
        self.prints: array[int] = array("L")
        self.inside: bytearray = bytearray()
        self.labels: list[str] = []
        self.names: set[str] = set()
        self.last = -1
        self.told: list[str] = []  # the deviations in words
        self.steps_made: list[TaskStep] = []  # and where they were made, between the steps of all tasks
        self.wrong = ""  # why the plan is of another scenario
        self.is_cut = False
        self.is_marked = False
        self.depth = 0  # of `exploring()`
        self.steps: int = 0
        self._seen: int = -1  # steps, when the last turn began
        self._plan = plan
        self._picks = dict(plan.picks)
        self._wanted = wanted
        self._most = most
        self._orders = 0
        self._held: set[int] = set()  # ids of what is held
        self._held_for = 0  # turns
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._begun: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._is_cancelled = False

    # ---- order ------------------------------------------------------------------------------------------------------

    def order(self, tasks: Sequence[T], names: Sequence[str]) -> list[T]:
        """Those of these tasks that run in this turn, in their order. Ask again for the others."""
        ready = list(zip(tasks, map(_plain, names), strict=True))
        self._held &= {id(task) for task in tasks}
        left = [one for one in ready if id(one[0]) not in self._held]
        self._held_for = self._held_for + 1 if self._held and left else 0
        if not left or self._held_for > LONGEST:
            left = ready
            self._held.clear()
        while len(left) > 1 and (hold := self._hold([name for _, name in left])):
            self._held.add(id(left.pop(hold - 1)[0]))
        self.steps += len(left)
        done: list[tuple[T, str]] = []
        while len(left) > 1:
            pick = self._put_off([name for _, name in left])
            left = left[pick:] + left[:pick]
            done.append(left.pop(0))
        done += left
        self.steps_made += [TaskStep(short_name(name)) for _, name in done if not _is_the_loops(name)]
        return [task for task, _ in done]

    def _hold(self, names: Sequence[str]) -> int:
        hold = self._pick("hold", len(names) + 1, names)
        if hold:
            self._tell(names[hold - 1], "is held until the others wait")
        return hold

    def _put_off(self, names: Sequence[str]) -> int:
        pick = self._pick("order", len(names), names)
        if pick:
            self._tell(names[pick], f"before {' and '.join(map(short_name, names[:pick]))}")
        return pick

    def _tell(self, name: str, words: str) -> None:
        """The choice that was met last is made otherwise."""
        self.told.append(f"{self._orders - 1}: {short_name(name)} {words}")
        self.steps_made.append(TaskStep(short_name(name), words))

    def _pick(self, kind: str, width: int, names: Sequence[str]) -> int:
        if self._orders >= self._most:
            self.is_cut: bool = True
            return 0
        number = self._orders
        self._orders += 1
        self._note(width, f"{kind} {','.join(names)}")
        pick = self._picks.get(number, 0)
        if pick:
            self.last = len(self.widths) - 1
        if pick >= width:
            self.wrong = self.wrong or f"choice {number} has {width} ways, and no way {pick}"
            return 0
        return pick

    # ---- cancel -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """A turn begins: cancel a task, if the plan says so here."""
        if self.steps == self._seen:
            return
        self._seen = self.steps
        for label, scope in tuple(self._scopes.items()):
            if self._is_cancelled:
                return
            self._turns[label] += 1
            if label not in self.labels:
                self.labels.append(label)
            self._note(-1 - self.labels.index(label), label)
            cancel = self._plan.cancel
            if cancel is not None and (cancel.task, cancel.turn) == (label, self._turns[label]):
                self.last: int = len(self.widths) - 1
                self._is_cancelled = True
                self.told.append(f"{label} is cancelled")
                self.steps_made.append(TaskStep(label.partition("#")[0], "is cancelled"))
                scope.cancel()

    def may_cancel(self, name: str) -> bool:
        """Whether a task of this name may be cancelled: by its full name, or by what is after its last dot."""
        self.names |= {name, short_name(_plain(name))}
        return name in self._wanted or short_name(name) in self._wanted

    async def cancellable(self, body: Coroutine[Any, Any, T], name: str) -> T | None:
        """Await `body` where it can be cancelled. The second task of a name is called `name#2`."""
        name = short_name(name)
        self._begun[name] += 1
        label = name if self._begun[name] == 1 else f"{name}#{self._begun[name]}"
        with anyio.CancelScope() as scope:
            self._scopes[label] = scope
            try:
                return await body
            finally:
                del self._scopes[label]
        return None

    # ---- afterwards -------------------------------------------------------------------------------------------------

    def _note(self, width: int, who: str) -> None:
        self.widths.append(width)
        self.prints.append(crc32(who.encode()))
        self.inside.append(self.depth > 0)

    def finish(self) -> None:
        """The run is over: check that all deviations of the plan were met."""
        cancel = self._plan.cancel
        if late := [number for number in self._picks if number >= self._orders]:
            self.wrong = self.wrong or f"there are {self._orders} choices, and no choice {late[0]}"
        if cancel is not None and not self._is_cancelled:
            turns = self._turns[cancel.task]
            self.wrong: str = (
                self.wrong or f"{cancel.task} lives for {turns} turns, and not for {cancel.turn}"
            )


@attrs.define
class _CurrentChoices:
    choices: Choices | None = None


_now = _CurrentChoices()


@contextmanager
def deciding(choices: Choices) -> Generator[None]:
    """While it is open, these are the choices that `exploring` marks."""
    before, _now.choices = _now.choices, choices
    try:
        yield
    finally:
        _now.choices = before


@contextmanager
def exploring() -> Generator[None]:
    """Use it in a scenario to explore only what happens inside this block. Code outside the block always runs in the
    default order, and nothing is cancelled there.

    Without such a block, the whole scenario is explored. Outside of `explore` it does nothing."""
    choices = _now.choices
    if choices is None:
        yield
        return
    choices.is_marked = True
    choices.depth += 1
    try:
        yield
    finally:
        choices.depth -= 1


def _is_the_loops(name: str) -> bool:
    """Whether a task of this name is one of trio or asyncio, or has no name."""
    return name.startswith("<") or name == "task" or short_name(name) in _OURS


def _plain(name: str) -> str:
    return _COUNTED.sub("task", name)


def short_name(name: str) -> str:
    """The name of a function without its module and class."""
    return name.rpartition(".")[2]
