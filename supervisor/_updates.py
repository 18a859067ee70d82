"""Subscriptions to resources: asking a server to report changes, and reading what it reports.

Subscribers of a resource are counted per actor (`actors._subscriptions`). The first one subscribes at the
server, and the last one unsubscribes. With a server of the 2026-07-28 era this is done through its open
stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from ..actors import Call, ServerActor
from ..protocol.errors import CallError
from ..protocol.index import Place
from ..protocol.jsonrpc import MODERN_VERSIONS
from ._caller import Caller

_MOST_UPDATES: Final = 1024  # kept for a slow reader; an update only says "look again"


class Updates:
    """The updates of one resource, as an async iterator: each is the `params` of one notification, in order.

    A slow reader loses the oldest updates, since one update says as much as many. The iteration ends when the
    room does.
    """

    def __init__(self) -> None:
        self._found: deque[Mapping[str, Any]] = deque(maxlen=_MOST_UPDATES)
        self._messages = anyio.Event()
        self._is_over = False

    def put(self, params: Mapping[str, Any]) -> None:
        self._found.append(params)
        self._messages.set()

    def end(self) -> None:
        """There will be no more updates. Those that have come are still read."""
        self._is_over = True
        self._messages.set()

    def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._found:
            if self._is_over:
                raise StopAsyncIteration
            self._messages = anyio.Event()
            await self._messages.wait()
        return self._found.popleft()


@asynccontextmanager
async def subscribed(caller: Caller, place: Place) -> AsyncGenerator[Updates]:
    """The updates of this resource, as long as the context is open."""
    updates = Updates()

    def heard(params: Mapping[str, Any]) -> None:
        if _is_about(params.get("uri"), place.original):
            updates.put(params)

    stop_hearing = caller.live.room_host.subscribe(caller.actor(place.server).address, heard, updates.end)
    try:
        await subscribe(caller, place)
        try:
            yield updates
        finally:
            unsubscribe(caller, place)
    finally:
        stop_hearing()


async def subscribe(caller: Caller, place: Place) -> None:
    """Connect the server and ask it to report changes of this resource."""
    actor = caller.actor(place.server)
    await caller.connect(place.server)
    if place.original not in actor.subscriptions.uris and not is_modern(actor):
        call = Call("resources/subscribe", {"uri": place.original}, replayable=True)
        await caller.ask(place.server, call)
    if actor.subscriptions.add(place.original):
        actor.subscriptions_changed()


def unsubscribe(caller: Caller, place: Place) -> None:
    """One subscriber has gone. After the last one the server is told so, without waiting for its answer."""
    try:
        actor = caller.live.root.actor_for(place.server, caller.session)
    except CallError:
        return  # the server is no longer configured
    if not actor.subscriptions.drop(place.original) or not caller.live.is_running:
        return
    if actor.is_connected and not is_modern(actor):
        call = Call(
            "resources/unsubscribe", {"uri": place.original}, replayable=True, on_end=lambda _call: None
        )
        try:
            caller.submit(place.server, call)
        except CallError:
            return  # it cannot be told now, and its next incarnation will not be asked to report changes
    actor.subscriptions_changed()


def is_modern(actor: ServerActor) -> bool:
    """Whether the server it is connected to speaks 2026-07-28."""
    return actor.peer is not None and actor.peer.protocol_version in MODERN_VERSIONS


def _is_about(told: object, uri: str) -> bool:
    """Whether an update is about this resource, or about a part of it (the protocol allows both)."""
    return isinstance(told, str) and (told == uri or told.startswith(uri.rstrip("/") + "/"))
