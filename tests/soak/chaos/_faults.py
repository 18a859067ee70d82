"""Draws faults, and the work that goes on meanwhile: two endless sequences that follow from the seed alone.

A fault carries every number that may be needed to do it (which process it hits, how long it lasts). All are drawn at
once, whatever the kind. So `World` decides nothing: it only looks up which process the fault hits.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from typing import Final

import attrs


class Kind(enum.Enum):
    KILL_CHILD = "kill a child"
    STOP_CHILD = "stop a child for a while"
    KILL_GRANDCHILD = "kill a grandchild"
    STOP_GRANDCHILD = "stop a grandchild for a while"
    KILL_GUARD = "kill the guard"
    STOP_GUARD = "stop the guard for a while"
    FREEZE_GATEWAY = "stop the gateway for a while"
    STALL_DISK = "stall the far end's disk"
    DEAF_CLIENT = "read no answers for a while"
    CANCEL_SOME = "cancel calls in flight"
    ATTACH = "attach a client, kill it in mid-call"
    HANG_UP = "ask over the control socket, hang up"
    RECONNECT = "reconnect one server"
    RECONNECT_ALL = "reconnect all servers"
    CONNECT = "connect a server by name"
    CHANGE = "change a definition"
    SPOIL = "change a command to one that is not there"
    POLICY = "change a policy"
    LIFECYCLE = "change a lifecycle"
    RESIZE = "change the number of slots"
    REMOVE = "remove a server"
    DISABLE = "disable a server"
    ADD = "add a server"
    BREAK = "break the file for a moment"
    RESTORE = "restore the file"


_WEIGHTS: Final = {
    Kind.KILL_CHILD: 10,
    Kind.STOP_CHILD: 7,
    Kind.KILL_GRANDCHILD: 2,
    Kind.STOP_GRANDCHILD: 1,
    Kind.KILL_GUARD: 1,
    Kind.STOP_GUARD: 1,
    Kind.FREEZE_GATEWAY: 1,
    Kind.STALL_DISK: 3,
    Kind.DEAF_CLIENT: 2,
    Kind.CANCEL_SOME: 5,
    Kind.ATTACH: 3,
    Kind.HANG_UP: 3,
    Kind.RECONNECT: 3,
    Kind.RECONNECT_ALL: 1,
    Kind.CONNECT: 2,
    Kind.CHANGE: 2,
    Kind.SPOIL: 1,
    Kind.POLICY: 1,
    Kind.LIFECYCLE: 2,
    Kind.RESIZE: 2,
    Kind.REMOVE: 1,
    Kind.DISABLE: 1,
    Kind.ADD: 2,
    Kind.BREAK: 1,
    Kind.RESTORE: 3,
}


@attrs.frozen
class Fault:
    """It comes `pause` seconds after the fault before. `pick` (0 to 1) chooses one of the processes that exist;
    `server` is a name; `seconds` is how long it lasts, if it lasts; `number` is unique, to make names with."""

    pause: float
    kind: Kind
    pick: float
    server: str
    seconds: float
    number: int


@attrs.frozen
class Burst:
    """`count` calls of one tool at once, `pause` seconds after the burst before. `cancel_after`: seconds until the
    client cancels some of them, or None."""

    pause: float
    server: str
    tool: str
    count: int
    size: int
    cancel_after: float | None


def draw_faults(seed: str, servers: tuple[str, ...]) -> Iterator[Fault]:
    chance = random.Random(f"{seed}/faults")
    kinds, weights = tuple(_WEIGHTS), tuple(_WEIGHTS.values())
    number = 0
    while True:
        number += 1
        yield Fault(
            pause=chance.choice((0.0, 0.0, chance.expovariate(4.0), chance.expovariate(4.0))),
            kind=chance.choices(kinds, weights)[0],
            pick=chance.random(),
            server=chance.choice(servers),
            seconds=chance.choice((0.05, 0.2, 0.6, 1.5, 4.0)) * (0.5 + chance.random()),
            number=number,
        )


def draw_work(seed: str, tools: tuple[tuple[str, str], ...]) -> Iterator[Burst]:
    """`tools`: pairs (server, tool), each as often as its share of the calls."""
    chance = random.Random(f"{seed}/work")
    while True:
        server, tool = chance.choice(tools)
        yield Burst(
            pause=chance.expovariate(12.0),
            server=server,
            tool=tool,
            count=chance.choice((1, 1, 1, 2, 3, 8, 20)),
            size=chance.choice((0, 10, 10, 1000, 20_000)),
            cancel_after=chance.expovariate(5.0) if chance.random() < 0.1 else None,
        )
