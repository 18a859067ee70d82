"""What users and our own tests test with: the table of contents.

Fake servers that go wrong on purpose, in memory (`FakeServer`) and as real processes (`ScriptedServer`), both by a
`FaultScript`; and assertions that hold after any room has closed. Virtual time that a plain test drives (`VirtualRun`),
in an order of tasks that follows from one number (`seed_schedule`); a whole room in it, and all that can be done to it
(`World`). What needs Hypothesis (`pip install 'greenroom[testing]'`): the search, `RoomMachine`, and the strategies in
`testing.strategies`, a module of its own.

Names are imported when first used: the bundled servers below here are only ever run as processes, and are up at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._asserts import assert_no_orphans, assert_one_outcome_each
    from ._fake import HANG, FakeServer, fake_connectors, tool
    from ._faults import Fault, FaultScript
    from ._machine import RoomMachine
    from ._schedule import ScheduleError, seed_schedule
    from ._scripted import ScriptedServer
    from ._virtual_run import StuckError, VirtualRun
    from ._world import World

_HOMES = {
    "_asserts": ("assert_no_orphans", "assert_one_outcome_each"),
    "_fake": ("HANG", "FakeServer", "fake_connectors", "tool"),
    "_faults": ("Fault", "FaultScript"),
    "_machine": ("RoomMachine",),
    "_schedule": ("ScheduleError", "seed_schedule"),
    "_scripted": ("ScriptedServer",),
    "_virtual_run": ("StuckError", "VirtualRun"),
    "_world": ("World",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "HANG",
    "FakeServer",
    "Fault",
    "FaultScript",
    "RoomMachine",
    "ScheduleError",
    "ScriptedServer",
    "StuckError",
    "VirtualRun",
    "World",
    "assert_no_orphans",
    "assert_one_outcome_each",
    "fake_connectors",
    "seed_schedule",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"greenroom.testing has no {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
