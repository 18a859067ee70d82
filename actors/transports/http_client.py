"""The HTTP client of one connection, and one exchange with it.

Each connection has its own client: its pool, cookies and credentials belong to one address and are never shared with
another. The client has only two timeouts of its own: for connecting, and for reading the body of a refusal. The actor
keeps the time of a call. Nor does it limit the number of connections: the actor bounds the calls in flight. What is
configured for one endpoint (the headers, the credentials, the body) must not follow a redirect elsewhere. So a redirect
is followed only when it keeps the origin and the method.

Proxies and certificates come from our own environment. A fault there is reported as such, before anything is sent. It
is not reported where it does not matter: for a host without a proxy, or a URL without TLS.

Cookies are kept, because load balancers find a session's machine by them: few of them, short, and of plain text.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http
import json
import os
import re
import ssl
import urllib.request
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager
from http import HTTPMethod
from http.cookiejar import Cookie, CookieJar
from typing import Any, Final, cast

import anyio
import anyio.lowlevel
import httpcore2
import httpx2

from ...config.model import ServerDefinition
from ...config.references import header_problem
from ...config.secrets import Hidden
from ...protocol.bounds import (
    HTTP_ASIDE_BYTES,
    HTTP_COOKIE_CHARACTERS,
    HTTP_COOKIES,
    HTTP_COOKIES_AT_ONCE,
    HTTP_HEAD_BYTES,
    HTTP_HEAD_LINES,
    HTTP_INTERIM,
    HTTP_PACKED,
    HTTP_REDIRECTS,
)
from ...protocol.errors import ConnectFailed
from ...protocol.jsonrpc.incoming import excerpt
from ...protocol.version import VERSION
from ..message_buffer import MessageBuffer, on_one_line

_KEPT_OPEN = 32  # idle connections of one server, for the next burst of calls
_REFUSAL_WITHIN = 5.0  # seconds


def make_client(
    definition: ServerDefinition,
    auth: Any,
    connect_timeout: float,
    learn: Learn | None = None,
    trust: ssl.SSLContext | None = None,
) -> httpx2.AsyncClient:
    """A client for the server's endpoint. `auth` is an `httpx2.Auth`, or None. `learn` is told the headers that a
    command of the server gives. `trust`: whom to trust; None: as our own environment says.

    Raises `ConnectFailed` when the proxies or certificates that our own environment names cannot be used.
    """
    import httpx2

    hooks: list[Any] = []
    if definition.request_headers_command is not None:
        hooks.append(signing(definition, learn or (lambda _: None)))
    headers = httpx2.Headers({"User-Agent": f"greenroom/{VERSION}", "Accept-Encoding": "gzip"})
    headers.update(definition.headers)  # in whatever case their names are
    made = functools.partial(
        _bounded_client,
        hooks,
        headers=headers,
        cookies=_Cookies(keeps=not definition.is_api),
        auth=_contained(auth) if auth is not None else None,
        verify=trust or _trust_for(definition),
        timeout=httpx2.Timeout(None, connect=connect_timeout),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_KEPT_OPEN),
    )
    try:
        return made()
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        direct = made(trust_env=False)  # when this fails too, it is not about proxies
        if urllib.request.proxy_bypass(direct.build_request("GET", definition.url or "").url.host):
            return direct
        raise ConnectFailed(_proxy_in_words(definition, error), server=definition.name) from None


def _bounded_client(hooks: list[Any], **options: Any) -> httpx2.AsyncClient:
    import httpx2

    client = httpx2.AsyncClient(event_hooks={"request": hooks, "response": [take_over]}, **options)
    bound_frames(client)
    return client


def _proxy_in_words(definition: ServerDefinition, error: Exception) -> str:
    """What is wrong with the proxy. Its URL is left out: it may hold a password."""
    named = [name for name in os.environ if name.lower() in ("all_proxy", "http_proxy", "https_proxy")]
    why = (
        'a SOCKS proxy needs the package "socksio"'
        if isinstance(error, ImportError)
        else "it is not an HTTP proxy"
    )
    return (
        f'Server "{definition.name}": the proxy that {" or ".join(named) or "the system"} names cannot be used '
        f"({why}). Install what it needs, name another proxy, or add the server's host to NO_PROXY."
    )


def _trust_for(definition: ServerDefinition) -> ssl.SSLContext:
    try:
        return trusted_certificates()
    except OSError as error:  # an `ssl.SSLError` is one
        if (definition.url or "").lower().startswith("http:"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no certificate
        named = [name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)]
        where = f" ({' and '.join(named)} in this process's environment)" if named else ""
        raise ConnectFailed(
            f'Server "{definition.name}": the certificates to trust cannot be read{where}: '
            f"{error.strerror or type(error).__name__}. Correct that, or unset it.",
            server=definition.name,
        ) from None


@asynccontextmanager
async def exchanged(client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncGenerator[httpx2.Response]:
    """Send the request; the caller reads the response inside this context.

    Raises `Broken` for every fault of the transport, here and inside the context, and `LoginNeeded` when logging in
    failed.
    """
    with all_faults_told():
        response = await client.send(request, stream=True, follow_redirects=False)
        for _ in range(HTTP_REDIRECTS):
            further = _within_origin(response)
            if further is None:
                break
            await response.aclose()
            response = await client.send(further, stream=True, follow_redirects=False)
    with faults_told():
        try:
            yield response
        finally:
            await response.aclose()


def request_to(
    client: httpx2.AsyncClient,
    method: HTTPMethod | str,
    url: httpx2.URL | str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    trace: Any = None,
) -> httpx2.Request:
    """A request whose answer we read. `trace` is told how far it gets. Raises `Broken` when its URL is not one."""

    extensions = {OURS: True} if trace is None else {OURS: True, "trace": trace}
    with all_faults_told():
        encoded = {name.encode(): value.encode() for name, value in headers.items()}
        return client.build_request(method, url, content=body, headers=encoded, extensions=extensions)


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
    return body.end()


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
    with anyio.move_on_after(_REFUSAL_WITHIN), contextlib.suppress(ExchangeFault):
        async with contextlib.aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                body += piece
    return bytes(body)


class _Cookies(CookieJar):
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


def _within_origin(response: httpx2.Response) -> httpx2.Request | None:
    """The request that a redirect leads to; None when it must not be followed."""
    further = response.next_request
    if further is None or further.method != response.request.method:
        return None
    before, after = response.request.url, further.url
    if after.userinfo and after.userinfo != before.userinfo:
        return None
    same = (before.scheme, before.host, before.port) == (after.scheme, after.host, after.port)
    upgrade = (before.scheme, after.scheme) == ("http", "https") and before.port is after.port is None
    return further if same or (upgrade and before.host == after.host) else None


def _ours(request: Any) -> httpx2.Request:
    """A request of an auth flow, as our library's. The SDK's 1.x flow uses `httpx`, so its token requests come as
    `httpx` requests. It reads our requests and responses as if they were its own."""
    import httpx2

    if isinstance(request, httpx2.Request):
        return request
    headers = list(request.headers.items())
    return httpx2.Request(request.method, str(request.url), headers=headers, content=request.content)


def _contained(auth: httpx2.Auth) -> httpx2.Auth:
    """The same auth flow, but its own failures end one exchange instead of the connection."""
    import httpx2

    class Contained(httpx2.Auth):
        requires_request_body = auth.requires_request_body
        requires_response_body = auth.requires_response_body

        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            flow = auth.async_auth_flow(request)
            try:
                outgoing = await anext(flow)
                while True:
                    response = yield _ours(outgoing)
                    outgoing = await flow.asend(response)
            except StopAsyncIteration:
                return
            except httpx2.HTTPError:
                raise
            except Exception as error:
                raise LoginNeeded(f"logging in failed: {error}") from error
            finally:
                await flow.aclose()

    return Contained()


# --------------------------------------------------------------------------------------------------------------
#
#
# Response bodies: with one encoding at most, decoded in bounded pieces, so that no body delays anybody else.
#
# Every response of a client passes through `Incoming`, also the responses that only a login reads. So no loop that
# reads a body has to take care of these rules:
#
# * We ask for gzip. A body may be encoded once, with gzip or deflate. A body with two encodings, or another one, is
#   refused when it is read; its status counts all the same. A few kilobytes, packed three times, are gigabytes.
# * A piece has `PIECE` bytes at most, and is decoded only when it is asked for. A piece of an event stream is smaller
#   when it holds many lines, because each line is work. Between two pieces others get their turn once `TURN` seconds
#   have passed.
# * A body that does not answer one of our requests (a refusal, or what a login reads) may have `HTTP_ASIDE_BYTES` at
#   most. The reader of an answer applies its own bound.
# * A body that is left in the middle is closed, not drained. The library's stream is a chain of generators, and none
#   closes the next. If it were dropped half-way, the garbage collector would find it and warn. So it is unwound from
#   inside: asked for more under a cancellation, it ends by itself after what it had already read.
#
# The library's own decoders are not used: they decode all that came with one read, even when nobody wants it any more.

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


# ---- Bounds the frame of answers (heads and trailers) before our HTTP library parses it -----------------------------
#
# The library parses a head of any number of lines in one go, and so the lines that may follow a chunked body. It
# also skips any number of interim answers (HTTP 100, 103) without a pause. 64 KiB of either would stop everybody for
# a tenth of a second. So what comes from the network passes through here first, and its frame is followed from the
# last byte that we wrote. Bodies are not read here; only the sizes of a chunked body's chunks are. A read is small
# until it is known that it does not hold hundreds of chunks.
#
# The library has no public place for this. Only this file knows the private one, and a test fails when it moves.

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
        self.most: int = min(2 * self.most, _LAST_CHUNKED) if chunks < _MANY_CHUNKS else _FIRST_READ

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


# ---- The ways one HTTP exchange can end without an answer, and what each of them proves -----------------------------
#
# `BadAnswer`: the server answered, but its answer breaks the protocol. `Broken`: no answer can come any more; if the
# request was sent, it may have run. `SessionExpired` and `LoginNeeded`: the server says that it does not know the
# session, or us; they end the connection, not only the exchange. `WrongTransport`: the server is an older one; the same
# request is then tried over the older transport.
#
# `faults_told` turns whatever our HTTP library raises into one of these. A fault that escaped it would cancel every
# other exchange of the connection (a known bug of the SDK's own client, python-sdk #3522). `all_faults_told` is for a
# body in which only the library runs. There an exception of any kind is caused by what the server sent or by its URL,
# and is no bug of ours.

_INSUFFICIENT = re.compile(r"""\berror\s*=\s*"?insufficient_scope\b""", re.IGNORECASE)
_SCOPE = re.compile(r"""\bscope\s*=\s*(?:"([^"]*)"|([^\s,"]+))""", re.IGNORECASE)


