"""Bounds what is read from an HTTP server: heads, trailers, bodies and cookies. What costs a server five kilobytes must
not stop everybody else here.

httpx2, httpcore2 and h11 have bounds of their own, and they are too wide or not there. h11 reads a head of 100 KiB in
one go, however many lines it has, and so the lines behind a chunked body: that takes 40 ms, and what httpx2 makes of it
as long again. Nothing bounds the interim answers before an answer (HTTP 100, 103). A body that is encoded three times
is decoded three times, and `aread`, by which the SDK reads what logs us in, has no bound. (Tried without what is here:
the head of many lines in `test_http_hostile` stops everybody for more than 50 ms.)

Bodies. Every response of a client passes through `DecodedBody`, also the responses that only a login reads. So no loop
that reads a body has to take care of these rules:

* We ask for gzip. A body may be encoded once, with gzip or deflate. A body with two encodings, or another one, is
  refused when it is read; its status counts all the same. A few kilobytes, packed three times, are gigabytes.
* A piece has `PIECE` bytes at most, and is decoded only when it is asked for. A piece of an event stream is smaller
  when it holds many lines, because each line is work. Between two pieces others get their turn once `TURN` seconds
  have passed.
* A body that does not answer one of our requests (a refusal, or what a login reads) may have `HTTP_ASIDE_BYTES` at
  most. The reader of an answer applies its own bound.
* A body that is left in the middle is closed, not drained. The library's stream is a chain of generators, and none
  closes the next. If it were dropped half-way, the garbage collector would find it and warn. So it is unwound from
  inside: asked for more under a cancellation, it ends by itself after what it had already read.

Frames. What comes from the network passes through `Frame` before h11 parses it, and is followed from the last byte that
we wrote. Only the sizes of the chunks of a body are looked at. A read is small until it is known that it does not hold
hundreds of chunks. A pool of httpcore2 takes such a network when it is made, but the transport of httpx2, which makes
the pool, does not pass one on. So it is put in place behind it (`bound_frames`), and a test fails when that place
moves. Rejected: a transport of our own around the pool; it would have to make three kinds of pools, and to translate
each error of httpcore2.

Cookies are kept, because load balancers find a session's machine by them: few of them, short, and of plain text.
"""

from __future__ import annotations

import contextlib
import math
import re
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from http.cookiejar import Cookie, CookieJar
from typing import Any

import anyio
import anyio.lowlevel
import httpcore2
import httpx2

from ...protocol.bounds import (
    HTTP_ASIDE_BYTES,
    HTTP_COOKIE_CHARACTERS,
    HTTP_COOKIES,
    HTTP_COOKIES_AT_ONCE,
    HTTP_HEAD_BYTES,
    HTTP_HEAD_LINES,
    HTTP_INTERIM,
    HTTP_PACKED,
)
from ...protocol.jsonrpc.incoming import BYTE_ORDER_MARK, excerpt
from ..message_buffer import MessageBuffer, on_one_line
from ..timers import at_most, in_time
from .http_faults import BadAnswer, ExchangeFault, all_faults_told, media_type

PIECE = 1 << 16
TURN = 0.002  # seconds
OURS = "greenroom.ours"  # the extension of a request whose answer we read ourselves
_LINES = 128  # in a piece of an event stream; a piece with more is cut
_PIECE_OF_LINES = 2048  # bytes
_AS_IT_IS = (
    "",
    "identity",
    "none",
    "utf-8",
    "utf8",
)  # the last three are no encodings, but servers do send them
_ZLIB, _RAW, _GZIP = 15, -15, 31  # zlib's numbers for its formats
_REFUSAL_WITHIN = 5.0  # seconds
_FIRST_READ = 1 << 14
_LAST_READ = 1 << 16
_LAST_CHUNKED = 1 << 15
_MANY_CHUNKS = 256  # in one read
_END = re.compile(rb"\n\r?\n")
_CHUNKED = re.compile(rb"\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,20}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,20})\r\n")
_INTERIM = re.compile(rb"\s*HTTP/1\.\d 1(?!01)")


