"""uvicorn, which carries the bytes of the door, in a loop that runs already.

It comes with the SDK; hypercorn would be one dependency more and starts several tasks for each connection. Two things
of its `Server` are left out: it handles signals, and it wakes up ten times a second. `tests/gateway/test_http_door.py`
fails when an update of uvicorn changes what is used here.

Four things uvicorn leaves unbounded: the time for a head to arrive, the connections that wait for one, a peer that does
not read, and one that is dead. `_Connection` stands between asyncio's transport and uvicorn's protocol, passes
everything on and bounds the first three; the system bounds the last. Of uvicorn it knows how a protocol is made, no
more: the application is called with the connection in its scope, so it hears when a request has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Generator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.abc
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...protocol.bounds import HTTP_HEAD_BYTES
from ...protocol.errors import UsageError
from .http_request import Deadlines, Receive, Rules, Scope, Send

_BACKLOG: Final = 512
_IDLE: Final = 75.0  # seconds that a connection is kept open between two requests


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
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:  # an ssl.SSLError is one too
        if key is None and isinstance(
            error, ssl.SSLError
        ):  # the file is there: it may have had the key in it, too
            text = f"--tls-cert needs the certificate's key, and {cert} does not have it. Give --tls-key as well."
            raise UsageError(text) from None
        raise UsageError(f"The certificate or its key cannot be used: {error}. Correct --tls-cert.") from None


class HttpServer:
    """Serves `app` on a listening socket. Certificate and key were checked (`check_tls`)."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        rules: Rules,
        *,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it reports every broken request
        _give_up_the_dead(listener, rules.stalled_time)
        heads = _Heads(rules)
        config = uvicorn.Config(
            partial(_serving, app),
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # nobody here asks who a proxy says the client is
            http=cast("Any", partial(_Connection, rules, heads)),
            ws="none",
            date_header=False,
            server_header=False,
            timeout_keep_alive=int(_IDLE),
            timeout_graceful_shutdown=2,
            limit_concurrency=rules.connections,
            h11_max_incomplete_event_size=HTTP_HEAD_BYTES,
            backlog=_BACKLOG,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        self._server = _Server(config)
        self._listener = listener

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`."""
        self._server.on_started = task_status.started
        await self._server.serve(sockets=[self._listener])

    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.server_state.connections)

    def close(self) -> None:
        """Accept no more connections, and close each open one once its answer is written, or after a bounded time."""
        self._server.leave.set()


def _give_up_the_dead(listener: socket.socket, seconds: float) -> None:
    """Have the system close a connection whose peer acknowledges nothing for this many seconds. Connections inherit the
    option from the listener."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.leave = asyncio.Event()
        self.on_started: Any = lambda: None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # `serve` handles them

    async def main_loop(self) -> None:
        self.on_started()
        await self.leave.wait()


async def _serving(app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Have `app` carry out a request, and let its connection know how long that takes."""
    connection: _Connection = scope["state"]["connection"]
    connection.request_begins()
    try:
        await app(scope, receive, send)
    finally:
        connection.request_ends()


class _Connection(asyncio.Protocol):
    """Stands between the transport and uvicorn's protocol: passes everything on, and bounds the time of a peer."""

    def __init__(self, rules: Rules, heads: _Heads, *, app_state: dict[str, Any], **given: Any) -> None:
        self._rules = rules
        self._heads = heads
        self._http = H11Protocol(app_state={**app_state, "connection": self}, **given)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._writes: _Writes
        self._open = 0  # requests
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._writes = _Writes(self._transport)
        self._http.connection_made(cast("asyncio.Transport", self._writes))
        self._heads.wait_for(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._heads.came(self)
        self._flows()
        self._http.connection_lost(exc)

    def eof_received(self) -> None:
        self._http.eof_received()

    def abort(self) -> None:
        """Cut it."""
        self._heads.came(self)
        self._transport.abort()

    def join_writes(self) -> None:
        """Hold the next write back, and send it together with the write after it."""
        self._writes.join = True

    def data_received(self, data: bytes) -> None:
        self._http.data_received(data)
        if not self._open:
            self._heads.wait_for(self)  # if it is whole, the step that comes next begins its request

    def request_begins(self) -> None:
        self._open += 1
        self._heads.came(self)

    def request_ends(self) -> None:
        self._open -= 1

    # ---- a peer that does not read ---------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._http.pause_writing()
        self._watch_flow()

    def resume_writing(self) -> None:
        self._http.resume_writing()
        self._flows()

    def _watch_flow(self) -> None:
        unread = self._transport.get_write_buffer_size()
        self._stalled = self._loop.call_later(self._rules.stalled_time, self._check_flow, unread)

    def _check_flow(self, unread: int) -> None:
        if self._transport.get_write_buffer_size() >= unread:
            self.abort()
        else:
            self._watch_flow()

    def _flows(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class _Heads:
    """The connections that have not sent a whole head yet. Each is cut when its time is over, and the oldest when there
    are too many."""

    def __init__(self, rules: Rules) -> None:
        self._most = rules.waiting_heads
        self._waiting = Deadlines(rules.head_time, _Connection.abort)
        self._counts = False

    def wait_for(self, connection: _Connection) -> None:
        self._waiting.begin(connection)
        if len(self._waiting) > self._most and not self._counts:
            self._counts = True
            # Many requests may have come at once. All of them begin before a step of a step.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._count)

    def came(self, connection: _Connection) -> None:
        self._waiting.end(connection)

    def _count(self) -> None:
        self._counts = False
        for connection in islice(self._waiting, max(0, len(self._waiting) - self._most)):
            connection.abort()


class _Writes:
    """The transport as uvicorn gets it. uvicorn writes the head of an answer and its body one after the other. The two
    writes of a short answer are joined, which saves a tenth of a call's time: one system call, and the client wakes up
    once."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = b""
        self.join = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self.join:
            self.join, self._held = False, data
        elif self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        else:
            self._transport.write(data)
