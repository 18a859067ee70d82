"""One connection of the HTTP door: HTTP/1.1 over asyncio's transport, parsed by httptools (llhttp, Node's parser).

It reads requests one after the other, gives each to the door as soon as its head has come (`DoorRequest`), and writes
the answers in the same order. While a request is open, what comes after it waits. No request has a task of its own
unless its door wants one: what has come whole and waits for nothing but its server is carried out by callbacks.

What a peer may do is bounded: the time and the bytes of a head, and of what stands between the pieces of a body; the
connections that wait for a head; the requests that are sent before they are answered; the body that nobody reads yet;
how long a peer may not read. The system bounds one that is dead (`HttpServer`).

Rejected: uvicorn. It was here, and calls an application in a task of its own for each request. A constant answer costs
it 12 times the processor of a protocol that reads nothing with its h11, which is Python, and four times with its
httptools; a call through Greenroom cost six and a half times as much as over stdio, and costs two and a third here
(B15). Four bounds had to be put around it, too. Its httptools also loses the body of a request that offers another
protocol, as Java's client does with every POST (`Upgrade: h2c`). Rejected: hypercorn (several tasks for each
connection, h11) and granian (processes of its own, no loop that runs already).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, cast

import anyio
import httptools

from ...actors.timers import reads_for
from ...protocol.bounds import HTTP_HEAD_BYTES, HTTP_HEAD_LINES
from .http_request import (
    CLOSE,
    Deadlines,
    DoorRequest,
    HttpRefusal,
    Rules,
    head_too_large,
    refused_twice,
    unlike_http,
)

_CODING: Final = b"transfer-encoding"
_LENGTHS: Final = (b"content-length", _CODING)
_VERSIONS: Final = ("1.1", "1.0")

Door = Callable[[DoorRequest], object]  # answers a request, in this step or later; never raises


class _EnoughRead(Exception):
    """Ends the parsing in the middle of what has come: all of it would hold others up."""


class DoorConnections:
    """The connections of one server, and what they share."""

    def __init__(self, door: Door, rules: Rules) -> None:
        self.door = door
        self.rules = rules
        self.open: set[DoorConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_leaving: bool = False
        self.heads: Heads = Heads(rules)
        self.looks: Deadlines[DoorConnection] = Deadlines(rules.silence, DoorConnection.look_for_silence)
        self._none_left: asyncio.Event = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return len(self.open) > self.rules.connections

    def leave(self) -> None:
        """Close each connection, one with an open request once it is answered."""
        self.is_leaving = True
        for connection in tuple(self.open):
            connection.leave()

    def forget(self, connection: DoorConnection) -> None:
        """It is closed."""
        self.open.discard(connection)
        self.heads.came(connection)
        self.looks.end(connection)
        if not self.open:
            self._none_left.set()

    async def gone(self) -> None:
        """Wait until all are closed."""
        while self.open:
            self._none_left.clear()
            await self._none_left.wait()

    async def cut(self) -> None:
        """Cut all that are open, and end what is still done for them."""
        for connection in tuple(self.open):
            connection.abort()
        for task in (tasks := tuple(self.tasks)):
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.gone()


def _size(headers: Mapping[bytes, bytes]) -> int:
    return sum(map(len, headers)) + sum(map(len, headers.values()))


class DoorConnection(asyncio.Protocol):
    """See `RequestConnection`."""

    def __init__(self, connections: DoorConnections) -> None:
        self._all = connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._request: DoorRequest | None = None  # the one that is being answered
        self._waiting: deque[DoorRequest] = deque()  # those after it
        self._coming: DoorRequest | None = None  # its head has come, and its body not yet
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._fault: HttpRefusal | None = None  # of the head that comes
        self._enough: HttpRefusal | None = None  # why nothing more is read, however well it may be written
        self._lines = 0  # of the head that comes, and behind its body
        self._unmoved = 0  # bytes since the last that belonged to a body, or ended something
        self._moves = False
        self._is_in_head = False
        self._waits_for_head = False
        self._was_used = False  # since the last look
        self._lengths: list[bytes] = []  # what says where the body is, in a head that offers another protocol
        self._is_again = False  # a head is read for the second time
        self._reads_no_more = False
        self._is_paused = False
        self._may_write: asyncio.Future[None] | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # ---- from the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._all.open.add(self)
        self._all.looks.begin(self)
        self._wait_for_head()
        if self._all.is_leaving:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.forget(self)
        self.resume_writing()
        self._waiting.clear()
        del self._parser  # which refers to this
        if self._request is not None:
            self._request.gone()

    def data_received(self, data: bytes) -> None:
        if self._reads_no_more:
            return
        self._moves = False
        self._unmoved += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if self._enough is None and isinstance(error, httptools.HttpParserCallbackError):
                raise  # it is a bug of ours
            self._cannot_read(self._enough or unlike_http(str(error)))
        else:
            if self._moves:
                self._unmoved = 0
            elif self._unmoved > HTTP_HEAD_BYTES:
                self._cannot_read(head_too_large())
        if self._request is not None:
            self._request.wake()
        elif self._waiting:
            self._begin_next()
        else:
            self._wait_for_head()
        if self._waiting or self._coming is not None or self._reads_no_more:
            self._read_or_not()

    def eof_received(self) -> None:
        pass  # who sends no more has left, as asyncio sees it

    # ---- from the parser -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_again:
            return
        if len(self._waiting) >= self._all.rules.sent_at_once:
            text = "Too many requests wait on this connection. Wait for their answers, then send more."
            self._enough = HttpRefusal(503, text, CLOSE)
            raise _EnoughRead
        self._target, self._headers, self._fault, self._lines = b"", {}, None, 0
        self._is_in_head = True

    def on_url(self, part: bytes) -> None:
        if not self._is_again:
            self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines += 1
        if self._lines > HTTP_HEAD_LINES:
            self._enough = head_too_large()
            raise _EnoughRead
        if self._coming is not None:
            return  # after the body: nothing here asks for it
        name = name.lower()
        if name in self._headers:
            self._fault = self._fault or refused_twice(name)
        self._headers[name] = value.strip(b" \t")  # the parser leaves what stands behind it (RFC 9110, 5.5)

    def on_headers_complete(self) -> None:
        self._moves = True
        if self._is_again:
            return
        self._is_in_head = False
        parser, headers = self._parser, self._headers
        version, method = parser.get_http_version(), parser.get_method().decode()
        fault, is_old = self._fault or self._fault_of(method, version), version != "1.1"
        keeps = not is_old and parser.should_keep_alive()
        self._coming = request = DoorRequest(
            self, method, self._target, headers, keeps=keeps, is_old=is_old, fault=fault
        )
        self._waiting.append(request)
        if parser.should_upgrade():
            self._lengths = [b"%b: %b\r\n" % (name, headers[name]) for name in _LENGTHS if name in headers]

    def _fault_of(self, method: str, version: str) -> HttpRefusal | None:
        headers = self._headers
        if self._unmoved > HTTP_HEAD_BYTES and _size(headers) + len(self._target) > HTTP_HEAD_BYTES:
            return head_too_large()
        if version not in _VERSIONS:
            return unlike_http("its version is not 1.1")
        if method == "CONNECT":
            return unlike_http("this is not a proxy")
        if _CODING in headers and headers[_CODING].lower() != b"chunked":
            return unlike_http("the only Transfer-Encoding of a body that is taken is chunked")
        if self._all.is_full:
            return HttpRefusal(503, "Too many connections are open. Try again later.", CLOSE)
        return None

    def on_body(self, piece: bytes) -> None:
        self._moves = True
        if self._coming is not None:
            self._coming.add(piece)

    def on_message_complete(self) -> None:
        self._moves = True
        if self._coming is not None and not self._lengths:
            self._coming.complete()
            self._coming = None

    def _parse(self, data: bytes) -> None:
        """Raises `HttpParserError`."""
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                # No other protocol is spoken here, and whoever offers one goes on in this one (RFC 9110, 7.8). To this
                # parser everything behind the head is of the other protocol, so another one reads the body.
                data = data[offer.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                if self._lengths:
                    lengths, self._lengths = self._lengths, []
                    self._is_again = True
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lengths))
                    self._is_again = False
            else:
                return

    def _cannot_read(self, fault: HttpRefusal) -> None:
        """What comes is not understood, and nothing behind it: answer what came before, then this, and close."""
        self._reads_no_more = True
        if self._coming is not None:
            self._coming.fail(fault)
            self._coming = None
        else:
            self._waiting.append(DoorRequest(self, "", b"", {}, keeps=False, fault=fault))

    # ---- requests, one after the other ---------------------------------------------------------------------------

    def _begin_next(self) -> None:
        if self._request is None and self._waiting:
            if self._waits_for_head:
                self._waits_for_head = False
                self._all.heads.came(self)
            self._request = request = self._waiting.popleft()
            self._all.door(request)
            if self._is_paused:
                self._read_or_not()

    def answered(self, *, stays: bool) -> None:
        self._request = None
        if not stays:
            self._reads_no_more = True
            self._waiting.clear()
            self._transport.close()
        elif self._waiting:
            self._loop.call_soon(self._begin_next)
        elif self._is_in_head:
            self._wait_for_head()
        else:
            self._was_used = True

    def _wait_for_head(self) -> None:
        self._waits_for_head = True
        self._all.heads.wait_for(self)

    def look_for_silence(self) -> None:
        """Close it, if nothing has been asked since the last look, and else look again: a timer that each request sets
        would cost it something."""
        if self._was_used or self._request is not None:
            self._was_used = False
            self._all.looks.begin(self)
        else:
            self._transport.close()

    @property
    def stays(self) -> bool:
        return not self._all.is_leaving

    def spawn(self, request: DoorRequest, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._all.tasks.add(task)
        task.add_done_callback(partial(self._request_ended, request))

    def _request_ended(self, request: DoorRequest, task: asyncio.Task[None]) -> None:
        self._all.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "a request was left unanswered", "exception": error}
            )
            if not request.is_over:
                self.abort()

    def leave(self) -> None:
        """Close the connection as soon as it has no request without an answer."""
        if self._request is None:
            self._transport.close()

    def abort(self) -> None:
        self._all.heads.came(self)
        self._transport.abort()

    # ---- reading and writing -------------------------------------------------------------------------------------

    def read_more(self) -> None:
        if self._is_paused:
            self._read_or_not()

    def _read_or_not(self) -> None:
        """Read on, unless what has come is enough for now."""
        coming = self._coming
        is_enough = self._reads_no_more or bool(self._waiting) or (coming is not None and coming.is_full)
        if is_enough is not self._is_paused and not self._transport.is_closing():
            self._is_paused = is_enough
            if is_enough:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drained(self) -> None:
        if self._may_write is not None:
            await self._may_write

    def pause_writing(self) -> None:
        self._may_write = self._loop.create_future()
        self._watch_flow()

    def resume_writing(self) -> None:
        waiting, self._may_write = self._may_write, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _watch_flow(self) -> None:
        unread, due = (
            self._transport.get_write_buffer_size(),
            self._loop.time() + self._all.rules.stalled_time,
        )
        self._stalled = self._loop.call_at(due, self._stall_is_due, unread, due)

    def _stall_is_due(self, unread: int, due: float) -> None:
        self._stalled = self._loop.call_later(reads_for(due, self._loop.time()), self._check_flow, unread)

    def _check_flow(self, unread: int) -> None:
        if self._transport.get_write_buffer_size() >= unread:
            self.abort()
        else:
            self._watch_flow()


class Heads:
    """The connections that have not sent a whole head yet. Each is cut when its time is over, and the oldest when there
    are too many."""

    def __init__(self, rules: Rules) -> None:
        self._most = rules.waiting_heads
        self._waiting = Deadlines(rules.head_time, DoorConnection.abort)
        self._counts = False

    def wait_for(self, connection: DoorConnection) -> None:
        self._waiting.begin(connection)
        if len(self._waiting) > self._most and not self._counts:
            self._counts = True
            # Many may have come at once. What they have sent is read in the next turn of the loop: count after that.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._count)

    def came(self, connection: DoorConnection) -> None:
        self._waiting.end(connection)

    def _count(self) -> None:
        self._counts = False
        for connection in islice(self._waiting, max(0, len(self._waiting) - self._most)):
            connection.abort()
