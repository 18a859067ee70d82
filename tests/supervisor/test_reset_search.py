"""The search over schedules, with servers whose processes are reset and used again, and with those of single calls.

`tools/mutants.py` shows that it finds faults of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from tests.support.profiles import examples

from greenroom.testing.room_machine import RoomMachine
from greenroom.testing.world import RESET


class Resets(RoomMachine):
    entries: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "again": {"isolation": "per_session", "warm": 2, "reset": RESET, "idleTimeout": 0.2},
        "apart": {"isolation": "per_session", "idleTimeout": 0.1},
    }
    settings: ClassVar[Mapping[str, Any]] = {"maxSessionConnections": 5, "startPermits": 10}


Resets.TestCase.settings = settings(
    examples(100),
    stateful_step_count=15,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestResets = Resets.TestCase
