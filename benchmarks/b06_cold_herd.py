"""B6: fifty first callers on one cold server: how often it starts, and how long the slowest of them waits.

The peer is ourselves: one caller on a cold server. Each turn takes servers that nobody has called before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio

from greenroom import Greenroom
from greenroom.cli.bench_command import percentile

from ._far_end import TEXT, config_of, room_of
from ._figures import Figure, at_most, quantity, ratio
from ._rounds import Size, take_async_turns
from ._run import run_alone

HERD = 50


def measure(size: Size) -> Iterator[Figure]:
    (alone, herd), starts = anyio.run(_measured, size, backend="trio")
    yield ratio(
        "B6", f"p99 of {HERD} first callers ÷ one cold call", (f"{HERD} callers", herd), ("one caller", alone), "ms",
        at_most(1.3),
    )  # fmt: skip
    yield quantity("B6", f"starts for {HERD} first callers", starts, "starts", at_most(1))


async def _measured(size: Size) -> tuple[list[list[float]], list[float]]:
    rounds = 5 * size.rounds  # a turn is short, and one slice of another process a third of it
    turns = 2 * (rounds + 1)
    starts: list[float] = []
    async with room_of(config_of(turns, maxConnections=turns)) as room:
        fresh = iter(room.config.servers)

        async def herd() -> float:
            server = next(fresh)
            waited = await first_calls(room, server, HERD)
            starts.append(room.status()[list(room.config.servers).index(server)].incarnation)
            return waited

        sides = [lambda: first_calls(room, next(fresh), 1), herd]
        return await take_async_turns(sides, rounds), starts


async def first_calls(room: Greenroom, server: str, callers: int) -> float:
    """The 99th percentile of how long they waited, milliseconds."""
    waited: list[float] = []

    async def caller() -> None:
        start = time.perf_counter()
        await room.call("echo", TEXT, server=server)
        waited.append(time.perf_counter() - start)

    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(caller)
    return 1000 * percentile(waited, 99)


if __name__ == "__main__":
    run_alone(measure)
