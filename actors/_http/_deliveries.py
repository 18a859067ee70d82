"""Delivers our notifications to an HTTP server, and our replies to its requests.

Each is its own POST, so two could overtake each other. Where the order matters it is kept: our progress notifications
arrive in order, and before the reply that they belong to.

The first notification says that we are initialised. Once it is delivered, the GET stream is opened, on which the server
sends what answers no request. What it sends there before anybody listens is lost: a question would stay unanswered for
ever. So a request that may make the server ask something waits until that stream is open, or refused, or its time is up
(`until_heard`).

Since 2026-07-28 there are no notifications to the server over HTTP, apart from closing a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import anyio

from ...protocol.jsonrpc import PROGRESS, RpcError, encode_notification, encode_reply, excerpt
from .._backend import Backend
from .._notes import Notes
from .._peer import Exchange
from ._carrier import Carrier
from ._faults import ExchangeFault, LoginNeeded, SessionExpired

DELIVERED_WITHIN = 30.0  # seconds that a server has to accept a notification or a reply
LISTENS_WITHIN = 1.0  # seconds that calls wait for the GET stream, once `initialized` was delivered

# Requests at which a server has nothing to ask.
_NOTHING_TO_ASK = frozenset(
    {"ping", "tools/list", "resources/list", "resources/templates/list", "prompts/list", "logging/setLevel"}
)


class Link(Protocol):
    """What deliveries need of their peer."""

    carrier: Carrier

    @property
    def is_modern(self) -> bool: ...

    def spawn(self, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in its own task, unless the peer is over."""
        ...

    def stop_carrying(self, exchange: Exchange) -> None: ...

    def lose_for(self, end: SessionExpired | LoginNeeded) -> None:
        """The connection is over."""
        ...


class Deliveries:
    def __init__(self, link: Link, backend: Backend, notes: Notes) -> None:
        self._link = link
        self._backend = backend
        self._notes = notes
        self._introduced: anyio.Event | None = None  # set once `initialized` has reached the server
        self._listening = anyio.Event()  # the GET stream is open, or need not be waited for
        self._listens_by = 0.0
        self._progressed: anyio.Event | None = None  # set once our latest progress has reached the server

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        if self._link.is_modern:
            return
        line = encode_notification(method, params)
        if method == "notifications/initialized":
            self._introduced = introduced = anyio.Event()
            self._link.spawn(lambda: self._introduce(line, introduced))
        elif method == PROGRESS:
            before, self._progressed = self._progressed, (reached := anyio.Event())
            self._link.spawn(lambda: self._deliver_after(before, line, reached))
        else:
            self._link.spawn(lambda: self._deliver(line))

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None:
        line, before = encode_reply(rpc_id, result, error), self._progressed
        self._link.spawn(lambda: self._deliver_after(before, line))

    def withdraw(self, exchange: Exchange) -> None:
        self._link.stop_carrying(exchange)

    async def until_heard(self, method: str) -> None:
        """Wait until a request of this method may be sent."""
        if self._introduced is None:
            return
        await self._introduced.wait()
        if not self._listening.is_set() and method not in _NOTHING_TO_ASK:
            with anyio.CancelScope(deadline=self._listens_by):
                await self._listening.wait()

    # -- the tasks --

    async def _introduce(self, line: bytes, introduced: anyio.Event) -> None:
        try:
            await self._deliver(line)
        finally:
            self._listens_by = self._backend.now() + LISTENS_WITHIN
            introduced.set()
        try:
            await self._link.carrier.listen(self._listening.set)
        except (SessionExpired, LoginNeeded) as end:
            self._link.lose_for(end)
        except ExchangeFault as problem:
            self._notes.add("the stream of notifications ended", str(problem))
        finally:
            self._listening.set()

    async def _deliver_after(
        self, before: anyio.Event | None, line: bytes, reached: anyio.Event | None = None
    ) -> None:
        try:
            if before is not None:
                await before.wait()
            await self._deliver(line)
        finally:
            if reached is not None:
                reached.set()

    async def _deliver(self, line: bytes) -> None:
        try:
            with anyio.fail_after(DELIVERED_WITHIN):
                await self._link.carrier.deliver(line)
        except (SessionExpired, LoginNeeded) as end:
            self._link.lose_for(end)
        except ExchangeFault as problem:
            self._notes.add("a message did not reach the server", f"{problem}: {excerpt(line)}")
        except TimeoutError:
            text = f"not accepted within {DELIVERED_WITHIN:g}s"
            self._notes.add("a message did not reach the server", f"{text}: {excerpt(line)}")