class ExchangeFault(Exception):
    """Root of the five. The text is for people."""


class BadAnswer(ExchangeFault):
    """The server's answer breaks the protocol."""


class Broken(ExchangeFault):
    """The exchange broke: refused, cut off, timed out."""


class Unreachable(Broken):
    """No connection could be made: nothing was sent."""


class SessionExpired(ExchangeFault):
    """The server no longer knows the session."""


class LoginNeeded(ExchangeFault):
    """HTTP 401, or logging in failed. (A 403 is about the request, not about the caller: it ends only its exchange.)"""


class WrongTransport(ExchangeFault):
    """The server refused `initialize` over Streamable HTTP, in the way older servers do."""


@contextmanager
def faults_told() -> Generator[None]:
    """Turns whatever the HTTP library raises into a `Broken` that says what happened."""
    import httpx2

    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise Unreachable(in_words(error)) from None
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, httpx2.CookieConflict) as error:
        raise Broken(in_words(error)) from None


@contextmanager
def all_faults_told() -> Generator[None]:
    """Like `faults_told`, for a body in which only the HTTP library runs."""
    with faults_told():
        try:
            yield
        except ExchangeFault:
            raise
        except Exception as error:
            if _is_known(error):
                raise
            raise Broken(
                f"the exchange failed: the answer cannot be read ({type(error).__name__})"
            ) from error


