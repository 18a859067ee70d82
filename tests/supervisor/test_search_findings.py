"""What the search over schedules found in the runtime, shrunk: each failed before it was mended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from greenroom import CallError
from greenroom.actors.peer import LostReason
from greenroom.protocol.events import Transition
from greenroom.protocol.lifecycle import Reason, State
from greenroom.testing import World
from greenroom.testing.world_laws import settled

MakeWorld = Callable[..., World]


@pytest.fixture
def make() -> Iterator[MakeWorld]:
    worlds: list[World] = []

    def build(entries: dict[str, Any], **settings: Any) -> World:
        worlds.append(World(entries, settings))
        return worlds[-1]

    yield build
    try:
        for world in worlds:
            for law in settled:
                law(world)
    finally:
        for world in worlds:
            world.run.close()


def test_who_comes_late_to_the_queue_for_a_slot_has_his_whole_time(make: MakeWorld) -> None:
    """He was refused with those who had waited before him: the bound counted from the first of them."""
    world = make({"busy": {}, "late": {}}, maxConnections=1)
    world.faults.slow_down("busy", "call", 45.0)
    world.call("busy")
    world.call("late")
    world.advance(20.0)
    world.call("late")
    world.advance(10.0)
    first, second = world.calls[1:]
    assert isinstance(first.outcomes[0], CallError)
    assert not second.outcomes
    world.advance(20.0)
    assert second.outcomes == ['{"n": 2, "who": null}']


def test_a_sessions_probe_does_not_pass_its_servers_breaker_that_refuses(make: MakeWorld) -> None:
    """What keeps any child from starting had come up after it was let through."""
    world = make({"apart": {"isolation": "per_session"}}, failureThreshold=1, cooldownMs=5_000)
    world.open_session("ann")
    world.call("apart", session="ann")
    world.faults.lose("apart")
    world.advance(5.0)
    world.faults.slow_down("apart", "start", 3.0)
    world.faults.slow_down("apart", "stop", 1.0)
    world.call("apart", session="ann")  # the probe
    world.faults.refuse("apart")
    world.ask("restart", "apart")  # ends the probe's attempt; what it starts is refused at once
    world.advance(3.0)
    starts = world.servers["apart"].starts
    world.advance(1.0)
    assert world.servers["apart"].starts == starts


def test_a_breaker_that_refuses_while_a_session_waits_for_its_start_keeps_it_from_starting(
    make: MakeWorld,
) -> None:
    """It had passed the circuit breaker, and was not asked again when its permit came."""
    world = make(
        {"apart": {"isolation": "per_session"}}, failureThreshold=1, cooldownMs=5_000, startPermits=1
    )
    for name in ("ann", "bob"):
        world.open_session(name)
    world.faults.slow_down("apart", "start", 1.0)
    world.faults.refuse("apart", "refuse_initialize")
    world.call("apart", session="ann")
    world.call("apart", session="bob")
    world.advance(2.0)
    assert world.servers["apart"].starts == 1


def test_a_connect_by_name_that_waited_for_a_slot_meets_the_breaker_as_it_is_then(make: MakeWorld) -> None:
    """A session's failed start had opened it in the same instant."""
    world = make(
        {"apart": {"isolation": "per_session"}}, failureThreshold=1, cooldownMs=5_000, maxSessionConnections=1
    )
    for name in ("ann", "bob"):
        world.open_session(name)
        world.call("apart", session=name)
    world.ask("connect", "apart")
    world.faults.refuse("apart")
    starts = world.servers["apart"].starts
    world.faults.lose("apart")
    assert world.servers["apart"].starts == starts + 1


def test_a_breaker_that_refuses_while_a_discovery_waits_for_its_start_keeps_it_from_starting(
    make: MakeWorld,
) -> None:
    """Of those whose circuit breaker is the server's own nobody was asked again."""
    world = make({"apart": {"isolation": "per_session"}}, startPermits=1)
    world.open_session("ann")
    world.faults.slow_down("apart", "start", 1.0)
    world.faults.refuse("apart", "refuse_initialize")
    world.call("apart", session="ann")
    world.ask("find", "apart")  # by a discovery
    world.advance(1.5)
    assert world.servers["apart"].starts == 1
    world.advance(2.0)
    assert world.servers["apart"].starts == 2


