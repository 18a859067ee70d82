"""A server of a replay that really runs, for what its tape cannot answer. The first call that needs it starts it.

The tape is asked first, and only for what reads. Whatever may change something is run. What was written there the tape
has not seen, so from then on this server is asked everything: its answers are those of what the agent did, and not of
what another run did. With a process for each session this holds for each session by itself.

A call goes to the connection of the running server as it is (`Exchange`), so how far it got, its deadline and what
follows when the server is lost are those of life. The agent sees the tools that were recorded, until the running server
says that its list has changed.

The connection of a replay is of the older era, in which a server asks its client by requests of its own. One that
speaks only the newer era puts its questions into results, which nobody there would understand: a question would be an
empty result. So such a server is refused before anything is sent.

Rejected: to take what is read after a write from the tape, if the same write is on it. Whether it was the same write is
seen in what follows, such as the number of an order, and nobody could tell a wrong trajectory from a right one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio

from ..actors.peer import (
    Connection,
    Connector,
    Exchange,
    Handshake,
    LostReason,
    Peer,
    PeerHooks,
    RelayHooks,
)
from ..actors.timers import at_most
from ..protocol.errors import CallError

_TOLD_BY_ROOM: Final = "notifications/initialized"  # each handshake tells its own server
_LISTS_CHANGED: Final = "/list_changed"
_ONLY_NEWER: Final = "it speaks only MCP {}, and a replay cannot yet pass on what it asks its client for"


class LiveServer(RelayHooks):
    """The running server behind one connection of a replay, and what it reports. `reach` makes its connector and
    `handshake` agrees on a version; both may raise a `CallError`. Both have `seconds` in all, from when it has one of
    the `permits` of servers that may start at a time. `lose` ends the connection of the replay."""

    def __init__(
        self,
        reach: Callable[[], Connector],
        handshake: Callable[[Peer], Awaitable[Handshake]],
        seconds: float,
        permits: anyio.CapacityLimiter,
        hooks: PeerHooks,
        lose: Callable[[LostReason], None],
    ) -> None:
        self.has_other_lists: bool = False  # than those on the tape
        self.said: Handshake | None = None  # of itself, once it can be asked
        self._reach = reach
        self._handshake = handshake
        self._seconds = seconds
        self._permits = permits
        self.hooks = hooks
        self._lose = lose
        self._is_begun = False
        self._may_start = anyio.Event()
        self._is_ready = anyio.Event()
        self._connection: Connection | None = None

    # ---- its life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Be its owner task: start it, agree on a version, and stay until this is cancelled."""
        try:
            async with AsyncExitStack() as start:
                await start.enter_async_context(self._permits)
                self._may_start.set()
                async with self._reach().open(self) as self._connection:
                    await self._begin(self._connection.peer)
                    await start.aclose()
                    await anyio.sleep_forever()
        except CallError as error:
            self._fail(str(error))

    async def _begin(self, peer: Peer) -> None:
        try:
            self.said = await self._handshake(peer)
        except CallError as error:  # not to the connector, which has a task group
            self._fail(str(error))
        else:
            if self.said.is_stateless:
                self._fail(_ONLY_NEWER.format(self.said.protocol_version))
            else:
                self._is_ready.set()

    async def _limit(self) -> None:
        await self._may_start.wait()
        async with at_most(self._seconds) as scope:
            await self._is_ready.wait()
        if scope.cancelled_caught:
            self._fail(f"it could not be started in {self._seconds:g} s")

    def _fail(self, why: str) -> None:
        self._lose(LostReason(why, stderr_tail=self.stderr_tail()))

    async def ready(self, start: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]) -> None:
        """Wait until it can be asked; `start` runs its tasks, if nobody has started it. For ever if that fails: the
        connection is lost then, and whoever waits is cancelled with it."""
        if not self._is_begun:
            self._is_begun = True
            start(self.run)
            start(self._limit)
        await self._is_ready.wait()

    @property
    def is_ready(self) -> bool:
        return self._is_ready.is_set()

    @property
    def is_starting(self) -> bool:
        return self._is_begun and not self.is_ready

    @property
    def pid(self) -> int | None:
        return None if self._connection is None else self._connection.pid

    @property
    def last_heard(self) -> float:
        return 0.0 if self._connection is None else self._connection.peer.last_heard

    def signs(self) -> object:
        return None if self._connection is None else self._connection.signs()

    def stderr_tail(self) -> tuple[str, ...]:
        return () if self._connection is None else self._connection.stderr_tail()

    async def stop(self, grace: float) -> None:
        if self._connection is not None:
            await self._connection.stop(grace)

    def kill_now(self) -> None:
        if self._connection is not None:
            self._connection.kill_now()

    # ---- what it is told --------------------------------------------------------------------------------------------

    def request(self, exchange: Exchange) -> None:
        assert self._connection is not None
        self._connection.peer.request(exchange)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if self._connection is not None:
            self._connection.peer.abandon(exchange, reason)

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        if self._connection is not None and self.is_ready and method != _TOLD_BY_ROOM:
            self._connection.peer.notify(method, params)

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: Any) -> None:
        if self._connection is not None:
            self._connection.peer.reply(rpc_id, result, error)

    # ---- what it reports (`PeerHooks`) ------------------------------------------------------------------------------

    def on_lost(self, reason: LostReason) -> None:
        self._lose(reason)

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        if method.endswith(_LISTS_CHANGED):
            self.has_other_lists = True
        self.hooks.on_notification(method, params)
