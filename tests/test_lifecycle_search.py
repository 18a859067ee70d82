"""The lifecycle proved by search: see `greenroom.testing` for what is drawn and what must hold.

By default in seconds; `make soak` looks for as long as it takes to run some thousand times as many steps.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from tests.support.profiles import examples

from greenroom.testing import RoomMachine

RoomMachine.TestCase.settings = settings(
    examples(300),
    stateful_step_count=30,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRooms = RoomMachine.TestCase
