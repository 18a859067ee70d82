"""B12: fifty cold stdio servers, ten calls each, all at once: a room with a pool of twenty slots against `gather` over
fifty SDK clients. From nothing to everything closed; what the servers have is known to both beforehand.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ._far_end import TEXT, config_of, room_of, sdk_client
from ._figures import Figure, at_most, ratio
from ._rounds import Size, take_turns
from ._run import run_alone

SERVERS, CALLS, SLOTS = 50, 10, 20


def measure(size: Size) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(folder) / "catalogue.json")
        config = config_of(SERVERS, maxConnections=SLOTS)
        sides = [lambda: asyncio.run(ours(config, cache)), lambda: asyncio.run(theirs())]
        mine, their = take_turns(sides, size.of(5, 1))
    what = f"{SERVERS} servers × {CALLS} calls at once, {SLOTS} slots"
    yield ratio("B12", what, ("Greenroom", mine), ("50 × mcp.Client", their), "ms", at_most(0.7))


async def ours(config: dict[str, Any], cache: str) -> float:
    """Milliseconds. The first turn, which is not counted, fills the cache."""
    start = time.perf_counter()
    async with room_of(config, cache) as room:
        names = [f"echo{number}_echo" for number in range(SERVERS) for _ in range(CALLS)]
        await asyncio.gather(*(room.call(name, TEXT) for name in names))
    return (time.perf_counter() - start) * 1000


async def theirs() -> float:
    start = time.perf_counter()
    await asyncio.gather(*(_one_client() for _ in range(SERVERS)))
    return (time.perf_counter() - start) * 1000


async def _one_client() -> None:
    async with sdk_client() as client:
        await asyncio.gather(*(client.call_tool("echo", TEXT) for _ in range(CALLS)))


if __name__ == "__main__":
    run_alone(measure)
