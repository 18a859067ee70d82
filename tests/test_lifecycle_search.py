"""The lifecycle proved by search: see `greenroom.testing` for what is drawn and what must hold."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from greenroom.testing._machine import RoomMachine

RoomMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRooms = RoomMachine.TestCase
