"""B2: calls a second with 64 tasks calling one connected stdio server, against the SDK's client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import anyio

from ._far_end import BACKENDS, TEXT, config_of, room_of, sdk_client
from ._figures import Figure, at_least, ratio
from ._rounds import Size, async_microseconds_each, per_second, take_async_turns
from ._run import run_alone

IN_FLIGHT = 64


def measure(size: Size) -> Iterator[Figure]:
    for backend in BACKENDS:
        ours, theirs = map(per_second, anyio.run(against_sdk, size, backend=backend))
        yield ratio(
            "B2", f"calls/s, {IN_FLIGHT} in flight, {backend}", ("Greenroom", ours), ("mcp.Client", theirs), "/s",
            at_least(12, 16),
        )  # fmt: skip


async def against_sdk(size: Size) -> list[list[float]]:
    many, few = size.of(150, 2), size.of(20, 2)  # calls of each task: both sides take about as long
    async with room_of(config_of(1)) as room, sdk_client() as client:
        return await take_async_turns(
            [
                lambda: _all_at_once(many, lambda: room.call("echo0_echo", TEXT)),
                lambda: _all_at_once(few, lambda: client.call_tool("echo", TEXT)),
            ],
            size.rounds,
        )


async def _all_at_once(each: int, call: Callable[[], Awaitable[object]]) -> float:
    async def caller() -> None:
        for _ in range(each):
            await call()

    async def everybody() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.start_soon(caller)

    return await async_microseconds_each(IN_FLIGHT * each, everybody)


if __name__ == "__main__":
    run_alone(measure)