# ---- bodies ---------------------------------------------------------------------------------------------------------
async def read_bounded(response: httpx2.Response, limit: int) -> bytes | bytearray:
    """The whole body, which is JSON, on one line. Raises `BadAnswer` when it is over `limit` bytes, or has more values
    than a message may have."""
    body = MessageBuffer()
    async with contextlib.aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            over = body.add(on_one_line(piece))
            if len(body.data) > limit:
                over = f"{limit:,} bytes"
            if over:
                raise BadAnswer(f"the answer is over the bound of {over}")
    data = body.end()
    return data.removeprefix(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else data


async def read_raw(response: httpx2.Response, limit: int) -> bytes:
    """The whole body as it came, whatever it is. Raises `BadAnswer` when it is over `limit` bytes."""
    body = bytearray()
    async with contextlib.aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > limit:
                raise BadAnswer(f"the answer is over the bound of {limit:,} bytes")
    return bytes(body)


async def read_refusal(response: httpx2.Response) -> bytes:
    """The body of a refusal, as far as it can be read within a few seconds and its bound."""
    body = bytearray()
    async with at_most(_REFUSAL_WITHIN):
        with contextlib.suppress(ExchangeFault):
            async with contextlib.aclosing(response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    body += piece
    return bytes(body)


async def take_over(response: httpx2.Response) -> None:
    """The client's hook: wrap the response's body in `DecodedBody`, and read it as UTF-8."""
    ours = OURS in response.request.extensions and response.is_success
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = DecodedBody(
        response.stream,
        response.headers.get("content-encoding", ""),
        limit=None if ours else HTTP_ASIDE_BYTES,
        is_lines=media_type(response) == "text/event-stream",
    )
    response.headers.pop("content-encoding", None)
    response.encoding = "utf-8"


class DecodedBody(httpx2.AsyncByteStream):
    """A decoded body. `encoding`: the value of its header. `limit`: decoded bytes above which it is refused."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, encoding: str, *, limit: int | None, is_lines: bool
    ) -> None:
        self._stream = stream
        self._encoding = encoding
        self._limit = limit
        self._is_lines = is_lines

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        """Raises `BadAnswer` for a wrong encoding or a body over its bound, and `Broken` when it breaks off."""
        decode = _decoder(self._encoding)
        length, came, turn = 0, 0, anyio.current_time() + TURN
        raw = self._stream.__aiter__()
        try:
            while data := await _next(raw):
                came += len(data)
                for piece in decode(data):
                    length += len(piece)
                    if self._limit is not None and length > self._limit:
                        raise BadAnswer(f"the answer is over the bound of {self._limit:,} bytes")
                    if self._is_lines and length > HTTP_ASIDE_BYTES + HTTP_PACKED * came:
                        raise BadAnswer(f"the event stream is packed over {HTTP_PACKED} times")
                    for part in self._parts(piece):
                        yield part
                        if anyio.current_time() > turn:
                            await anyio.lowlevel.checkpoint()
                            turn = anyio.current_time() + TURN
        finally:
            await _unwind(raw)

    def _parts(self, piece: bytes) -> Iterator[bytes]:
        if not self._is_lines or piece.count(b"\n") + piece.count(b"\r") <= _LINES:
            yield piece
            return
        for start in range(0, len(piece), _PIECE_OF_LINES):
            yield piece[start : start + _PIECE_OF_LINES]

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _next(raw: AsyncIterator[bytes]) -> bytes:
    """The next bytes that are not empty; empty at the end."""
    with all_faults_told():
        async for data in raw:
            if data:
                return data
    return b""


async def _unwind(raw: AsyncIterator[bytes]) -> None:
    turn = anyio.current_time() + TURN
    with anyio.CancelScope() as scope, contextlib.suppress(Exception):
        scope.cancel()
        async for _ in raw:
            if anyio.current_time() > turn:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                turn = anyio.current_time() + TURN


def _decoder(said: str) -> _PlainDecoder | _InflateDecoder:
    """Raises `BadAnswer` for an encoding that we cannot read, or for several."""
    encodings = [name for part in said.split(",") if (name := part.strip().lower()) not in _AS_IT_IS]
    match encodings:
        case []:
            return _PlainDecoder()
        case ["gzip" | "x-gzip"]:
            return _InflateDecoder(_GZIP)
        case ["deflate"]:
            return _InflateDecoder(None)
        case [_]:
            why = "which was not asked for"
        case _:
            why = "and only one encoding is read"
    raise BadAnswer(
        f"the answer is encoded as {excerpt(said.encode())}, {why}. "
        "Correct the server: it was asked for gzip, or none."
    )


class _PlainDecoder:
    def __call__(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), PIECE):
            yield data[start : start + PIECE]


class _InflateDecoder:
    """Decodes gzip, or deflate in its two forms. Bytes after the end of the data are thrown away."""

    def __init__(self, format: int | None) -> None:
        self._unpack = zlib.decompressobj(format) if format is not None else None

    def __call__(self, data: bytes) -> Iterator[bytes]:
        if self._unpack is None:
            self._unpack = zlib.decompressobj(_ZLIB if data[0] & 0x0F == 8 else _RAW)
        while not self._unpack.eof:
            try:
                piece = self._unpack.decompress(data, PIECE)
            except zlib.error:
                raise BadAnswer("the answer is not encoded as its header says") from None
            if piece:
                yield piece
            data = self._unpack.unconsumed_tail
            if not data and len(piece) < PIECE:
                return


# ---- frames ---------------------------------------------------------------------------------------------------------
def bound_frames(transport: httpx2.AsyncHTTPTransport) -> None:
    """Pass everything that the transport receives through a `Frame`."""
    pool: Any = transport._pool  # pyright: ignore[reportPrivateUsage]
    pool._network_backend = _BoundedNetwork(pool._network_backend)


class Frame:
    """How far one answer has come: in its head, in chunks, in the trailers, or in a body without chunks."""

    def __init__(self) -> None:
        self.most = _FIRST_READ  # bytes that the next read may bring
        self._look: Callable[[bytes], None] | None = self._look_at_head
        self._held = b""  # the part of a head or line that has not ended
        self._interim = 0  # interim answers so far
        self._skip = 0  # bytes that are still to come of the chunk
        self._trailers: int | None = None  # lines of trailers; None before the last chunk

    def look(self, data: bytes) -> None:
        """Look at the next bytes. Raises `RemoteProtocolError` when the frame is over a bound."""
        if self._look is not None:
            self._look(data)
        else:
            self.most = _LAST_READ

    def _look_at_head(self, data: bytes) -> None:
        self._held += data
        while True:
            found = _END.search(self._held)
            end = found.end() if found else len(self._held)
            self._check(end, self._held.count(b"\n", 0, end), "head")
            if found is None:
                return
            if not _INTERIM.match(self._held):
                break
            self._interim += 1
            if self._interim > HTTP_INTERIM:
                raise httpcore2.RemoteProtocolError(
                    f"over {HTTP_INTERIM} interim answers came before the answer"
                )
            self._held = self._held[end:]
        head, rest = self._held[:end], self._held[end:]
        self._held = b""
        self._look = self._look_at_chunks if _CHUNKED.search(head) else None
        self.look(rest)

    def _look_at_chunks(self, data: bytes) -> None:
        at, chunks = 0, 0
        while self._skip < len(data) - at:
            at += self._skip
            self._skip = 0
            if not self._held and self._trailers is None and (size := _CHUNK.match(data, at)) is not None:
                line, at = size[1], size.end()
            else:
                end = data.find(b"\n", at) + 1
                self._held += data[at : end or len(data)]
                self._check(len(self._held), self._trailers or 0, "end")
                if not end:
                    at = len(data)
                    break
                line, self._held, at = self._held, b"", end
            if self._trailers is not None:
                self._trailers += 1
                continue
            chunks += 1
            size = _SIZE.match(line)
            if size is None:
                self._look = None  # the library will report what is wrong with it
                return
            length = int(size[0], 16)
            if length:
                self._skip = length + len(b"\r\n")
            else:
                self._trailers = 0
        self._skip -= len(data) - at
        self.most: int = min(2 * self.most, _LAST_CHUNKED) if chunks < _MANY_CHUNKS else _FIRST_READ

    def _check(self, length: int, lines: int, part: str) -> None:
        if length > HTTP_HEAD_BYTES:
            raise httpcore2.RemoteProtocolError(f"the {part} of the answer is over {HTTP_HEAD_BYTES:,} bytes")
        if lines > HTTP_HEAD_LINES:
            raise httpcore2.RemoteProtocolError(f"the {part} of the answer is over {HTTP_HEAD_LINES} lines")


class _BoundedStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._frame = Frame()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(min(max_bytes, self._frame.most), timeout)
        self._frame.look(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._frame = Frame()
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with _to_connect(timeout):
                return _BoundedStream(await self._stream.start_tls(ssl_context, server_hostname))
        except httpcore2.ConnectTimeout:
            await self.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


@asynccontextmanager
async def _to_connect(timeout: float | None) -> AsyncGenerator[None]:
    """The time for it is ours, not the library's, which reads nothing before it judges (`actors.timers`)."""
    try:
        async with in_time(math.inf if timeout is None else timeout):
            yield
    except TimeoutError as error:
        raise httpcore2.ConnectTimeout from error


class _BoundedNetwork(httpcore2.AsyncNetworkBackend):
    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        async with _to_connect(timeout):
            return _BoundedStream(
                await self._backend.connect_tcp(
                    host, port, local_address=local_address, socket_options=socket_options
                )
            )

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


# ---- cookies --------------------------------------------------------------------------------------------------------
class Cookies(CookieJar):
    """A jar of bounded size. A cookie that does not fit, or could not be sent back, is not kept. Without `keeps`, none
    is: an HTTP API might know all callers by the login of one of them."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self._keeps = keeps

    def extract_cookies(self, response: Any, request: Any) -> None:
        said: list[str] = response.info().get_all("Set-Cookie", [])
        if len(said) <= HTTP_COOKIES_AT_ONCE and sum(map(len, said)) <= HTTP_COOKIE_CHARACTERS:
            super().extract_cookies(response, request)

    def set_cookie(self, cookie: Cookie) -> None:
        said = f"{cookie.name}={cookie.value}{cookie.path}{cookie.domain}"
        if self._keeps and said.isascii() and said.isprintable() and len(self) < HTTP_COOKIES:
            super().set_cookie(cookie)
