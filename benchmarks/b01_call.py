"""B1: one call after another on a connected stdio server, against the SDK's client on the same server.

Judged on one core; on all of them it is context. The raw pipes are the limit: whatever a client does, it does on top of
that. So the processor time that a call takes of our process stands beside theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from ._far_end import BACKENDS, COMMAND, TEXT, config_of, room_of, sdk_client
from ._figures import Bound, Figure, at_most, ratio
from ._rounds import (
    Size,
    async_microseconds_each,
    async_processor_each,
    one_core,
    take_async_turns,
    take_turns,
)
from ._run import run_alone
from ._wire_client import WireClient


def measure(size: Size) -> Iterator[Figure]:
    with one_core():
        limit = raw_pipes(size)
        for backend in BACKENDS:
            yield _compared(backend, size, at_most(0.25, 0.15), f"raw pipes {limit:.0f} µs")
            ours, raw = anyio.run(against_raw_pipes, size, backend=backend)
            what = f"processor of a call, {backend}"
            yield ratio("B1", what, ("Greenroom", ours), ("raw pipes", raw), "µs")
    for backend in BACKENDS:
        yield _compared(f"{backend}, all cores", size, None, "context")


def _compared(how: str, size: Size, bound: Bound | None, note: str) -> Figure:
    ours, theirs = anyio.run(against_sdk, size, backend=how.partition(",")[0])
    return ratio("B1", f"call, {how}", ("Greenroom", ours), ("mcp.Client", theirs), "µs", bound, note)


def raw_pipes(size: Size) -> float:
    """The physical limit: microseconds a call over bare pipes."""
    with WireClient(COMMAND, "echo", TEXT) as client:
        client.initialize()
        return min(take_turns([lambda: client.latency(size.of(1000, 5))], size.rounds)[0])


async def against_sdk(size: Size) -> list[list[float]]:
    count = size.of(400, 5)
    async with room_of(config_of(1)) as room, sdk_client() as client:

        async def ours() -> None:
            for _ in range(count):
                await room.call("echo0_echo", TEXT)

        async def theirs() -> None:
            for _ in range(count):
                await client.call_tool("echo", TEXT)

        sides = (ours, theirs)
        return await take_async_turns(
            [lambda side=side: async_microseconds_each(count, side) for side in sides], size.rounds
        )


async def against_raw_pipes(size: Size) -> list[list[float]]:
    """Processor time: of this process alone, not of the server's."""
    count = size.of(2000, 5)
    async with room_of(config_of(1)) as room:
        with WireClient(COMMAND, "echo", TEXT) as client:
            client.initialize()

            async def ours() -> None:
                for _ in range(count):
                    await room.call("echo0_echo", TEXT)

            async def raw() -> None:
                client.latency(count)

            sides = (ours, raw)
            return await take_async_turns(
                [lambda side=side: async_processor_each(count, side) for side in sides], size.rounds
            )


if __name__ == "__main__":
    run_alone(measure)
