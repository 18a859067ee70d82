"""HTTP as a link between a front and a host needs it: one address that we know, without TLS, proxy, redirects, cookies
and encodings. Connections are kept open and used again.

A call over a link passes through two Greenrooms, so what a client costs counts. The library's client takes longer for
an exchange than all the rest of a front, most of it for what a link never has; and it writes head and body apart, for
which the host wakes up twice. For every other server there is the library's (`http_client`).

A request counts as sent once its first byte may have been written. That a resting connection was closed by the host is
found out before it is used again, so nothing is written to it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import attrs

from ...config.model import ServerDefinition
from ...protocol.bounds import HTTP_ASIDE_BYTES, HTTP_HEAD_BYTES, HTTP_INTERIM
from ...protocol.version import VERSION
from .http_client import PIECE, TURN, BadAnswer, Broken, Unreachable, parts_of

_KEPT_OPEN: Final = 32  # connections that rest
_RESTS: Final = 30.0  # seconds that one may rest; a host keeps it longer
_LINE: Final = 1024  # bytes of a line between chunks
_EVENTS: Final = "text/event-stream"
_NO_BODY: Final = (204, 304)


@attrs.frozen(eq=False)
class BareAnswer:
    """An answer: an `Answer` of `http_client`. Names of headers are in lower case."""

    status_code: int
    headers: Mapping[str, str]
    _connection: _Connection

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def is_redirect(self) -> bool:
        return False

    async def aiter_bytes(self) -> AsyncGenerator[bytes]:
        """The body in bounded pieces, with turns for others between them. Raises `Broken` when it breaks off, and
        `BadAnswer` when it cannot be read, or is a refusal over its bound."""
        is_lines = self.headers.get("content-type", "").startswith(_EVENTS)
        length, turn = 0, anyio.current_time() + TURN
        async with aclosing(self._connection.body(self.status_code, self.headers)) as pieces:
            async for piece in pieces:
                length += len(piece)
                if length > HTTP_ASIDE_BYTES and not self.is_success:
                    raise BadAnswer(f"the answer is over the bound of {HTTP_ASIDE_BYTES:,} bytes")
                for part in parts_of(piece, is_lines=is_lines):
                    yield part
                    if anyio.current_time() > turn:
                        await anyio.lowlevel.checkpoint()
                        turn = anyio.current_time() + TURN


class BareClient:
    """A client for the `url` of a host, with the headers of the definition. `connect_timeout` in seconds."""

    def __init__(self, definition: ServerDefinition, connect_timeout: float) -> None:
        parts = urlsplit(definition.url or "")
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._connect_timeout = connect_timeout
        self._path = parts.path or "/"
        self._headers = {
            "Host": parts.netloc,
            "User-Agent": f"greenroom/{VERSION}",
            **definition.headers,
        }
        self._resting: list[_Connection] = []

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        on_sent: Callable[[], object] = bool,
    ) -> AsyncGenerator[BareAnswer]:
        """Send a request; the caller reads the answer inside this context. `on_sent` is called before the first byte
        is written. Raises `Unreachable`, `Broken` and `BadAnswer`, here and inside the context."""
        length = {} if body is None else {"Content-Length": str(len(body))}
        head = _head(f"{method} {self._path} HTTP/1.1", {**self._headers, **headers, **length})
        connection = self._rested() or await self._connected()
        try:
            on_sent()
            await connection.write(head if body is None else head + body)
            status, said = await connection.head()
            yield BareAnswer(status, said, connection)
            if connection.is_whole and said.get("connection", "").lower() != "close":
                self._rest(connection)
        finally:
            if connection not in self._resting:
                connection.close()

    async def aclose(self) -> None:
        """Close what rests."""
        resting, self._resting = self._resting, []
        for connection in resting:
            connection.close()

    def _rest(self, connection: _Connection) -> None:
        if len(self._resting) < _KEPT_OPEN:
            connection.rests_until = anyio.current_time() + _RESTS
            self._resting.append(connection)

    def _rested(self) -> _Connection | None:
        """A connection that can be used again. The last one that came to rest is tried first."""
        while self._resting:
            connection = self._resting.pop()
            if anyio.current_time() < connection.rests_until and connection.is_quiet():
                return connection
            connection.close()
        return None

    async def _connected(self) -> _Connection:
        try:
            with anyio.fail_after(self._connect_timeout):
                return _Connection(await _connected(self._host, self._port))
        except TimeoutError:
            raise Unreachable("the connection was not accepted in time") from None
        except OSError as error:
            raise Unreachable(f"no connection can be made ({error})") from None


def _head(first: str, headers: Mapping[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join(lines)
    if head.count("\n") != len(headers) or head.count("\r") != len(headers):
        raise Broken("a header holds a line break, and was not sent")
    return f"{head}\r\n\r\n".encode()


def _length(status: int, headers: Mapping[str, str]) -> int | None:
    """How long the body is; None where it comes in chunks. Raises `BadAnswer`."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return None
    said = headers.get("content-length", "0" if status in _NO_BODY else "")
    if not said.isdecimal():
        raise BadAnswer("the answer does not say how long it is")
    return int(said)


