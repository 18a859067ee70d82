"""The connection of an HTTP server, or of an HTTP API: its client, its peer, and the way it ends.

There is no process to start. Opening always succeeds, and the handshake finds out whether a server answers. There
is no process to kill either. `stop` tells the server that its session is over, within a bound. Leaving the context
cancels whatever still runs and closes the sockets.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.abc

from ...config.credentials import SecretValue
from ...config.model import HttpTransport, ServerDefinition, Settings
from ..backend import Backend, pump_group
from ..peer import NoProcess, PeerHooks
from ..timers import at_most
from ..workers import apart
from .http_client import make_client
from .http_faults import WrongTransport
from .http_peer import Carrier, HttpPeer
from .legacy_sse import LegacySse
from .streamable_http import StreamableHttp

if TYPE_CHECKING:
    import httpx2


_CLOSE_WITHIN = 1.0  # seconds
AuthFor = Callable[[ServerDefinition], Any]
"""Makes the `httpx2.Auth` that logs in to a server, or None. Called once for each incarnation."""


class OpensApi(Protocol):
    """Reads what an HTTP API has, and returns what makes its carrier. Raises `ConnectFailed`."""

    async def __call__(
        self, client: httpx2.AsyncClient, *, has_login: bool
    ) -> Callable[[HttpPeer], Carrier]: ...


class HttpConnector:
    """Reaches one incarnation of a server with a `url`. Made by the room, called by the actor."""

    def __init__(
        self,
        definition: ServerDefinition,
        *,
        backend: Backend,
        settings: Settings,
        auth: AuthFor | None = None,
        learn: Callable[[tuple[SecretValue, ...]], object] | None = None,
        api: OpensApi | None = None,
    ) -> None:
        """`learn` is told the headers that a command of the server gives. `api` makes the carrier where an HTTP API is
        behind the `url`, and no server that speaks MCP."""
        self._definition = definition
        self._learn = learn
        self._backend = backend
        self._settings = settings
        self._auth = auth
        self._api = api

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[HttpConnection]:
        """Make the connection. Nothing is sent to a server yet, and it never fails because of one. The document of an
        HTTP API is read: raises `ConnectFailed` when that cannot be done."""
        definition = self._definition
        auth = self._auth(definition) if self._auth is not None else None
        timeout = definition.connect_timeout or self._settings.connect_timeout
        # In a thread: the first client imports the library and reads the trusted certificates.
        client = await apart(lambda: make_client(definition, auth, timeout, self._learn))
        opened_by = os.getpid()
        try:
            carrier = None if self._api is None else await self._api(client, has_login=auth is not None)
            async with pump_group() as tasks:
                peer = HttpPeer(self._backend, hooks, tasks, self._settings.max_line)
                made = None if carrier is None else carrier(peer)
                connection = HttpConnection(definition, client, peer, tasks, self._settings, made)
                try:
                    yield connection
                finally:
                    connection.kill_now()
        finally:
            if os.getpid() == opened_by:  # a forked process must not use its parent's sockets
                with anyio.CancelScope(shield=True):
                    async with at_most(_CLOSE_WITHIN):
                        await client.aclose()


class HttpConnection(NoProcess):
    """A client and its peer."""

    def __init__(
        self,
        definition: ServerDefinition,
        client: httpx2.AsyncClient,
        peer: HttpPeer,
        tasks: anyio.abc.TaskGroup,
        settings: Settings,
        carrier: Carrier | None = None,
    ) -> None:
        """`carrier`: None where MCP is spoken; which transport has it is found out then."""
        assert definition.url is not None
        self.peer = peer
        self._url = definition.url
        self._client = client
        self._tasks = tasks
        self._opened_by = os.getpid()
        wish = definition.http_transport
        if carrier is not None:
            peer.carrier = carrier
        elif wish is HttpTransport.SSE:
            peer.carrier = LegacySse(self._url, client, peer, tasks)
        else:
            peer.carrier = StreamableHttp(self._url, client, peer, settings, may_be_older=wish is None)
            peer.fall_back = self._as_older

    def _as_older(self, refusal: WrongTransport) -> LegacySse:
        before = f"no Streamable HTTP ({refusal}), and no older event stream: "
        return LegacySse(self._url, self._client, self.peer, self._tasks, before)

    async def stop(self, grace: float) -> None:
        """Take no more messages, and tell the server that the session is over, within `grace` seconds. Idempotent."""
        self.peer.silence()
        if os.getpid() != self._opened_by:
            return
        async with at_most(grace):
            await self.peer.carrier.leave()

    def kill_now(self) -> None:
        self.peer.silence()
        self._tasks.cancel_scope.cancel()
