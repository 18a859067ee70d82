"""One HTTP request: its headers by name, its body within bounds, and its answer."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Coroutine, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import attrs

from ...actors.message_buffer import LONG, MessageBuffer, on_one_line
from ...actors.timers import reads_for
from ...config.model import Settings
from ...protocol import jsonrpc as rpc
from ...protocol.jsonrpc.terms import MISSING_CAPABILITY, TRACE_KEYS, RpcFault
from ...protocol.trace_context import TraceContext, trace_in

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
# | head too large, in bytes or lines | 431 |
# | no session id, where one is needed; a header given twice | 400 |
# | not JSON, not one JSON-RPC message | 400 with -32700, -32600 |
# | 2026-07-28 in header or body: the other contradicts it | 400 with -32020 |
# | an unknown version / a method that 2026-07-28 does not have | 400 with -32022 / 404 with -32601 |
# | too many sessions, too many requests or bytes of them at once, the gateway is ending | 503, with `Retry-After` |
# | `initialize` and other requests that are answered | 200 |
# | a notification, or an answer to our request | 202 |
# | DELETE | 200 |
#
# What is no HTTP is refused with 400, before anything of it is looked at. The body of a refusal is a JSON-RPC
# error with the id null, because that is what clients show. It names nothing of another caller.

Headers = Sequence[tuple[bytes, bytes]]
HEADER_MISMATCH: Final = -32020
REQUEST_CANCELLED: Final = -32800
CLOSE: Final = (b"connection", b"close")
JSON: Final = (b"content-type", b"application/json")
_RETRY: Final = (b"retry-after", b"5")
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


class HttpRefusal(Exception):
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


def no_session() -> HttpRefusal:
    return HttpRefusal(404, "Not Found: Session not found. Open another one with initialize.")


def no_such_path() -> HttpRefusal:
    return HttpRefusal(404, "Not Found")


def not_allowed(*methods: str) -> HttpRefusal:
    allowed = ", ".join(methods)
    return HttpRefusal(405, f"Method Not Allowed: use {allowed}.", (b"allow", allowed.encode()))


def ending() -> HttpRefusal:
    return HttpRefusal(503, "The gateway is shutting down; nothing was done.", _RETRY, code=rpc.SERVER_ERROR)


def busy(fault: RpcFault) -> HttpRefusal:
    return HttpRefusal(503, fault.message, _RETRY, CLOSE, code=fault.code, data=fault.data)


def too_many(what: str) -> HttpRefusal:
    return HttpRefusal(503, f"Too many {what} are open. Try again later.", _RETRY, code=rpc.OVERLOADED)


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
_TRACE_NAMES: Final = frozenset(name.encode() for name in TRACE_KEYS)
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_DIGITS: Final = 18  # of a length; Python makes no number of very many
PIECE: Final = 1 << 18  # bytes of a body that are written at once
_HELD: Final = 1 << 16  # bytes of a body that wait to be read; beyond, its client has to wait
_STATUS: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
_JSON_LINE: Final = b"content-type: application/json\r\n"


class RequestConnection(Protocol):
    """What a request came on."""

    @property
    def stays(self) -> bool:
        """Whether it may be kept after an answer."""
        ...

    def write(self, data: bytes) -> None: ...

    async def drained(self) -> None:
        """Wait while the peer reads slowly."""
        ...

    def read_more(self) -> None:
        """Some of the body has been read."""
        ...

    def answered(self, *, stays: bool) -> None:
        """The answer to its request is written. `stays`: its client may send another one."""
        ...

    def spawn(self, request: DoorRequest, work: Coroutine[Any, Any, None]) -> None:
        """Do this in a task, for as long as the server runs."""
        ...

    def abort(self) -> None:
        """Cut it."""
        ...


class DoorRequest:
    """One request, whose head has come. `headers` are by their lower-case names; of a header given twice, the last.
    `is_whole`: its body has come, too. `fault`: why it is refused, whatever it asks for. `on_answer`: what each answer
    says in its head besides.

    `caller`, who sends it, and `profile`, what it sees, are set once they are known.

    Its connection adds the body, and tells when the client is gone. It is over when its answer is complete, or its
    client is gone; what is written after that goes nowhere. Fields that few requests change are class attributes."""

    caller: Caller
    profile: str | None
    fault: HttpRefusal | None = None
    is_whole: bool = False
    is_answered: bool = False
    is_gone: bool = False
    is_over: bool = False
    on_answer: Headers = ()
    _held: int = 0
    _news: asyncio.Future[None] | None = None
    _was_asked: bool = False  # for its body
    _stays: bool = False  # the connection, after the answer

    def __init__(
        self,
        connection: RequestConnection,
        method: str,
        target: bytes,
        headers: dict[bytes, bytes],
        *,
        keeps: bool = True,
        is_old: bool = False,
        fault: HttpRefusal | None = None,
    ) -> None:
        self.method = method
        path, _, query = target.partition(b"?")
        self.path: bytes = path
        self.query: bytes = query
        self.headers = headers
        if fault is not None:
            self.fault = fault
        self._connection = connection
        self._keeps = keeps  # the connection, if its client is asked
        self._is_old = is_old  # HTTP/1.0: its client knows no chunks
        self._pieces: list[bytes] = []
        self._then: list[Callable[[], object]] = []

    @property
    def trace(self) -> TraceContext | None:
        """The trace that its headers name. (`_meta` of a request in it may name another.)"""
        if _TRACE_NAMES.isdisjoint(self.headers):
            return None
        return trace_in({name: self.text(name.encode()) for name in TRACE_KEYS})

    def text(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def accepts(self, kind: bytes) -> bool:
        """Whether the client takes an answer of this media type."""
        return takes(self.headers.get(b"accept", b""), kind)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on in a task. It has to answer, whatever happens."""
        self._connection.spawn(self, work)

    def when_over(self, then: Callable[[], object]) -> None:
        """Call `then` when this is over, whether it was answered or not; at once if it is."""
        if self.is_over:
            then()
        else:
            self._then.append(then)

    # ---- from its connection -------------------------------------------------------------------------------------

    def add(self, piece: bytes) -> None:
        """A piece of its body has come."""
        if not self.is_over:
            self._pieces.append(piece)
            self._held += len(piece)

    @property
    def is_full(self) -> bool:
        """Whether so much of its body waits to be read that no more should come."""
        return self._held > _HELD

    def complete(self) -> None:
        self.is_whole = True

    def fail(self, fault: HttpRefusal) -> None:
        """The rest of its body will never come, or cannot be read."""
        self.fault = fault

    def come_too_late(self) -> None:
        """The time for its body is over."""
        self.fail(HttpRefusal(408, "Request Timeout: the body did not arrive in time.", CLOSE))
        self.wake()

    def gone(self) -> None:
        """Its client has disconnected."""
        self.is_gone = not self.is_over
        self.wake()
        self._end()

    def wake(self) -> None:
        """Something has come, or will not come any more: whoever waits for the body looks again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._pieces.clear()
            then, self._then = self._then, []
            for each in then:
                each()

    # ---- the body ------------------------------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """Whether the whole body is there, and so short that nobody has to wait while it is read."""
        return self.is_whole and self._held <= LONG

    def short_body(self, most: int) -> bytes | bytearray:
        """The body of a request that `is_short`, on one line. Raises `HttpRefusal` when it is larger than `most`."""
        pieces, self._pieces = self._pieces, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(body) > most:
            raise _too_large(most)
        return on_one_line(body)

    async def body(
        self, most: int, time: Deadlines[DoorRequest], arriving: Callable[[int], object] | None = None
    ) -> bytes | bytearray:
        """The whole body, on one line: without newlines, which in JSON are white space, and which must not reach a
        server that reads lines. What comes in pieces is told to `arriving`. Raises
        `HttpRefusal` when it is larger than `most`, has more values than a message may have, or takes more than its
        `time`; `RpcFault` when too much waits at the doors; `ClientGone`."""
        length = self.headers.get(b"content-length", b"0")
        if len(length) > _DIGITS or int(length) > most:
            raise _too_large(most)
        if self.is_short:
            return self.short_body(most)
        held = MessageBuffer()
        time.begin(self)
        try:
            while (piece := await self.piece()) is not None:
                over = held.add(on_one_line(piece))
                if arriving is not None:
                    arriving(len(piece))
                if over:
                    raise HttpRefusal(413, f"Content Too Large: the request has more than {over}.")
                if len(held.data) > most:
                    break
        finally:
            time.end(self)
        body = held.end()
        if len(body) > most:
            raise _too_large(most)
        return body

    async def piece(self) -> bytes | None:
        """What has come of the body since the last piece; None: there is no more. Raises `ClientGone` when the client
        has disconnected, and `HttpRefusal` when no more can come."""
        while True:
            if self.is_over:
                raise ClientGone
            if self._pieces:
                piece = b"".join(self._pieces)
                self._pieces.clear()
                self._held = 0
                self._connection.read_more()
                return piece
            if self.fault is not None:
                raise self.fault
            if self.is_whole:
                return None
            self._ask_for_more()
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    def _ask_for_more(self) -> None:
        """A client may wait until its body is asked for, to see whether it is refused by its head alone."""
        if not self._was_asked:
            self._was_asked = True
            if not self._is_old and self.headers.get(b"expect", b"").lower() == b"100-continue":
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # ---- the answer ----------------------------------------------------------------------------------------------

    def answer(self, status: int, body: bytes = b"", headers: Headers = (JSON,)) -> None:
        """The whole answer, in one write if it is short. The connection of a request that has not come whole is closed
        after it."""
        if self.is_over:
            return
        self.is_answered = True
        head = self._head(status, headers, b"content-length: %d\r\n" % len(body))
        if self.method == "HEAD":
            body = b""
        if len(body) > PIECE:
            self._connection.write(head)
            self.later(self._write_rest(body))
        else:
            self._connection.write(head + body)
            self._complete()

    async def _write_rest(self, body: bytes) -> None:
        """Write a large body, piece by piece: each is copied on its way out."""
        for start in range(0, len(body), PIECE):
            self._connection.write(body[start : start + PIECE])
            await self._connection.drained()
            await anyio.lowlevel.checkpoint()  # others first, also when the client reads as fast as we write
            if self.is_over:
                return
        self._complete()

    def refuse(self, refusal: HttpRefusal) -> None:
        self.answer(refusal.status, refusal.body, (JSON, *refusal.headers))

    def begin_stream(self, headers: Headers = (), status: int = 200, kind: Headers = STREAM_HEADERS) -> None:
        """The head of an answer that comes in pieces: an event stream, unless `kind` says otherwise. `write` the
        pieces, and `end_stream`."""
        if not self.is_over:
            self.is_answered = True
            how = b"" if self._is_old else b"transfer-encoding: chunked\r\n"
            self._connection.write(self._head(status, (*kind, *headers), how))

    async def write(self, data: bytes) -> None:
        """Write a piece, and wait while the client reads slowly."""
        if self.is_over or not data or self.method == "HEAD":
            return
        self._connection.write(data if self._is_old else b"%x\r\n%b\r\n" % (len(data), data))
        await self._connection.drained()
        if len(data) >= PIECE:
            await anyio.lowlevel.checkpoint()  # others first, also when the client reads as fast as we write

    async def write_long(self, data: bytes) -> None:
        """Write a large part of a body, piece by piece: each is copied several times on its way out."""
        for start in range(0, len(data), PIECE):
            await self.write(data[start : start + PIECE])

    def end_stream(self) -> None:
        if not self.is_over:
            if not self._is_old and self.method != "HEAD":
                self._connection.write(b"0\r\n\r\n")
            self._complete()

    def _head(self, status: int, headers: Headers, how: bytes) -> bytes:
        """The head of the answer. `how` says where its body ends."""
        self._stays = self._keeps and self.is_whole and self._connection.stays
        parts = [_STATUS[status]]
        for header in (*headers, *self.on_answer):
            if header == CLOSE:
                self._stays = False
            elif header == JSON:
                parts.append(_JSON_LINE)
            else:
                parts.append(b"%b: %b\r\n" % header)
        parts.append(how)
        parts.append(b"\r\n" if self._stays else b"connection: close\r\n\r\n")
        return b"".join(parts)

    def _complete(self) -> None:
        self._end()
        self._connection.answered(stays=self._stays)

    async def disconnected(self) -> None:
        """Wait until the client has disconnected, or has its whole answer."""
        over = anyio.Event()
        self.when_over(over.set)
        await over.wait()

    def abort(self) -> None:
        """Cut the connection: its peer does not read."""
        self._connection.abort()


def takes(said: bytes, kind: bytes) -> bool:
    """Whether a client whose `Accept` says this takes this media type."""
    main = kind.partition(b"/")[0]
    kinds = {part.partition(b";")[0].strip() for part in said.lower().split(b",")}
    return not kinds.isdisjoint((kind, main + b"/*", b"*/*"))


def unlike_http(why: str) -> HttpRefusal:
    """The refusal of bytes that are not HTTP/1.1. `why`: a text of ours, which quotes nothing of them."""
    return HttpRefusal(400, f"Bad Request: this is not HTTP/1.1 that is understood here: {why}.", CLOSE)


def head_too_large() -> HttpRefusal:
    return HttpRefusal(431, "Request Header Fields Too Large.", CLOSE)


def refused_twice(name: bytes) -> HttpRefusal | None:
    """The refusal of a request that has a second header of this name; None: it may."""
    if name in _SINGLE or name.startswith(_MIRRORED):
        return HttpRefusal(400, f"Bad Request: {name.decode()} is given twice.", CLOSE)
    return None


def _too_large(most: int) -> HttpRefusal:
    return HttpRefusal(413, f"Content Too Large: a request may have {most} bytes.")


def body_time(rules: Rules) -> Deadlines[DoorRequest]:
    """For bodies to arrive."""
    return Deadlines(rules.body_time, DoorRequest.come_too_late)


class ClientGone(Exception):
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
        # Asking for it costs a system call before Python 3.12.
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[T]:
        """Those who wait, the longest first."""
        return iter(tuple(self._due))

    def begin(self, who: T) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        due = self._due.setdefault(who, loop.time() + self._seconds)
        if self._timer is None:
            self._timer = loop.call_at(due, self._rings, due)

    def end(self, who: T) -> None:
        self._due.pop(who, None)

    def _rings(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(reads_for(due, loop.time()), self._look)

    def _look(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        while self._due:
            who, due = next(iter(self._due.items()))
            if due > loop.time():
                self._timer = loop.call_at(due, self._rings, due)
                return
            self.end(who)
            self._ring(who)


# ---- Who sends a request, and which addresses are of this machine ---------------------------------------------------

OAUTH: Final = "oauth:"  # with this the names of callers begin that an authorization server vouches for


@attrs.frozen
class Caller:
    """Who sends a request: the name of its token, None where none is needed; and the profile it is bound to. `client`:
    the program for which an authorization server made the token, `scopes`: what the token may do; another token of the
    same caller may have others. `is_owner`: it may also act for the owner, on the page."""

    name: str | None = None
    profile: str | None = None
    client: str | None = None
    is_owner: bool = False
    scopes: frozenset[str] = attrs.field(default=frozenset(), eq=False)


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


# ---- The bounds of the HTTP door -------------------------------------------------------------------------------------
#
# Times are in seconds, sizes in bytes.

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
    silence: float = 75.0  # that a connection may keep between two requests; it is closed by twice that
    sent_at_once: int = 32  # requests that one connection may send before they are answered
    stalled_time: float = 60.0  # a peer that reads nothing for so long, while something waits, is cut
    keep_alive: float = 15.0  # between two signs of life on a silent event stream
    # A request without an answer for so long gets an event stream, which can be resumed.
    commit_time: float = 2.0
    replay_events: int = 256  # of one event stream
    replay_bytes: int = MIB  # of one event stream
    busy_bytes: int = 256 << 10  # unread by the client: no notification is added
    ended_streams: int = 16  # of one session, which can still be replayed
    ended_bytes: int = 2 * MIB  # in these
    max_sessions: int = 1000
    session_idle: float = 1800.0  # without a message
    session_life: float = 86_400.0
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
