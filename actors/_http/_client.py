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

import contextlib
import functools
import os
import ssl
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from http import HTTPMethod
from http.cookiejar import Cookie, CookieJar
from typing import TYPE_CHECKING, Any

import anyio

from ...protocol.bounds import HTTP_COOKIE_CHARACTERS, HTTP_COOKIES, HTTP_COOKIES_AT_ONCE, HTTP_REDIRECTS
from ...protocol.config import ServerDefinition
from ...protocol.errors import ConnectFailed
from ...protocol.large_message import LARGE_MESSAGE
from ...protocol.version import VERSION
from .._certificates import trusted_certificates
from .._values import Values
from ._faults import BadAnswer, ExchangeFault, LoginNeeded, all_faults_told, faults_told

if TYPE_CHECKING:
    import httpx2

    from ._signing import Learn

_KEPT_OPEN = 32  # idle connections of one server, for the next burst of calls
_REFUSAL_WITHIN = 5.0  # seconds


def make_client(
    definition: ServerDefinition, auth: Any, connect_timeout: float, learn: Learn | None = None
) -> httpx2.AsyncClient:
    """A client for the server's endpoint. `auth` is an `httpx2.Auth`, or None. `learn` is told the headers that a
    command of the server gives.

    Raises `ConnectFailed` when the proxies or certificates that our own environment names cannot be used.
    """
    import httpx2

    hooks: list[Any] = []
    if definition.request_headers_command is not None:
        from ._signing import signing

        hooks.append(signing(definition, learn or (lambda _: None)))
    headers = httpx2.Headers({"User-Agent": f"greenroom/{VERSION}", "Accept-Encoding": "gzip"})
    headers.update(definition.headers)  # in whatever case their names are
    made = functools.partial(
        _bounded_client,
        hooks,
        headers=headers,
        cookies=_Cookies(),
        auth=_contained(auth) if auth is not None else None,
        verify=_trust_for(definition),
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

    from ._bodies import take_over
    from ._frames import bound_frames

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
    method: HTTPMethod,
    url: httpx2.URL | str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    trace: Any = None,
) -> httpx2.Request:
    """A request whose answer we read. `trace` is told how far it gets. Raises `Broken` when its URL is not one."""
    from ._bodies import OURS

    extensions = {OURS: True} if trace is None else {OURS: True, "trace": trace}
    with all_faults_told():
        encoded = {name.encode(): value.encode() for name, value in headers.items()}
        return client.build_request(method, url, content=body, headers=encoded, extensions=extensions)


async def read_bounded(response: httpx2.Response, limit: int) -> bytes | bytearray:
    """The whole body. Raises `BadAnswer` when it is over `limit` bytes, or has more values than a message may
    have."""
    body, values = bytearray(), None
    async with contextlib.aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > limit:
                raise BadAnswer(f"the answer is over the bound of {limit:,} bytes")
            values, over = Values.counted(values, piece, body)
            if over:
                raise BadAnswer(f"the answer is over the bound of {over}")
    return body if len(body) >= LARGE_MESSAGE else bytes(body)


async def read_refusal(response: httpx2.Response) -> bytes:
    """The body of a refusal, as far as it can be read within a few seconds and its bound."""
    body = bytearray()
    with anyio.move_on_after(_REFUSAL_WITHIN), contextlib.suppress(ExchangeFault):
        async with contextlib.aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                body += piece
    return bytes(body)


class _Cookies(CookieJar):
    """A jar of bounded size. A cookie that does not fit, or could not be sent back, is not kept."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        said: list[str] = response.info().get_all("Set-Cookie", [])
        if len(said) <= HTTP_COOKIES_AT_ONCE and sum(map(len, said)) <= HTTP_COOKIE_CHARACTERS:
            super().extract_cookies(response, request)

    def set_cookie(self, cookie: Cookie) -> None:
        said = f"{cookie.name}={cookie.value}{cookie.path}{cookie.domain}"
        if said.isascii() and said.isprintable() and len(self) < HTTP_COOKIES:
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
