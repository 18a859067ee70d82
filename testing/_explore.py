"""Exploration: a small scenario, run under every order of its tasks within bounds, and not under some drawn by chance.

A search at random (`RoomMachine`) is for what is too big to try out. A race in something small needs one particular
order, and chance draws it seldom. Here the bound is the number of deviations from the default order: all runs with
none, then all with one, then all with two. Most races need one or two, whatever the number of tasks. So the first
failure has the fewest deviations, and there is nothing left to shrink. Cancelling a task, and giving a fault, count as
no deviation: each level is run without and then with a cancel, for each fault in its turn.

What is a deviation: `_choices`. How a run is written: `_plan`. How the runs are found: `_explore_tree`.

Rejected:

* leaving out orders that differ in nothing (partial order reduction): nobody can see what a step reads and writes;
* leaving out states that were seen before: the state of a program cannot be compared;
* real threads: between two checkpoints nothing else runs in an async program, so they would find what cannot happen;
* a number as the name of a run: it means another run as soon as a bound changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, overload

import sniffio

from ..protocol.errors import UsageError
from ._explore_tree import Explored, Search
from ._one_run import Body
from ._plan import backend_of, parse_plan

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
    replay: str | None = ...,
    raises: bool = ...,
) -> Explored: ...
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
    replay: str | None = ...,
    raises: bool = ...,
) -> Explored: ...
def explore(
    scenario: Callable[..., Awaitable[object]],
    *,
    faults: Mapping[str, Any] | None = None,
    backend: str = "trio",
    deviations: int = 1,
    cancel: str | Iterable[str] = (),
    runs: int = RUNS,
    choices: int = CHOICES,
    replay: str | None = None,
    raises: bool = True,
) -> Explored:
    """Run `scenario` under every order of its tasks with at most so many `deviations` from the default order.

    `cancel`: names of tasks (as given to `start_soon`, or the function's own). Each run is repeated with one of them
    cancelled, at each of its turns. `faults`: the scenario is called with each of these values; any value will do, such
    as a `FaultScript`. `runs` and `choices` are limits: of all runs, and of the choices in a run that may be done
    otherwise. `replay`: only the run of this schedule, as a failure has printed it.

    Time is virtual, and each run has a loop of its own. The run fails when the scenario raises or never ends. Then its
    error is raised here, with the schedule in its notes; with `raises=False` it is only in the result.

    Raises `UsageError` for a schedule that this scenario does not have and for a task that it does not have;
    `NotRepeatableError` when the scenario is not the same in each run; `ScheduleError` when the order of the installed
    trio or asyncio cannot be decided.
    """
    scenarios: dict[str | None, Body] = (
        {None: scenario}
        if faults is None
        else {name: partial(scenario, value) for name, value in faults.items()}
    )
    _refuse_a_loop()
    wanted = [cancel] if isinstance(cancel, str) else list(cancel)
    _refuse_odd(*(name for name in scenarios if name is not None), *wanted)
    search = Search(scenarios, wanted, runs, choices)
    one = parse_plan(replay) if replay is not None else None
    explored = search.all(backend_of(backend), deviations) if one is None else search.only(one)
    if raises and explored.failure is not None:
        raise explored.failure.error
    return explored


def _refuse_a_loop() -> None:
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
