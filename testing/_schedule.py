"""The order in which trio runs tasks: from one number, or decided by a function.

trio draws the order of each batch of runnable tasks at random. If Hypothesis draws the seed (or a test prints it), the
whole order follows from it, so a race can be searched for, shrunk and repeated. Without a drawn seed, Hypothesis
explores exactly one order, however many examples it runs.

An exploration decides the order itself (`ordered_by`).

trio keeps its random generator private (`trio._core._run._r`). Only this module touches it. When a trio release removes
it, the error says what to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import trio


class ScheduleError(RuntimeError):
    """The order of tasks can not be decided from here: the installed trio or asyncio has no such switch."""


def seed_schedule(seed: int) -> None:
    """From now on, trio's order of tasks and the `random` module depend on `seed` alone.

    Raises `ScheduleError` when the installed trio has no such switch.
    """
    internals = _internals()
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    internals._r.seed(seed)
    random.seed(seed)


@contextmanager
def ordered_by(order: Callable[[list[trio.lowlevel.Task]], list[trio.lowlevel.Task]]) -> Generator[None]:
    """While it is open, a trio run asks `order` in each turn. It is given the tasks of the turn, the oldest first, and
    returns those that shall run, in their order; the others are ready in the next turn again. An exception out of it is
    the end of the run (`trio.TrioInternalError`).

    Raises `ScheduleError` when the installed trio has no such switch.
    """

    class Orders(random.Random):
        def shuffle(self, x: Any) -> None:
            ready, now = list(x), order(x)
            x[:] = reversed(now)  # trio takes them from the end
            internals.GLOBAL_RUN_CONTEXT.runner.runq.extend(task for task in ready if task not in now)

    internals = _internals()
    before = internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING
    internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING = Orders(0), True
    try:
        yield
    finally:
        internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING = before


def _internals() -> Any:
    """The module of trio that has the switch and the generator."""
    import trio._core._run as trio_run

    internals: Any = trio_run
    switch, source = (getattr(internals, name, None) for name in ("_ALLOW_DETERMINISTIC_SCHEDULING", "_r"))
    if not isinstance(switch, bool) or not isinstance(source, random.Random):
        import trio

        raise ScheduleError(
            f"trio {trio.__version__} does not let its schedule be seeded the way Greenroom knows: use a trio release "
            "that Greenroom was tested with (see constraints.txt)."
        )
    return internals
