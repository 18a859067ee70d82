"""The HTTP client of one connection, and one exchange with it.

A client per connection: its pool, cookies and credentials belong to one address and are never shared across it. It
has no clock of its own but for connecting (an answer's time is the call's, kept by the actor), and no limit of
connections but the actor's own bound on calls in flight. Proxies come from the environment. What is configured for one
endpoint (the headers, the credentials, the body) must not follow a redirect elsewhere, so only those are followed that
keep the origin and the method.
"""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from ...protocol.config import ServerDefinition
from ...protocol.version import VERSION
from ._faults import BadAnswer, LoginNeeded, faults_told

if TYPE_CHECKING:
    import httpx2

_MOST_REDIRECTS = 5
_KEPT_OPEN = 32  # idle connections of one server, for the next burst of calls


def make_client(definition: ServerDefinition, auth: Any, connect_timeout: float) -> httpx2.AsyncClient:
    """A client for the server's endpoint. `auth` is an `httpx2.Auth`, or None."""
    import httpx2

    return httpx2.AsyncClient(
        headers={"User-Agent": f"greenroom/{VERSION}", **definition.headers},
        auth=_contained(auth) if auth is not None else None,
        verify=_trust(),
        timeout=httpx2.Timeout(None, connect=connect_timeout),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_KEPT_OPEN),
    )


@functools.cache
def _trust() -> ssl.SSLContext:
    """Whom we trust: read once (25 ms), and the same for every server."""
    import httpx2

    return httpx2.create_ssl_context()


@asynccontextmanager
async def exchanged(client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncGenerator[httpx2.Response]:
    """Send the request, and read what comes in the body of this context.

    Raises `Broken` for every fault of the transport, here and in the body, and `LoginNeeded` when logging in failed.
    """
    with faults_told():
        response = await client.send(request, stream=True, follow_redirects=False)
        for _ in range(_MOST_REDIRECTS):
            further = _within_origin(response)
            if further is None:
                break
            await response.aclose()
            response = await client.send(further, stream=True, follow_redirects=False)
        try:
            yield response
        finally:
            await response.aclose()


@asynccontextmanager
async def chunks_of(response: httpx2.Response) -> AsyncGenerator[AsyncGenerator[bytes]]:
    """The body as it comes; may be left in the middle.

    The library's stream is a chain of generators of which one does not close the next, so a stream that is dropped
    half-way is found by the garbage collector, with a warning. It is unwound from its inside instead: asked for more
    under a cancellation, it ends by itself.
    """
    chunks = response.aiter_bytes()
    try:
        yield chunks
    finally:
        with anyio.CancelScope() as scope, contextlib.suppress(Exception):
            scope.cancel()
            async for _ in chunks:
                pass


async def read_bounded(response: httpx2.Response, limit: int) -> bytes:
    """The whole body. Raises `BadAnswer` when it is longer than `limit` bytes."""
    parts: list[bytes] = []
    length = 0
    async with chunks_of(response) as chunks:
        async for chunk in chunks:
            parts.append(chunk)
            length += len(chunk)
            if length > limit:
                raise BadAnswer(f"the answer is over the bound of {limit:,} bytes")
    return b"".join(parts)


def _within_origin(response: httpx2.Response) -> httpx2.Request | None:
    """The request that follows a redirect, when it may be followed."""
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
    """What a way to log in wants sent. That of the SDK's 1.x speaks `httpx`, and asks for its tokens in requests of
    that; the requests and responses it is given it reads like its own."""
    import httpx2

    if isinstance(request, httpx2.Request):
        return request
    headers = list(request.headers.items())
    return httpx2.Request(request.method, str(request.url), headers=headers, content=request.content)


def _contained(auth: httpx2.Auth) -> httpx2.Auth:
    """The same way to log in, whose own failures end one exchange instead of the connection."""
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
