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

from .._lazy import first_use

if TYPE_CHECKING:
    from .assertions import assert_no_orphans, assert_one_outcome_each
    from .exploration import Explored, NotRepeatableError, explore, exploring
    from .fake_servers import HANG, FakeCall, FakeServer, ScriptedServer, fake_connectors, fake_room, tool
    from .fault_scripts import Fault, FaultScript
    from .room_machine import RoomMachine
    from .virtual_time import ScheduleError, StuckError, VirtualRun, seed_schedule
    from .world import World

_HOMES = {
    ".assertions": (
        "assert_no_orphans",
        "assert_one_outcome_each",
    ),
    ".exploration": (
        "exploring",
        "explore",
        "Explored",
        "NotRepeatableError",
    ),
    ".fake_servers": (
        "HANG",
        "FakeServer",
        "fake_connectors",
        "fake_room",
        "tool",
        "FakeCall",
        "ScriptedServer",
    ),
    ".fault_scripts": (
        "Fault",
        "FaultScript",
    ),
    ".room_machine": ("RoomMachine",),
    ".virtual_time": (
        "ScheduleError",
        "seed_schedule",
        "StuckError",
        "VirtualRun",
    ),
    ".world": ("World",),
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