def _is_known(error: Exception) -> bool:
    import httpx2

    return isinstance(
        error, httpx2.HTTPError | httpx2.StreamError | httpx2.InvalidURL | httpx2.CookieConflict
    )


def in_words(error: Exception) -> str:
    """What happened to the connection, for a person."""
    import httpx2

    detail = str(error).strip().rstrip(".")
    match error:
        case httpx2.ConnectTimeout():
            return "the connection was not accepted in time"
        case httpx2.ConnectError():
            return (
                f'no connection can be made ({detail or "refused"}). Start the server, or correct its "url".'
            )
        case httpx2.ReadTimeout() | httpx2.WriteTimeout():
            return "the server fell silent"
        case httpx2.RemoteProtocolError() | httpx2.ReadError() | httpx2.WriteError():
            return f"the connection broke ({detail or type(error).__name__})"
        case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return f'its "url" cannot be connected to ({detail or type(error).__name__}). Correct it.'
        case _:
            return f"the exchange failed ({detail or type(error).__name__})"


def status_in_words(status: int) -> str:
    """`HTTP 503 Service Unavailable`."""
    try:
        return f"HTTP {status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def refusal_in_words(response: httpx2.Response, body: bytes) -> str:
    """A refusal: its status, and what its body says."""
    text = status_in_words(response.status_code)
    location = response.headers.get("location")
    if response.is_redirect and location:
        return f'{text}: redirected to {location}, which is not followed. If that is the server, put it in "url".'
    if body.strip():
        text += f": {said(response, body)}"
    return f"{text} ({scope_in_words(response)})" if lacks_scope(response) else text


def scope_in_words(response: httpx2.Response) -> str:
    """What to do about a refusal for which `lacks_scope` is true."""
    found = _SCOPE.search(response.headers["www-authenticate"])
    scope = f'the scope "{(found[1] or found[2] or "")[:200]}"' if found else "a scope for this"
    return f"the login lacks {scope}: log in again with it, as greenroom auth --scope does"


def lacks_scope(response: httpx2.Response) -> bool:
    """Whether a 403 says that our login does not allow this request (RFC 6750)."""
    challenge = response.headers.get("www-authenticate", "")
    return response.status_code == 403 and _INSUFFICIENT.search(challenge) is not None


