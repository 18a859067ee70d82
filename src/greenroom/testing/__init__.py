"""Tools for tests, for users and for our own.

* Fake servers with faults: `FakeServer` in memory, `ScriptedServer` as a real process. Both play a `FaultScript`.
* Assertions that hold after any room has closed: `assert_no_orphans`, `assert_one_outcome_each`.
* Virtual time for a synchronous test: `VirtualRun`. `seed_schedule` fixes the order of tasks by one number.
* `explore`: a small scenario under every order of its tasks, within bounds.
* `World`: a whole room in virtual time, and everything that can be done to it.
* `compare_tapes`, `compare_servers`: what differs between two runs, or between a run and what servers answer now.
* `pytest_plugin`: fixtures for pytest.
* With Hypothesis (`pip install 'greenroom[testing]'`): `greenroom.testing.room_machine`, which searches a `World`, and
  the strategies in `greenroom.testing.strategies`.

Names are imported when first used, because the bundled servers in this package must start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import names_of

if TYPE_CHECKING:
    from ._testing_names import *  # noqa: F403
else:
    __getattr__, __dir__ = names_of(__name__, "._testing_names")
