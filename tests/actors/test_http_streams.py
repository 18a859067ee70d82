"""The two HTTP transports against a server in this process, in virtual time: what is asked again, when, and with what.

The server is a function behind the HTTP library itself, so every request and response is a real one; only the network
is left out.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
import httpx2
import pytest
from tests.support import run, run_virtual
from tests.support.stdio import Call, Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.transports import http_client, http_connection
from greenroom.actors.transports.http_bounds import take_over
from greenroom.actors.transports.http_client import exchanged
from greenroom.actors.transports.http_faults import ExchangeBroken, ExchangeFault, in_words
from greenroom.actors.transports.http_peer import HttpPeer, SentTeller
from greenroom.actors.transports.legacy_sse import LegacySse
from greenroom.actors.transports.streamable_http import StreamableHttp
from greenroom.config.model import ServerDefinition, Settings
from greenroom.protocol.bounds import HTTP_REDIRECTS
from greenroom.protocol.errors import ConnectFailed, Reach
from greenroom.protocol.lifecycle import Reason

URL = "http://server.test/mcp"
EVENTS = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


class Chunks(httpx2.AsyncByteStream):
    """A body that comes in these pieces; a number is a pause, an exception is raised, `...` never ends."""

    def __init__(self, *chunks: Any) -> None:
        self.chunks = chunks
        self.closed = 0

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for chunk in self.chunks:
            if chunk is ...:
                await anyio.sleep_forever()
            elif isinstance(chunk, Exception):
                raise chunk
            elif isinstance(chunk, bytes):
                yield chunk
            else:
                await anyio.sleep(chunk)

    async def aclose(self) -> None:
        self.closed += 1


def stream(*chunks: Any) -> httpx2.Response:
    return httpx2.Response(200, headers=EVENTS, stream=Chunks(*chunks))


def _client(server: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(event_hooks={"response": [take_over]}, transport=httpx2.MockTransport(server))


def result(rpc_id: int, **fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": rpc_id, "result": fields}).encode()


def event(data: bytes, *, id: str = "") -> bytes:
    return (f"id: {id}\n".encode() if id else b"") + b"data: " + data + b"\n\n"


class Server:
    """Answers each request by `reply`. `seen`: (when, method, the request)."""

    def __init__(self, reply: Callable[[httpx2.Request], Any]) -> None:
        self.reply = reply
        self.seen: list[tuple[float, str, httpx2.Request]] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append((anyio.current_time(), request.method, request))
        answer = self.reply(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def times(self, method: str) -> list[float]:
        return [round(when, 3) for when, seen, _ in self.seen if seen == method]


Body = Callable[[HttpPeer, Recorder, Server], Awaitable[None]]


def _served(
    backend: str,
    reply: Callable[[httpx2.Request], Any],
    body: Body,
    *,
    older: bool = False,
    version: str = "2025-11-25",
) -> None:
    async def main() -> None:
        server, hooks = Server(reply), Recorder()
        async with (
            _client(server) as client,
            anyio.create_task_group() as tasks,
        ):
            peer = HttpPeer(current_backend(), hooks, tasks, 1 << 20)
            peer.protocol_version = version
            if older:
                peer.carrier = LegacySse(URL, client, peer, tasks)
            else:
                peer.carrier = StreamableHttp(URL, client, peer, Settings(), may_be_older=False)
            with anyio.fail_after(3600):
                await body(peer, hooks, server)
            peer.silence()
            tasks.cancel_scope.cancel()

    run_virtual(backend, main)


async def _ended(call: Call) -> tuple[bytes | None, Any]:
    await call.done.wait()
    (end,) = call.ends
    return end


async def _initialized(peer: HttpPeer) -> None:
    call = Call("initialize", {})
    peer.request(call)
    await _ended(call)


def _session(request: httpx2.Request) -> httpx2.Response:
    message = json.loads(request.content)
    if "id" not in message:
        return httpx2.Response(202)
    return httpx2.Response(200, headers={**JSON, "mcp-session-id": "s1"}, content=result(message["id"]))


# ---- the stream of a call -------------------------------------------------------------------------------------------


def test_a_call_whose_stream_breaks_is_resumed_from_its_last_event(backend: str) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            return stream(b"id: e7\nretry: 3000\n\n", httpx2.ReadError("cut off"))
        assert request.headers["last-event-id"] == "e7"
        return stream(event(result(1, ok=1)), ...)

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        call = Call("tools/call", {})
        peer.request(call)
        answer, _ = await _ended(call)
        assert json.loads(answer or b"") == {"ok": 1}
        assert (server.times("POST"), server.times("GET")) == ([0.0], [3.0])

    _served(backend, reply, body)


def test_a_call_whose_stream_breaks_without_an_id_has_no_answer(backend: str) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        return stream(b": hello\n\n", httpx2.ReadError("cut off"))

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        call = Call("tools/call", {})
        peer.request(call)
        _, error = await _ended(call)
        assert error.broken
        assert "cut off" in error.message
        assert server.times("GET") == []

    _served(backend, reply, body)


@pytest.mark.parametrize(
    ("method", "sent"), [(b"POST", [Reach.SENT]), (b"CONNECT", [])], ids=["its own", "the proxy's"]
)
def test_a_request_is_sent_when_its_own_head_is_and_not_the_one_to_the_proxy(
    backend: str, method: bytes, sent: list[Reach]
) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=JSON, content=result(1))

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        class Elsewhere:
            async def carry(self, attempt: Any) -> None:
                attempts.append(attempt)

        attempts: list[Any] = []
        peer.carrier = Elsewhere()  # pyright: ignore[reportAttributeAccessIssue]
        call = Call("tools/call", {})
        peer.request(call)
        while not attempts:
            await anyio.sleep(0.001)
        tell = SentTeller(attempts[0], peer)
        steps = ("connect_tcp.complete", "send_request_headers.started", "send_request_headers.complete")
        for step in steps:
            await tell(f"http11.{step}", {"request": _Named(method)} if "started" in step else {})
        assert call.sent_at == sent

    _served(backend, reply, body)


class _Named:
    def __init__(self, method: bytes) -> None:
        self.method = method


def test_of_a_list_all_tools_are_learned_and_those_that_cannot_be_called_are_left_out(backend: str) -> None:
    tools: list[dict[str, Any]] = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(40)]
    tools[7]["inputSchema"] = {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        carrier: Any = peer.carrier
        data = await carrier._learn(result(1, tools=tools), leaves_out=True)
        names = [tool["name"] for tool in json.loads(data)["result"]["tools"]]
        assert names == [f"t{n}" for n in range(40) if n != 7]
        assert "t7" in hooks.notes[0]
        assert carrier._tools.headers("tools/call", {"name": "t3"})["Mcp-Name"] == "t3"

    _served(backend, lambda _: None, body, version="2026-07-28")


def test_the_body_of_a_refusal_is_waited_for_a_few_seconds_only(backend: str) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(500, stream=Chunks(b"too ", 1, b"many", ...))

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        call = Call("tools/call", {})
        peer.request(call)
        _, error = await _ended(call)
        assert anyio.current_time() == pytest.approx(5.0)
        assert error.message == 'HTTP 500 Internal Server Error: "too many"'
        assert call.reach is Reach.ANSWERED

    _served(backend, reply, body)


# ---- the stream of what answers no request --------------------------------------------------------------------------


def _told_to_listen(backend: str, opened: Callable[[int], Any], body: Body) -> None:
    """`opened(n)`: what the n-th GET gets. The body runs when the session has begun."""
    times: list[int] = []

    def reply(request: httpx2.Request) -> Any:
        if request.method == "GET":
            times.append(1)
            return opened(len(times))
        return _session(request)

    async def main(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        await _initialized(peer)
        peer.notify("notifications/initialized")
        await body(peer, hooks, server)

    _served(backend, reply, main)


def test_a_server_that_is_away_is_asked_for_its_stream_ever_more_rarely(backend: str) -> None:
    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        await anyio.sleep(100)
        assert server.times("GET") == [0, 1, 3, 7, 15, 31, 61, 91]
        assert peer.notes.counts["the stream of notifications broke"] == 8

    _told_to_listen(backend, lambda _: httpx2.ConnectError("refused"), body)


def test_a_stream_that_was_open_is_opened_again_soon_and_an_empty_one_ever_more_rarely(backend: str) -> None:
    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        await anyio.sleep(60)
        assert server.times("GET") == [0, 1, 12, 13, 14, 16, 17, 19, 23, 31, 47]
        assert hooks.gaps == 9, "not the first, and not the one that found the server away"

    def opened(n: int) -> Any:
        if n == 2:
            return stream(10, event(b'{"jsonrpc":"2.0","method":"notifications/x"}'))
        return httpx2.ConnectError("refused") if n == 5 else stream()

    _told_to_listen(backend, opened, body)


@pytest.mark.parametrize(
    ("answer", "again"),
    [
        (httpx2.Response(503), True),
        (httpx2.Response(500), True),
        *((httpx2.Response(status), False) for status in (400, 401, 403, 404, 405, 406, 410, 422, 501)),
        (httpx2.Response(200, headers={"content-type": "text/html"}, content=b"hi"), False),
    ],
    ids=lambda it: f"{it.status_code}" if isinstance(it, httpx2.Response) else "",
)
def test_only_a_server_in_trouble_is_asked_for_its_stream_again(
    backend: str, answer: httpx2.Response, again: bool
) -> None:
    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        await anyio.sleep(5)
        assert server.times("GET") == ([0, 1, 3] if again else [0])
        assert not hooks.reasons

    _told_to_listen(backend, lambda _: answer, body)


@pytest.mark.parametrize(("status", "loss"), [(401, Reason.NEEDS_AUTH), (404, Reason.EXPIRED)])
def test_when_a_stream_that_was_open_is_refused_a_post_says_whether_we_are_known(
    backend: str, status: int, loss: Reason
) -> None:
    streams = iter(
        [httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b"id: 1\ndata:\n\n")]
    )

    def reply(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return next(streams, httpx2.Response(status))
        asks = json.loads(request.content or b"{}").get("method") == "ping"
        return httpx2.Response(status) if asks else _session(request)

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        await _initialized(peer)
        peer.notify("notifications/initialized", None)
        await hooks.lost.wait()
        assert [reason.loss for reason in hooks.reasons] == [loss]
        assert len(server.times("GET")) == 2

    _served(backend, reply, body)


def test_a_session_is_ended_once_and_not_waited_for_long(backend: str) -> None:
    async def never(_request: httpx2.Request) -> httpx2.Response:
        await anyio.sleep_forever()
        raise AssertionError

    def reply(request: httpx2.Request) -> Any:
        return never(request) if request.method == "DELETE" else _session(request)

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        await peer.carrier.leave()
        assert server.times("DELETE") == [], "there is none to end"
        await _initialized(peer)
        began = anyio.current_time()
        await peer.carrier.leave()
        assert anyio.current_time() - began == pytest.approx(2.0)
        await peer.carrier.leave()
        (ended,) = [request for _, method, request in server.seen if method == "DELETE"]
        assert ended.headers["mcp-session-id"] == "s1"

    _served(backend, reply, body)


# ---- the older transport --------------------------------------------------------------------------------------------


def test_the_endpoint_of_an_older_stream_is_the_one_it_named_first(backend: str) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return stream(
                b"event: endpoint\ndata: /first\n\n", 1, b"event: endpoint\ndata: /second\n\n", 1,
                event(result(1, one=1)), event(result(2, two=2)), ...,
            )  # fmt: skip
        return httpx2.Response(202)

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        calls = [Call("tools/call", {}) for _ in range(2)]
        for call in calls:
            peer.request(call)
            await anyio.sleep(1.5)
        assert [seen.url.path for _, method, seen in server.seen if method == "POST"] == ["/first", "/first"]
        assert len(server.times("GET")) == 1
        assert all(call.ends for call in calls), "answered on the one stream"

    _served(backend, reply, body, older=True)


@pytest.mark.parametrize(
    ("status", "reach", "loss"),
    [(401, Reach.NOT_SENT, [Reason.NEEDS_AUTH]), (403, Reach.ANSWERED, []), (500, Reach.ANSWERED, [])],
)
def test_what_an_older_server_refuses_did_not_run_if_it_wants_a_login(
    backend: str, status: int, reach: Reach, loss: list[Reason]
) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return stream(b"event: endpoint\ndata: /post\n\n", ...)
        return httpx2.Response(status)

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        call = Call("tools/call", {})
        peer.request(call)
        await anyio.sleep(5)
        assert call.reach is reach
        assert bool(call.ends) is not bool(loss)
        assert [reason.loss for reason in hooks.reasons] == loss

    _served(backend, reply, body, older=True)


# ---- the client -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "status", "location", "is_followed"),
    [
        ("http://h:1/a", 307, "/b", True),
        ("http://h:1/a", 307, "http://h:2/a", False),
        ("http://h/a", 307, "http://i/a", False),
        ("http://h/a", 307, "https://h/a", True),
        ("http://h:80/a", 307, "https://h:8443/a", False),
        ("https://h/a", 307, "http://h/a", False),
        ("http://h/a", 307, "http://u:p@h/a", False),
        ("http://h/a", 303, "/b", False),  # it would be asked with another method
    ],
)
def test_a_redirect_is_followed_within_the_origin(
    backend: str, before: str, status: int, location: str, is_followed: bool
) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        return (
            httpx2.Response(status, headers={"location": location})
            if request.url == httpx2.URL(before)
            else here
        )

    async def main() -> None:
        server = Server(reply)
        async with (
            _client(server) as client,
            exchanged(client, client.build_request("POST", before, content=b"{}")) as response,
        ):
            assert response.status_code == (200 if is_followed else status)
            assert len(server.seen) == 1 + is_followed

    here = httpx2.Response(200, stream=Chunks(b"here"))
    run(backend, main)


def test_a_redirect_leaves_nothing_of_the_first_response_open(backend: str) -> None:
    bodies = [Chunks(b"moved"), Chunks(b"here")]

    def reply(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/mcp":
            return httpx2.Response(307, headers={"location": "/there"}, stream=bodies[0])
        return httpx2.Response(200, stream=bodies[1])

    async def main() -> None:
        async with _client(Server(reply)) as client:
            async with exchanged(client, client.build_request("POST", URL, content=b"{}")) as response:
                assert response.url.path == "/there"
                assert [body.closed > 0 for body in bodies] == [True, False]
            assert all(body.closed for body in bodies)

    run(backend, main)


def test_a_redirect_without_an_end_is_given_up(backend: str) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(307, headers={"location": "/mcp"})

    async def main() -> None:
        server = Server(reply)
        async with _client(server) as client:
            async with exchanged(client, client.build_request("POST", URL, content=b"{}")) as response:
                assert response.status_code == 307
            assert len(server.seen) == HTTP_REDIRECTS + 1

    run(backend, main)


@pytest.mark.parametrize(("own", "limit"), [(None, 7.0), (3.0, 3.0)])
def test_a_server_has_its_own_time_to_accept_a_connection(
    backend: str, own: float | None, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def make_client(definition: ServerDefinition, auth: Any, timeout: float, *more: Any) -> Any:
        asked.append(timeout)
        return real(definition, auth, timeout, *more)

    real = http_connection.make_client
    monkeypatch.setattr(http_connection, "make_client", make_client)

    async def body() -> None:
        definition = ServerDefinition("a", url=URL, connect_timeout=own)
        settings = Settings(connect_timeout=7.0)
        connector = http_connection.HttpConnector(definition, backend=current_backend(), settings=settings)
        async with connector.open(Recorder()) as connection:
            client: Any = connection._client
            assert (client.timeout.connect, client.timeout.read) == (limit, None)

    run(backend, body)
    assert asked == [limit]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx2.ConnectTimeout("x"), "the connection was not accepted in time"),
        (httpx2.ConnectError("Name not known."), "no connection can be made (Name not known)."),
        (httpx2.ConnectError(""), "no connection can be made (refused)."),
        (httpx2.ReadTimeout("x"), "the server fell silent"),
        (httpx2.WriteTimeout("x"), "the server fell silent"),
        (httpx2.ReadError("reset."), "the connection broke (reset)"),
        (httpx2.WriteError(""), "the connection broke (WriteError)"),
        (httpx2.RemoteProtocolError("bad head"), "the connection broke (bad head)"),
        (
            httpx2.UnsupportedProtocol("no scheme"),
            'its "url" cannot be connected to (no scheme). Correct it.',
        ),
        (httpx2.InvalidURL("bad port"), 'its "url" cannot be connected to (bad port). Correct it.'),
        (httpx2.ProxyError("no"), "no"),
        (httpx2.TooManyRedirects(""), "the exchange failed (TooManyRedirects)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_fault_of_the_connection_is_told_with_what_the_library_knows_of_it(
    error: Exception, words: str
) -> None:
    assert in_words(error).startswith(words)


def test_a_fault_inside_an_exchange_is_told_and_its_response_closed(backend: str) -> None:
    body = Chunks(b"{", httpx2.ReadError("cut off"))

    async def main() -> None:
        server = Server(lambda _request: httpx2.Response(200, stream=body))
        async with _client(server) as client:
            with pytest.raises(ExchangeBroken, match="cut off"):
                async with exchanged(client, client.build_request("GET", URL)) as response:
                    await response.aread()
        assert body.closed

    run(backend, main)


def test_the_body_of_a_refusal_is_told_as_far_as_it_came(backend: str) -> None:
    bodies = iter([Chunks(b"out of ", httpx2.ReadError("cut off")), Chunks(b"x" * 1_048_570, b"y" * 10)])

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        for words in (
            'HTTP 500 Internal Server Error: "out of "',
            f'Error: "{"x" * 200}"… (1,048,570 bytes)',
        ):
            call = Call("tools/call", {})
            peer.request(call)
            _, error = await _ended(call)
            assert words in error.message
            assert call.reach is Reach.ANSWERED

    _served(backend, lambda _: httpx2.Response(500, stream=next(bodies)), body)


def test_an_answer_that_is_packed_is_unpacked_once_and_read_as_utf_8(backend: str) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        data = zlib.compress('{"jsonrpc":"2.0","id":1,"result":{"x":"é"}}'.encode())
        headers = {"content-type": "application/json; charset=latin-1", "content-encoding": "deflate"}
        return httpx2.Response(200, headers=headers, stream=Chunks(data))

    async def body(peer: HttpPeer, hooks: Recorder, server: Server) -> None:
        call = Call("tools/call", {})
        peer.request(call)
        answer, _ = await _ended(call)
        assert json.loads(answer or b"") == {"x": "é"}

    _served(backend, reply, body)


# ---- a document of somebody else's ----------------------------------------------------------------------------------


def _fetched(
    backend: str, reply: Callable[[httpx2.Request], Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[bytes | str, float]:
    """What is had of it, or why it is not; and when."""

    def make_client(definition: ServerDefinition, auth: Any, timeout: float) -> Any:
        assert (definition.url, auth, timeout) == (url, None, 10.0)
        if url.startswith("https"):
            raise ConnectFailed("the certificates cannot be read", server="")
        return _client(Server(reply))

    monkeypatch.setattr(http_client, "make_client", make_client)
    found: list[bytes | str] = []

    async def main() -> None:
        try:
            found.append(await http_client.fetched(url, 10))
        except ExchangeFault as fault:
            found.append(str(fault))
        found.append(f"{anyio.current_time():.3f}")

    run_virtual(backend, main)
    return found[0], float(found[1])


def test_who_cannot_be_connected_to_is_named() -> None:
    """The words of the system and of the loop name no host, or say only that all attempts failed."""
    refused = OSError("all attempts failed")
    refused.__cause__ = ExceptionGroup(
        "all attempts failed", [ConnectionRefusedError(errno.ECONNREFUSED, "no")]
    )
    step = 'Start the server, or correct its "url".'
    for cause, told in (
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            'no address is known of the host h.test. Correct its "url", or see to the network.',
        ),
        (refused, f"(h.test:8000: {os.strerror(errno.ECONNREFUSED)}). {step}"),
        (OSError("all attempts failed"), f"(all attempts failed). {step}"),
    ):
        error = httpx2.ConnectError(str(cause), request=httpx2.Request("POST", "http://h.test:8000/mcp"))
        error.__cause__ = cause
        assert in_words(error).removeprefix("no connection can be made").lstrip(": ") == told


@pytest.mark.parametrize(
    ("response", "found"),
    [
        (lambda: httpx2.Response(200, stream=Chunks(b"01234", b"56789")), b"0123456789"),
        (
            lambda: httpx2.Response(200, stream=Chunks(b"01234", b"56789", b"x", ...)),
            "the answer is over the bound of 10 bytes",
        ),
        (lambda: httpx2.Response(200, content=b""), b""),
        (lambda: httpx2.Response(201, content=b"x"), "HTTP 201 Created"),
        (lambda: httpx2.Response(204), "HTTP 204 No Content"),
        (lambda: httpx2.Response(302, headers={"location": "http://other/"}), "HTTP 302 Found"),
        (lambda: httpx2.Response(404, content=b"x"), "HTTP 404 Not Found"),
        (lambda: httpx2.ConnectError("refused"), "no connection can be made (refused). Start"),
        (
            lambda: httpx2.Response(200, stream=Chunks(b"x", httpx2.ReadError("cut off"))),
            "the connection broke (cut",
        ),
    ],
)
def test_a_document_is_had_whole_or_not_at_all(
    backend: str, response: Callable[[], Any], found: bytes | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, _ = _fetched(backend, lambda _: response(), "http://h/keys", monkeypatch)
    assert got == found if isinstance(found, bytes) else isinstance(got, str) and got.startswith(found)


def test_a_document_is_waited_for_ten_seconds_in_all(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for chunks in ((...,), (4, b"1", 4, b"2", 4, b"3")):
        body = Chunks(*chunks)
        got = _fetched(
            backend, lambda _, body=body: httpx2.Response(200, stream=body), "http://h/keys", monkeypatch
        )
        assert got == ("it did not come in time", 10.0)


def test_a_document_that_cannot_be_asked_for_says_why(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, words in (
        ("http://127.0.0.1:x/", "its URL cannot be read"),
        ("https://h/", "the certificates cannot be"),
    ):
        got, _ = _fetched(backend, lambda _: httpx2.Response(200), url, monkeypatch)
        assert isinstance(got, str)
        assert words in got