def login_in_words(response: httpx2.Response) -> str:
    """A 401: the status, and what the server says about logging in."""
    challenge = response.headers.get("www-authenticate")
    text = status_in_words(response.status_code)
    return f"{text} ({challenge[:200]})" if challenge else text


def said(response: httpx2.Response, body: bytes) -> str:
    """What a body that is not JSON-RPC says."""
    if media_type(response) in ("text/html", "application/xhtml+xml"):
        return "an HTML page; this URL does not appear to speak MCP"
    return excerpt(body, 200)


def media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


# --------------------------------------------------------------------------------------------------------------
#
#
# A document of somebody else's server, fetched by one GET: bounded in bytes, in redirects and in time.
#
# Imported only where one is fetched: the HTTP library comes with it.

_WITHIN = 10.0  # seconds for all of it


async def fetched(url: str, most: int) -> bytes:
    """What is there, at most `most` bytes. Raises `ExchangeFault`, in words, when it cannot be had."""
    definition = ServerDefinition(name="", url=url)
    try:
        with anyio.fail_after(_WITHIN):
            client = make_client(definition, None, _WITHIN)
            async with client, exchanged(client, client.build_request("GET", url)) as response:
                if response.status_code != 200:
                    raise Broken(status_in_words(response.status_code))
                return await read_raw(response, most)
    except TimeoutError:
        raise Broken("it did not come in time") from None
    except ConnectFailed as error:
        raise Broken(error.message) from None
    except httpx2.InvalidURL:
        raise Broken("its URL cannot be read") from None


# ---- Headers that a program gives for each request: `requestHeadersCommand`, as the pi adapter has it ---------------
#
# The program gets one JSON object on its standard input, `{"version": 1, "method", "url", "bodyBase64"}`, and writes
# one JSON object of headers. It runs for each request to the server, also for the streams that we open and when a
# request is redirected, but not for those that log us in. It is run as commands of secrets are (`secret_commands`). Any
# failure of it ends the exchange before anything is sent. What it gives is hidden like every other secret, and is kept
# nowhere.

LARGEST: Final = 1 << 16  # bytes
# What frames the request; another value would make it another request.
_FRAMING: Final = frozenset({"connection", "content-encoding", "content-length", "host", "transfer-encoding"})
Learn = Callable[[tuple[Hidden, ...]], object]


def signing(definition: ServerDefinition, learn: Learn) -> Callable[[httpx2.Request], Awaitable[None]]:
    """What gives each request of ours the headers of the server's command. `learn` is told their values."""
    asked = definition.request_headers_command or {}

    async def sign(request: httpx2.Request) -> None:
        if OURS not in request.extensions:
            return
        from ...config.secret_sources import Job, failure_of

        await request.aread()
        job = Job(
            (asked["command"], *asked["args"]),
            asked["timeoutMs"],
            'its "timeoutMs"',
            most=LARGEST,
            given=lambda: _told(request),
            environ={**os.environ, **asked["env"]},
        )
        said = await job.output()
        headers = failure_of(said) or _headers(said)
        if isinstance(headers, str):
            step = "Run it in a shell with such an input, and correct it there or in the configuration"
            raise Broken(f"its requestHeadersCommand {headers}. {step}")
        learn(tuple(Hidden(f"the header {name}", value) for name, value in headers.items()))
        request.headers.update(headers)

    return sign


def _told(request: httpx2.Request) -> bytes:
    body = base64.b64encode(request.content).decode()
    said = {"version": 1, "method": request.method, "url": str(request.url), "bodyBase64": body}
    return json.dumps(said).encode()


def _headers(said: Any) -> dict[str, str] | str:
    """The headers in what the command has written, or what is wrong with it."""
    try:
        found: Any = json.loads(said)
    except (ValueError, RecursionError):
        return "wrote something that is no JSON"
    if not isinstance(found, dict):
        return "wrote no JSON object"
    headers = cast("dict[str, Any]", found)
    for name, value in headers.items():
        if not isinstance(value, str):
            return "wrote a header that is no text"
        if name.lower() in _FRAMING:
            return f"gives the header {name}, which frames the request"
        if (wrong := header_problem(name, value)) is not None:
            return f"gives a header that cannot be sent: {wrong}"
    return headers


# ---- The certificates that this process trusts, for servers and for authorization servers ---------------------------
#
# To read them takes 25 ms, so they are read once. Which ones they are follows from our own environment
# (`SSL_CERT_FILE`, `SSL_CERT_DIR`).


@functools.cache
def trusted_certificates() -> ssl.SSLContext:
    """Raises `OSError` when they cannot be read; the next call tries again."""
    import httpx2

    return httpx2.create_ssl_context()
