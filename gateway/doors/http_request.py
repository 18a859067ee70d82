"""One HTTP request: its headers by name, its body within bounds, and its answer."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import attrs

from ...actors.message_buffer import LONG, MessageBuffer, on_one_line
from ...config.model import Settings
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import HTTP_HEAD_BYTES
from ...protocol.jsonrpc.terms import MISSING_CAPABILITY, TRACE_KEYS, RpcFault
from ...protocol.trace_context import TraceContext, trace_in
from ..arrivals import Arriving

# ---- How a request is refused: the status codes of the door ---------------------------------------------------------
#
# | request | answer |
# |---|---|
# | `Host` that is not ours | 421 |
# | `Origin` that is not allowed | 403 |
# | preflight (CORS) of a page that the configuration names | 200 |
# | unknown path, unknown profile, unknown session, another caller's session | 404 |
# | another method | 405, with `Allow` |
# | no token, or a wrong one | 401, with `WWW-Authenticate` |
# | POST whose `Accept` lacks `application/json` or `text/event-stream`; GET without the latter | 406 |
# | POST whose `Content-Type` is not `application/json` | 415 |
# | body too large, or with too many values / too slow | 413 / 408 |
# | head too large | 431; 400 if it has not even ended |
# | no session id, where one is needed; a header given twice; two lengths of one body | 400 |
# | not JSON, not one JSON-RPC message | 400 with -32700, -32600 |
# | 2026-07-28: a header that contradicts the body | 400 with -32020 |
# | an unknown version / a method that 2026-07-28 does not have | 400 with -32022 / 404 with -32601 |
# | too many sessions, too many requests or bytes of them at once, the gateway is ending | 503, with `Retry-After` |
# | `initialize` and other requests that are answered | 200 |
# | a notification, or an answer to our request | 202 |
# | DELETE | 200 |
#
# What is no HTTP is refused by the HTTP server with 400. The body of a refusal is a JSON-RPC
# error with the id null, because that is what clients show. It names nothing of another caller.

Headers = Iterable[tuple[bytes, bytes]]
HEADER_MISMATCH: Final = -32020
REQUEST_CANCELLED: Final = -32800
CLOSE: Final = (b"connection", b"close")
JSON: Final = (b"content-type", b"application/json")
_RETRY: Final = (b"retry-after", b"5")
_NO_SESSION: Final = "Not Found: Session not found. Open another one with initialize."
# The HTTP status of an error that answers a request of 2026-07-28; of any other error it is 200.
STATUS_OF_ERROR: Final = {
    rpc.PARSE_ERROR: 400,
    rpc.INVALID_REQUEST: 400,
    rpc.INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    rpc.UNSUPPORTED_VERSION: 400,
    rpc.METHOD_NOT_FOUND: 404,
}


class Refusal(Exception):
    """A request that is answered with an HTTP error. `key` is the id of its JSON-RPC message, if that is known."""

    def __init__(
        self,
        status: int,
        message: str,
        *headers: tuple[bytes, bytes],
        code: int = rpc.INVALID_REQUEST,
        key: bytes = b"",
        data: object = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.code = code
        self.message = message
        self.key = key
        self.data = data

    @property
    def body(self) -> bytes:
        return rpc.error_line(self.key, RpcFault(self.code, self.message, self.data))


def no_session() -> Refusal:
    return Refusal(404, _NO_SESSION)


def no_such_path() -> Refusal:
    return Refusal(404, "Not Found")


def not_allowed(*methods: str) -> Refusal:
    allowed = ", ".join(methods)
    return Refusal(405, f"Method Not Allowed: use {allowed}.", (b"allow", allowed.encode()))


def ending() -> Refusal:
    return Refusal(503, "The gateway is shutting down; nothing was done.", _RETRY, code=rpc.SERVER_ERROR)


def busy(fault: RpcFault) -> Refusal:
    return Refusal(503, fault.message, _RETRY, CLOSE, code=fault.code, data=fault.data)


def too_many(what: str) -> Refusal:
    return Refusal(503, f"Too many {what} are open. Try again later.", _RETRY, code=rpc.OVERLOADED)


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# Of these, each reader must see the same one. So a request that has one of them twice is refused.
_SINGLE: Final = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"content-length",
        b"content-type",
        b"mcp-session-id",
        b"mcp-protocol-version",
        b"mcp-method",
        b"mcp-name",
        b"last-event-id",
    }
)
_MIRRORED: Final = b"mcp-param-"
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})  # their body, if any, is not waited for
_DIGITS: Final = 18
PIECE: Final = 1 << 18  # bytes of a body that are written at once


class Connection(Protocol):
    """What our server puts into the scope of a request; other servers do not."""

    def abort(self) -> None: ...
    def join_writes(self) -> None: ...


class Request:
    """One request. `headers` are by their lower-case names; of a header given twice, the last."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope["raw_path"]
        self.scope = scope
        self.receive = receive
        self.send = send
        given: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers: dict[bytes, bytes] = dict(given)
        self.is_read = False
        self.is_answered = False
        self._connection: Connection | None = scope.get("state", {}).get("connection")
        if len(self.headers) != len(given):
            self._refuse_repeated(given)
        if sum(len(name) + len(value) for name, value in given) > HTTP_HEAD_BYTES:
            raise Refusal(431, "Request Header Fields Too Large.", CLOSE)
        if b"transfer-encoding" in self.headers and b"content-length" in self.headers:
            raise Refusal(400, "Bad Request: two lengths of one body.", CLOSE)

    def _refuse_repeated(self, given: Iterable[tuple[bytes, bytes]]) -> None:
        seen: set[bytes] = set()
        for name, _ in given:
            if name in seen and (name in _SINGLE or name.startswith(_MIRRORED)):
                raise Refusal(400, f"Bad Request: {name.decode()} is given twice.", CLOSE)
            seen.add(name)

    @property
    def trace(self) -> TraceContext | None:
        """The trace that its headers name. (`_meta` of a request in it may name another.)"""
        said = {name: self.text(name.encode()) for name in TRACE_KEYS}
        return trace_in(said) if any(said.values()) else None

    def text(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def accepts(self, kind: bytes) -> bool:
        """Whether the client takes an answer of this media type."""
        main = kind.partition(b"/")[0]
        for part in self.headers.get(b"accept", b"").lower().split(b","):
            if part.partition(b";")[0].strip() in (kind, main + b"/*", b"*/*"):
                return True
        return False

    async def body(
        self, most: int, time: Deadlines[asyncio.Timeout], arriving: Arriving | None = None
    ) -> bytes | bytearray:
        """The whole body, on one line: without newlines, which in JSON are white space, and which must not reach a
        server that reads lines. What comes in pieces is counted as `arriving`. Raises
        `Refusal` when it is larger than `most`, has more values than a message may have, or takes more than its
        `time`; `RpcFault` when too much waits at the doors."""
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > _DIGITS or int(length) > most:
            raise self._too_large(most)
        try:
            async with asyncio.timeout(None) as limit:
                time.begin(limit)
                try:
                    event = await self._next()
                    piece: bytes = event.get("body", b"")
                    is_all = not event.get("more_body")
                    is_small = is_all and len(piece) <= LONG
                    body = (
                        on_one_line(piece) if is_small else await self._whole(piece, is_all, most, arriving)
                    )
                finally:
                    time.end(limit)
        except TimeoutError:
            raise Refusal(408, "Request Timeout: the body did not arrive in time.") from None
        if len(body) > most:
            raise self._too_large(most)
        self.is_read: bool = True
        return body

    async def _whole(
        self, piece: bytes, is_last: bool, most: int, arriving: Arriving | None
    ) -> bytes | bytearray:
        """A body that is long, or comes in pieces. Each is looked at as it comes, so that a large one is never gone
        through at once."""
        held = MessageBuffer()
        while True:
            over = held.add(on_one_line(piece))
            if arriving is not None:
                arriving.add(len(piece))
            if over:
                raise Refusal(413, f"Content Too Large: the request has more than {over}.")
            if is_last or len(held.data) > most:
                return held.end()
            event = await self._next()
            piece, is_last = event.get("body", b""), not event.get("more_body")

    async def _next(self) -> MutableMapping[str, Any]:
        """Raises `Gone` when the client has disconnected."""
        event = await self.receive()
        if event["type"] == "http.disconnect":
            raise Gone
        return event

    @staticmethod
    def _too_large(most: int) -> Refusal:
        return Refusal(413, f"Content Too Large: a request may have {most} bytes.")

    # ---- the answer ----------------------------------------------------------------------------------------------

    async def answer(
        self, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = (JSON,)
    ) -> None:
        """The whole answer. A connection whose request was not read to its end is closed after it."""
        self.is_answered = True
        headers = (*headers,)
        stays = self.is_read or self.method in _BODILESS or CLOSE in headers  # the last: it is said already
        close = () if stays else (CLOSE,)
        if self._connection is not None:
            self._connection.join_writes()
        length = (b"content-length", b"%d" % len(body))
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, length, *close],
            }
        )
        if len(body) > PIECE:
            await self.write_long(body)
            body = b""
        await self.send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: Refusal) -> None:
        await self.answer(refusal.status, refusal.body, (JSON, *refusal.headers))

    async def begin_stream(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.is_answered: bool = True
        await self.send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [*STREAM_HEADERS, *headers],
            }
        )

    async def write(self, data: bytes) -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": True})
        if len(data) >= PIECE:
            await anyio.lowlevel.checkpoint()  # others first, also when the client reads as fast as we write

    async def write_long(self, data: bytes) -> None:
        """Write a large part of a body, piece by piece: each is copied several times on its way out."""
        for start in range(0, len(data), PIECE):
            await self.write(data[start : start + PIECE])

    async def end_stream(self) -> None:
        await self.send({"type": "http.response.body", "body": b""})

    async def disconnected(self) -> None:
        """Wait until the client has disconnected, or has its whole answer."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def abort(self) -> None:
        """Cut the connection: its peer does not read."""
        if self._connection is not None:
            self._connection.abort()


def body_time(rules: Rules) -> Deadlines[asyncio.Timeout]:
    """For bodies to arrive."""
    return Deadlines(rules.body_time, lambda limit: limit.reschedule(0.0))


class Gone(Exception):
    """The client has disconnected before its request was complete."""


T = TypeVar("T")


class Deadlines(Generic[T]):
    """Waits of the same length, of which nearly all end in time. One timer of the loop rings for all, and for who still
    waits then, `ring` is called. A timer for each of them would cost every call a twentieth of its time."""

    def __init__(self, seconds: float, ring: Callable[[T], object]) -> None:
        self._seconds = seconds
        self._ring = ring
        self._due: dict[T, float] = {}  # the first is due first
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[T]:
        """Those who wait, the longest first."""
        return iter(tuple(self._due))

    def begin(self, who: T) -> None:
        loop = asyncio.get_running_loop()
        due = self._due.setdefault(who, loop.time() + self._seconds)
        if self._timer is None:
            self._timer = loop.call_at(due, self._look)

    def end(self, who: T) -> None:
        self._due.pop(who, None)

    def _look(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        while self._due:
            who, due = next(iter(self._due.items()))
            if due > loop.time():
                self._timer = loop.call_at(due, self._look)
                return
            self.end(who)
            self._ring(who)


# ---- Who sends a request, and which addresses are of this machine ---------------------------------------------------

OAUTH: Final = "oauth:"  # with this the names of callers begin that an authorization server vouches for


@attrs.frozen
class Caller:
    """Who sends a request: the name of its token, None where none is needed; and the profile it is bound to. `client`:
    the program for which an authorization server made the token. `is_owner`: it may also act for the owner, on the
    page."""

    name: str | None = None
    profile: str | None = None
    client: str | None = None
    is_owner: bool = False


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_safe(url: str) -> bool:
    """Whether what is read there can be trusted: over TLS, or from this machine."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    host = parts.hostname
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


