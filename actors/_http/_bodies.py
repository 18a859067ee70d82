"""Response bodies: with one encoding at most, decoded in bounded pieces, so that no body delays anybody else.

Every response of a client passes through `Incoming`, also the responses that only a login reads. So no loop that reads
a body has to take care of these rules:

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

The library's own decoders are not used: they decode all that came with one read, even when nobody wants it any more.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import anyio
import anyio.lowlevel
import httpx2

from ...protocol.bounds import HTTP_ASIDE_BYTES, HTTP_PACKED
from ...protocol.jsonrpc import excerpt
from ._faults import BadAnswer, all_faults_told, media_type

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


async def take_over(response: httpx2.Response) -> None:
    """The client's hook: wrap the response's body in `Incoming`, and read it as UTF-8."""
    ours = OURS in response.request.extensions and response.is_success
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = Incoming(
        response.stream,
        response.headers.get("content-encoding", ""),
        limit=None if ours else HTTP_ASIDE_BYTES,
        is_lines=media_type(response) == "text/event-stream",
    )
    response.headers.pop("content-encoding", None)
    response.encoding = "utf-8"


class Incoming(httpx2.AsyncByteStream):
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


def _decoder(said: str) -> _Plain | _Inflate:
    """Raises `BadAnswer` for an encoding that we cannot read, or for several."""
    encodings = [name for part in said.split(",") if (name := part.strip().lower()) not in _AS_IT_IS]
    match encodings:
        case []:
            return _Plain()
        case ["gzip" | "x-gzip"]:
            return _Inflate(_GZIP)
        case ["deflate"]:
            return _Inflate(None)
        case [_]:
            why = "which was not asked for"
        case _:
            why = "and only one encoding is read"
    raise BadAnswer(
        f"the answer is encoded as {excerpt(said.encode())}, {why}. "
        "Correct the server: it was asked for gzip, or none."
    )


class _Plain:
    def __call__(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), PIECE):
            yield data[start : start + PIECE]


class _Inflate:
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
