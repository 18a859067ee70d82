"""B1: one call after another on a connected stdio server, against the SDK's client on the same server.

The raw pipes beside it are the limit: whatever a client does, it does on top of that.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from ._far_end import BACKENDS, COMMAND, TEXT, config_of, room_of, sdk_client
from ._figures import Figure, at_most, ratio
from ._rounds import Size, async_microseconds_each, take_async_turns, take_turns
from ._run import run_alone
from ._wire_client import WireClient


def measure(size: Size) -> Iterator[Figure]:
    limit = raw_pipes(size)
    for backend in BACKENDS:
        ours, theirs = anyio.run(against_sdk, size, backend=backend)
        note = f"raw pipes {limit:.0f} µs"
        yield ratio(
            "B1",
            f"call, {backend}",
            ("Greenroom", ours),
            ("mcp.Client", theirs),
            "µs",
            at_most(0.40, 0.25),
            note,
        )


def raw_pipes(size: Size) -> float:
    """The physical limit: microseconds a call over bare pipes."""
    with WireClient(COMMAND, "echo", TEXT) as client:
        client.greet()
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


if __name__ == "__main__":
    run_alone(measure)
