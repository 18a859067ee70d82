"""The order in which trio runs tasks, from one number.

trio draws the order of each batch of runnable tasks. With this seed drawn by Hypothesis (or printed by a test) the
whole order follows from it, so a race is found by search, shrinks, and comes back. Without a drawn seed Hypothesis
explores exactly one schedule, however many examples it runs.

trio keeps that source of chance private (`trio._core._run._r`). This is the one place that touches it, and it fails
loudly, with what to do, when a trio release takes it away.
"""

from __future__ import annotations

import random
from typing import Any


class ScheduleError(RuntimeError):
    """trio's order of tasks can no longer be seeded."""


def seed_schedule(seed: int) -> None:
    """From here on, trio's order of runnable tasks and the `random` module follow from `seed` alone.

    Raises `ScheduleError` when the installed trio has no such switch.
    """
    import trio._core._run as trio_run

    internals: Any = trio_run
    switch, source = (getattr(internals, name, None) for name in ("_ALLOW_DETERMINISTIC_SCHEDULING", "_r"))
    if not isinstance(switch, bool) or not isinstance(source, random.Random):
        import trio

        raise ScheduleError(
            f"trio {trio.__version__} does not let its schedule be seeded the way Greenroom knows: use a trio release "
            "that Greenroom was tested with (see constraints.txt)."
        )
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    source.seed(seed)
    random.seed(seed)