# --------------------------------------------------------------------------------------------------------------
#
#
# The bounds of the HTTP door. Times are in seconds, sizes in bytes.

MIB: Final = 1 << 20


@attrs.frozen
class Rules:
    max_body: int = 4 * MIB  # of one request
    body_time: float = 30.0  # for a whole body to arrive
    head_time: float = 10.0  # for a whole head to arrive
    # Connections without a whole request; of more, the oldest are closed. A program that starts hundreds of clients
    # connects them all before any of them sends. Those that send nothing take 4 KiB each, those with half a head 40.
    waiting_heads: int = 1024
    connections: int = 4096
    stalled_time: float = 60.0  # a peer that reads nothing for so long, while something waits, is cut
    keep_alive: float = 15.0  # between two signs of life on a silent event stream
    commit_time: float = (
        2.0  # a request without an answer for so long gets an event stream, which can be resumed
    )
    replay_events: int = 256  # of one event stream
    replay_bytes: int = MIB  # of one event stream
    busy_bytes: int = 256 << 10  # unread by the client: no notification is added
    ended_streams: int = 16  # of one session, which can still be replayed
    ended_bytes: int = 2 * MIB  # in these
    max_sessions: int = 1000
    session_idle: float = 1800.0  # without a message
    session_life: float = 86_400.0
    gives_way: float = (
        60.0  # silent for so long, a session without a stream ends when its child's slot is wanted
    )
    look_for_room: float = 1.0  # between two looks at who could give way, while something waits for a slot
    open_requests: int = 1024  # HTTP requests of one session at once
    state_handles: bool = False  # clients without a session can have state by a handle


def rules_of(settings: Settings) -> Rules:
    return Rules(
        max_body=settings.http_max_body,
        max_sessions=settings.http_max_sessions,
        session_idle=settings.http_session_idle,
        session_life=settings.http_session_life,
        state_handles=settings.http_state_handles,
    )