class _Connection:
    """A connection, and how far its answer has been read."""

    rests_until: float = 0.0
    is_whole: bool = False  # the answer has been read to its end, and nothing came after it

    def __init__(self, line: socket.socket) -> None:
        self._socket = line  # does not block
        self._held = bytearray()  # what came, and was not read yet

    async def write(self, data: bytes) -> None:
        """A host may answer, and close, before it has read everything. So its answer says what happened."""
        self.is_whole = False
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError:
                return

    async def head(self) -> tuple[int, dict[str, str]]:
        for _ in range(HTTP_INTERIM):
            head = await self._until(b"\r\n\r\n", HTTP_HEAD_BYTES)
            first, *lines = head.decode("latin-1").split("\r\n")
            words = first.split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
                raise Broken("the connection broke (what came is no HTTP)")
            status = int(words[1])
            if status >= 200:
                named = (line.partition(":") for line in lines)
                headers = {name.strip().lower(): value.strip() for name, _, value in named}
                self.is_whole = _length(status, headers) == 0 and not self._held
                return status, headers
        raise Broken(f"over {HTTP_INTERIM} interim answers came before the answer")

    async def body(self, status: int, headers: Mapping[str, str]) -> AsyncGenerator[bytes]:
        length = _length(status, headers)
        if length is None:
            while size := await self._size():
                async with aclosing(self._exactly(size)) as pieces:
                    async for piece in pieces:
                        yield piece
                await self._until(b"\r\n", _LINE)
            while await self._until(b"\r\n", _LINE):
                pass  # trailers
        else:
            async with aclosing(self._exactly(length)) as pieces:
                async for piece in pieces:
                    yield piece
        self.is_whole = not self._held

    async def _size(self) -> int:
        line = await self._until(b"\r\n", _LINE)
        try:
            return int(line.partition(b";")[0], 16)
        except ValueError:
            raise BadAnswer("the answer is not chunked as it says") from None

    async def _exactly(self, count: int) -> AsyncGenerator[bytes]:
        while count:
            if not self._held:
                await self._more()
            piece = bytes(self._held[: min(count, PIECE)])
            del self._held[: len(piece)]
            count -= len(piece)
            yield piece

    async def _until(self, end: bytes, most: int) -> bytes:
        """What comes before `end`."""
        start = 0
        while (at := self._held.find(end, start)) < 0:
            if len(self._held) > most:
                raise BadAnswer(f"a head in the answer is over {most:,} bytes")
            start = max(len(self._held) - len(end), 0)
            await self._more()
        found = bytes(self._held[:at])
        del self._held[: at + len(end)]
        return found

    async def _more(self) -> None:
        await anyio.wait_readable(self._socket)
        try:
            data = self._socket.recv(PIECE)
        except BlockingIOError:
            return
        except OSError as error:
            raise Broken(f"the connection broke ({error.strerror or type(error).__name__})") from None
        if not data:
            raise Broken("the connection broke (closed before the answer's end)")
        self._held += data

    def is_quiet(self) -> bool:
        """Whether nothing came while it rested: neither bytes nor the end."""
        try:
            self._socket.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._socket.close()


async def _connected(host: str, port: int) -> socket.socket:
    """A socket that is connected there. Raises `OSError`."""
    problem: OSError | None = None
    for family, kind, number, _, address in await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        line = socket.socket(family, kind, number)
        try:
            line.setblocking(False)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if line.connect_ex(address) == errno.EINPROGRESS:
                await anyio.wait_writable(line)
            line.getpeername()  # raises as long as it is not connected
        except BaseException as error:
            refused = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            line.close()
            if not isinstance(error, OSError):
                raise
            problem = OSError(refused, os.strerror(refused)) if refused else error
        else:
            return line
    raise problem or OSError(f"{host} has no address")
