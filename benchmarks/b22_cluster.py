"""B22: what a cluster costs and gives.

Client → front → host → stdio server, against client → one room over HTTP → the same server; calls a second of servers
that take their time, on one, two and three hosts; how long a server is away whose host is killed; and the memory of a
host.

Hosts, front and directory are processes of this machine. Latency is judged on one core. Processor time says what the
hop costs, also where the machine is busy with other things.

The server whose host is killed comes back once the lease of that host is over, unless the host is started again at
once, as Ray does it: the new one ends what is left of the former, and the lease need not be waited for.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from greenroom.cluster.front import ClusterRoom
from greenroom.cluster.leases import LeaseTimes
from greenroom.errors import CallError

from ._cluster import FRONT, TOKEN, Cluster, cluster
from ._far_end import ECHO, TEXT, config_of
from ._figures import Figure, at_most, quantity, ratio
from ._http_client import HttpSide
from ._http_gateways import OURS, ours_over_http
from ._processes import burnt, rss
from ._rounds import Size, one_core, take_turns
from ._run import run_alone

MIB = 1 << 20
LEASE: Final = LeaseTimes()
SERVERS: Final = 6
CALLS: Final = 1000
TAKES: Final = 0.02  # seconds of a call of a slow server
WAITING: Final = 4  # calls in flight at a slow server
PATIENCE: Final = 60.0


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _hop(size, Path(folder))
        yield from _hosts(size, Path(folder))
        yield from _failover(size, Path(folder))


# ---- The hop --------------------------------------------------------------------------------------------------------


def _hop(size: Size, folder: Path) -> Iterator[Figure]:
    config = _persistent(config_of(1))
    with (
        one_core(),
        cluster(folder / "hop", "a") as it,
        ours_over_http(folder).served() as room,
        it.front(config) as front,
    ):
        sides = {OURS: (room, [room.pid]), FRONT: (front, [front.pid, *it.pids()])}
        for side, _ in sides.values():
            side.connect(1)
        one, two = take_turns(
            [partial(_latency, side, size.of(CALLS, 5)) for side, _ in sides.values()], 3 * size.rounds
        )
        yield ratio("B22", "latency ÷ one room over HTTP", (FRONT, two), (OURS, one), "µs", at_most(2.2, 1.8))
        for side, _ in sides.values():
            side.connect(16)
        one, two = take_turns(
            [partial(_processor, side, pids, size.of(CALLS, 20)) for side, pids in sides.values()],
            size.rounds,
        )
        yield ratio("B22", "processor of a call ÷ one room, 16 in flight", (FRONT, two), (OURS, one), "µs")
        above = (rss(it.pids()[0]) - rss(room.pid)) / MIB
        yield quantity("B22", "memory of a host above a room's", [above], "MiB", at_most(60))


def _latency(side: HttpSide, count: int) -> float:
    return side.latency(count)


def _processor(side: HttpSide, pids: list[int], count: int) -> float:
    """Microseconds of processor for each of `count` calls, in these processes."""
    before = sum(map(burnt, pids))
    side.throughput(count)
    return (sum(map(burnt, pids)) - before) / count * 1e6


def _persistent(config: dict[str, Any]) -> dict[str, Any]:
    for server in config["mcpServers"].values():
        server["isolation"] = "persistent"
    return config


# ---- Servers that are the limit -------------------------------------------------------------------------------------


def _hosts(size: Size, folder: Path) -> Iterator[Figure]:
    """Each server does one call after another, and has more waiting all the time."""
    calls = size.of(50, 2)
    seen = {count: anyio.run(_rate, folder / f"of-{count}", count, calls) for count in (1, 2, 3)}
    most = SERVERS / TAKES
    for count, rate in seen.items():
        what = f"calls/s of {SERVERS} servers of {TAKES * 1000:.0f} ms a call, on {count} host{'s' * (count > 1)}"
        yield quantity("B22", what, [rate], "/s", beside={"the servers' own": most})


async def _rate(folder: Path, count: int, calls: int) -> float:
    faulty = str(Path(ECHO).with_name("faulty.py"))
    slow = {"command": sys.executable, "args": ["-S", faulty], "isolation": "persistent"}
    servers = {f"slow{number}": slow for number in range(SERVERS)}
    with cluster(folder, *"abc"[:count]) as it:
        async with _room(it, {"mcpServers": servers}) as room:
            await _until_hosts(room, count)

            async def use(server: str, times: int) -> None:
                for _ in range(times):
                    await room.call("sleep", {"seconds": TAKES}, server=server)

            for server in servers:
                await use(server, 1)
            start = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for server in servers:
                    for _ in range(WAITING):
                        tasks.start_soon(use, server, calls)
            return calls * WAITING * SERVERS / (time.perf_counter() - start)


# ---- A host that is killed ------------------------------------------------------------------------------------------


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
        async with _room(it, _persistent(config_of(1))) as room:
            for _ in range(count):
                await _until_hosts(room, 2)
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


def _room(it: Cluster, config: dict[str, Any]) -> ClusterRoom:
    return ClusterRoom.open(
        config, directory=it.directory, token=TOKEN, cache_path=":memory:", bootstrap=False
    )


async def _until_hosts(room: ClusterRoom, count: int) -> None:
    with anyio.fail_after(PATIENCE):
        while sum(not host.is_late for host in room.hosts()) != count:  # noqa: ASYNC110  nobody tells us
            await anyio.sleep(0.05)


if __name__ == "__main__":
    run_alone(measure)
