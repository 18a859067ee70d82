"""An HTTP API as a server: a `Carrier` that answers in its place what an MCP server would be asked, and sends its
calls to the API.

So everything above stays as it is: the actor, its calls and their clocks, the circuit breaker, approval, the
catalogue. And everything below too: the client with its timeouts, proxies, certificates, bounds and login is that of
every HTTP server. What is here is the difference:

* It speaks 2026-07-28, so it holds no connection and no slot. Its lists are made here, a page at a time in the thread
  for long lists: all input schemas of a large document are megabytes.
* A call is one request. It goes to the URL in the configuration and nowhere else: what an argument or a document makes
  of it is compared with that before it is sent, and redirects are followed as for every HTTP server.
* Any answer is an answer: one that is no success is a result that says it is an error, with the status and what the
  API says. So it never counts for the circuit breaker.
* Where no connection can be made, the connection counts as lost, as if a process had died. So the circuit breaker
  counts it, the call is sent again once, and after too many the API is left alone for a while.
* 429 says that the request did not run, and 503 mostly does. Where the API says for how long, and the call has
  that time, we wait and send it again: after 503 only if it may run twice. Whoever cancels meanwhile is told how far
  it got.
* 401 parks the API as long as a login is used for it, as it does every server. Without one it is the answer: a public
  API may have requests that want a login.
* No cookie is kept: the API would know all callers by the login of one of them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio
import attrs
import msgspec
from anyio import from_thread

from ...catalogue.list_pages import parts_of
from ...config.model import ServerDefinition, Settings
from ...config.private_files import read_regular
from ...config.references import header_problem
from ...openapi.answer import to_result
from ...openapi.operation import Operation
from ...openapi.request import ArgumentError, HttpRequest, build_request
from ...protocol.bounds import LARGE_MESSAGE, LIST_PARTS
from ...protocol.jsonrpc.encoding import UNREADABLE, encode
from ...protocol.jsonrpc.incoming import ServerMessage
from ...protocol.jsonrpc.outgoing import error_line
from ...protocol.jsonrpc.terms import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    RpcFault,
)
from ...protocol.safe_text import typed
from ..peer import LostReason
from ..workers import CATALOGUE, LONG_WORK, MESSAGES, aside
from .api_document import Api
from .http_bounds import read_raw, read_refusal
from .http_client import exchanged, request_to
from .http_faults import LoginNeeded, Unreachable, again_after, lacks_scope, login_in_words, scope_in_words
from .http_peer import Attempt, HttpPeer, SentTeller

if TYPE_CHECKING:
    import httpx2

PAGE: Final = 125  # tools in one page of the list
PAGE_BYTES: Final = 1 << 21  # from which on no further one comes into a page: it is read in one go
_WORD: Final = b"the answer that comes in pieces"
_PIECE: Final = 3 << 16  # bytes; of whole groups of base64
PATIENCE: Final = 10.0  # seconds that a call may wait in all for an API that asks for time
_FILLED: Final = 0.9  # of the bytes that the list may have
_SHARES: Final = 4  # as many times its share may a tool have: most need less
_LEAST: Final = (
    10  # bits of a number of bytes; they are powers of two, so that one tool seldom changes others
)
_CURSOR: Final = re.compile("([0-9]{1,9})-([0-9]{1,12})")
_REPEATS: Final = 3
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503


class _Params(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | None = None


class _ApiCall(msgspec.Struct):
    params: _Params


_as_call: Final = msgspec.json.Decoder(_ApiCall)


def _params(line: bytes) -> _Params:
    """Raises `RpcFault`."""
    try:
        return _as_call.decode(line).params
    except (*UNREADABLE, msgspec.ValidationError) as problem:
        raise RpcFault(INVALID_PARAMS, f"Invalid params: {problem}") from None


@attrs.frozen(eq=False)
class _ApiAnswer:
    """What came for a call: the result, and after how many seconds it may be asked for again; None: it is final."""

    result: bytes
    status: int
    again_after: float | None = None


class ApiCarrier:
    """A `Carrier`. `has_login`: a login is used for its requests."""

    may_speak_both = False

    def __init__(
        self,
        api: Api,
        definition: ServerDefinition,
        client: httpx2.AsyncClient,
        settings: Settings,
        peer: HttpPeer,
        *,
        has_login: bool,
    ) -> None:
        assert definition.url is not None
        self._api = api
        self._definition = definition
        self._client = client
        self._settings = settings
        self._peer = peer
        self._has_login = has_login
        self._base = Base.of(definition.url)
        self._names = list(api.operations)
        for note in api.notes:
            peer.notes.add("its document", note)

    # -- what an MCP server would be asked --

    async def carry(self, attempt: Attempt) -> None:
        match attempt.method:
            case "tools/call":
                await self._call(attempt)
            case "tools/list":
                page = partial(self._page, (attempt.exchange.params or {}).get("cursor"))
                listed, notes = await aside(page, CATALOGUE)
                for note in notes:
                    self._peer.notes.add("an operation", note)
                self._answer(attempt, listed)
            case "server/discover":
                self._answer(attempt, encode(self._introduction()))
            case "ping":
                self._answer(attempt, b"{}")
            case method:
                self._refuse(attempt, RpcFault(METHOD_NOT_FOUND, f"An HTTP API has no {method}."))

    async def deliver(self, line: bytes) -> None:
        """There is nobody to be told anything."""

    async def listen(self, settled: Callable[[], object]) -> None:
        settled()

    async def leave(self) -> None:
        """There is no session."""

    def _introduction(self) -> dict[str, Any]:
        name = {"name": self._api.title or self._definition.name}
        version = {"version": self._api.version or "unknown"}
        return {
            "supportedVersions": [*MODERN_VERSIONS],
            "capabilities": {"tools": {}},
            "_meta": {SERVER_INFO_KEY: {**name, **version}},
        }

    def _page(self, cursor: object) -> tuple[bytes, list[str]]:
        """One page of the list, and what its operations lack. The cursor says where it begins, and what came before
        weighs; one that is none begins anew."""
        found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        start, spent = map(int, found.groups()) if found else (0, 0)
        end, before = min(start + PAGE, len(self._names)), spent
        tools, notes = list[bytes](), list[str]()
        for position in range(start, end):
            if spent - before > PAGE_BYTES:
                end = position
                break
            from_thread.check_cancelled()
            tool, lacks = self._listed(self._names[position], self._room(spent, len(self._names) - position))
            spent += self._weight(tool)
            tools.append(tool)
            notes += lacks
        more = b',"nextCursor":"%d-%d"' % (end, spent) if end < len(self._names) else b""
        return b'{"tools":[%b]%b}' % (b",".join(tools), more), notes

    def _weight(self, tool: bytes) -> int:
        """The bytes of a tool. One of small parts counts as more: a list may have only so many of them, too."""
        return max(len(tool), parts_of(tool) * self._settings.max_list_bytes // LIST_PARTS)

    def _room(self, spent: int, tools: int) -> int:
        """The bytes that each schema of the next tool may have. `spent`: what the tools before it weigh; `tools`: how
        many are to come. Where many are large, all get less, so that none of them is left out of the list: a tool may
        have more than its share as long as others may need less."""
        share = max(0, int(_FILLED * self._settings.max_list_bytes) - spent) // tools
        most = share * min(_SHARES, max(1, tools // _SHARES)) // (2 if self._definition.output_schemas else 1)
        return 1 << max(_LEAST, most.bit_length() - 1)

    def _listed(self, name: str, most: int) -> tuple[bytes, list[str]]:
        """One tool, and what its operation lacks."""
        tool, lacks = self._api.operations[name].listed(
            with_output=self._definition.output_schemas, most=most
        )
        return encode(tool), [f"{name}: {each}" for each in lacks]

    # -- calls --

    async def _call(self, attempt: Attempt) -> None:
        try:
            operation, request = await self._request(attempt)
        except RpcFault as fault:
            self._refuse(attempt, fault)
            return
        except ValueError as problem:  # an `ArgumentError` is one
            self._answer(attempt, _failure(str(problem)))
            return
        try:
            answer = await self._sent(attempt, operation, request)
        except Unreachable as problem:
            self._peer.lose(LostReason(f"its API was not reached: {problem}"))
            return
        self._answer(attempt, answer.result)

    async def _request(self, attempt: Attempt) -> tuple[Operation, HttpRequest]:
        """What is called, and the request that this means. Raises `RpcFault` and `ArgumentError`."""
        is_long = len(attempt.line) >= LONG_WORK
        params = await aside(partial(_params, attempt.line), MESSAGES) if is_long else _params(attempt.line)
        operation = self._api.operations.get(params.name)
        if operation is None:
            raise RpcFault(INVALID_PARAMS, f"Unknown tool: {params.name[:200]}")
        build = partial(self._built, operation, params.arguments or {})
        is_short = operation.is_read and not is_long and self._definition.uploads is None
        return operation, build() if is_short else await aside(build, MESSAGES)

    def _built(self, operation: Operation, arguments: Mapping[str, Any]) -> HttpRequest:
        request = build_request(operation, arguments, self._base.url)
        for name, value in request.headers:
            if (wrong := header_problem(name, value)) is not None:
                raise ArgumentError(name, f"The header {name[:100]!r} cannot be sent: {wrong}.")
        self._base.check(request.url)
        return request.filled(self._files(request.paths)) if request.paths else request

    def _files(self, paths: tuple[str, ...]) -> dict[str, bytes]:
        """The files that a call sends, from the folder that it may send from. Raises `ArgumentError`. Blocks."""
        folder = self._definition.uploads
        if folder is None:
            what = 'send it in "base64", or have "uploads" in the configuration name the folder of what may be sent'
            raise ArgumentError(paths[0], f"The file {paths[0][:200]!r} is not read: {what}.")
        return {path: _read(Path(folder), path, self._settings.max_line) for path in paths}

    async def _sent(self, attempt: Attempt, operation: Operation, request: HttpRequest) -> _ApiAnswer:
        """The answer of the API, asked again where it wants time. Raises `ExchangeFault`."""
        left, may_repeat = PATIENCE, operation.annotations().get("idempotentHint") is True
        for _ in range(_REPEATS):
            answer = await self._ask(attempt, operation, request)
            pause = answer.again_after
            if pause is None or pause > left or not (answer.status == _TOO_MANY or may_repeat):
                return answer
            if anyio.current_time() + pause >= attempt.exchange.deadline:
                return answer  # the call would not see what comes of it
            if answer.status == _TOO_MANY:
                attempt.did_not_run()
            left -= pause
            await anyio.sleep(pause)
        return await self._ask(attempt, operation, request)

    async def _ask(self, attempt: Attempt, operation: Operation, request: HttpRequest) -> _ApiAnswer:
        headers = dict(request.headers)
        if "Cookie" in headers and (ours := self._client.headers.get("cookie")):
            headers["Cookie"] = f"{ours}; {headers['Cookie']}"
        if attempt.exchange.trace is not None:
            headers |= attempt.exchange.trace.fields
        teller = SentTeller(attempt, self._peer)
        outgoing = request_to(self._client, operation.method, request.url, headers, request.body, teller)
        async with exchanged(self._client, outgoing) as response:
            self._peer.heard()
            if response.is_success:
                return await self._success(operation, response)
            return await self._refusal(attempt, operation, response)

    async def _success(self, operation: Operation, response: httpx2.Response) -> _ApiAnswer:
        body = await read_raw(response, self._settings.max_line)
        work = partial(_result, operation, response.status_code, response.headers, body)
        result = work() if len(body) < LONG_WORK else await aside(work, MESSAGES)
        return _ApiAnswer(result, response.status_code)

    async def _refusal(self, attempt: Attempt, operation: Operation, response: httpx2.Response) -> _ApiAnswer:
        status = response.status_code
        if status == 401 and self._has_login:
            attempt.did_not_run()
            raise LoginNeeded(login_in_words(response))
        body = await read_refusal(response)
        again = again_after(response)
        result = _result(operation, status, response.headers, body, self._advice(operation, response))
        return _ApiAnswer(result, status, again)

    def _advice(self, operation: Operation, response: httpx2.Response) -> str:
        """What whoever owns the configuration can do about a refusal."""
        if lacks_scope(response):
            return f"{scope_in_words(response)}."
        if (pause := again_after(response)) is not None:
            return f"It wants to be asked again after {pause:,.0f} s."
        if response.status_code != 401:
            return ""
        if wants := self._api.wants(operation):
            return f"Its document asks for {wants}."
        name = typed(self._definition.name)
        step = f'log in (greenroom auth {name}, then greenroom reconnect {name}), or set "bearerToken" or "headers"'
        return f"It may want a login: {step}."

    # -- answers --

    def _answer(self, attempt: Attempt, result: bytes) -> None:
        self._peer.heard()
        self._peer.answer(attempt, ServerMessage(result=msgspec.Raw(result), id=attempt.rpc_id))

    def _refuse(self, attempt: Attempt, fault: RpcFault) -> None:
        self._peer.heard()
        line = error_line(b"%d" % attempt.rpc_id, fault)
        self._peer.answer(attempt, msgspec.json.decode(line, type=ServerMessage))


@attrs.frozen
class Base:
    """The URL in the configuration, to which paths are added. What its query has goes with each request: an API's key
    may be there."""

    url: str
    origin: tuple[str, str]
    path: str

    @classmethod
    def of(cls, url: str) -> Base:
        parts = urlsplit(url)
        return cls(url, (parts.scheme.lower(), parts.netloc), parts.path.rstrip("/"))

    def check(self, url: str) -> None:
        """Raises `ArgumentError` for a request that would lead elsewhere. What makes requests sees to that, too; here
        nothing depends on what a document says."""
        parts = urlsplit(url)
        is_ours = (parts.scheme.lower(), parts.netloc) == self.origin and f"{parts.path}/".startswith(
            f"{self.path}/"
        )
        if not is_ours or {"..", "."} & {*parts.path.split("/")}:
            raise ArgumentError("", "An argument makes the request leave the API's URL, so it is not sent.")


def _read(folder: Path, path: str, most: int) -> bytes:
    """A file of this folder. Raises `ArgumentError`. Blocks."""
    try:
        root = folder.resolve()
        file = (root / path).resolve()
        if not file.is_relative_to(root):
            raise ArgumentError(
                path, f"The file {path[:200]!r} is not read: it is not in the folder of the uploads."
            )
        return read_regular(file, most)
    except OverflowError:
        raise ArgumentError(path, f"The file {path[:200]!r} has more than {most:,} bytes.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        why = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise ArgumentError(path, f"The file {path[:200]!r} cannot be read ({why}).") from None


def _result(
    operation: Operation, status: int, headers: Mapping[str, str], body: bytes, advice: str = ""
) -> bytes:
    """A large answer is written in pieces, and its JSON is passed on as text alone: to decode it, or to write it in one
    go, would keep the interpreter's lock for a tenth of a second. What the result looks like is decided by `to_result`,
    which is given a short word in the place of the answer."""
    media = headers.get("content-type", "").lower()
    if len(body) < LARGE_MESSAGE or ("charset" in media and "utf-8" not in media):
        return encode(to_result(operation, status, headers, body, advice))
    frame = encode(to_result(operation, status, headers, _WORD))
    before, word, after = frame.partition(_WORD)
    if word:
        return b"".join((before, *_as_text(body), after))
    before, _, after = frame.partition(b64encode(_WORD))
    return b"".join((before, *_as_base64(body), after))


def _as_text(body: bytes) -> Iterator[bytes]:
    decode = getincrementaldecoder("utf-8-sig")("replace").decode
    for start in range(0, len(body), _PIECE):
        yield encode(decode(body[start : start + _PIECE], start + _PIECE >= len(body)))[1:-1]


def _as_base64(body: bytes) -> Iterator[bytes]:
    return (b64encode(body[start : start + _PIECE]) for start in range(0, len(body), _PIECE))


def _failure(text: str) -> bytes:
    return encode({"content": [{"type": "text", "text": text}], "isError": True})
