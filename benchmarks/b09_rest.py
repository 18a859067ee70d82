"""B9: what a runtime at rest burns: a thousand servers, a hundred of them connected, nobody calling.

The servers are fakes in this process, so all the processor time there is, is ours. The physical limit is none at all; a
wake-up is a voluntary context switch, and one is the measuring sleep's own.

And what `greenroom serve` does, as a process, with its server connected, its client silent and its configuration
watched, beside FastMCP's proxy.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio

from greenroom import Greenroom
from greenroom.testing.fake_servers import FakeServer, fake_connectors

from ._far_end import BACKENDS, config_of
from ._figures import Figure, at_most, quantity
from ._gateways import EXPOSURES, Gateway, fastmcp, ours
from ._processes import burnt, wake_ups
from ._rounds import Size
from ._run import run_alone
from ._wire_client import WireClient

SERVERS, CONNECTED = 1000, 100


def measure(size: Size) -> Iterator[Figure]:
    for backend in BACKENDS:
        shares, wakings = anyio.run(at_rest, size, backend=backend)
        yield quantity("B9", f"processor at rest, {backend}", shares, "% of a core", at_most(0.5))
        yield quantity("B9", f"wake-ups at rest, {backend}", wakings, "a second", at_most(1, 0))
    with tempfile.TemporaryDirectory() as folder:
        gateway, peer = ours(Path(folder), expose=EXPOSURES[0]), fastmcp()
        mine, theirs = gateway_at_rest(gateway, size), gateway_at_rest(peer, size)
    for what, unit, bound, of in (
        ("processor", "% of a core", at_most(0.5), 0),
        ("wake-ups", "a second", at_most(1, 0), 1),
    ):
        beside = {peer.name: statistics.median(turn[of] for turn in theirs)}
        yield quantity("B9", f"{what} at rest, serve", [turn[of] for turn in mine], unit, bound, beside)


async def at_rest(size: Size) -> tuple[list[float], list[float]]:
    config = config_of(SERVERS, maxConnections=CONNECTED)
    servers = {name: FakeServer() for name in config["mcpServers"]}
    room = Greenroom.open(config, bootstrap=False, cache_path=":memory:", connectors=fake_connectors(servers))
    async with room:
        async with anyio.create_task_group() as tasks:
            for name in list(servers)[:CONNECTED]:
                tasks.start_soon(room.connect, name)
        await anyio.sleep(size.of(2, 0))  # the cache is written, everything has settled
        turns = [await _rest(size.of(2, 1) / 2) for _ in range(size.rounds)]
    return [share for share, _ in turns], [wake_ups for _, wake_ups in turns]


async def _rest(seconds: float) -> tuple[float, float]:
    """Percent of a core, and wake-ups a second beyond our own."""
    switches, before, start = _switches(), time.process_time(), time.perf_counter()
    await anyio.sleep(seconds)
    elapsed = time.perf_counter() - start
    return 100 * (time.process_time() - before) / elapsed, max(0, _switches() - switches - 1) / elapsed


def gateway_at_rest(gateway: Gateway, size: Size) -> list[tuple[float, float]]:
    """By round: percent of a core, and wake-ups a second, of one that has connected its server."""
    with WireClient(gateway.command, gateway.tool, gateway.arguments, gateway.env) as client:
        client.initialize()
        client.ask("tools/list", {})
        client.check_call("hello")
        time.sleep(size.of(2, 1))  # the cache is written, everything has settled
        return [_rest_of(client.pid, size.of(2, 1)) for _ in range(size.rounds)]


def _rest_of(pid: int, seconds: float) -> tuple[float, float]:
    wakings, before, start = wake_ups(pid), burnt(pid), time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - start
    return 100 * (burnt(pid) - before) / elapsed, (wake_ups(pid) - wakings) / elapsed


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


if __name__ == "__main__":
    run_alone(measure)
