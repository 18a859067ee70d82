"""The HTTP client of one connection, and one exchange with it.

Each connection has its own client: its pool, cookies and credentials belong to one address and are never shared with
another. The client has only two timeouts of its own: for connecting, and for reading the body of a refusal. The actor
keeps the time of a call. Nor does it limit the number of connections: the actor bounds the calls in flight. What is
configured for one endpoint (the headers, the credentials, the body) must not follow a redirect elsewhere. So a redirect
is followed only when it keeps the origin and the method.

Proxies (`proxies`) and certificates come from our own environment. A fault there is reported as such, before anything
is sent. It is not reported where it does not matter: for a host without a proxy, or a URL without TLS.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import ssl
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Mapping,
)
from contextlib import asynccontextmanager
from http import HTTPMethod
from typing import Any, Final, cast

import httpx2

from ...config.credentials import SecretValue
from ...config.model import ServerDefinition
from ...config.references import header_problem
from ...protocol.bounds import (
    HTTP_REDIRECTS,
)
from ...protocol.errors import ConnectFailed
from ...protocol.version import VERSION
from ..timers import in_time
from ..workers import apart
from .http_bounds import OURS, Cookies, bound_frames, read_raw, take_over
from .http_faults import (
    ExchangeBroken,
    LoginNeeded,
    all_faults_told,
    faults_told,
    status_in_words,
)
from .proxies import ProxiedTransport, ProxyTable

_KEPT_OPEN = 32  # idle connections of one server, for the next burst of calls
_WITHIN = 10.0  # seconds for all of a document that is fetched
LARGEST: Final = 1 << 16  # bytes that a command of headers may write
_FORM: Final = {"Accept": "application/json"}
# What frames the request; another value would make it another request.
_FRAMING: Final = frozenset({"connection", "content-encoding", "content-length", "host", "transfer-encoding"})
SecretLearner = Callable[[tuple[SecretValue, ...]], object]


def make_client(
    definition: ServerDefinition,
    auth: Any,
    connect_timeout: float,
    learn: SecretLearner | None = None,
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
    trusted = trust or _trust_for(definition)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=_KEPT_OPEN)

    def way(proxy: str | None) -> httpx2.AsyncBaseTransport:
        made = httpx2.AsyncHTTPTransport(verify=trusted, limits=limits, proxy=proxy, trust_env=False)
        bound_frames(made)
        return made

    transport = ProxiedTransport(way, ProxyTable())
    client = httpx2.AsyncClient(
        event_hooks={"request": hooks, "response": [take_over]},
        transport=transport,
        headers=headers,
        cookies=Cookies(keeps=not definition.is_api),
        auth=_contained(auth) if auth is not None else None,
        timeout=httpx2.Timeout(None, connect=connect_timeout),
    )
    with contextlib.suppress(httpx2.InvalidURL):  # a request will say so
        try:
            transport.prepare(client.build_request("GET", definition.url or "").url)
        except httpx2.ProxyError as error:
            raise ConnectFailed(f'Server "{definition.name}": {error}', server=definition.name) from None
    return client


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

    Raises `ExchangeBroken` for every fault of the transport, here and inside the context, and `LoginNeeded` when
    logging in failed.
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
    """A request whose answer we read. `trace` is told how far it gets. Raises `ExchangeBroken` when its URL is not
    one."""

    extensions = {OURS: True} if trace is None else {OURS: True, "trace": trace}
    with all_faults_told():
        encoded = {name.encode(): value.encode() for name, value in headers.items()}
        return client.build_request(method, url, content=body, headers=encoded, extensions=extensions)


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

    class ContainedAuth(httpx2.Auth):
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

    return ContainedAuth()


@asynccontextmanager
async def _answered(
    url: str, make_request: Callable[[httpx2.AsyncClient], httpx2.Request]
) -> AsyncGenerator[httpx2.Response]:
    """What somebody else's server answers to one request, in its time. Raises `ExchangeFault`, in words, when there is
    no answer, or it does not come to its end."""
    definition = ServerDefinition(name="", url=url)
    try:
        client = await apart(lambda: make_client(definition, None, _WITHIN))
        async with in_time(_WITHIN), client, exchanged(client, make_request(client)) as response:
            yield response
    except TimeoutError:
        raise ExchangeBroken("it did not come in time") from None
    except ConnectFailed as error:
        raise ExchangeBroken(error.message) from None
    except httpx2.InvalidURL:
        raise ExchangeBroken("its URL cannot be read") from None


async def fetched(url: str, most: int) -> bytes:
    """A document of somebody else's server, at most `most` bytes of it. Raises `ExchangeFault`, in words, when it
    cannot be had."""
    async with _answered(url, lambda client: client.build_request("GET", url)) as response:
        if response.status_code != 200:
            raise ExchangeBroken(status_in_words(response.status_code))
        return await read_raw(response, most)


async def posted(
    url: str, form: Mapping[str, str], headers: Mapping[str, str], most: int
) -> tuple[int, bytes]:
    """The status and the body of what is answered to a form, at most `most` bytes of it. Raises `ExchangeFault`, in
    words, when there is no answer."""

    def request(client: httpx2.AsyncClient) -> httpx2.Request:
        return client.build_request("POST", url, data=dict(form), headers={**_FORM, **headers})

    async with _answered(url, request) as response:
        return response.status_code, await read_raw(response, most)


def signing(
    definition: ServerDefinition, learn: SecretLearner
) -> Callable[[httpx2.Request], Awaitable[None]]:
    """What gives each request of ours the headers of the server's command. `learn` is told their values.

    The command (`requestHeadersCommand`, as the pi adapter has it) gets one JSON object on its standard input,
    `{"version": 1, "method", "url", "bodyBase64"}`, and writes one JSON object of headers. It runs for each request to
    the server, also for the streams that we open and when a request is redirected, but not for those that log us in. It
    is run as commands of secrets are (`secret_commands`). Any failure of it ends the exchange before anything is sent.
    What it gives is hidden like every other secret, and is kept nowhere.
    """
    asked = definition.request_headers_command or {}

    async def sign(request: httpx2.Request) -> None:
        if OURS not in request.extensions:
            return
        from ...config.secret_sources import CommandRun, failure_of

        await request.aread()
        job = CommandRun(
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
            raise ExchangeBroken(f"its requestHeadersCommand {headers}. {step}")
        learn(tuple(SecretValue(f"the header {name}", value) for name, value in headers.items()))
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
        return "wrote something that is not JSON"
    if not isinstance(found, dict):
        return "wrote no JSON object"
    headers = cast("dict[str, Any]", found)
    for name, value in headers.items():
        if not isinstance(value, str):
            return "wrote a header that is not text"
        if name.lower() in _FRAMING:
            return f"gives the header {name}, which frames the request"
        if (wrong := header_problem(name, value)) is not None:
            return f"gives a header that cannot be sent: {wrong}"
    return headers


@functools.cache
def trusted_certificates() -> ssl.SSLContext:
    """The certificates that this process trusts, for servers and for authorization servers. Which ones they are follows
    from our own environment (`SSL_CERT_FILE`, `SSL_CERT_DIR`). To read them takes 25 ms, so they are read once. Raises
    `OSError` when they cannot be read; the next call tries again."""
    import httpx2

    return httpx2.create_ssl_context()
