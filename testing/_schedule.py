"""The order in which trio runs tasks, from one number.

trio draws the order of each batch of runnable tasks at random. If Hypothesis draws the seed (or a test prints it), the
whole order follows from it, so a race can be searched for, shrunk and repeated. Without a drawn seed, Hypothesis
explores exactly one order, however many examples it runs.

trio keeps its random generator private (`trio._core._run._r`). Only this module touches it. When a trio release removes
it, the error says what to do.
"""

from __future__ import annotations

import random
from typing import Any


class ScheduleError(RuntimeError):
    """trio's order of tasks can no longer be seeded."""


def seed_schedule(seed: int) -> None:
    """From now on, trio's order of tasks and the `random` module depend on `seed` alone.

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
