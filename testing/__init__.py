"""What users and our own tests test with: the table of contents.

Fake servers that go wrong on purpose, in memory (`FakeServer`) and as real processes (`ScriptedServer`), both by a
`FaultScript`; and assertions that hold after any room has closed. Hypothesis strategies are in `testing.strategies`,
which is imported by name, for it alone needs Hypothesis (`pip install 'greenroom[testing]'`).

Names are imported when first used: the bundled servers below here are only ever run as processes, and are up at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._asserts import assert_no_orphans, assert_one_outcome_each
    from ._fake import HANG, FakeServer, fake_connectors, tool
    from ._faults import Fault, FaultScript
    from ._scripted import ScriptedServer

_HOMES = {
    "_asserts": ("assert_no_orphans", "assert_one_outcome_each"),
    "_fake": ("HANG", "FakeServer", "fake_connectors", "tool"),
    "_faults": ("Fault", "FaultScript"),
    "_scripted": ("ScriptedServer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "HANG",
    "FakeServer",
    "Fault",
    "FaultScript",
    "ScriptedServer",
    "assert_no_orphans",
    "assert_one_outcome_each",
    "fake_connectors",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"greenroom.testing has no {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
