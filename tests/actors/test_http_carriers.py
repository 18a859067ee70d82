"""The two ways of speaking HTTP, decision by decision, against a server that is a function, in virtual time.

What real HTTP does to them is shown elsewhere (`test_http_session`, `test_http_faults`, `test_sse_legacy`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from tests.support import in_virtual_time
from tests.support.loops import on_asyncio
from tests.support.stdio import Call, Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.transports.http_bounds import read_bounded
from greenroom.actors.transports.http_faults import (
    BadAnswer,
    ExchangeBroken,
    ExchangeFault,
    LoginNeeded,
    SessionExpired,
    WrongTransport,
)
from greenroom.actors.transports.http_peer import Attempt, HttpPeer
from greenroom.actors.transports.legacy_sse import LegacySse
from greenroom.actors.transports.streamable_http import StreamableHttp
from greenroom.config.model import Settings
from greenroom.protocol.errors import Reach
from greenroom.protocol.jsonrpc.terms import METHOD_NOT_FOUND, SERVER_ERROR, UNSUPPORTED_VERSION
from greenroom.protocol.lifecycle import Reason

OLD, MODERN = "2025-11-25", "2026-07-28"
URL = "http://server.test/mcp"
EVENTS = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}

Answer = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class Body(httpx2.AsyncByteStream):
    """A body of these pieces, at these times; then it ends, breaks, or stays open."""

    def __init__(self, *pieces: tuple[float, bytes], then: str = "ends") -> None:
        self.pieces, self.then = pieces, then

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for seconds, piece in self.pieces:
            await anyio.sleep(seconds)
            yield piece
        if self.then == "breaks":
            raise httpx2.ReadError("reset")
        if self.then == "stays":
            await anyio.sleep_forever()


def events(*pieces: bytes, then: str = "ends") -> httpx2.Response:
    return httpx2.Response(200, headers=EVENTS, stream=Body(*((0.0, piece) for piece in pieces), then=then))


def failure(code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}).encode()


class Watched:
    """A carrier, and what it raised. What it is given counts as sent."""

    def __init__(self, carrier: Any) -> None:
        self.carrier = carrier
        self.may_speak_both: bool = carrier.may_speak_both
        self.deliver, self.listen, self.leave = carrier.deliver, carrier.listen, carrier.leave
        self.faults: list[ExchangeFault] = []

    async def carry(self, attempt: Attempt) -> None:
        attempt.exchange.reach = Reach.SENT
        try:
            await self.carrier.carry(attempt)
        except ExchangeFault as fault:
            self.faults.append(fault)
            raise


class Bench:
    """A peer whose carrier speaks to `answer`. `seen`: the requests and when they came."""

    def __init__(self, tasks: anyio.abc.TaskGroup, answer: Answer, *, legacy: bool, **options: Any) -> None:
        self.hooks = Recorder()
        self.peer = HttpPeer(current_backend(), self.hooks, tasks, 1 << 16)
        self.seen: list[tuple[float, httpx2.Request]] = []

        async def handle(request: httpx2.Request) -> httpx2.Response:
            self.seen.append((round(anyio.current_time(), 3), request))
            return await answer(request)

        self.client = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
        carrier: Any = (
            LegacySse(URL, self.client, self.peer, tasks, **options)
            if legacy
            else StreamableHttp(
                URL,
                self.client,
                self.peer,
                options.get("settings") or Settings(),
                may_be_older=options.get("may_be_older", False),
            )
        )
        self.carrier = self.peer.carrier = Watched(carrier)

    def times(self, method: str) -> list[float]:
        return [when for when, request in self.seen if request.method == method]

    async def ask(self, method: str, **params: Any) -> Call:
        call = Call(method, params)
        self.peer.request(call)
        with anyio.move_on_after(20):
            while not (call.ends or self.carrier.faults):
                await anyio.sleep(0.01)
        return call

    async def initialize(self) -> None:
        """Begin a session."""
        call = await self.ask("initialize")
        assert call.ends == [(b"{}", None)]
        self.seen.clear()


@asynccontextmanager
async def bench_for(answer: Answer, *, legacy: bool = False, **options: Any) -> AsyncGenerator[Bench]:
    async with anyio.create_task_group() as tasks:
        bench = Bench(tasks, answer, legacy=legacy, **options)
        async with bench.client:
            yield bench
            tasks.cancel_scope.cancel()


def answered(request: httpx2.Request, **headers: str) -> httpx2.Response:
    line = json.loads(request.content)
    return httpx2.Response(200, headers=headers, json={"jsonrpc": "2.0", "id": line["id"], "result": {}})


def is_initialize(request: httpx2.Request) -> bool:
    return json.loads(request.content or b"{}").get("method") == "initialize"


async def fault_of(work: Awaitable[object]) -> type[ExchangeFault] | None:
    try:
        await work
    except ExchangeFault as fault:
        return type(fault)
    return None


NOTE = b'data: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'

# ---- what a refusal means -------------------------------------------------------------------------------------------

NOT_INITIALISED = failure(SERVER_ERROR, "Bad Request: Server not initialized")
SCOPE = {"www-authenticate": 'Bearer error="insufficient_scope", scope="write"'}
BEARER = {"www-authenticate": "Bearer"}
REFUSALS: list[tuple[str, str, bool, httpx2.Response, type[ExchangeFault] | None, str]] = [
    # the era, the method, whether there is a session, what is answered; what that is, in which words
    (OLD, "tools/call", True, httpx2.Response(401, headers=BEARER), LoginNeeded, "HTTP 401 Unauthorized (Bearer)"),
    (OLD, "initialize", False, httpx2.Response(401), LoginNeeded, "HTTP 401 Unauthorized"),
    (OLD, "tools/call", True, httpx2.Response(404, text="gone"), SessionExpired, 'HTTP 404 Not Found: "gone"'),
    (OLD, "tools/call", False, httpx2.Response(404, text="gone"), BadAnswer, 'HTTP 404 Not Found: "gone"'),
    (MODERN, "tools/call", False, httpx2.Response(404), BadAnswer, "HTTP 404 Not Found"),
    (OLD, "tools/call", True, httpx2.Response(400, content=NOT_INITIALISED), SessionExpired, "not initialized"),
    (OLD, "tools/call", False, httpx2.Response(400, content=NOT_INITIALISED), None, "Server not initialized"),
    (OLD, "tools/call", True, httpx2.Response(409, content=NOT_INITIALISED), SessionExpired, "not initialized"),
    (OLD, "tools/call", True, httpx2.Response(400, content=failure(-1, "Not initialized")), SessionExpired, "Not"),
    (OLD, "tools/call", True, httpx2.Response(404, content=failure(-32601, "what?")), None, "what?"),
    (OLD, "tools/call", True, httpx2.Response(401, text="Unauthorized: Session not found"), SessionExpired, "Session"),
    (OLD, "tools/call", True, httpx2.Response(401, headers=BEARER, text="session expired"), LoginNeeded, "Bearer"),
    (OLD, "tools/call", True, httpx2.Response(400, content=failure(SERVER_ERROR, "busy")), None, "busy"),
    (OLD, "tools/call", True, httpx2.Response(400, text="what?"), BadAnswer, 'HTTP 400 Bad Request: "what?"'),
    (OLD, "tools/call", False, httpx2.Response(400, content=failure(UNSUPPORTED_VERSION, "x")), SessionExpired, "x"),
    (MODERN, "tools/call", False, httpx2.Response(400, content=failure(UNSUPPORTED_VERSION, "x")), SessionExpired, "x"),
    (MODERN, "tools/call", False, httpx2.Response(400, content=failure(-1, "No SESSION id")), SessionExpired, "No S"),
    (MODERN, "tools/call", False, httpx2.Response(400, content=failure(-1, "Not initialized")), SessionExpired, "Not"),
    (MODERN, "tools/call", False, httpx2.Response(400, content=failure(-1, "bad params")), None, "bad params"),
    (MODERN, "tools/call", False, httpx2.Response(500, content=failure(-1, "No session id")), SessionExpired, "No se"),
    (OLD, "initialize", False, httpx2.Response(400, content=failure(UNSUPPORTED_VERSION, "x")), None, "x"),
    (MODERN, "server/discover", False, httpx2.Response(400, content=failure(-1, "No session")), None, "No session"),
    (OLD, "tools/call", True, httpx2.Response(403, headers=SCOPE, content=failure(-1, "no")), BadAnswer, '"write"'),
    (OLD, "tools/call", True, httpx2.Response(403, content=failure(-1, "no")), None, "no"),
    (OLD, "tools/call", True, httpx2.Response(503, text="later"), BadAnswer, 'Service Unavailable: "later"'),
    (OLD, "tools/call", True, httpx2.Response(200, text="hi"), BadAnswer, 'nor an event stream but text/plain: "hi"'),
    (OLD, "tools/call", True, httpx2.Response(200, content=b"hi"), BadAnswer, 'stream but of no content type: "hi"'),
    (OLD, "tools/call", True, httpx2.Response(200), BadAnswer, "HTTP 200 OK and no answer to the request"),
    (OLD, "tools/call", True, httpx2.Response(202, text="yes"), BadAnswer, "HTTP 202 Accepted and no answer to"),
    (OLD, "tools/call", True, httpx2.Response(200, headers=JSON, content=NOT_INITIALISED), SessionExpired, "it says"),
    (OLD, "tools/call", False, httpx2.Response(200, headers=JSON, content=failure(-1, "no")), None, "no"),
    (OLD, "tools/call", True, httpx2.Response(200, headers=JSON, content=b"x" * 65_537), BadAnswer, "65,536 bytes"),
    (OLD, "tools/call", True, events(NOTE, b"data: " + b"x" * 65_537), BadAnswer, "65,536 bytes an event"),
    (OLD, "tools/call", True, events(b"data: " + b"x" * 65_537), BadAnswer, "65,536 bytes an event"),
    (OLD, "tools/call", True, events(b": nothing\n\n"), ExchangeBroken, "the event stream ended without an answer"),
    (MODERN, "tools/call", False, events(b"id: 1\n\n"), ExchangeBroken, "the event stream ended without an answer"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(REFUSALS)))
@on_asyncio
@in_virtual_time
async def test_a_refusal_is_the_calls_own_or_says_that_we_are_not_known(case: int) -> None:
    version, method, has_session, response, fault, words = REFUSALS[case]

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if has_session and is_initialize(request):
            return answered(request, **{"mcp-session-id": "s1"})
        return response

    async with bench_for(answer) as bench:
        if has_session:
            await bench.initialize()
        bench.peer.protocol_version = version
        call = await bench.ask(method)
        ((_, request),) = bench.seen
        assert request.headers.get("mcp-session-id") == ("s1" if has_session else None)
        assert request.headers["mcp-protocol-version"] == version
        if fault is None:
            ((_, error),) = call.ends
            assert error is not None
            assert words in error.message
            assert (error.fault, call.reach) == (False, Reach.ANSWERED)
        else:
            (found,) = bench.carrier.faults
            assert type(found) is fault
            assert words in str(found)
            did_not_run = fault in (LoginNeeded, SessionExpired)
            assert (call.reach is Reach.NOT_SENT) == did_not_run
            await anyio.sleep(5)
            assert [reason.loss for reason in bench.hooks.reasons] == (
                [Reason.NEEDS_AUTH if fault is LoginNeeded else Reason.EXPIRED] if did_not_run else []
            )


@pytest.mark.parametrize(
    ("status", "content", "older"),
    [
        (404, b"", True),
        (405, failure(-1, "no"), True),
        (406, b"no", True),
        (415, b"", True),
        (404, failure(METHOD_NOT_FOUND, "Method not found"), False),
        (400, b"", False),
        (500, b"", False),
    ],
)
@pytest.mark.parametrize("may_be_older", [True, False])
@on_asyncio
@in_virtual_time
async def test_only_where_it_may_be_an_older_server_is_that_one_reason(
    status: int, content: bytes, older: bool, may_be_older: bool
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=content)

    async with bench_for(answer, may_be_older=may_be_older) as bench:
        await bench.ask("tools/list")
        assert not any(isinstance(fault, WrongTransport) for fault in bench.carrier.faults)
        bench.carrier.faults.clear()
        await bench.ask("initialize")
        found = [type(fault) for fault in bench.carrier.faults]
        assert (found == [WrongTransport]) == (older and may_be_older)


@pytest.mark.parametrize(("session", "fits"), [("!~" * 2048, True), ("a" * 4097, False), ("a b", False)])
@on_asyncio
@in_virtual_time
async def test_a_session_id_that_no_header_can_say_is_the_servers_fault(session: str, fits: bool) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        response = answered(request)
        response.headers["mcp-session-id"] = session
        return response

    async with bench_for(answer) as bench:
        call = await bench.ask("initialize")
        if fits:
            assert call.ends == [(b"{}", None)]
        else:
            assert "its session id is not visible ASCII of at most 4,096 characters" in str(
                bench.carrier.faults[0]
            )


@pytest.mark.parametrize(
    ("response", "fault"),
    [
        (httpx2.Response(202), None),
        (httpx2.Response(400, text="no"), BadAnswer),
        (httpx2.Response(404), SessionExpired),
        (httpx2.Response(401), LoginNeeded),
    ],
)
@on_asyncio
@in_virtual_time
async def test_a_message_that_is_refused_says_so(
    response: httpx2.Response, fault: type[ExchangeFault] | None
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return answered(request, **{"mcp-session-id": "s1"}) if is_initialize(request) else response

    async with bench_for(answer) as bench:
        await bench.initialize()
        await anyio.sleep(1)
        assert await fault_of(bench.carrier.deliver(b"{}")) is fault
        assert bench.peer.last_heard == anyio.current_time()


# ---- what every request says, and what every answer proves ----------------------------------------------------------

BOTH = "application/json, text/event-stream"
OF_THE_LIBRARY = {"host", "content-length", "connection", "user-agent", "accept-encoding"}


def said_in(request: httpx2.Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name not in OF_THE_LIBRARY}


@pytest.mark.parametrize("version", [OLD, MODERN])
@on_asyncio
@in_virtual_time
async def test_each_request_says_in_its_headers_what_it_is_and_nothing_more(version: str) -> None:
    tools = [
        {"name": "play", "inputSchema": {"properties": {"city": {"type": "string", "x-mcp-header": "City"}}}}
    ]

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if is_initialize(request):
            return answered(request, **{"mcp-session-id": "s1"})
        line = json.loads(request.content or b"{}")
        if line.get("method") == "tools/list":
            result = {"tools": tools}
            return httpx2.Response(200, json={"jsonrpc": "2.0", "id": line["id"], "result": result})
        return answered(request) if "id" in line else events(b"id: e7\n\n")

    async with bench_for(answer) as bench:
        modern = version == MODERN
        opened = await bench.ask("initialize")
        assert opened.ends
        bench.peer.protocol_version = version
        await bench.ask("tools/list")
        await bench.ask("tools/call", name="play", arguments={"city": "Bern"})
        await bench.carrier.deliver(b"{}")
        with anyio.move_on_after(1.5):
            await bench.carrier.listen(print)
        await bench.carrier.leave()
        (first, listed, called, delivered, *streams, left) = [said_in(request) for _, request in bench.seen]
        ours = {"mcp-protocol-version": version, "mcp-session-id": "s1"}
        post = {"accept": BOTH, "content-type": "application/json"}
        get = {"accept": "text/event-stream", "cache-control": "no-store"}
        routed = {"mcp-method": "tools/call", "mcp-name": "play", "mcp-param-city": "Bern"}
        assert first == post
        assert listed == {**ours, **post, **({"mcp-method": "tools/list"} if modern else {})}
        assert called == {**ours, **post, **(routed if modern else {})}
        assert delivered == {**ours, **post}
        assert streams == [{**ours, **get}, {**ours, **get, "last-event-id": "e7"}]
        assert left == {**ours, "accept": "*/*"}


@pytest.mark.parametrize(("version", "kept"), [(OLD, ["odd", "fine"]), (MODERN, ["fine"])])
@on_asyncio
@in_virtual_time
async def test_only_where_arguments_are_mirrored_is_a_tool_left_out_for_its_annotations(
    version: str, kept: list[str]
) -> None:
    odd = {"name": "odd", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}

    async def answer(request: httpx2.Request) -> httpx2.Response:
        result = {"tools": [odd, {"name": "fine"}], "nextCursor": "more"}
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": result})

    async with bench_for(answer) as bench:
        bench.peer.protocol_version = version
        call = await bench.ask("tools/list")
        ((result, error),) = call.ends
        assert error is None
        said = json.loads(result or b"")
        assert ([tool["name"] for tool in said["tools"]], said["nextCursor"]) == (kept, "more")
        assert len(bench.hooks.notes) == 2 - len(kept)


@in_virtual_time
async def test_of_a_list_no_more_is_looked_through_than_is_kept() -> None:
    odd = {"name": "odd", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}
    tools = [odd, {"name": "first"}, {"name": "second"}, odd]

    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}})

    for settings, kept, notes in (
        (Settings(max_list_items=2), ["first"], 2),
        (Settings(max_list_bytes=100), ["odd", "first", "second", "odd"], 0),
    ):
        async with bench_for(answer, settings=settings) as bench:
            bench.peer.protocol_version = MODERN
            call = await bench.ask("tools/list")
            ((result, _),) = call.ends
            assert [tool["name"] for tool in json.loads(result or b"")["tools"]] == kept
            assert len(bench.hooks.notes) == notes


HEARD: dict[str, Callable[[], httpx2.Response]] = {
    "an answer": lambda: httpx2.Response(200, headers=JSON, content=b'{"jsonrpc":"2.0","id":2,"result":{}}'),
    "a refusal": lambda: httpx2.Response(500, text="no"),
    "a stream": lambda: events(then="stays"),
}


@pytest.mark.parametrize("name", HEARD)
@pytest.mark.parametrize("what", ["tools/call", "a message", "the stream of notifications"])
@on_asyncio
@in_virtual_time
async def test_whatever_comes_of_a_request_shows_that_the_server_lives(name: str, what: str) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if is_initialize(request):
            return answered(request, **{"mcp-session-id": "s1"})
        await anyio.sleep(3.0)
        return HEARD[name]()

    async with bench_for(answer) as bench:
        await bench.initialize()
        bench.peer.protocol_version = OLD
        began = bench.peer.last_heard
        with anyio.move_on_after(3.5):
            match what:
                case "tools/call":
                    await bench.ask(what)
                case "a message":
                    await fault_of(bench.carrier.deliver(b"{}"))
                case _:
                    await bench.carrier.listen(print)
        assert bench.peer.last_heard - began == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize("legacy", [False, True])
@on_asyncio
@in_virtual_time
async def test_each_piece_of_a_stream_shows_that_the_server_lives(legacy: bool) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        pieces = [(0.0, ENDPOINT), (2.0, b": still here\n\n"), (2.0, b": and here\n\n")]
        if legacy and request.method == "POST":
            return httpx2.Response(202)
        return httpx2.Response(200, headers=EVENTS, stream=Body(*pieces, then="stays"))

    async with bench_for(answer, legacy=legacy) as bench:
        bench.peer.request(Call("tools/call", {}))
        for when in (0.0, 2.0, 4.0):
            await anyio.sleep(when + 0.5 - anyio.current_time())
            assert bench.peer.last_heard == pytest.approx(when, abs=0.05)


@pytest.mark.parametrize("status", [401, 500])
@on_asyncio
@in_virtual_time
async def test_what_the_older_transport_posts_is_json_and_even_a_refusal_shows_that_the_server_lives(
    status: int,
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return events(ENDPOINT, then="stays")
        await anyio.sleep(2.0)
        return httpx2.Response(status)

    async with bench_for(answer, legacy=True) as bench:
        assert await fault_of(bench.carrier.deliver(b"{}")) is (LoginNeeded if status == 401 else BadAnswer)
        (_, opened), (_, posted) = bench.seen
        assert said_in(opened) == {"accept": "text/event-stream", "cache-control": "no-store"}
        assert said_in(posted) == {"accept": "*/*", "content-type": "application/json"}
        assert bench.peer.last_heard == pytest.approx(2.0, abs=0.05)


# ---- the stream of an answer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retry", "pause"), [(b"", 1.0), (b"retry: 250\n", 0.25)])
@pytest.mark.parametrize("then", ["ends", "breaks"])
@in_virtual_time
async def test_an_answers_stream_is_opened_again_after_the_wished_time_from_its_last_id(
    retry: bytes, pause: float, then: str
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            return events(b"id: e7\n" + retry + b"\n", then=then)
        return events(b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n')

    async with bench_for(answer) as bench:
        bench.peer.protocol_version = OLD
        call = await bench.ask("tools/call")
        assert call.ends == [(b"{}", None)]
        assert bench.times("GET") == [pause]
        assert bench.seen[-1][1].headers["last-event-id"] == "e7"
        assert bench.seen[-1][1].headers["accept"] == "text/event-stream"


# ---- the stream of what is said unasked -----------------------------------------------------------------------------

LISTENS: dict[str, tuple[Callable[[int], httpx2.Response], list[float]]] = {
    "that brings nothing": (lambda _: events(), [0, 1, 2, 3, 5, 9, 17, 33, 63, 93]),
    "that brings something": (lambda _: events(NOTE), [0, 1, 2, 3, 4, 5, 6, 7]),
    "that brings an id": (lambda at: events(b"id: %d\n\n" % at), [0, 1, 2, 3, 4, 5, 6, 7]),
    "that brings the same id": (lambda _: events(b"id: 1\n\n"), [0, 1, 2, 3, 4, 6, 10, 18]),
    "that wishes for a time": (lambda _: events(b"retry: 5000\n", NOTE), [0, 5, 10, 15, 20]),
    "that wishes in vain": (lambda _: events(b"retry: 100\n\n"), [0, 0.1, 0.2, 0.3, 2.3, 6.3]),
    "that is broken": (lambda _: httpx2.Response(503), [0, 1, 3, 7, 15, 31, 61, 91]),
    "that breaks": (lambda _: events(then="breaks"), [0, 1, 2, 3, 4]),
    "that comes back": (
        lambda at: httpx2.Response(503) if at in (1, 2, 4) else events(),
        [0, 1, 3, 7, 8],
    ),
}


@pytest.mark.parametrize("name", LISTENS)
@in_virtual_time
async def test_the_stream_of_notifications_is_opened_again_ever_more_rarely(name: str) -> None:
    respond, times = LISTENS[name]

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if is_initialize(request):
            return answered(request, **{"mcp-session-id": "s1"})
        return respond(len(bench_seen) - 1)

    bench_seen: list[Any] = []
    async with bench_for(answer) as bench:
        bench_seen = bench.seen
        await bench.initialize()
        began, settled = anyio.current_time(), list[float]()
        with anyio.move_on_after(times[-1] + 0.05):
            await bench.carrier.listen(lambda: settled.append(anyio.current_time()))
        assert [when - began for when in bench.times("GET")] == pytest.approx(times, abs=0.01)
        assert settled[0] == pytest.approx(began, abs=0.01), "heard, or not just now"
        ids = [request.headers.get("last-event-id") for _, request in bench.seen]
        if name == "that brings an id":
            assert ids == [None, *map(str, range(7))]
            assert bench.hooks.gaps == 0
        elif name == "that is broken":
            assert bench.hooks.gaps == 0
            assert bench.peer.notes.counts["the stream of notifications broke"] == len(times)
        elif name == "that brings something":
            assert bench.hooks.notifications == [("notifications/x", None)] * len(times)
            assert bench.hooks.gaps == len(times) - 1, "nothing says what was missed"


@pytest.mark.parametrize(
    "response",
    [
        httpx2.Response(405),
        httpx2.Response(405, headers=EVENTS),
        httpx2.Response(200, headers=JSON, text="{}"),
        httpx2.Response(404),
        httpx2.Response(401),
        httpx2.Response(501),
        httpx2.Response(400, text="Invalid or missing session ID"),
    ],
)
@on_asyncio
@in_virtual_time
async def test_a_server_need_not_have_such_a_stream(response: httpx2.Response) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return answered(request, **{"mcp-session-id": "s1"}) if is_initialize(request) else response

    async with bench_for(answer) as bench:
        await bench.carrier.listen(lambda: pytest.fail("without a session there is none"))
        assert bench.seen == []
        await bench.initialize()
        await anyio.sleep(1)
        await bench.carrier.listen(lambda: pytest.fail("it is not heard"))
        assert len(bench.times("GET")) == 1
        assert bench.peer.last_heard == anyio.current_time()
        await bench.carrier.leave()
        assert bench.seen[-1][1].headers["mcp-session-id"] == "s1"
        await bench.carrier.leave()
        assert len(bench.times("DELETE")) == 1
        await bench.carrier.listen(lambda: pytest.fail("that session is over"))


@in_virtual_time
async def test_an_event_of_another_name_is_no_message_and_a_silent_peer_hears_no_more() -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if is_initialize(request):
            return answered(request, **{"mcp-session-id": "s1"})
        return events(b"event: ping\n" + NOTE, b"event: \xff\n" + NOTE, b"event: message\n" + NOTE)

    async with bench_for(answer) as bench:
        await bench.initialize()
        with anyio.move_on_after(0.5):
            await bench.carrier.listen(print)
        assert len(bench.hooks.notifications) == 1
        bench.peer.silence()
        await bench.carrier.listen(print)
        assert len(bench.times("GET")) == 1


@pytest.mark.parametrize("how", ["hangs", "breaks", "asks for a login"])
@in_virtual_time
async def test_a_farewell_is_bounded_and_harms_nobody(how: str) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if is_initialize(request):
            return answered(request, **{"mcp-session-id": "s1"})
        if how == "hangs":
            await anyio.sleep_forever()
        if how == "breaks":
            raise httpx2.ReadError("reset")
        return httpx2.Response(401)

    async with bench_for(answer) as bench:
        await bench.initialize()
        began = anyio.current_time()
        await bench.carrier.leave()
        assert anyio.current_time() - began == pytest.approx(2.0 if how == "hangs" else 0.0)
        assert len(bench.times("DELETE")) == 1


# ---- the older transport --------------------------------------------------------------------------------------------

ENDPOINT = b"event: endpoint\ndata: /post\n\n"
OPENINGS: list[tuple[Callable[[], httpx2.Response], type[ExchangeFault], str]] = [
    (lambda: httpx2.Response(404, text="no"), BadAnswer, 'Tried first. HTTP 404 Not Found: "no"'),
    (lambda: httpx2.Response(401, headers=BEARER), LoginNeeded, "HTTP 401 Unauthorized (Bearer)"),
    (lambda: httpx2.Response(200, html="<p>"), BadAnswer, "Tried first. no event stream: an HTML page; "),
    (lambda: httpx2.Response(200, text="hello"), BadAnswer, 'Tried first. no event stream: "hello"'),
    (lambda: events(b": hello\n\n", NOTE), BadAnswer, "the event stream ended before it named its endpoint"),
    (lambda: events(then="breaks"), ExchangeBroken, "the connection broke (reset)"),
    (lambda: events(b"event: endpoint\ndata: http://other.test/post\n\n"), BadAnswer, "on another origin ('http://o"),
    (lambda: events(b"event: endpoint\ndata: https://server.test/post\n\n"), BadAnswer, "on another origin"),
    (lambda: events(b"event: endpoint\ndata: http://server.test:81/\n\n"), BadAnswer, "on another origin"),
    (lambda: events(b"event: endpoint\ndata: http://server.test:x/\n\n"), BadAnswer, "that is not a URL ('http://s"),
    (lambda: events(b"event: endpoint\ndata: //o/%b\n\n" % (b"x" * 900)), BadAnswer, f"('//o/{'x' * 196}')"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(OPENINGS)))
@on_asyncio
@in_virtual_time
async def test_why_its_stream_cannot_be_opened_is_told(case: int) -> None:
    respond, fault, words = OPENINGS[case]

    async def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.method == "GET"
        return respond()

    async with bench_for(answer, legacy=True, before="Tried first. ") as bench:
        for _ in range(2):
            await bench.ask("initialize")
            (found,) = bench.carrier.faults
            assert type(found) is fault
            assert words in str(found)
            if fault is LoginNeeded:
                break
            bench.carrier.faults.clear()
        assert len(bench.seen) == 1, "it is tried once"


@pytest.mark.parametrize(
    ("then", "words"),
    [("ends", "closed its event stream"), ("breaks", "its event stream broke: the connection broke (reset)")],
)
@in_virtual_time
async def test_with_its_stream_the_connection_is_lost(then: str, words: str) -> None:
    sent: list[bytes] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            sent.append(request.content)
            assert request.url == "http://server.test/post"
            return httpx2.Response(202)
        pieces = [
            (1.0, ENDPOINT),
            (1.0, b"event: endpoint\ndata: /another\n\n" + b"event: x\n" + NOTE),
            (1.0, NOTE + b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n'),
            (60.0, b"data: " + b"x" * 65_537 + b"\n\n"),
        ]
        return httpx2.Response(200, headers=EVENTS, stream=Body(*pieces, then=then))

    async with bench_for(answer, legacy=True) as bench:
        call = await bench.ask("initialize")
        assert (call.ends, anyio.current_time()) == ([(b"{}", None)], pytest.approx(3.0, abs=0.1))
        assert bench.times("POST") == [1.0]
        assert bench.hooks.notifications == [("notifications/x", None)]
        assert bench.peer.last_heard == pytest.approx(3.0)
        await bench.carrier.deliver(b"{}")
        assert (sent[1:], bench.hooks.reasons) == ([b"{}"], [])
        await bench.hooks.lost.wait()
        assert anyio.current_time() == pytest.approx(63.0)
        (reason,) = bench.hooks.reasons
        assert (reason.text, reason.loss) == (words, Reason.DIED)
        assert "65,536 bytes an event" in bench.hooks.notes[-1]


@pytest.mark.parametrize(
    ("status", "reach", "reasons"),
    [(401, Reach.NOT_SENT, [Reason.NEEDS_AUTH]), (500, Reach.ANSWERED, []), (404, Reach.ANSWERED, [])],
)
@on_asyncio
@in_virtual_time
async def test_a_post_that_is_refused_did_not_run_if_it_wants_a_login(
    status: int, reach: Reach, reasons: list[Reason]
) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status) if request.method == "POST" else events(ENDPOINT, then="stays")

    async with bench_for(answer, legacy=True) as bench:
        call = await bench.ask("tools/call")
        await anyio.sleep(5)
        assert call.reach is reach
        assert [reason.loss for reason in bench.hooks.reasons] == reasons
        if not reasons:
            ((_, error),) = call.ends
            assert error is not None
            assert f"HTTP {status}" in error.message


# ---- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "path"),
    [
        (b"/post", "/post"),
        (b"  /post \t", "/post"),
        (b"post?x=1", "/post?x=1"),
        (b"http://server.test/a/b", "/a/b"),
        (b"/" + b"x" * 20_000, "/" + "x" * 8_191),
    ],
)
@on_asyncio
@in_virtual_time
async def test_an_endpoint_may_be_named_in_each_way_that_stays_there(named: bytes, path: str) -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            return httpx2.Response(202)
        return events(b"event: endpoint\ndata: %b\n\n" % named, then="stays")

    async with bench_for(answer, legacy=True) as bench:
        call = Call("tools/call", {})
        bench.peer.carrier = bench.carrier.carrier  # which counts as sent what it says so of
        bench.peer.request(call)
        await anyio.sleep(1)
        (_, posted) = [request for _, request in bench.seen]
        assert posted.url.raw_path.decode() == path
        assert call.sent_at == [Reach.SENT]


@in_virtual_time
async def test_a_stream_that_brings_messages_without_ids_is_resumed_as_long_as_it_does() -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            return events(b"id: e7\nretry: 100\n\n")
        last = len(bench_seen) == 8
        return events(b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n' if last else NOTE)

    bench_seen: list[Any] = []
    async with bench_for(answer) as bench:
        bench_seen = bench.seen
        bench.peer.protocol_version = OLD
        call = await bench.ask("tools/call")
        assert call.ends == [(b"{}", None)]
        assert len(bench.times("GET")) == 7


@on_asyncio
@in_virtual_time
async def test_a_batch_on_an_exchanges_own_stream_is_read_where_the_version_has_them() -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/x"}'
    small = b'[%b,{"jsonrpc":"2.0","id":1,"result":{}}]' % note
    large = b'[%b,{"jsonrpc":"2.0","id":1,"result":{"x":"%b"}}]' % (note, b"x" * (1 << 20))
    for version, data, fits in (
        ("2025-03-26", small, True),
        ("2025-03-26", large, True),
        (OLD, small, False),
        (OLD, large, False),
    ):

        async def answer(request: httpx2.Request, data: bytes = data) -> httpx2.Response:
            return httpx2.Response(200, headers=JSON, content=data)

        async with anyio.create_task_group() as tasks:
            bench = Bench(tasks, answer, legacy=False)
            bench.peer.max_size = 4 << 20
            bench.peer.protocol_version = version
            call = await bench.ask("tools/call")
            ((result, error),) = call.ends or [(None, None)]
            assert (result is not None) is fits
            assert len(bench.hooks.notifications) == fits
            if not fits:
                assert error is not None or "batch" in str(bench.carrier.faults[0])
                assert len(str(bench.carrier.faults[0])) < 300, "only its beginning is quoted"
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("size", "kind"), [((1 << 20) - 1, bytes), (1 << 20, bytearray)])
@on_asyncio
@in_virtual_time
async def test_only_a_large_answer_is_handed_on_without_a_copy(size: int, kind: type) -> None:
    response = httpx2.Response(200, stream=Body((0.0, b"x" * 99), (0.0, b"x" * (size - 99))))
    assert type(await read_bounded(response, 2 << 20)) is kind


@on_asyncio
@in_virtual_time
async def test_an_answer_that_only_speaks_of_what_is_not_initialized_is_an_answer() -> None:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        if is_initialize(request):
            return answered(request, **{"mcp-session-id": "s1"})
        return httpx2.Response(200, headers=JSON, content=said)

    said = b'{"jsonrpc":"2.0","id":2,"result":{"text":"Server not initialized"}}'
    async with bench_for(answer) as bench:
        await bench.initialize()
        call = await bench.ask("tools/call")
        assert call.ends == [(b'{"text":"Server not initialized"}', None)]
        assert bench.hooks.reasons == []
