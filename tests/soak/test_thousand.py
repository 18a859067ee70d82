"""A thousand configured servers, twenty slots, random calls: the bound is never exceeded, every call has one outcome,
and nobody starves. `make soak` runs it for a minute with over two hundred real processes; otherwise it is small and
short."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import anyio
import attrs
from tests.support import run
from tests.support.gateway import faulty, named_after

from greenroom import Greenroom
from greenroom.actors.peer import Connector
from greenroom.events import Event
from greenroom.protocol.address import Address
from greenroom.protocol.events import Kind, Transition
from greenroom.protocol.lifecycle import State
from greenroom.testing.fake_servers import FakeServer, fake_connectors
from greenroom.testing.room_inside import RoomInside


@attrs.frozen
class Scale:
    servers: int
    real: int
    slots: int
    callers: int
    seconds: float


FULL = Scale(servers=1000, real=250, slots=20, callers=60, seconds=60.0)
SMALL = Scale(servers=100, real=8, slots=4, callers=12, seconds=1.5)
STARVED = 30.0  # seconds, like the acquire timeout: no call may take longer


@attrs.define
class Seen:
    """What is live, according to the events alone, and the outcomes of the calls."""

    live: set[Address] = attrs.field(factory=set[Address])
    most: int = 0
    done: int = 0
    real_starts: int = 0
    longest: float = 0.0

    def hear(self, event: Event) -> None:
        assert isinstance(event, Transition)
        assert event.address is not None
        if event.after is State.CONNECTING:
            self.live.add(event.address)
            self.real_starts += event.address.server.startswith("real")
        elif event.after is State.CLOSED:
            self.live.discard(event.address)
        self.most = max(self.most, len(self.live))


def test_a_thousand_servers_over_twenty_slots(backend: str, tmp_path: Path) -> None:
    scale = FULL if os.environ.get("GREENROOM_SOAK") else SMALL
    seen = Seen()

    async def main() -> None:
        async with _open(scale, tmp_path) as room:
            RoomInside(room).events.listen(seen.hear, {Kind.TRANSITION})
            names = _turns(scale)
            with anyio.fail_after(scale.seconds + 2 * STARVED):
                async with anyio.create_task_group() as tasks:
                    for number in range(scale.callers):
                        tasks.start_soon(_call_on, room, scale, names, seen, number)
        report = room.drain_report
        assert report is not None
        assert report.adds_up
        assert (report.accepted, report.completed) == (seen.done, seen.done)

    run(backend, main)
    print(
        f"\n{backend}: {seen.done} calls over {scale.servers} servers and {scale.slots} slots, {seen.real_starts} real "
        f"processes, most live {seen.most}, longest call {seen.longest:.2f}s"
    )
    assert seen.most <= scale.slots
    assert seen.real_starts >= scale.real * 4 // 5
    assert seen.longest < STARVED
    assert named_after(tmp_path) == set()


def _open(scale: Scale, folder: Path) -> Greenroom:
    """The first servers are processes, the rest are in memory."""
    real = {f"real{n}": faulty(folder, f"real{n}") for n in range(scale.real)}
    fakes = {
        f"fake{n}": FakeServer(call_latency=0.02, stop_latency=0.02)
        for n in range(scale.servers - scale.real)
    }
    in_memory = fake_connectors(fakes)

    def connect(definition: Any, address: Address, incarnation: int) -> Connector:
        if address.server in fakes:
            return in_memory(definition, address, incarnation)
        return RoomInside(room).machinery.connectors(definition, address, incarnation)

    config = {
        "mcpServers": {**real, **{name: {"command": "fake"} for name in fakes}},
        "settings": {"maxConnections": scale.slots},
    }
    room = Greenroom.open(config, cache_path=":memory:", connectors=connect, bootstrap=False)
    return room


def _turns(scale: Scale) -> list[str]:
    """Every real server once, spread over the first rounds; afterwards it is chance."""
    names = [f"real{n}" for n in range(scale.real)]
    names += [f"fake{random.randrange(scale.servers - scale.real)}" for _ in range(2 * scale.real)]
    random.shuffle(names)
    return names


async def _call_on(room: Greenroom, scale: Scale, names: list[str], seen: Seen, number: int) -> None:
    """One caller: call after call, until the time is over."""
    until = anyio.current_time() + scale.seconds
    while names or anyio.current_time() < until:
        name = names.pop() if names else f"fake{random.randrange(scale.servers - scale.real)}"
        begun = anyio.current_time()
        result = await room.call(f"{name}_echo", {"text": f"{number}"})
        assert str(number) in result.text
        seen.done += 1
        seen.longest = max(seen.longest, anyio.current_time() - begun)
        if not names:
            await anyio.sleep(random.random() / 10)
