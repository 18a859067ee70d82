"""How long a server is away whose host is killed: the part of B22 that takes minutes, and that `make bench` leaves out.

The server whose host is killed comes back once the lease of that host is over, unless the host is started again at
once, as Ray does it: the new one ends what is left of the former, and the lease need not be waited for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio

from greenroom.cluster.front import ClusterRoom
from greenroom.cluster.leases import LeaseTimes
from greenroom.errors import CallError

from ._cluster import cluster
from ._far_end import TEXT, config_of
from ._figures import Figure, at_most, quantity
from ._rounds import Size
from ._run import run_alone
from .b22_cluster import persistent, room_of, until_hosts

LEASE: Final = LeaseTimes()
PATIENCE: Final = 60.0


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _failover(size, Path(folder))


def _failover(size: Size, folder: Path) -> Iterator[Figure]:
    for what, again, bound in (
        ("away after its host was killed", False, LEASE.length + 2),
        ("away after its host was killed and started again", True, LEASE.length + 2),
    ):
        seconds = anyio.run(_times_away, folder / f"failover-{again}", again, size.of(10, 1))
        yield quantity("B22", f"{what}, p50", [_percentile(seconds, 50)], "s", at_most(bound))
        yield quantity("B22", f"{what}, p99", [_percentile(seconds, 99)], "s", at_most(bound))


async def _times_away(folder: Path, again: bool, count: int) -> list[float]:
    """Seconds from the end of the host that holds a server until a call of it is answered, `count` times."""
    seen: list[float] = []
    with cluster(folder, "a", "b") as it:
        async with room_of(it, persistent(config_of(1))) as room:
            for _ in range(count):
                await until_hosts(room, 2)
                await room.call("echo", TEXT, server="echo0")
                await room.membership.refresh()
                holder = room.membership.view.held["echo0"]
                it.end_host(holder)
                start = time.perf_counter()
                if again:
                    it.start_host(holder)
                await _until_answered(room)
                seen.append(time.perf_counter() - start)
                if not again:
                    it.start_host(holder)
    return seen


async def _until_answered(room: ClusterRoom) -> None:
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await room.call("echo", TEXT, server="echo0")
            except CallError:
                await anyio.sleep(0.01)
            else:
                return


def _percentile(samples: list[float], percent: int) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


if __name__ == "__main__":
    run_alone(measure)
