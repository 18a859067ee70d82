"""The numbers of the policies, as the design has them. What each one does is tested where its rule is."""

from __future__ import annotations

import attrs

from greenroom.config.model import Lifecycle, ServerDefinition, Settings

NUMBERS = {
    "idle_timeout": 600.0,
    "connect_timeout": 30.0,
    "call_timeout": 60.0,
    "call_total_timeout": 600.0,
    "queue_timeout": 45.0,
    "install_timeout": 600.0,
    "install_turns": 2,
    "first_list_timeout": 10.0,
    "drain_timeout": 10.0,
    "stop_timeout": 5.0,
    "max_connections": 20,
    "min_connections": 0,
    "reserve_connections": 0,
    "reserve_timeout": 5.0,
    "acquire_timeout": 30.0,
    "start_permits": 10,
    "max_in_flight": 256,
    "max_queued": 1024,
    "backoff_min": 1.0,
    "backoff_max": 60.0,
    "backoff_jitter": 0.2,
    "failure_backoff": None,
    "failure_threshold": 5,
    "cooldown": 30.0,
    "stable_after": 30.0,
    "restart_intensity": 5,
    "restart_period": 60.0,
    "health_interval": 30.0,
    "bootstrap": True,
}


def test_the_defaults_are_the_designs() -> None:
    settings = attrs.asdict(Settings())

    assert {name: settings[name] for name in NUMBERS} == NUMBERS


def test_a_server_is_lazy_unless_it_says_otherwise() -> None:
    assert ServerDefinition("a").lifecycle is Lifecycle.LAZY
