"""Tools for tests, for users and for our own.

* Fake servers with faults: `FakeServer` in memory, `ScriptedServer` as a real process. Both play a `FaultScript`.
* Assertions that hold after any room has closed: `assert_no_orphans`, `assert_one_outcome_each`.
* Virtual time for a synchronous test: `VirtualRun`. `seed_schedule` fixes the order of tasks by one number.
* `explore`: a small scenario under every order of its tasks, within bounds.
* `World`: a whole room in virtual time, and everything that can be done to it.
* With Hypothesis (`pip install 'greenroom[testing]'`): `RoomMachine`, which searches a `World`, and the strategies in
  `greenroom.testing.strategies`.

Names are imported when first used, because the bundled servers in this package must start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._first_use import first_use

if TYPE_CHECKING:
    from ._asserts import assert_no_orphans, assert_one_outcome_each
    from ._choices import exploring
    from ._explore import explore
    from ._explore_tree import Explored, NotRepeatableError
    from ._fake import HANG, FakeServer, fake_connectors, fake_room, tool
    from ._fake_answers import FakeCall
    from ._faults import Fault, FaultScript
    from ._machine import RoomMachine
    from ._schedule import ScheduleError, seed_schedule
    from ._scripted import ScriptedServer
    from ._virtual_run import StuckError, VirtualRun
    from ._world import World

_HOMES = {
    "._asserts": ("assert_no_orphans", "assert_one_outcome_each"),
    "._choices": ("exploring",),
    "._explore": ("explore",),
    "._explore_tree": ("Explored", "NotRepeatableError"),
    "._fake": ("HANG", "FakeServer", "fake_connectors", "fake_room", "tool"),
    "._fake_answers": ("FakeCall",),
    "._faults": ("Fault", "FaultScript"),
    "._machine": ("RoomMachine",),
    "._schedule": ("ScheduleError", "seed_schedule"),
    "._scripted": ("ScriptedServer",),
    "._virtual_run": ("StuckError", "VirtualRun"),
    "._world": ("World",),
}

__all__ = [
    "HANG",
    "Explored",
    "FakeCall",
    "FakeServer",
    "Fault",
    "FaultScript",
    "NotRepeatableError",
    "RoomMachine",
    "ScheduleError",
    "ScriptedServer",
    "StuckError",
    "VirtualRun",
    "World",
    "assert_no_orphans",
    "assert_one_outcome_each",
    "explore",
    "exploring",
    "fake_connectors",
    "fake_room",
    "seed_schedule",
    "tool",
]

__getattr__ = first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
