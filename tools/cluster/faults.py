"""The faults as a table: what is killed or stopped, how often, and how long callers may wait for answers then. Which of
them a run has, and when, follows from its seed alone."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import attrs

from greenroom.cluster.leases import LeaseTimes

from ..processes import children, command
from .testbed import Testbed, raylet_of

TIMES = LeaseTimes()
STOPPED = 1.5  # leases until what was stopped goes on
# Seconds to the next answer of a server that all share and that moves, if its start takes none.
MOVES = TIMES.length + TIMES.drift + 2.0


def hosts(bed: Testbed) -> list[int]:
    return [pid for node in bed.nodes for pid in _actors(raylet_of(node), "HostActor")]


def raylets(bed: Testbed) -> list[int]:
    """None if it is the last: nobody were left to ask."""
    return [raylet_of(node) for node in bed.nodes] if len(bed.nodes) > 1 else []


def fronts(bed: Testbed) -> list[int]:
    return bed.fronts_running()


def drivers(bed: Testbed) -> list[int]:
    of_ray = "cluster.ray_cluster import main"
    return [pid for front in bed.fronts_running() for pid in children(front, of_ray)]


def directory(bed: Testbed) -> list[int]:
    return _actors(raylet_of(bed.cluster.head), "DirectoryActor")


def _actors(raylet: int, name: str) -> list[int]:
    return [pid for pid in children(raylet) if command(pid).startswith(f"ray::{name}")]


@attrs.frozen
class Fault:
    """One of the `victims` gets a signal, and goes on after a while if that has stopped it. `often`: of all faults.
    `outage`: seconds that a server that all share may not answer. `lost`: what the testbed does about a victim that
    will not come back."""

    name: str
    often: int
    number: signal.Signals
    victims: Callable[[Testbed], list[int]]
    outage: float = MOVES
    lost: Callable[[Testbed, int], None] = lambda _bed, _pid: None

    def strike(self, bed: Testbed, which: float) -> bool:
        """Do it. `which` of the victims: 0 to 1. False: there is none."""
        found = self.victims(bed)
        if not found:
            return False
        pid = found[int(which * len(found))]
        send(pid, self.number)
        if self.number is signal.SIGSTOP:
            bed.later(STOPPED * TIMES.length, partial(send, pid, signal.SIGCONT))
        self.lost(bed, pid)
        bed.befell(self.name, str(pid))
        return True


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
# A directory that was started again grants nothing for a lease, and without any directory all leases end.
FAULTS: tuple[Fault, ...] = (
    Fault("kill a host", 4, KILL, hosts),
    Fault("stop a host", 4, STOP, hosts),
    Fault("kill a raylet", 2, KILL, raylets, lost=Testbed.lose_node),
    Fault("stop a raylet", 2, STOP, raylets, lost=Testbed.lose_node),  # its head takes it for dead
    Fault("kill a front", 2, KILL, fronts, outage=0.0, lost=Testbed.lose_front),
    Fault("stop a front", 2, STOP, fronts, outage=STOPPED * TIMES.length),
    Fault("kill a front's driver", 1, KILL, drivers, outage=0.0),
    Fault("kill the directory", 2, KILL, directory, outage=MOVES + 2.0),
    Fault("stop the directory", 1, STOP, directory, outage=STOPPED * TIMES.length + MOVES),
)


@attrs.frozen
class Strike:
    """One fault of a run."""

    fault: Fault
    which: float  # of its victims: 0 to 1
    pause: float  # seconds until the next


def drawn(seed: str) -> Iterator[Strike]:
    """Without end. No two seeds are alike, and one is always the same."""
    chance = random.Random(seed)
    while True:
        (fault,) = chance.choices(FAULTS, [fault.often for fault in FAULTS])
        yield Strike(fault, chance.random(), chance.uniform(0.3, 1.3) * TIMES.length)


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
