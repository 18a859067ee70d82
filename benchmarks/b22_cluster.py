"""B22: what a cluster costs and gives.

Client → front → host → stdio server, against client → one room over HTTP → the same server; calls a second of one, two
and three hosts, where the places of a host for servers are the limit; and the memory of a host. How long a server is
away whose host is killed takes minutes, and is measured by `b22_failover`.

The servers wait, as those of the real world do, so two cores carry three hosts. Each session has a process of its own,
which does one call after another, and more sessions want a place than there are. So a host is as fast as its places
allow, and three hosts are three times as fast if front, links, placement and directory do not stand in the way.

Hosts, front and directory are processes of this machine. Latency is judged on one core. Processor time says what the
hop costs, also where the machine is busy with other things.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from greenroom import Session
from greenroom.cluster.front import ClusterRoom

from ._cluster import FRONT, TOKEN, Cluster, cluster
from ._far_end import ECHO, config_of
from ._figures import Figure, at_least, at_most, quantity, ratio
from ._http_client import HttpSide
from ._http_gateways import OURS, ours_over_http
from ._processes import burnt, rss
from ._rounds import Size, one_core, take_turns
from ._run import run_alone

MIB = 1 << 20
CALLS: Final = 1000
PLACES: Final = 4  # for servers at each host
SERVERS: Final = 4  # the sessions of one may have half the places of a host
TAKES: Final = 0.1  # seconds of a call of a slow server
LASTS: Final = 40  # calls of a session
WANTED: Final = 3  # sessions for each place, one of which has it
WARM: Final = 5.0  # seconds until it is measured
PATIENCE: Final = 60.0


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _hop(size, Path(folder))
        yield from _hosts(size, Path(folder))


# ---- The hop --------------------------------------------------------------------------------------------------------


def _hop(size: Size, folder: Path) -> Iterator[Figure]:
    config = persistent(config_of(1))
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


def persistent(config: dict[str, Any]) -> dict[str, Any]:
    for server in config["mcpServers"].values():
        server["isolation"] = "persistent"
    return config


# ---- Servers that are the limit -------------------------------------------------------------------------------------


def _hosts(size: Size, folder: Path) -> Iterator[Figure]:
    """Calls a second of sessions that wait for a place, on one, two and three hosts."""
    seconds, rounds = size.of(10, 1), size.of(3, 1)
    rates: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for number in range(rounds):
        for count, seen in rates.items():
            seen.append(anyio.run(_rate, folder / f"of-{count}-{number}", count, float(seconds)))
    for count, seen in rates.items():
        what = f"calls/s of {count} host{'s' * (count > 1)} with {PLACES} places each, {TAKES * 1000:.0f} ms a call"
        yield quantity("B22", what, seen, "/s", beside={"places ÷ time": count * PLACES / TAKES})
    yield ratio(
        "B22",
        "calls/s of three hosts ÷ one",
        ("three hosts", rates[3]),
        ("one", rates[1]),
        "/s",
        at_least(2.5, 2.8),
    )


async def _rate(folder: Path, count: int, seconds: float) -> float:
    """Calls that were answered in each of so many seconds."""
    slow = {
        "command": sys.executable,
        "args": ["-S", str(Path(ECHO).with_name("faulty.py"))],
        "isolation": "per_session",
    }
    servers = [f"slow{number}" for number in range(SERVERS)]
    config = {
        "mcpServers": dict.fromkeys(servers, slow),
        "settings": {"maxConnections": PLACES * count, "queueTimeoutMs": 60_000},
    }
    answered, rates = 0, list[float]()

    async def use(session: Session, server: str, times: int) -> None:
        nonlocal answered
        for _ in range(times):
            await session.call("sleep", {"seconds": TAKES}, server=server)
            answered += 1

    async def visit(number: int) -> None:
        """One session after the other. Two callers in each, so its process has always a call to do."""
        for again in itertools.count(number, WANTED * PLACES * count):
            server = servers[again % SERVERS]
            async with room.session(f"session-{again}") as session, anyio.create_task_group() as both:
                both.start_soon(use, session, server, LASTS // 2)
                both.start_soon(use, session, server, LASTS // 2)

    with cluster(folder, *"abc"[:count]) as it:
        async with room_of(it, config) as room:
            await until_hosts(room, count)
            async with anyio.create_task_group() as tasks:
                for number in range(WANTED * PLACES * count):
                    tasks.start_soon(visit, number)
                await anyio.sleep(WARM)
                before, start = answered, time.perf_counter()
                await anyio.sleep(seconds)
                rates.append((answered - before) / (time.perf_counter() - start))
                tasks.cancel_scope.cancel()
    return rates[0]


def room_of(it: Cluster, config: dict[str, Any]) -> ClusterRoom:
    return ClusterRoom.open(
        config, directory=it.directory, token=TOKEN, cache_path=":memory:", bootstrap=False
    )


async def until_hosts(room: ClusterRoom, count: int) -> None:
    with anyio.fail_after(PATIENCE):
        while sum(not host.is_late for host in room.hosts()) != count:  # noqa: ASYNC110  nobody tells us
            await anyio.sleep(0.05)


if __name__ == "__main__":
    run_alone(measure)
