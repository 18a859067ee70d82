"""B21: a call that a FastMCP client makes of a room in its own process, against the same client on a FastMCP server in
its own process; against the same room over the SDK's streams; and against a call without a client.

The room's tool is in a process of its own, behind a pipe, and FastMCP's is a function. All share one core. Last, the
first call after a second in which nothing happened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
from fastmcp import Client, FastMCP
from fastmcp.client.transports.base import ClientTransport, TransportOptions
from mcp import ClientSession

from greenroom import Greenroom, InProcessDoor
from greenroom.adapters.fastmcp import RoomTransport

from ._far_end import TEXT, config_of, room_of
from ._figures import Figure, at_most, ratio
from ._rounds import Size, async_microseconds_each, one_core, take_async_turns
from ._run import run_alone

QUIET = 1.0
TOOL = "echo0_echo"
MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}
Call = Callable[[], Awaitable[object]]


def measure(size: Size) -> Iterator[Figure]:
    with one_core():
        for mode, version in MODES.items():
            yield from anyio.run(_compared, size, mode, version, backend="asyncio")


async def _compared(size: Size, mode: str, version: str) -> list[Figure]:
    async with room_of(config_of(1)) as room, AsyncExitStack() as ends:
        ours = await ends.enter_async_context(Client(RoomTransport(room), mode=mode))
        streams = await ends.enter_async_context(Client(StreamsTransport(room), mode=mode))
        theirs = await ends.enter_async_context(Client(_server(), mode=mode))
        calls: dict[str, Call] = {
            "RoomTransport": partial(ours.call_tool, TOOL, TEXT),
            "FastMCP in process": partial(theirs.call_tool, "echo", TEXT),
            "streams": partial(streams.call_tool, TOOL, TEXT),
            "room.call": partial(room.call, TOOL, TEXT),
        }
        busy = await _turns(calls, partial(_in_a_row, size.of(200, 3)), size.rounds)
        few = {name: calls[name] for name in ("RoomTransport", "FastMCP in process")}
        quiet = await _turns(few, partial(_after_a_pause, size.of(3, 1)), size.rounds)
    our, their, streamed, bare = busy
    our_first, their_first = quiet
    after = f"call after a second of nothing ÷ FastMCP in process, {version}"
    return [
        ratio("B21", f"call ÷ FastMCP in process, {version}", our, their, "µs", at_most(0.6, 0.3)),
        ratio("B21", f"call ÷ over streams, {version}", our, streamed, "µs", at_most(0.9, 0.7)),
        ratio("B21", f"call ÷ room.call, {version}", our, bare, "µs"),
        ratio("B21", after, our_first, their_first, "µs"),
    ]


async def _turns(
    calls: dict[str, Call], turn: Callable[[Call], Awaitable[float]], rounds: int
) -> list[tuple[str, list[float]]]:
    sides = [partial(turn, call) for call in calls.values()]
    return list(zip(calls, await take_async_turns(sides, rounds), strict=True))


async def _in_a_row(count: int, call: Call) -> float:
    async def body() -> None:
        for _ in range(count):
            await call()

    return await async_microseconds_each(count, body)


async def _after_a_pause(count: int, call: Call) -> float:
    each: list[float] = []
    for _ in range(count):
        await anyio.sleep(QUIET)
        each.append(await async_microseconds_each(1, call))
    return min(each)


def _server() -> FastMCP:
    server = FastMCP("echo")

    @server.tool
    def echo(text: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return text

    return server


class StreamsTransport(ClientTransport):
    """What `RoomTransport` would be over streams."""

    def __init__(self, room: Greenroom) -> None:
        self._room = room

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Any
    ) -> AsyncGenerator[ClientSession]:
        make_session = (transport_options or TransportOptions()).session_class
        async with (
            InProcessDoor.open(self._room) as door,
            door.streams() as (read, write),
            make_session(read, write, **session_kwargs) as session,
        ):
            yield session


if __name__ == "__main__":
    run_alone(measure)
