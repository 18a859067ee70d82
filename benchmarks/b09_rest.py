"""B9: what a runtime at rest burns: a thousand servers, a hundred of them connected, nobody calling.

The servers are fakes in this process, so all the processor time there is, is ours. The physical limit is none at all; a
wake-up is a voluntary context switch, and one is the measuring sleep's own.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import anyio

from greenroom import Greenroom
from greenroom.testing._fake import FakeServer, fake_connectors

from ._far_end import BACKENDS, config_of
from ._figures import Figure, at_most, quantity
from ._rounds import Size
from ._run import run_alone

SERVERS, CONNECTED = 1000, 100


def measure(size: Size) -> Iterator[Figure]:
    for backend in BACKENDS:
        shares, wake_ups = anyio.run(at_rest, size, backend=backend)
        yield quantity("B9", f"processor at rest, {backend}", shares, "% of a core", at_most(0.5))
        yield quantity("B9", f"wake-ups at rest, {backend}", wake_ups, "a second", at_most(1, 0))


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
    switches, burnt, start = _switches(), time.process_time(), time.perf_counter()
    await anyio.sleep(seconds)
    elapsed = time.perf_counter() - start
    return 100 * (time.process_time() - burnt) / elapsed, max(0, _switches() - switches - 1) / elapsed


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


if __name__ == "__main__":
    run_alone(measure)
