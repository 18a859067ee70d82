"""Rooms of fake servers, and the outcomes of their calls.

`open_room` is a room whose servers are `FakeServer`s; everything above the peer is real. `Outcomes` runs calls side by
side and keeps the outcome of each: its text, its error, or "cancelled".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import anyio
import attrs

from greenroom import CallError, Greenroom, Session
from greenroom.actors.router import IndexRequest, LearnedEntry
from greenroom.catalogue.entries import ServerEntry
from greenroom.events import Event
from greenroom.protocol.lifecycle import Cause, Ending
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool
from greenroom.testing.room_inside import RoomInside

Outcome = str | CallError


def open_room(
    servers: Mapping[str, FakeServer],
    *,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    bootstrap: bool = False,
    connectors: Any = None,
    callbacks: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Greenroom:
    """A room over these servers; `entries` add keys to their `mcpServers` entries, `settings` to the settings;
    `callbacks` are those of `Greenroom.open`."""
    config = {
        "mcpServers": {name: {"command": "fake", **(entries or {}).get(name, {})} for name in servers},
        "settings": settings,
    }
    return Greenroom.open(
        config,
        cache_path=":memory:",
        connectors=connectors or fake_connectors(servers),
        bootstrap=bootstrap,
        **(callbacks or {}),
    )


@attrs.define(eq=False)
class Running:
    """One call, and its outcome once it has ended."""

    scope: anyio.CancelScope
    outcome: Outcome | None = None
    at: float | None = None

    def cancel(self) -> None:
        self.scope.cancel()

    @property
    def error(self) -> CallError:
        assert isinstance(self.outcome, CallError), self.outcome
        return self.outcome


class Outcomes:
    """`async with Outcomes() as calls: one = calls.start(room, "a_echo", {...})`; leaving waits for all of them."""

    def __init__(self) -> None:
        self.all: list[Running] = []
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Outcomes:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    def start(self, room: Greenroom | Session, tool: str, arguments: Any = None, **options: Any) -> Running:
        running = Running(anyio.CancelScope())
        self.all.append(running)
        self._tasks.start_soon(self._run, running, room, tool, arguments, options)
        return running

    async def _run(
        self, running: Running, room: Greenroom | Session, tool: str, arguments: Any, options: dict[str, Any]
    ) -> None:
        with running.scope:
            try:
                running.outcome = (await room.call(tool, arguments, **options)).text
            except CallError as error:
                running.outcome = error
        if running.outcome is None:
            running.outcome = "cancelled"
        running.at = anyio.current_time()


async def learn(room: Greenroom, server: str) -> None:
    """Make the room know what the server has, and let it go idle again: closed, nothing counted."""
    await room.connect(server)
    await retire(room, server)


async def retire(room: Greenroom, server: str) -> None:
    """End an incarnation as eviction does: the next call brings it back."""
    listed, closed = RoomInside(room).machinery.servers, anyio.Event()
    listed.on_closed(listed.actor(server), closed.set)
    listed.actor(server).stop(Ending(Cause.EVICTED))
    await closed.wait()


async def teach(room: Greenroom, server: str, tools: Iterable[Mapping[str, Any]] = (tool("echo"),)) -> None:
    """Make the index know what the server has, as a cache would: nothing is started."""
    await teach_lists(room, ServerEntry(server, "", tools=tuple(tools)))


async def teach_lists(room: Greenroom, *lists: ServerEntry) -> None:
    """Make the index know all that these servers list, as a cache would: nothing is started."""
    router = RoomInside(room).machinery.router.ref
    for entry in lists:
        router.tell(LearnedEntry(entry))
    await router.ask(IndexRequest)


E = TypeVar("E", bound=Event)


def record_events(room: Greenroom, sort: type[E]) -> list[E]:
    """Every event of a class from now on, as they come."""
    events: list[E] = []

    def hear(event: Event) -> None:
        if isinstance(event, sort):
            events.append(event)

    RoomInside(room).events.listen(hear, [sort.kind] if sort is not Event else None)
    return events


async def settle(ticks: int = 50) -> None:
    """Let everything that is ready run, with no time passing."""
    for _ in range(ticks):
        await anyio.lowlevel.checkpoint()
