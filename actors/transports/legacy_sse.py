"""The event stream of 2024-11-05: one GET that brings everything, and POSTs to the endpoint that the stream names
first.

Like stdio it lives and dies as a whole. Every answer comes on the stream, whatever POST asked for it. When the
stream ends, the connection is lost. The endpoint must have the stream's own origin, because it gets our
credentials. The transport is older than resumable sessions, so nothing is resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from http import HTTPMethod
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from ...protocol.bounds import HTTP_PLACE_CHARACTERS
from ...protocol.lifecycle import Reason
from ...protocol.trace_context import TraceContext
from ..peer import LostReason
from .event_parser import EventParser, ServerEvent
from .http_bounds import read_refusal
from .http_client import exchanged, request_to
from .http_faults import (
    BadAnswer,
    ExchangeBroken,
    ExchangeFault,
    IdentityNeeded,
    LoginNeeded,
    SessionExpired,
    all_faults_told,
    login_in_words,
    media_type,
    refusal_in_words,
    said,
)
from .http_peer import Attempt, HttpPeer
from .session_refusals import speaks_of_session, words_in

if TYPE_CHECKING:
    import httpx2


class LegacySse:
    """A `Carrier`. The first request opens its stream. `before`: what was tried before, for the error's text."""

    may_speak_both = False

    def __init__(
        self,
        url: str,
        client: httpx2.AsyncClient,
        peer: HttpPeer,
        tasks: anyio.abc.TaskGroup,
        before: str = "",
    ) -> None:
        self._url = url
        self._client = client
        self._peer = peer
        self._tasks = tasks
        self._before = before
        self._opening: anyio.Event | None = None
        self._endpoint: httpx2.URL | None = None
        self._failure: ExchangeFault | None = None  # why the stream could not be opened

    async def carry(self, attempt: Attempt) -> None:
        endpoint = await self._where()
        self._peer.sent(attempt)  # its answer may come on the stream before the POST is done
        try:
            await self._send(endpoint, attempt.line, attempt.exchange.trace)
        except (LoginNeeded, SessionExpired):
            attempt.did_not_run()
            raise

    async def deliver(self, line: bytes) -> None:
        await self._send(await self._where(), line)

    async def listen(self, settled: Callable[[], object]) -> None:
        """Nothing to do: there is only the one stream, and it is already read."""

    async def leave(self) -> None:
        """Nothing to do: closing the stream ends the session."""

    async def _send(self, endpoint: httpx2.URL, line: bytes, trace: TraceContext | None = None) -> None:
        headers = {"Content-Type": "application/json", **(trace.fields if trace is not None else {})}
        request = request_to(self._client, HTTPMethod.POST, endpoint, headers, line)
        async with exchanged(self._client, request) as response:
            self._peer.heard()
            if not response.is_success:
                await self._refused(response)

    async def _refused(self, response: httpx2.Response) -> None:
        """Raises what the refusal means. The stream is the session, and a server may have lost it all the same: another
        machine has answered the POST."""
        body = await read_refusal(response)
        is_login = self._endpoint is None or "www-authenticate" in response.headers
        if not is_login and speaks_of_session(words_in(body)):
            raise SessionExpired(refusal_in_words(response, body))
        if response.status_code == 401:
            raise LoginNeeded(login_in_words(response))
        raise BadAnswer(refusal_in_words(response, body, has_worked=self._endpoint is not None))

    # -- the stream --

    async def _where(self) -> httpx2.URL:
        """The endpoint to post to, once the stream has named it. Raises the fault that kept the stream from opening."""
        if self._opening is None:
            self._opening = anyio.Event()
            self._tasks.start_soon(self._hear)
        await self._opening.wait()
        if self._endpoint is None:
            raise self._failure or BadAnswer("the event stream ended before it named its endpoint")
        return self._endpoint

    async def _hear(self) -> None:
        assert self._opening is not None
        try:
            await self._hear_all()
        except ExchangeFault as problem:
            self._failure = problem
        finally:
            self._opening.set()
        if self._endpoint is not None:
            loss = Reason.NEEDS_AUTH if isinstance(self._failure, LoginNeeded) else Reason.DIED
            if isinstance(self._failure, IdentityNeeded):
                loss = Reason.NO_IDENTITY
            reason = (
                f"its event stream broke: {self._failure}" if self._failure else "closed its event stream"
            )
            self._peer.lose(LostReason(reason, loss=loss))

    async def _hear_all(self) -> None:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        request = request_to(self._client, HTTPMethod.GET, self._url, headers)
        parser = EventParser(self._peer.max_size, self._overlong)
        async with exchanged(self._client, request) as response:
            await self._check(response)
            async with aclosing(response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    self._peer.heard()
                    for event in parser.feed(piece):
                        await self._take(event)

    async def _check(self, response: httpx2.Response) -> None:
        if not response.is_success:
            try:
                await self._refused(response)
            except BadAnswer as problem:
                raise BadAnswer(f"{self._before}{problem}") from None
        if media_type(response) != "text/event-stream":
            body = await read_refusal(response)
            raise BadAnswer(f"{self._before}no event stream: {said(response, body)}")

    async def _take(self, event: ServerEvent) -> None:
        if event.name == "message":
            await self._peer.hear(event.data)
        elif event.name == "endpoint" and self._endpoint is None:
            self._endpoint = self._checked(event.data.decode(errors="replace").strip())
            assert self._opening is not None
            self._opening.set()

    def _checked(self, place: str) -> httpx2.URL:
        import httpx2

        stream = httpx2.URL(self._url)
        try:
            with all_faults_told():
                endpoint = stream.join(place[:HTTP_PLACE_CHARACTERS])
        except ExchangeBroken:
            raise BadAnswer(
                f"its event stream names an endpoint that is not a URL ({place[:200]!r})"
            ) from None
        if (endpoint.scheme, endpoint.host, endpoint.port) != (stream.scheme, stream.host, stream.port):
            raise BadAnswer(f"its event stream names an endpoint on another origin ({place[:200]!r})")
        return endpoint

    def _overlong(self, head: bytes, bound: str) -> None:
        self._peer.take_overlong(head, bound)
