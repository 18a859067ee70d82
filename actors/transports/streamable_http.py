"""Streamable HTTP: each message is a POST, and its answer a JSON body or its own event stream.

This is our own framing over the HTTP library that the SDK uses too, not the SDK's client. That client can be kept from
cancelling every exchange when one breaks, but it loses what a call's end depends on: whether the request was sent, the
HTTP status, the `WWW-Authenticate`. It waits for ever when an answer has another id, does not bound a JSON body,
converts results to models and back, and needs `import mcp` (650 ms). The protocol is small. These are its rules here:

* The session's id comes with the answer to `initialize` and goes into every later request. A server may have lost the
  session, by a restart; `session_refusals` says which answers mean that, and that the request did not run.
* An event stream that ends early is resumed (`AnswerStream`). 2026-07-28 has neither sessions nor resuming.
* Messages of the server that answer no request come on a further stream, a GET. A server that refuses it has no such
  stream, whatever the status: many have only a route for POST, and say 404. Only a POST says whether it knows us, so
  one is sent (a ping) when a stream that was open is refused. When that stream is opened again without being resumed,
  messages may have been missed.
* A bad status with a JSON-RPC error in its body is that error. Only 401 asks for a login. A 403 refuses the request,
  and may name the scope that it needs. Servers that only know the older event stream refuse `initialize` with 404,
  405, 406 or 415.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from http import HTTPMethod
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import attrs

from ...catalogue.entries import Raw
from ...catalogue.list_pages import Items
from ...config.model import Settings
from ...protocol.bounds import LARGE_MESSAGE, SESSION_ID_CHARACTERS
from ...protocol.header_params import Path, as_text, encode_value, mirrored_in
from ...protocol.jsonrpc.encoding import encode_json
from ...protocol.jsonrpc.incoming import (
    NO_MESSAGE,
    ServerMessage,
    decode_error,
    decode_line,
    excerpt,
    nbytes,
    read_at,
)
from ...protocol.jsonrpc.outgoing import encode_request
from ...protocol.jsonrpc.terms import METHOD_NOT_FOUND, WireFault
from ...protocol.tasks import CANCEL, GET, UPDATE
from ..timers import at_most
from ..workers import CATALOGUE, LONG_WORK, aside
from .event_parser import EventParser
from .http_bounds import read_bounded, read_refusal
from .http_client import exchanged, request_to
from .http_faults import (
    BadAnswer,
    ExchangeBroken,
    LoginNeeded,
    SessionExpired,
    WrongTransport,
    lacks_scope,
    login_in_words,
    media_type,
    refusal_in_words,
    said,
    status_in_words,
)
from .http_peer import Attempt, HttpPeer, SentTeller
from .session_refusals import error_in, is_of_session, says_without_status, words_in

if TYPE_CHECKING:
    import httpx2


_OLDER = (404, 405, 406, 415)
# By these statuses a GET is refused for now. By any other, there is no such stream.
_LATER = (429, 500, 502, 503, 504)
# What servers call JSON that say no better. Whether it is JSON is seen when it is read.
_UNTYPED = ("", "text/plain", "application/octet-stream", "binary/octet-stream", "text/javascript")
_LAST_RETRY = 30.0  # seconds
_PING = encode_request(0, "ping", None)  # we give no request this id, and nobody waits for its answer
_SESSION_ID = re.compile(rf"[\x21-\x7e]{{1,{SESSION_ID_CHARACTERS}}}")  # the specification's characters
_FRUITLESS = 3  # GET streams in a row that bring nothing; after these we wait longer
_FAREWELL = 2.0  # seconds
_NOTHING: Mapping[str, str] = {}
FIRST_RETRY = 1.0  # seconds before a stream is opened again, when the server does not set them
_FRUITLESS_STREAMS = 3  # attempts in a row that bring nothing
_LINGER = 0.05  # seconds
_NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    **dict.fromkeys((GET, UPDATE, CANCEL), "taskId"),
}


class StreamableHttp:
    """A `Carrier`. `may_be_older`: a refusal may mean that the server only speaks the older transport."""

    may_speak_both = True

    def __init__(
        self,
        url: str,
        client: httpx2.AsyncClient,
        peer: HttpPeer,
        settings: Settings,
        *,
        may_be_older: bool,
    ) -> None:
        self._url = url
        self._client = client
        self._peer = peer
        self._settings = settings
        self._may_be_older = may_be_older
        self._session: str | None = None
        self._tools = ToolHeaders()

    # -- requests --

    async def carry(self, attempt: Attempt) -> None:
        stream = AnswerStream(attempt, self._peer, self._take)
        try:
            await self._ask(attempt, stream)
        except (LoginNeeded, SessionExpired):
            attempt.did_not_run()
            raise
        except ExchangeBroken:
            if not stream.is_resumable:
                raise
        if self._peer.is_open(attempt):
            await stream.resume(self._open_again)

    async def _ask(self, attempt: Attempt, stream: AnswerStream) -> None:
        named: dict[str, str] = {}
        if attempt.is_modern:
            name = partial(self._tools.headers, attempt.method, attempt.exchange.params)
            named = name() if len(attempt.line) < LARGE_MESSAGE else await aside(name)
        async with exchanged(self._client, self._post(attempt.line, attempt, named)) as response:
            self._peer.heard()
            if not response.is_success:
                await self._refused(attempt, response)
                return
            if attempt.method == "initialize":
                self._session = _session_in(response)
            kind = media_type(response)
            if kind == "text/event-stream":
                await stream.read(response)
            elif "json" in kind:  # application/json-rpc, application/vnd.api+json, text/json
                await self._take(attempt, await read_bounded(response, self._peer.max_size))
            elif kind in _UNTYPED:
                body = await read_bounded(response, self._peer.max_size)
                if body.lstrip()[:1] != b"{":
                    self._raise_no_answer(response, bytes(body))
                await self._take(attempt, body)
            else:
                self._raise_no_answer(response, await read_refusal(response))

    async def _open_again(self, stream: AnswerStream) -> str | None:
        async with exchanged(self._client, self._get(stream.last_id)) as response:
            if not await self._is_stream(response):
                return status_in_words(response.status_code)
            await stream.read(response)
            return None

    def _raise_no_answer(self, response: httpx2.Response, body: bytes) -> NoReturn:
        if response.status_code == 202 or not body.strip():
            raise BadAnswer(f"{status_in_words(response.status_code)} and no answer to the request")
        kind = media_type(response) or "of no content type"
        page = said(response, body, has_worked=self._has_worked)
        raise BadAnswer(f"the answer is neither JSON nor an event stream but {kind}: {page}")

    @property
    def _has_worked(self) -> bool:
        """Whether the server has spoken MCP with us."""
        return self._peer.protocol_version is not None

    def _in_words(self, response: httpx2.Response, body: bytes) -> str:
        return refusal_in_words(response, body, has_worked=self._has_worked)

    async def _take(self, attempt: Attempt, data: bytes | bytearray) -> None:
        """Look at what came for the exchange, and pass it on. A list of tools says which headers they want."""
        if attempt.method == "tools/list" and (attempt.is_modern or self._peer.beside is not None):
            data = await self._learn(data, leaves_out=attempt.is_modern)
        elif self._session is not None and not attempt.is_modern and says_without_status(data):
            raise SessionExpired(f"it says {excerpt(words_in(data).encode())}")
        await self._peer.take_for(attempt, data)

    async def _learn(self, data: bytes | bytearray, *, leaves_out: bool) -> bytes | bytearray:
        """Learn the listed tools; a tool that must be left out is removed from the answer, if it is of 2026-07-28."""
        read = partial(_listed_in, data, self._settings, leaves_out=leaves_out)
        try:
            listed = read() if len(data) < LONG_WORK else await aside(read, CATALOGUE)
        except (WireFault, *NO_MESSAGE):
            return data  # not a list of tools: the code that asked for it reports what is wrong
        self._tools.update(listed.headers)
        for note in listed.notes:
            self._peer.notes.add("a tool was left out", note)
        return listed.data

    # -- refusals --

    async def _refused(self, attempt: Attempt, response: httpx2.Response) -> None:
        """End the exchange with the refusal, or raise what else the status means."""
        body = await read_refusal(response)
        status, words, error = response.status_code, self._in_words(response, body), error_in(body)
        if attempt.method not in ("initialize", "server/discover"):
            self._check_known(response, body, modern=attempt.is_modern)
        elif status == 401:
            raise LoginNeeded(login_in_words(response))
        if attempt.method == "initialize" and self._may_be_older and _is_older(status, error):
            raise WrongTransport(words)
        if error is None or lacks_scope(response):
            raise BadAnswer(words)
        self._peer.answer(attempt, error)

    def _check_known(self, response: httpx2.Response, body: bytes, *, modern: bool = False) -> None:
        """Raises `LoginNeeded` or `SessionExpired` when the server says that it does not know us. `modern`: it says so
        to a request of 2026-07-28."""
        status, challenged = response.status_code, "www-authenticate" in response.headers
        has_session = self._session is not None
        if is_of_session(status, body, modern=modern, has_session=has_session, challenged=challenged):
            raise SessionExpired(self._in_words(response, body))
        if status == 401:
            raise LoginNeeded(login_in_words(response))

    # -- other messages --

    async def deliver(self, line: bytes) -> None:
        async with exchanged(self._client, self._post(line, None)) as response:
            self._peer.heard()
            if not response.is_success:
                body = await read_refusal(response)
                self._check_known(response, body)
                raise BadAnswer(self._in_words(response, body))

    async def listen(self, settled: Callable[[], object]) -> None:
        """Read the GET stream; open it again whenever it ends, until the server refuses it."""
        parser = EventParser(self._peer.max_size, self._overlong)
        delay: float | None = None
        fruitless = 0
        while self._session is not None and not self._peer.is_silent:
            try:
                async with exchanged(self._client, self._get(parser.last_id)) as response:
                    if not await self._is_stream(response):
                        break
                    if delay is not None and not parser.last_id:
                        self._peer.gap()
                    delay = 0.0
                    settled()
                    fruitless = 0 if await self._hear(response, parser) else fruitless + 1
            except ExchangeBroken as problem:
                settled()
                self._peer.notes.add("the stream of notifications broke", str(problem))
            delay = min(max(2 * (delay or 0.0), FIRST_RETRY), _LAST_RETRY)
            wished = delay if parser.retry is None else parser.retry
            await anyio.sleep(
                max(wished, min(2.0 ** (fruitless - _FRUITLESS), _LAST_RETRY))
                if fruitless > _FRUITLESS
                else wished
            )
        if delay is not None and self._session is not None and not self._peer.is_silent:
            settled()
            await self.deliver(_PING)  # the stream was open once: does the server still know us?

    async def _is_stream(self, response: httpx2.Response) -> bool:
        """Whether a GET brought an event stream; a server need not offer one. Raises `ExchangeBroken` when it may
        later."""
        self._peer.heard()
        if response.status_code in _LATER:
            raise ExchangeBroken(status_in_words(response.status_code))
        return response.is_success and media_type(response) == "text/event-stream"

    async def _hear(self, response: httpx2.Response, parser: EventParser) -> bool:
        """Read the stream to its end. Returns whether it brought anything."""
        heard, last_id = False, parser.last_id
        async with aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                self._peer.heard()
                for event in parser.feed(piece):
                    heard = True
                    if event.name == "message":
                        await self._peer.hear(event.data)
        return heard or parser.last_id != last_id

    def _overlong(self, head: bytes, bound: str) -> None:
        self._peer.take_overlong(head, bound)

    async def leave(self) -> None:
        """End the session, if there is one."""
        if self._session is None:
            return
        headers, self._session = self._own_headers(), None
        async with at_most(_FAREWELL):
            try:
                request = request_to(self._client, HTTPMethod.DELETE, self._url, headers)
                async with exchanged(self._client, request):
                    pass
            except (ExchangeBroken, LoginNeeded):
                return  # the server is gone, or refuses; either way there is nothing left to end

    # -- what goes out --

    def _post(
        self, line: bytes, attempt: Attempt | None, named: Mapping[str, str] = _NOTHING
    ) -> httpx2.Request:
        """`named`: the headers that repeat what is in the body."""
        headers = self._own_headers() if attempt is None else self._headers_of(attempt)
        headers |= {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if attempt is None:
            return request_to(self._client, HTTPMethod.POST, self._url, headers, line)
        if attempt.exchange.trace is not None:
            headers |= attempt.exchange.trace.fields
        headers.update(named)
        trace = SentTeller(attempt, self._peer)
        return request_to(self._client, HTTPMethod.POST, self._url, headers, line, trace)

    def _get(self, last_id: str) -> httpx2.Request:
        headers = {**self._own_headers(), "Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        return request_to(self._client, HTTPMethod.GET, self._url, headers)

    def _headers_of(self, attempt: Attempt) -> dict[str, str]:
        if attempt.exchange.version is None:
            return self._own_headers()
        return {"MCP-Protocol-Version": attempt.exchange.version}  # beside the session: it belongs to none

    def _own_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._peer.protocol_version is not None:
            headers["MCP-Protocol-Version"] = self._peer.protocol_version
        if self._session is not None:
            headers["Mcp-Session-Id"] = self._session
        return headers


def _session_in(response: httpx2.Response) -> str | None:
    """The id of the session that an answer opens. Raises `BadAnswer` when the id cannot be sent back in a header."""
    session = response.headers.get("mcp-session-id")
    if not session:
        return None
    if not _SESSION_ID.fullmatch(session):
        text = excerpt(session.encode(errors="replace"), 60)
        raise BadAnswer(
            f"its session id is not visible ASCII of at most 4,096 characters ({text}). Correct the server"
        )
    return session


@attrs.frozen(eq=False)
class _ToolPage:
    """A list of tools as it is passed on (`data`), which headers its tools want, and which were left out of it."""

    data: bytes | bytearray
    headers: ToolHeaders
    notes: list[str] = attrs.field(factory=list[str])


def _listed_in(data: bytes | bytearray, settings: Settings, *, leaves_out: bool) -> _ToolPage:
    """What an answer with a list of tools says about headers. `leaves_out`: tools that break the rules are left out. A
    list over the bound is not looked through, as the code that asked for it leaves it out. Raises `WireFault` when it
    is no list of tools, and what a decoder raises."""
    message, listed = decode_line(data)[0], _ToolPage(data, ToolHeaders())
    if nbytes(message.result) > settings.max_list_bytes:
        return listed
    items, kept = Items("tools", "name", settings.max_list_items), list[Raw]()
    cursor = items.read(bytes(message.result))
    for tool in items.found:
        if why := listed.headers.learn(tool):
            listed.notes.append(f"{tool.get('name')!r}: {why}")
        else:
            kept.append(tool)
    if not leaves_out or not listed.notes:
        listed.notes.clear()
        return listed
    if items.is_full:
        listed.notes.append(f"all behind the first {items.bound_in_words(settings.max_list_items)}")
    result = encode_json({"tools": kept, **({} if cursor is None else {"nextCursor": cursor})})
    whole = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encode_json(message.id), result)
    return attrs.evolve(listed, data=whole)


def _is_older(status: int, error: ServerMessage | None) -> bool:
    """Whether an older server would refuse `initialize` like this. A newer one says "method not found" in JSON-RPC."""
    return status in _OLDER and (error is None or decode_error(bytes(error.error)).code != METHOD_NOT_FOUND)


class AnswerStream:
    """The event stream that carries the answer of one exchange. `take(attempt, data)` is called with each message
    that comes.

    A stream that broke or was closed before the answer is opened again from the id of its last event, after the time
    that the server asked for. Without an id it cannot be resumed. The number of attempts in a row that bring nothing is
    bounded. The call's own timeout bounds how long it waits.

    Once the answer has come, the stream gets a moment to end by itself, because a connection that we close in the
    middle of a body cannot be used again.
    """

    def __init__(
        self, attempt: Attempt, peer: HttpPeer, take: Callable[[Attempt, bytes | bytearray], Awaitable[None]]
    ) -> None:
        self._attempt = attempt
        self._peer = peer
        self._take = take
        self._parser = EventParser(peer.max_size, self._overlong)
        self._is_overlong = False
        self._events = 0

    @property
    def last_id(self) -> str:
        return self._parser.last_id

    @property
    def is_resumable(self) -> bool:
        return bool(self.last_id) and not self._attempt.is_modern

    async def read(self, response: httpx2.Response) -> None:
        """Take messages until the stream ends. A moment after the answer we end it ourselves."""
        with anyio.CancelScope() as scope:
            async with aclosing(response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    self._peer.heard()
                    await self._feed(piece)
                    if not self._peer.is_open(self._attempt) and scope.deadline == math.inf:
                        scope.deadline = anyio.current_time() + _LINGER

    async def resume(self, open_again: Callable[[AnswerStream], Awaitable[str | None]]) -> None:
        """Open the stream again and again, until the answer is there. `open_again` returns how it was refused, or None.
        Raises `ExchangeBroken` when the stream cannot be resumed."""
        fruitless = 0
        while self._peer.is_open(self._attempt):
            if not self.is_resumable:
                raise ExchangeBroken("the event stream ended without an answer")
            if fruitless == _FRUITLESS_STREAMS:
                raise ExchangeBroken("the event stream ended without an answer, and could not be resumed")
            await anyio.sleep(FIRST_RETRY if self._parser.retry is None else self._parser.retry)
            events, refusal = self._events, None
            try:
                refusal = await open_again(self)
            except ExchangeBroken as problem:
                self._peer.notes.add("resuming an event stream failed", str(problem))
            if refusal is not None:
                raise ExchangeBroken(
                    f"the event stream ended without an answer, and is not resumed: {refusal}"
                )
            fruitless = 0 if self._events > events else fruitless + 1

    async def _feed(self, piece: bytes) -> None:
        last_id = self.last_id
        for event in self._parser.feed(piece):
            self._events += 1
            if event.name == "message":
                await self._take(self._attempt, event.data)
        if self.last_id != last_id:
            self._events += 1
        if self._is_overlong:
            raise BadAnswer(f"the answer is over the bound of {self._peer.max_size:,} bytes an event")

    def _overlong(self, head: bytes, bound: str) -> None:
        self._is_overlong = True


class ToolHeaders:
    """Which arguments of which tool are mirrored, learned from the tool lists that pass.

    Since 2026-07-28 the headers of each request name its method, and the tool, prompt or resource it is about, so that
    middle boxes can route without reading bodies. A tool may ask that an argument be mirrored, too
    (`protocol.header_params`). A server refuses a request whose headers and body differ, so the headers are made here,
    from the body. The specification says that a tool whose annotations break the rules must be left out of the list:
    its calls could not be routed as the tool expects.
    """

    def __init__(self) -> None:
        self._mirrored: dict[str, dict[Path, str]] = {}

    def learn(self, tool: Mapping[str, Any]) -> str | None:
        """Take note of a listed tool. Returns why it has to be left out, or None."""
        mirrored = self._mirrored[str(tool.get("name"))] = {}
        try:
            mirrored.update(mirrored_in(tool.get("inputSchema")))
        except ValueError as problem:
            return str(problem)
        return None

    def update(self, listed: ToolHeaders) -> None:
        """Take over what another has learned from one list."""
        for name, mirrored in listed._mirrored.items():
            if mirrored:
                self._mirrored[name] = mirrored
            else:
                self._mirrored.pop(name, None)

    def headers(self, method: str, params: Mapping[str, Any] | None) -> dict[str, str]:
        """The routing headers of one request."""
        headers = {"Mcp-Method": method}
        params = params or {}
        named = params.get(_NAMED_BY.get(method, ""))
        if isinstance(named, str):
            headers["Mcp-Name"] = encode_value(named)
            if method == "tools/call":
                headers.update(self._mirror(named, params.get("arguments")))
        return headers

    def _mirror(self, tool: str, arguments: object) -> Iterator[tuple[str, str]]:
        for path, token in self._mirrored.get(tool, {}).items():
            text = as_text(read_at(arguments, path))
            if text is not None:
                yield f"Mcp-Param-{token}", encode_value(text)
