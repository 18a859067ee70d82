"""Bounds the frame of answers (heads and trailers) before our HTTP library parses it.

The library parses a head of any number of lines in one go, and so the lines that may follow a chunked body. It
also skips any number of interim answers (HTTP 100, 103) without a pause. 64 KiB of either would stop everybody for
a tenth of a second. So what comes from the network passes through here first, and its frame is followed from the
last byte that we wrote. Bodies are not read here; only the sizes of a chunked body's chunks are. A read is small
until it is known that it does not hold hundreds of chunks.

The library has no public place for this. Only this file knows the private one, and a test fails when it moves.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
import httpx2

from ...protocol.bounds import HTTP_HEAD_BYTES, HTTP_HEAD_LINES, HTTP_INTERIM

_FIRST_READ = 1 << 14
_LAST_READ = 1 << 16
_LAST_CHUNKED = 1 << 15
_MANY_CHUNKS = 256  # in one read
_END = re.compile(rb"\n\r?\n")
_CHUNKED = re.compile(rb"\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,20}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,20})\r\n")
_INTERIM = re.compile(rb"\s*HTTP/1\.\d 1(?!01)")


def bound_frames(client: httpx2.AsyncClient) -> None:
    """Pass everything that the client receives through a `Frame`."""
    for transport in (client._transport, *client._mounts.values()):  # pyright: ignore[reportPrivateUsage]
        pool: Any = getattr(transport, "_pool", None)
        if pool is not None:
            pool._network_backend = _Backend(pool._network_backend)


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
        self.most = min(2 * self.most, _LAST_CHUNKED) if chunks < _MANY_CHUNKS else _FIRST_READ

    def _check(self, length: int, lines: int, part: str) -> None:
        if length > HTTP_HEAD_BYTES:
            raise httpcore2.RemoteProtocolError(f"the {part} of the answer is over {HTTP_HEAD_BYTES:,} bytes")
        if lines > HTTP_HEAD_LINES:
            raise httpcore2.RemoteProtocolError(f"the {part} of the answer is over {HTTP_HEAD_LINES} lines")


class _Stream(httpcore2.AsyncNetworkStream):
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
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore2.AsyncNetworkBackend):
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
        return _Stream(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)
