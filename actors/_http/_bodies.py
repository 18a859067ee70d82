"""Bodies as they may come in: of one encoding at most, decoded in bounded pieces, never in the way of anybody else.

Every response of a client passes through `Incoming`, also those that only a login reads, so that no loop that reads a
body has to think of these:

* We ask for gzip. A body may be encoded once, by gzip or deflate; what is encoded twice, or otherwise, is refused when
  it is read (a status says what it says all the same). A few kilobytes, packed three times, are gigabytes.
* A piece is `PIECE` bytes at most, decoded only when it is asked for; of an event stream it is small when it holds many
  lines, because each of them is work. Between two pieces others have their turn once `TURN` seconds have passed.
* What is not the answer to a request of ours (a refusal, what a login reads) has `HTTP_ASIDE_BYTES` at most. The bound
  of an answer is its reader's.
* A body that is left in the middle is closed and not drained. The library's stream is a chain of generators of which
  one does not close the next; dropped half-way it is found by the garbage collector, with a warning. So it is unwound
  from its inside: asked for more under a cancellation, it ends by itself, with what it had read already.

The library's own decoders are not used: they decode what came with one read to its end, whoever still wants it.
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
OURS = "greenroom.ours"  # the extension of a request of which we read the answer ourselves

_LINES = 128  # in a piece of an event stream
_PIECE_OF_LINES = 2048
_AS_IT_IS = (
    "",
    "identity",
    "none",
    "utf-8",
    "utf8",
)  # the last three are no encodings, but servers do say them
_ZLIB, _RAW, _GZIP = 15, -15, 31  # what zlib calls its formats


async def take_over(response: httpx2.Response) -> None:
    """The client's hook: from here on the response's body is `Incoming`, and UTF-8."""
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
    """A body, decoded. `encoding`: what its header says; `limit`: in bytes, decoded, over which it is refused."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, encoding: str, *, limit: int | None, is_lines: bool
    ) -> None:
        self._stream = stream
        self._encoding = encoding
        self._limit = limit
        self._is_lines = is_lines

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        """Raises `BadAnswer` for what is encoded otherwise or longer than it may be, `Broken` when it breaks off."""
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
    """The next bytes that are any; none at the end."""
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
    """Raises `BadAnswer` for an encoding that we cannot read, or several."""
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
    """gzip, or deflate in the two ways in which it is said. What follows the end is no part of it, and not kept."""

    def __init__(self, format: int | None) -> None:
        self._unpack = zlib.decompressobj(format) if format is not None else None

    def __call__(self, data: bytes) -> Iterator[bytes]:
        if self._unpack is None:
            self._unpack = zlib.decompressobj(_ZLIB if data[0] & 0x0F == 8 else _RAW)
        while not self._unpack.eof:
            try:
                piece = self._unpack.decompress(data, PIECE)
            except zlib.error:
                raise BadAnswer("the answer is not encoded as it says it is") from None
            if piece:
                yield piece
            data = self._unpack.unconsumed_tail
            if not data and len(piece) < PIECE:
                return
