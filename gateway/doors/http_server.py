"""uvicorn, which carries the bytes of the door, in a loop that runs already.

It runs on the asyncio loop of `serve`. It comes with the SDK; hypercorn would be one dependency more and starts
several tasks for each connection. A constant answer, on two cores that did other work as well: 1,900 a second over
one connection, 2,200 over 16, 3,000 over 64. Two things of its `Server` are left out: it handles signals, and it
wakes up ten times a second. `tests/gateway/test_http_door.py` fails when an update of uvicorn changes what is used
here.

`_Connection` bounds what uvicorn leaves unbounded: the time for a head to arrive, the connections that wait for
one, and a peer that does not read. It also gives uvicorn what that asks the loop for, a task for each request and
the timer between two of them; `_turn` says why. Nagle's algorithm is off on every connection: with delayed
acknowledgements, a call whose head and body are written one after the other would take 40 ms. uvicorn writes them
so; `_Gathering` makes one write of the two, which saves a system call and wakes the client once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.abc
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...protocol.bounds import HTTP_HEAD_BYTES
from ...protocol.errors import UsageError
from .http_request import Hangup, Rules
from .http_turn import KeepAlive, Patience, Turn

_BACKLOG: Final = 512
_IDLE: Final = 75.0  # seconds that a connection is kept open between two requests


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises `UsageError` when that is not possible."""
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
    """Raises `UsageError` when certificate or key cannot be used. A key with a password cannot: nobody is asked."""
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
        waiting: dict[_Connection, None] = {}
        self._patience = patience = Patience(asyncio.get_running_loop(), rules.commit_time)

        class Connection(_Connection):
            def __init__(self, *args: Any, **more: Any) -> None:
                super().__init__(*args, **more)
                self.rules, self.waiting, self.patience = rules, waiting, patience
                self.may_begin = app.may_begin

        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # nobody here asks who a proxy says the client is
            http=Connection,
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
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            self._patience.close()

    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.server_state.connections)

    def close(self) -> None:
        """Take no more connections, and close each when its answer is written; those that take too long, then."""
        self._server.leave.set()


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


class _Connection(H11Protocol):
    rules: Rules
    waiting: dict[_Connection, None]  # connections that have not sent a whole head, oldest first
    patience: Patience
    may_begin: Callable[[Any], bool]

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._hangup = Hangup()
        self._loop, self.loop = self.loop, cast("Any", self)  # see `create_task` and `call_later`
        self._keep_alive = KeepAlive(self._loop)
        self._turn: Turn | None = None  # of the last request
        self._is_due = False  # that one has not begun
        self._receives = False
        self.app_state = {
            "abort": self._abort,
            "gather": self._gather,
            "hangup": self._hangup,
            "turn": self._now,
        }
        self._head_due: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Gathering(transport))
        carrier: socket.socket | None = transport.get_extra_info("socket")
        if carrier is not None and carrier.family != getattr(socket, "AF_UNIX", None):
            carrier.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            carrier.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # for data that a dead peer never acknowledges
                patience = int(self.rules.stalled_time * 1000)
                carrier.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._flows()
        super().connection_lost(exc)
        self._keep_alive.close()
        self._hangup.lost()

    def data_received(self, data: bytes) -> None:
        self._receives = True
        try:
            super().data_received(data)
        finally:
            self._receives = False
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            if self._head_due is not None:
                self._head_came()
        elif self._head_due is None and not self.transport.is_closing():
            self._await_head()
        self._begin()

    # ---- what uvicorn asks the loop for ----------------------------------------------------------------------------

    def create_task(self, work: Coroutine[Any, Any, None]) -> Turn:
        self._turn, self._is_due = Turn(self._loop, work, self.patience), True
        if not self._receives:  # the request before it has just been answered
            self._loop.call_soon(self._begin)
        return self._turn

    def call_later(self, seconds: float, ring: Callable[[], object]) -> KeepAlive:
        self._keep_alive.begin(seconds, ring)
        return self._keep_alive

    def _begin(self) -> None:
        if self._is_due:
            self._is_due = False
            turn = self._now()
            if self.cycle.more_body or not self.may_begin(self.scope):
                turn.begin_in_task()
            else:
                turn.begin()

    def _now(self) -> Turn:
        assert self._turn is not None
        return self._turn

    def _await_head(self) -> None:
        self._head_due = self._loop.call_later(self.rules.head_time, self._abort)
        self.waiting[self] = None
        if len(self.waiting) > self.rules.waiting_heads:
            next(iter(self.waiting))._abort()

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
            self.waiting.pop(self, None)

    def _gather(self) -> None:
        """What is written next goes out with what is written after it."""
        assert isinstance(self.transport, _Gathering)
        self.transport.holds = True

    # ---- a peer that does not read ---------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_flow()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._flows()

    def _watch_flow(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._stalled = self._loop.call_later(self.rules.stalled_time, self._check_flow)

    def _check_flow(self) -> None:
        if self.transport.get_write_buffer_size() >= self._unread:
            self._abort()
        else:
            self._watch_flow()

    def _flows(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _abort(self) -> None:
        self._head_came()
        self.transport.abort()


class _Gathering(asyncio.Transport):
    """A transport whose next write waits for the one after it, when it `holds`."""

    def __init__(self, carrier: asyncio.Transport) -> None:
        super().__init__()
        self.holds = False
        self._held = b""
        self._carrier = carrier
        for name in _PASSED_ON:
            setattr(self, name, getattr(carrier, name))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.holds:
            self.holds = False
            self._held = bytes(data)
        elif self._held:
            held, self._held = self._held, b""
            self._carrier.write(held + data)
        else:
            self._carrier.write(data)


_PASSED_ON: Final = (
    "abort",
    "close",
    "get_extra_info",
    "get_protocol",
    "get_write_buffer_size",
    "is_closing",
    "pause_reading",
    "resume_reading",
    "set_protocol",
    "set_write_buffer_limits",
)