def test_what_is_kept_alive_is_so_again_when_who_brought_it_back_has_left(make: MakeWorld) -> None:
    """He left while it waited for a start permit, and with him the only reason to start it."""
    world = make({"kept": {"lifecycle": "keep-alive"}, "slow": {}}, startPermits=1)
    world.ask("drain", "kept")
    world.faults.slow_down("slow", "start", 10.0)
    world.call("slow")
    world.ask("connect", "kept", patience=0.5)
    world.advance(20.0)
    assert world.inside.actor("kept").is_connected


def test_what_is_brought_back_while_it_drains_takes_calls_again(make: MakeWorld) -> None:
    """It was refused as draining, and then left down, although it was configured again."""
    world = make({"notes": {}, "other": {}})
    world.faults.slow_down("notes", "call", 3.0)
    world.call("notes")
    world.reload("remove", "notes")
    world.reload("restore", "notes")
    world.call("notes")
    world.advance(10.0)
    assert [call.outcomes for call in world.calls] == [
        [f'{{"n": {number}, "who": null}}'] for number in (0, 1)
    ]


def test_what_is_removed_is_not_brought_back_by_its_name_while_it_drains(make: MakeWorld) -> None:
    """It was: a server ran that no configuration named."""
    world = make({"notes": {}, "other": {}})
    world.faults.slow_down("notes", "stop", 0.5)
    world.ask("connect", "notes")
    world.reload("remove", "notes")
    world.ask("connect", "notes")
    world.advance(1.0)
    assert world.servers["notes"].starts == 1
    assert "notes" not in world.inside.servers


def test_a_reload_brings_back_what_was_drained_before_it_is_closed(make: MakeWorld) -> None:
    world = make({"notes": {}, "other": {}})
    world.faults.slow_down("notes", "call", 3.0)
    world.call("notes")
    world.ask("drain", "notes")
    world.reload("definition", "notes")
    world.advance(5.0)
    world.call("notes")
    world.advance(5.0)
    assert world.calls[1].outcomes == ['{"n": 1, "who": null}']


def test_a_call_apart_that_waits_for_its_servers_half_of_the_slots_costs_nothing(make: MakeWorld) -> None:
    """The pool looked again at once, for ever: it had waited long enough for a reserve that is not there."""
    world = make({"apart": {"isolation": "per_call"}}, maxConnections=3)
    world.faults.slow_down("apart", "call", 25.0)
    for name in ("ann", "bob"):
        world.open_session(name)
        world.call("apart", session=name)
    assert len(world.pending) == 2
    world.advance(20.0)
    assert world.inside.next_look == math.inf


def test_the_same_seed_is_the_same_run_jitter_included() -> None:
    """Each room drew its jitter from a source of its own that nobody could seed: traces did not come back."""

    def starts() -> list[float]:
        world = World({"kept": {"lifecycle": "keep-alive"}}, {"failureThreshold": 50})
        try:
            world.faults.refuse("kept")
            world.faults.lose("kept")
            world.advance(30.0)
        finally:
            world.run.close()
        return [
            event.at
            for event in world.events
            if isinstance(event, Transition) and event.after is State.CONNECTING
        ]

    first = starts()
    assert len(first) > 3
    assert starts() == first


def test_a_session_at_its_servers_half_open_breaker_hears_of_the_probes_end(make: MakeWorld) -> None:
    """Nobody rang: its calls waited until they were too late."""
    world = make({"apart": {"isolation": "per_session"}}, failureThreshold=1, cooldownMs=5_000)
    world.open_session("ann")
    world.call("apart", session="ann")
    world.faults.refuse("apart")
    world.ask("find", "apart")  # its discovery trips the server's own circuit breaker
    world.faults.heal("apart")
    world.advance(5.0)
    world.faults.slow_down("apart", "call", 60.0)
    world.call("apart", "safe", session="ann")
    (anns,) = world.servers["apart"].connections
    world.faults.slow_down("apart", "start", 3.0)
    world.ask("find", "apart")  # the probe
    world.truth.hurt("lost", "apart")
    world.background.later(0.0, lambda: anns.lose(LostReason("session expired", loss=Reason.EXPIRED)))
    world.faults.heal("apart")
    world.advance(10.0)
    assert world.calls[1].outcomes == ['{"n": 1, "who": "ann"}']
