"""The HTTP server: a listening socket, TLS, and how it ends. What is on the wire is in `door_connection`.

It runs in a loop that runs already, and handles no signals.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.abc

from ...actors.timers import at_most
from ...protocol.errors import UsageError
from .door_connection import Door, DoorConnection, DoorConnections
from .http_request import Rules

_BACKLOG: Final = 512
_LAST_ANSWERS: Final = 2.0  # seconds that open requests have to be answered, once it ends


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at this address. Raises `UsageError` when that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        text = f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose another --http HOST:PORT."
        raise UsageError(text) from None
    return listener


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Check that certificate and key can be used. Raises `UsageError`. A key with a password cannot be used, because
    nobody is asked for it."""
    if cert is None:
        if key is not None:
            raise UsageError("--tls-key needs the certificate it belongs to. Give --tls-cert as well.")
        return
    try:
        _tls(cert, key)
    except OSError as error:  # an ssl.SSLError is one too
        # The file is there: it may have had the key in it, too.
        if key is None and isinstance(error, ssl.SSLError):
            text = f"--tls-cert needs the certificate's key, and {cert} does not have it. Give --tls-key as well."
            raise UsageError(text) from None
        raise UsageError(f"The certificate or its key cannot be used: {error}. Correct --tls-cert.") from None


def _tls(cert: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key, password="")
    return context


class HttpServer:
    """Serves a door on a listening socket. `door` is given each request; it answers in that step or later, and never
    raises. Certificate and key were checked (`check_tls`). asyncio only."""

    def __init__(
        self,
        door: Door,
        listener: socket.socket,
        rules: Rules,
        *,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        _give_up_the_dead(listener, rules.stalled_time)
        self._connections = DoorConnections(door, rules)
        self._listener = listener
        self._tls = None if cert is None else _tls(cert, key)
        self._tls_time = None if cert is None else rules.head_time
        self._leave = asyncio.Event()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`."""
        connections = self._connections
        server = await asyncio.get_running_loop().create_server(
            partial(DoorConnection, connections),
            sock=self._listener,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=self._tls_time,
        )
        try:
            task_status.started()
            await self._leave.wait()
            server.close()
            connections.leave()
            async with at_most(_LAST_ANSWERS):
                await connections.gone()
        finally:
            server.close()
            await connections.cut()

    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections.open)

    def close(self) -> None:
        """Accept no more connections, and close each open one once its answer is written, or after a bounded time."""
        self._leave.set()


def _give_up_the_dead(listener: socket.socket, seconds: float) -> None:
    """Have the system close a connection whose peer acknowledges nothing for this many seconds. Connections inherit the
    option from the listener."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
