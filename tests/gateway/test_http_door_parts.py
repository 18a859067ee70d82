"""The parts of the HTTP door that need no socket: bodies and answers, event streams, the feed."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import attrs
import pytest
from starlette.requests import Request as PageRequest
from tests.support import in_real_time, run_virtual
from tests.support.bodies import body_of
from tests.support.door_rooms import CREATE_ISSUE, README, FakeRoom
from tests.support.loops import on_asyncio

from greenroom.catalogue.entries import ServerEntry
from greenroom.config.model import Settings
from greenroom.gateway.arrivals import Arrivals
from greenroom.gateway.doors import http_request, http_server
from greenroom.gateway.doors.http_app import HttpDoor, Operations
from greenroom.gateway.doors.http_auth import Access, Token
from greenroom.gateway.doors.http_messages import Read, Stateless, same_token
from greenroom.gateway.doors.http_request import (
    CLOSE,
    Caller,
    Deadlines,
    Gone,
    Refusal,
    Request,
    Rules,
    body_time,
    rules_of,
)
from greenroom.gateway.doors.http_sessions import HttpSession, StatelessClient
from greenroom.gateway.doors.http_streams import Feed, Reply, Stream, reply_time
from greenroom.gateway.metrics import is_usable, word_of
from greenroom.gateway.requests import SUBSCRIPTION_KEY
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol.errors import UNKNOWN_PROFILE, UsageError
from greenroom.protocol.events import Note, NoteCode
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus

Headers = Iterable[tuple[bytes, bytes]]


class Wire:
    """What carries one request: its body comes in `pieces`, with `pause` seconds before each."""

    def __init__(self, pieces: Iterable[bytes] = (b"",), pause: float = 0.0) -> None:
        self.sent: list[Any] = []
        self.gone = anyio.Event()
        self._pieces = list(pieces)
        self._pause = pause

    async def receive(self) -> dict[str, Any]:
        if not self._pieces:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        await anyio.sleep(self._pause)
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, event: Any) -> None:
        self.sent.append(event)

    def request(self, method: str = "POST", headers: Headers = ()) -> Request:
        scope = {"method": method, "raw_path": b"/mcp", "headers": list(headers)}
        return Request(scope, self.receive, self.send)

    @property
    def written(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.sent)

    @property
    def headers(self) -> Headers:
        return self.sent[0]["headers"]


def virtually(body: Callable[[], Awaitable[None]]) -> None:
    run_virtual("asyncio", body)


def within(seconds: float) -> Deadlines[asyncio.Timeout]:
    return body_time(Rules(body_time=seconds))


@body_of(virtually)
async def test_each_waits_as_long_and_one_timer_rings_for_all() -> None:
    loop, rung = asyncio.get_running_loop(), list[tuple[int, float]]()
    start = loop.time()
    waits = Deadlines[int](5.0, lambda number: rung.append((number, loop.time() - start)))
    for number in range(3):
        waits.begin(number)
        await asyncio.sleep(1)
    waits.end(1)
    waits.begin(2)  # it waits already
    await asyncio.sleep(20)
    assert (rung, len(waits)) == ([(0, 5.0), (2, 7.0)], 0)
    waits.begin(4)
    await asyncio.sleep(6)
    assert rung[2:] == [(4, 28.0)]


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "is_read", "closes"), [("POST", False, True), ("POST", True, False), ("GET", False, False)]
)
@body_of(virtually)
async def test_a_connection_is_closed_when_the_body_that_comes_on_it_was_not_read(
    method: str, is_read: bool, closes: bool
) -> None:
    wire = Wire()
    request = wire.request(method)
    if is_read:
        await request.body(100, within(1.0))
    await request.refuse(Refusal(415, "no"))
    assert (CLOSE in wire.headers) is closes


@body_of(virtually)
async def test_the_pieces_of_a_body_have_one_time_together() -> None:
    request = Wire([b"[", b"1", b"]"], pause=20.0).request()
    with pytest.raises(Refusal, match="did not arrive in time"):
        await request.body(100, within(50.0))
    assert anyio.current_time() == 50.0


def test_a_progress_token_is_a_number_or_a_text_and_never_both() -> None:
    tokens = (1, "1", True, 1.0)
    assert [same_token(one, other) for one, other in itertools.combinations(tokens, 2)] == [False] * 6
    assert all(same_token(one, one) for one in tokens)


# ---- streams ---------------------------------------------------------------------------------------------------------


@body_of(virtually)
async def test_who_claims_to_have_read_what_has_not_come_yet_hears_what_comes() -> None:
    stream, wire = Stream(0, Rules()), Wire()
    stream.put(b"1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.pump, wire.request("GET"), 900)
        await anyio.sleep(1.0)
        assert wire.written == b""
        stream.put(b"2")
        stream.end()
    assert wire.written == b"id: 0-2\nevent: message\ndata: 2\n\n"


@body_of(virtually)
async def test_an_older_reader_that_goes_takes_nothing_from_the_newer_one() -> None:
    stream, older, newer = Stream(0, Rules()), Wire(), Wire()
    async with anyio.create_task_group() as tasks:
        first, second = older.request("GET"), newer.request("GET")
        tasks.start_soon(stream.pump, first)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(stream.pump, second)
        await anyio.lowlevel.checkpoint()
        older.gone.set()
        await anyio.sleep(1.0)
        assert stream.has_reader
        stream.put(b"1")
        await anyio.sleep(1.0)
        assert (older.written, newer.written) == (b"", b"id: 0-1\nevent: message\ndata: 1\n\n")
        newer.gone.set()
        await anyio.sleep(1.0)
        assert not stream.has_reader
    assert stream.unread == 0


# ---- sessions --------------------------------------------------------------------------------------------------------

NOTE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'


class Talk:
    """A session of the door whose conversation only hears."""

    def __init__(self, **rules: Any) -> None:
        self.session = HttpSession(Caller(), None, Rules(**rules), {})
        conversation: Any = SimpleNamespace(receive=lambda *_: None, in_flight=0)
        self.session.client = conversation

    def asks(self, key: int | str) -> None:
        said = wired(key)
        self.session.take(
            Read(rpc.read_client_line(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % said), said)
        )

    def is_answered(self, key: int | str) -> None:
        assert self.session.send(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % wired(key))

    def cancels(self, key: int | str) -> None:
        text = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b}}' % wired(key)
        assert self.session.take(Read(rpc.read_client_line(text), b"")) is None


def wired(key: int | str) -> bytes:
    """A request id as it is written."""
    return json.dumps(key).encode()


def test_so_many_requests_of_a_session_are_open_and_no_more() -> None:
    talk = Talk(open_requests=2)
    talk.asks(1)
    talk.asks("1")
    with pytest.raises(Refusal) as refused:
        talk.asks(3)
    assert (refused.value.status, refused.value.code) == (503, rpc.OVERLOADED)
    talk.is_answered(1)
    talk.asks(3)
    with pytest.raises(Refusal, match="in flight") as refused:
        talk.asks(3)
    assert (refused.value.status, refused.value.code, refused.value.key) == (400, rpc.INVALID_REQUEST, b"3")
    assert json.loads(refused.value.body)["id"] == 3


@pytest.mark.parametrize(("version", "is_primed"), [("2025-06-18", False), ("", False), ("2025-11-25", True)])
@body_of(virtually)
async def test_a_client_that_cannot_read_an_event_without_a_message_gets_none(
    version: str, is_primed: bool
) -> None:
    """What can be resumed begins with one, in which there is only its id."""
    talk = Talk(commit_time=1.0)
    talk.session.version = version
    talk.asks(1)
    wire = Wire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk.session.answer, talk.session._replies[b"1"], wire.request())
        await anyio.sleep(0.9)
        assert wire.written == b"", "an answer that comes soon is no stream"
        await anyio.sleep(0.2)
        assert (wire.written != b"") == is_primed
        talk.is_answered(1)
    assert wire.written.count(b"id: ") == 1 + is_primed


@pytest.mark.parametrize("event_id", ["9-1", "x", "1", "1-x", "-1-1"])
@body_of(virtually)
async def test_who_comes_back_for_a_stream_that_is_gone_is_told_what_to_do(event_id: str) -> None:
    with pytest.raises(Refusal, match="Open one without Last-Event-ID") as refused:
        await Talk().session.listen(Wire().request("GET"), event_id)
    assert refused.value.status == 400


@pytest.mark.parametrize("token", [0, "", 7, "theirs", None])
@body_of(virtually)
async def test_whatever_progress_token_a_client_without_a_session_gives_it_hears_progress_under_it(
    token: int | str | None,
) -> None:
    """Zero and the empty text are tokens, too."""
    stateless = StatelessClient(Caller(), None, Rules(), {}, lambda _work: None)

    def receive(_line: bytes, envelope: rpc.ClientMessage, _size: int) -> None:
        meta = json.loads(bytes(envelope.params))["_meta"]
        if "progressToken" in meta:
            stateless.send(note("notifications/progress", progressToken=meta["progressToken"], progress=5))
        stateless.send(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')

    stateless.client = cast("Any", SimpleNamespace(receive=receive))
    meta: dict[str, Any] = {} if token is None else {"progressToken": token}
    line = json.dumps(asking("ping", "theirs", _meta=meta)).encode()
    message, wire = Read(rpc.read_client_line(line), b'"theirs"'), Wire()
    await stateless.serve(Stateless(message, b'"theirs"', "ping", {}, meta, b""), wire.request())
    said = [json.loads(line[line.index("{") :]) for line in wire.written.decode().splitlines() if "{" in line]
    heard = [{"progressToken": token, "progress": 5}] if meta else []
    assert [each.get("params") for each in said] == [*heard, None]
    assert said[-1]["id"] == "theirs"


# ---- the feed --------------------------------------------------------------------------------------------------------


async def shown(feed: Feed, wire: Wire, headers: Headers = ()) -> None:
    scope = {"type": "http", "method": "GET", "headers": list(headers)}
    answer = await feed.show(PageRequest(scope))
    await answer(scope, wire.receive, wire.send)


@body_of(virtually)
async def test_a_silent_feed_says_now_and_then_that_it_lives() -> None:
    feed, wire = Feed(15.0), Wire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shown, feed, wire)
        await anyio.sleep(50.0)
        feed.close()
    assert wire.written == b": \n\n" * 4


# ---- what a client without a session hears ---------------------------------------------------------------------------


def stateless_with(*keys: bytes, **rules: Any) -> tuple[StatelessClient, list[Reply]]:
    """A client with an open request for each of these ids. The first has a progress token, the last wants logs."""
    stateless = StatelessClient(Caller(), None, Rules(**rules), {}, lambda _work: None)
    replies = [Reply(key, stateless._open_stream, "theirs" if key == keys[0] else None) for key in keys]
    replies[-1].wants_logs = True
    stateless._replies = dict(enumerate(replies, 1))
    return stateless, replies


def heard_by(reply: Reply) -> list[Any]:
    stream = reply.stream
    if stream is None:
        return []
    text = b"".join(stream._unread_frames()).decode()
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line[:7] == "data: {"]


def note(method: str, **params: Any) -> bytes:
    return rpc.encode_notification(method, params, rpc.encode)


def test_each_notification_goes_to_the_request_it_is_about_under_the_id_of_its_client() -> None:
    stateless, (first, second) = stateless_with(b'"a"', b"7")
    assert stateless.send(note("notifications/progress", progressToken=1, progress=5))
    assert stateless.send(note("notifications/tools/list_changed", _meta={SUBSCRIPTION_KEY: 2}))
    assert stateless.send(note("notifications/resources/updated", uri="a://b", _meta={SUBSCRIPTION_KEY: 1}))
    assert stateless.send(note("notifications/tasks", result={"n": [1]}, _meta={SUBSCRIPTION_KEY: 1, "x": 2}))
    assert stateless.send(note("notifications/message", level="info", data="x"))
    assert [(said["method"], said["params"]) for said in heard_by(first)] == [
        ("notifications/progress", {"progressToken": "theirs", "progress": 5}),
        ("notifications/resources/updated", {"uri": "a://b", "_meta": {SUBSCRIPTION_KEY: "a"}}),
        ("notifications/tasks", {"result": {"n": [1]}, "_meta": {SUBSCRIPTION_KEY: "a", "x": 2}}),
    ]
    assert [(said["method"], said["params"]) for said in heard_by(second)] == [
        ("notifications/tools/list_changed", {"_meta": {SUBSCRIPTION_KEY: 7}}),
        ("notifications/message", {"level": "info", "data": "x"}),
    ]


@pytest.mark.parametrize("number", [0, 3, "1", None, 1.0])
def test_what_is_about_no_open_request_of_a_client_is_not_sent(number: Any) -> None:
    stateless, replies = stateless_with(b"1", b"2")
    assert not stateless.send(note("notifications/progress", progressToken=number))
    assert not stateless.send(note("notifications/tools/list_changed", _meta={SUBSCRIPTION_KEY: number}))
    assert not stateless.send(b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}'), "it is asked in another way"
    assert stateless.send(b'{"jsonrpc":"2.0","id":"x","result":{}}')
    assert stateless.send(b'{"jsonrpc":"2.0","id":9,"result":{}}')
    assert [(reply.answer, reply.stream) for reply in replies] == [(None, None)] * 2


@body_of(virtually)
async def test_so_many_requests_of_a_client_without_a_session_are_open_and_no_more() -> None:
    stateless, _ = stateless_with(b"1", b"2", open_requests=2)
    line = json.dumps(asking("ping", 3)).encode()
    said = Stateless(Read(rpc.read_client_line(line), b"3"), b"3", "ping", {}, {}, b"")
    with pytest.raises(Refusal, match="requests of this client"):
        await stateless.serve(said, Wire().request())


def test_four_bounds_of_the_door_can_be_set() -> None:
    chosen = {"max_body": 7, "max_sessions": 8, "session_idle": 9.0, "session_life": 10.0}
    settings: dict[str, Any] = {f"http_{name}": value for name, value in chosen.items()}
    assert attrs.asdict(rules_of(Settings(**settings))) == {**attrs.asdict(Rules()), **chosen}


def test_a_client_without_a_session_that_does_not_read_hears_no_further_notifications() -> None:
    stateless, (only,) = stateless_with(b"1", busy_bytes=0)
    for _ in range(3):
        stateless.send(note("notifications/message", level="info", data="x"))
    assert len(heard_by(only)) == 1
    stateless.send(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert [said["id"] for said in heard_by(only)] == [1]
    assert not stateless.is_listening


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("error", [ValueError("a secret"), Gone(), Refusal(418, "no tea")])
def test_whatever_goes_wrong_its_client_hears_of_it_once_and_no_secret(
    error: Exception, has_begun: bool
) -> None:
    notes: list[str] = []
    cut: list[bool] = []
    wire = Wire()

    class Wrong(Access):
        async def caller(self, request: Request) -> Caller:
            if has_begun:
                await request.begin_stream()
            raise error

    async def main() -> None:
        door = HttpDoor(cast("Any", None), Wrong("127.0.0.1"), Rules(), note=notes.append)
        state = {"connection": SimpleNamespace(abort=lambda: cut.append(True), join_writes=lambda: None)}
        headers = [(b"host", b"localhost")]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "headers": headers,
            "state": state,
        }
        await door(scope, wire.receive, wire.send)
        await door({**scope, "type": "websocket"}, wire.receive, wire.send)

    virtually(main)
    is_bug = isinstance(error, ValueError)
    statuses = [event["status"] for event in wire.sent if "status" in event]
    status = [500] if is_bug else [418] if isinstance(error, Refusal) else []
    assert statuses == ([200] if has_begun else status)
    assert cut == ([True] if is_bug and has_begun else [])
    assert b"secret" not in wire.written
    if is_bug and not has_begun:
        assert json.loads(wire.written)["error"]["code"] == rpc.INTERNAL_ERROR
    assert len(notes) == is_bug
    assert all("report it: ValueError at test_http_door_parts.py, line" in said for said in notes)
    assert "secret" not in "".join(notes)


# ---- who may ask -----------------------------------------------------------------------------------------------------


def placed(access: Access, host: bytes | None, origin: bytes | None = None) -> int:
    """The status with which a request from there is refused; 0: it is not."""
    headers = [(b"host", host)] if host is not None else []
    headers += [(b"origin", origin)] if origin is not None else []
    try:
        access.check_place(Wire().request("POST", headers))
    except Refusal as refusal:
        return refusal.status if CLOSE in refusal.headers else -1
    return 0


@pytest.mark.parametrize(
    ("listens", "host", "status"),
    [
        ("127.0.0.1", b"localhost", 0),
        ("127.0.0.1", b"LocalHost:80", 0),
        ("127.0.0.1", b"[::1]:80", 0),
        ("127.0.0.1", b"gate.example", 0),
        ("127.0.0.1", b"Gate.Example:443", 0),
        ("127.0.0.1", b"10.0.0.7", 421),
        ("127.0.0.1", b"other.example", 421),
        ("127.0.0.1", None, 421),
        ("127.0.0.1", b"", 421),
        ("127.0.0.1", b"localhost/", 421),
        ("127.0.0.1", b"localhost?", 0),  # nothing is asked there
        ("127.0.0.1", b"localhost?a", 421),
        ("127.0.0.1", b"localhost#a", 421),
        ("127.0.0.1", b"ann@localhost", 421),
        ("127.0.0.1", b"localhost:port", 421),
        ("127.0.0.1", b"localhost:99999", 421),
        ("10.0.0.7", b"10.0.0.7:80", 0),
        ("10.0.0.7", b"localhost", 0),  # a proxy of this machine
        ("10.0.0.7", b"this-machine", 0),
        ("10.0.0.7", b"10.0.0.8", 421),
        ("Far.Example", b"far.example", 0),
        ("0.0.0.0", b"10.0.0.8", 0),
        ("::", b"[fe80::1]:80", 0),
        ("0.0.0.0", b"127.0.0.1", 0),
        ("0.0.0.0", b"this-machine", 0),
        ("0.0.0.0", b"other.example", 421),
    ],
)
def test_a_request_names_one_of_our_hosts(
    listens: str, host: bytes | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "This-Machine")
    access = Access(listens, [Token.of("ann", "0123456789abcdef")], hosts=["Gate.Example"])
    assert [placed(access, host) for _ in range(2)] == [status] * 2


@pytest.mark.parametrize(
    ("origin", "status", "reads"),
    [
        (b"https://app.example", 0, True),
        (b"HTTPS://App.Example", 0, True),
        (b"https://app.example:8443", 403, False),
        (b"http://app.example", 403, False),
        (b"http://localhost:5173", 0, False),
        (b"https://[::1]", 0, False),
        (b"ftp://localhost", 403, False),
        (b"//localhost", 403, False),
        (b"http://ann@localhost", 403, False),
        (b"http://localhost/path", 403, False),
        (b"null", 403, False),
        (b"", 403, False),
    ],
)
def test_a_page_may_send_from_here_or_by_name_and_reads_only_by_name(
    origin: bytes, status: int, reads: bool
) -> None:
    access = Access("127.0.0.1", origins=["https://App.Example/"])
    assert [placed(access, b"localhost", origin) for _ in range(2)] == [status] * 2
    assert access.may_read([(b"host", b"localhost"), (b"origin", origin)]) is reads


def test_a_host_that_was_let_in_is_no_origin_that_is_and_only_so_many_are_remembered() -> None:
    access = Access("127.0.0.1", hosts=["http://app.example", "app.example"])
    assert (placed(access, b"app.example"), placed(access, b"app.example", b"app.example")) == (0, 403)
    assert placed(access, b"app.example", b"http://localhost") == 0
    assert placed(access, b"http://localhost") == 421
    for number in range(1000):
        assert placed(access, b"h%d.example" % number) == 421
    assert placed(access, b"app.example") == 0
    assert len(access._known) == 256


# ---- requests, header by header --------------------------------------------------------------------------------------

ONLY_ONCE = (
    *(b"host", b"origin", b"authorization", b"content-length", b"content-type", b"mcp-session-id"),
    *(b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"last-event-id", b"mcp-param-region"),
)


@pytest.mark.parametrize("name", [*ONLY_ONCE, b"accept", b"x-forwarded-for", b"mcp-params"])
def test_a_header_that_all_must_read_alike_is_given_once(name: bytes) -> None:
    Wire().request(headers=[(name, b"1")])
    twice = [(b"x-other", b"0"), (name, b"1"), (name, b"1")]
    if name not in ONLY_ONCE:
        assert Wire().request(headers=twice).headers[name] == b"1"
        return
    with pytest.raises(Refusal, match=f"{name.decode()} is given twice") as refused:
        Wire().request(headers=twice)
    assert (refused.value.status, refused.value.headers) == (400, (CLOSE,))


@pytest.mark.parametrize(("more", "is_refused"), [(0, False), (1, True)])
def test_a_head_is_as_long_as_it_may_be(more: int, is_refused: bool) -> None:
    headers = [(b"x-one", b"x" * 100), (b"x-two", b"x" * ((32 << 10) - 110 + more))]
    if is_refused:
        with pytest.raises(Refusal, match="Too Large") as refused:
            Wire().request(headers=headers)
        assert (refused.value.status, refused.value.headers) == (431, (CLOSE,))
    else:
        Wire().request(headers=headers)


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        (b"application/json", True),
        (b"text/html, application/json;q=0.5", True),
        (b"Application/JSON", True),
        (b"application/*", True),
        (b"*/*", True),
        (b"text/*", False),
        (b"application/jsonp", False),
        (b"", False),
    ],
)
def test_a_client_says_what_it_takes_in_every_way_that_http_has(accept: bytes, takes: bool) -> None:
    assert Wire().request(headers=[(b"accept", accept)]).accepts(b"application/json") is takes
    assert not Wire().request().accepts(b"application/json")


@pytest.mark.parametrize(
    ("length", "pieces", "most", "body"),
    [
        (b"5", [b"12345"], 5, b"12345"),
        (b"6", [b"12345"], 5, 413),
        (None, [b"123456"], 5, 413),
        (None, [b"123", b"45"], 5, b"12345"),
        (None, [b"123", b"456", b"7"], 5, 413),
        (b"-1", [b""], 5, 413),
        (b"x", [b""], 5, 413),
        (b"9" * 5000, [b""], 5, 413),  # more digits than Python makes a number of
        (None, [b"1\r2\n3"], 9, b"1 2 3"),
        (None, [b"1\r2", b"3"], 9, b"1 23"),
        (None, [b"12", b"\n3", b"4\r"], 9, b"12 34 "),
    ],
)
@body_of(virtually)
async def test_a_body_comes_whole_on_one_line_and_is_no_longer_than_it_may_be(
    length: bytes | None, pieces: list[bytes], most: int, body: bytes | int
) -> None:
    request = Wire(pieces).request(headers=[(b"content-length", length)] if length is not None else [])
    if isinstance(body, bytes):
        found = await request.body(most, within(10.0))
        assert (found, type(found), request.is_read) == (body, bytes, True)
    else:
        with pytest.raises(Refusal, match=f"{most} bytes") as refused:
            await request.body(most, within(10.0))
        assert (refused.value.status, request.is_read) == (body, False)


@body_of(virtually)
async def test_of_a_body_that_is_too_long_no_more_is_waited_for() -> None:
    wire = Wire([b"x" * 10] * 100)
    with pytest.raises(Refusal, match="25 bytes"):
        await wire.request().body(25, within(10.0))
    assert len(wire._pieces) == 97


@body_of(virtually)
async def test_a_reply_that_is_a_stream_already_is_not_waited_for() -> None:
    reply = Reply(b"1", lambda: Stream(1, Rules()))
    reply.become_stream()
    await reply.decided(reply_time(3600.0))
    assert anyio.current_time() == 0.0


@body_of(virtually)
async def test_only_a_body_of_a_megabyte_is_handed_on_without_a_copy() -> None:
    for size, kind in (((1 << 20) - 1, bytes), (1 << 20, bytearray)):
        body = await Wire([b" " * 1000, b" " * (size - 1000)]).request().body(2 << 20, within(10.0))
        assert (len(body), type(body)) == (size, kind)


@pytest.mark.parametrize("before", [0, 1])
@body_of(virtually)
async def test_a_client_that_goes_before_its_body_has_come_is_not_answered(before: int) -> None:
    wire, gone = Wire([b"{"] * (before + 1)), {"type": "http.disconnect"}
    real = wire.receive

    async def receive() -> dict[str, Any]:
        return await real() if len(wire._pieces) > 1 else gone

    wire.receive = receive
    with pytest.raises(Gone):
        await wire.request().body(100, within(10.0))


@body_of(virtually)
async def test_what_is_answered_has_its_length() -> None:
    for status, body, length in ((200, b"abc", [b"3"]), (202, b"", [b"0"])):
        wire = Wire()
        request = wire.request("GET")
        await request.answer(status, body, ((b"x-own", b"2"),))
        assert [value for name, value in wire.headers if name == b"content-length"] == length
        assert (b"x-own", b"2") in wire.headers
        assert (wire.written, wire.sent[-1].get("more_body")) == (body, None)


@body_of(virtually)
async def test_a_long_answer_is_written_once() -> None:
    wire, body = Wire(), bytes(range(256)) * 2_048
    await wire.request("GET").answer(200, body + b"!")
    assert wire.written == body + b"!"
    assert [event.get("more_body") for event in wire.sent[1:]] == [True, True, True, None]


def test_how_each_request_is_refused() -> None:
    retry = (b"retry-after", b"5")
    for refusal, status, code, headers in (
        (http_request.no_session(), 404, -32600, ()),
        (http_request.no_such_path(), 404, -32600, ()),
        (http_request.not_allowed("GET", "POST"), 405, -32600, ((b"allow", b"GET, POST"),)),
        (http_request.ending(), 503, -32000, (retry,)),
        (http_request.too_many("x"), 503, rpc.OVERLOADED, (retry,)),
    ):
        said = json.loads(refusal.body)
        assert (refusal.status, said["error"]["code"], refusal.headers) == (status, code, headers)
        assert (said["id"], said["error"]["message"]) == (None, refusal.message)


# ---- the door without a network --------------------------------------------------------------------------------------


class Guest:
    """A client of the room, which answers each request but `held` at once."""

    def __init__(self, outlet: Any, opened: Mapping[str, Any]) -> None:
        self.outlet, self.opened = outlet, opened
        self.in_flight = 0
        self.heard: list[str | None] = []

    def receive(self, line: bytes, envelope: Any = None, _size: int = 0) -> None:
        message = envelope or rpc.read_client_line(line)
        self.heard.append(message.method)
        key = rpc.read_id(message)
        if key and message.method not in (None, "held"):
            self.outlet.send(b'{"jsonrpc":"2.0","id":%b,"result":{}}\n' % key)


class Guests:
    """The conversations of a room."""

    def __init__(self) -> None:
        self.all: list[Guest] = []
        self.looked_up: list[tuple[Any, Any]] = []
        self.refuses = False
        self.arrivals = Arrivals(lambda: 1 << 20)

    @asynccontextmanager
    async def open(self, outlet: Any, _spawn: Any, **how: Any) -> AsyncGenerator[Guest]:
        if how["profile"] == "none":
            raise UsageError("There is no such profile.", code=UNKNOWN_PROFILE)
        self.all.append(guest := Guest(outlet, how))
        yield guest

    def listed(self, name: Any, profile: Any) -> None:
        self.looked_up.append((name, profile))

    def refuse_new(self) -> None:
        self.refuses = True


class Apart:
    """A door of which each request is a call."""

    def __init__(self, door: HttpDoor, guests: Guests) -> None:
        self.door, self.guests = door, guests

    async def __call__(
        self,
        message: Any = None,
        method: str = "POST",
        path: str = "/mcp",
        pause: float = 0.0,
        **headers: str,
    ) -> tuple[int, dict[str, str], Any]:
        """The status, the headers and the body of the answer."""
        wire = Wire([json.dumps(message).encode()] if method == "POST" else [b""], pause)
        usual = {"host": "localhost", "content_type": "application/json", "accept": "*/*", **headers}
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in usual.items()]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": given}
        await self.door(scope, wire.receive, wire.send)
        head = {name.decode(): value.decode() for name, value in wire.headers}
        return wire.sent[0]["status"], head, wire.written

    async def session(self) -> str:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
        status, head, _ = await self(asking("initialize", 0, **hello))
        assert status == 200
        return head["mcp-session-id"]

    async def stateless(self, method: str, pause: float = 0.0, path: str = "/mcp", **params: Any) -> Any:
        meta = {f"{rpc.META}protocolVersion": "2026-07-28", f"{rpc.META}clientCapabilities": {}}
        given: Any = {"mcp_protocol_version": "2026-07-28", "mcp_method": method}
        if "name" in params:
            given["mcp_name"] = params["name"]
        return await self(asking(method, 1, **params, _meta=meta), path=path, pause=pause, **given)


def asking(method: str, key: Any = None, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", **({} if key is None else {"id": key}), "method": method, "params": params}


def apart(body: Callable[[Apart], Awaitable[None]], rules: Rules | None = None, **more: Any) -> None:
    async def main() -> None:
        guests, notes = Guests(), list[str]()
        access = more.pop("access", Access("127.0.0.1"))
        door = HttpDoor(cast("Any", guests), access, rules or Rules(), note=notes.append, **more)
        async with anyio.create_task_group() as tasks:
            await tasks.start(door.run)
            await body(Apart(door, guests))
            tasks.cancel_scope.cancel()
        assert (notes, len(door.sessions)) == ([], 0)

    virtually(main)


@body_of(apart, Rules(session_idle=10.0))
async def test_who_speaks_now_and_then_stays_and_who_is_silent_ends_in_both_eras(ask: Apart, /) -> None:
    session = await ask.session()
    await ask.stateless("tools/list")
    for _ in range(4):
        await anyio.sleep(6.0)
        assert (await ask(asking("ping", 1), mcp_session_id=session))[0] == 200
        await ask.stateless("tools/list")
    assert (len(ask.guests.all), len(ask.door.sessions)) == (2, 2)
    await anyio.sleep(6.0)
    await ask(asking("notifications/roots/list_changed"), mcp_session_id=session)
    await anyio.sleep(5.0)
    assert len(ask.door.sessions) == 1, "a notification is a word, too"
    await anyio.sleep(6.0)
    assert len(ask.door.sessions) == 0


@body_of(apart, Rules(session_life=5.0))
async def test_each_session_lives_as_long_as_it_may_even_if_another_came_while_none_was_there(
    ask: Apart, /
) -> None:
    for _ in range(2):
        await ask.session()
        await anyio.sleep(4.9)
        assert len(ask.door.sessions) == 1
        await anyio.sleep(0.2)
        assert len(ask.door.sessions) == 0
        await anyio.sleep(50.0)


@body_of(apart)
async def test_a_door_that_ends_refuses_requests_takes_notifications_and_ends_all_sessions(
    ask: Apart, /
) -> None:
    session = await ask.session()
    ask.door.refuse_new()
    assert ask.guests.refuses
    for message, status in (
        (asking("ping", 1), 503),
        (asking("notifications/roots/list_changed"), 202),
        ({"jsonrpc": "2.0", "id": "greenroom-1", "result": {}}, 202),
    ):
        found, head, _ = await ask(message, mcp_session_id=session)
        assert (found, head.get("retry-after")) == (status, "5" if status == 503 else None)
    assert (await ask(asking("initialize", 1, protocolVersion="2025-11-25")))[0] == 503
    assert (await ask.stateless("tools/list"))[0] == 503
    assert ask.guests.all[0].heard == ["initialize", "notifications/roots/list_changed", None]


@body_of(apart)
async def test_the_answers_of_a_session_name_it_and_those_without_one_do_not(ask: Apart, /) -> None:
    session = await ask.session()
    for message in (asking("ping", 1), asking("notifications/initialized")):
        _, head, _ = await ask(message, mcp_session_id=session)
        assert head["mcp-session-id"] == session
    answers: list[Any] = []
    async with anyio.create_task_group() as tasks:

        async def hold() -> None:
            answers.append(await ask(asking("held", 2), mcp_session_id=session))

        tasks.start_soon(hold)
        await anyio.sleep(3.0)
        ask.guests.all[0].outlet.send(b'{"jsonrpc":"2.0","id":2,"result":{}}\n')
    (status, head, _), *_ = answers
    assert (status, head["content-type"], head["mcp-session-id"]) == (200, "text/event-stream", session)
    _, head, _ = await ask.stateless("tools/list")
    assert "mcp-session-id" not in head
    status, head, written = await ask(method="DELETE", mcp_session_id=session)
    assert (status, written, "mcp-session-id" in head) == (200, b"", False)
    assert (await ask(asking("ping", 1), mcp_session_id=session))[0] == 404


@body_of(apart)
async def test_an_answer_without_a_session_is_a_stream_only_when_its_client_must_see_that_we_live(
    ask: Apart, /
) -> None:
    kinds: list[tuple[float, str]] = []

    async def hold() -> None:
        _, head, _ = await ask.stateless("held")
        kinds.append((anyio.current_time(), head["content-type"]))

    for late in (14.0, 16.0):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await anyio.sleep(late)
            (guest,) = ask.guests.all
            guest.outlet.send(b'{"jsonrpc":"2.0","id":%d,"result":{}}\n' % len(guest.heard))
    assert [kind for _, kind in kinds] == ["application/json", "text/event-stream"]


@body_of(apart)
async def test_a_call_is_compared_with_the_tool_that_its_profile_shows(ask: Apart, /) -> None:
    for path in ("/mcp", "/mcp/work", "/mcp/"):
        assert (await ask.stateless("tools/call", path=path, name="own_echo"))[0] == 200
    await ask.stateless("prompts/get", name="own_echo")
    assert ask.guests.looked_up == [("own_echo", None), ("own_echo", "work"), ("own_echo", None)]
    assert [guest.opened["profile"] for guest in ask.guests.all] == [None, "work"]
    assert (await ask.stateless("tools/call", path="/mcp/none", name="own_echo"))[0] == 404
    assert len(ask.door.sessions) == 2


@pytest.mark.parametrize(
    ("of_door", "of_token", "path", "seen"),
    [
        (None, None, "/mcp", None),
        (None, None, "/mcp/work", "work"),
        ("home", None, "/mcp", "home"),
        ("home", None, "/mcp/home", "home"),
        ("home", None, "/mcp/work", 404),
        ("home", "work", "/mcp", "work"),
        ("home", "work", "/mcp/home", 404),
        (None, "work", "/mcp/work", "work"),
        (None, "work", "/mcp/home", 404),
    ],
)
def test_a_client_sees_its_own_profile_else_the_doors_else_the_one_it_names(
    of_door: str | None, of_token: str | None, path: str, seen: str | int | None
) -> None:
    token = "0123456789abcdef"
    access = Access("127.0.0.1", [Token.of("ann", token, of_token)])

    async def body(ask: Apart) -> None:
        hello = asking("initialize", 0, protocolVersion="2025-11-25", capabilities={})
        status, _, _ = await ask(hello, path=path, authorization=f"Bearer {token}")
        found = [guest.opened["profile"] for guest in ask.guests.all]
        assert (status, found) == ((404, []) if seen == 404 else (200, [seen]))

    apart(body, access=access, profile=of_door)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/json ;x=y", 200),
        ("application/jsonp", 415),
        ("text/plain; application/json", 415),
        ("", 415),
    ],
)
@body_of(apart)
async def test_what_is_sent_is_json(ask: Apart, /, kind: str, status: int) -> None:
    hello = asking("initialize", 0, protocolVersion="2025-11-25", capabilities={})
    assert (await ask(hello, content_type=kind))[0] == status


@body_of(apart, session_headers={"X-My-Token": "TOKEN", "X-Other": "OTHER"})
async def test_the_values_that_a_client_brings_in_headers_are_its_conversations(ask: Apart, /) -> None:
    hello = asking("initialize", 0, protocolVersion="2025-11-25", capabilities={})
    meta = {f"{rpc.META}protocolVersion": "2026-07-28", f"{rpc.META}clientCapabilities": {}}
    newer = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/list"}
    for message, era in ((hello, {}), (asking("tools/list", 1, _meta=meta), newer)):
        for given, brought in (
            ({}, {}),
            ({"x_my_token": "a"}, {"TOKEN": "a"}),
            ({"x_my_token": "", "x_other": "b"}, {"TOKEN": "", "OTHER": "b"}),
        ):
            headers: Any = {**era, **given}
            assert (await ask(message, **headers))[0] == 200
            assert ask.guests.all[-1].opened["variables"] == brought
    assert len(ask.guests.all) == 6, "who brings other values is another client"


@body_of(apart)
async def test_nothing_but_a_request_to_begin_opens_a_session(ask: Apart, /) -> None:
    for message in (
        asking("initialize", protocolVersion="2025-11-25"),
        asking("ping", 1),
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ):
        assert (await ask(message))[0] == 400
    newer: Any = {"mcp_protocol_version": "2026-07-28"}
    for nothing in ({"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "result": {}}):
        assert (await ask(nothing, **newer))[0] == 400
    assert ask.guests.all == []
    session = await ask.session()
    again = asking("initialize", 9, protocolVersion="2025-03-26", capabilities={})
    assert (await ask(again, mcp_session_id=session))[0] == 200
    assert (len(ask.guests.all), ask.door.sessions.find(session, Caller(), None).version) == (
        1,
        "2025-03-26",
    )


def stateless_message(**meta: Any) -> dict[str, Any]:
    named = {f"{rpc.META}{name}": value for name, value in meta.items()}
    return asking("tools/list", "mine", _meta=named)


NEWER: Any = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/list"}


@body_of(apart)
async def test_clients_that_say_the_same_of_themselves_are_one(ask: Apart, /) -> None:
    version = {"protocolVersion": "2026-07-28"}
    one: dict[str, Any] = {**version, "clientCapabilities": {}}
    for count, meta in (
        (1, one),
        (1, {**one, "logLevel": "info"}),
        (2, {**one, "clientInfo": {"name": "a"}}),
        (3, {**one, "clientInfo": {"name": "b"}}),
        (4, {**one, "clientCapabilities": {"roots": {}}}),
        (4, {**one, "clientInfo": {"name": "a"}}),
    ):
        assert (await ask(stateless_message(**meta), **NEWER))[0] == 200
        assert len(ask.guests.all) == count, meta


@body_of(apart)
async def test_whatever_is_wrong_with_a_newer_request_is_told_under_its_id(ask: Apart, /) -> None:
    good = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    rows: Any = (
        (-32602, {"protocolVersion": "2026-07-28"}, NEWER),
        (-32020, good, {**NEWER, "mcp_method": "tools/call"}),
        (-32020, good, {**NEWER, "mcp_protocol_version": "2099-01-01"}),
        (
            -32022,
            {**good, "protocolVersion": "2099-01-01"},
            {**NEWER, "mcp_protocol_version": "2099-01-01"},
        ),
    )
    for code, meta, headers in rows:
        status, _, written = await ask(stateless_message(**meta), **headers)
        said = json.loads(written)
        assert (status, said["id"], said["error"]["code"]) == (400, "mine", code)
    for params in ([], {"_meta": 7}):
        status, _, written = await ask({**asking("tools/list", "mine"), "params": params}, **NEWER)
        said = json.loads(written)
        assert (status, said["id"], said["error"]["code"]) == (400, "mine", -32602)
    assert ask.guests.all == []


@body_of(apart)
async def test_an_answer_to_our_request_is_taken_whatever_it_is(ask: Apart, /) -> None:
    session = await ask.session()
    for answer, status in (
        ({"result": {}}, 202),
        ({"error": {"code": -1, "message": "no"}}, 202),
        ({"result": {}, "error": None}, 202),
        ({}, 400),
    ):
        said = {"jsonrpc": "2.0", "id": "greenroom-1", **answer}
        assert (await ask(said, mcp_session_id=session))[0] == status


def test_a_listening_socket_can_be_taken_over_at_once_and_never_blocks(tmp_path: Path) -> None:
    with http_server.bound("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) != 0
        assert not listener.getblocking()
        with pytest.raises(UsageError, match="Cannot listen on 127") as refused:
            http_server.bound("127.0.0.1", listener.getsockname()[1])
        assert "Choose another --http" in refused.value.message
    http_server.check_tls(None, None)
    with pytest.raises(UsageError, match="Give --tls-cert as well"):
        http_server.check_tls(None, tmp_path / "key")


@on_asyncio
@in_real_time
async def test_uvicorn_is_told_our_bounds_and_says_nothing_itself() -> None:
    door: Any = None
    with http_server.bound("127.0.0.1", 0) as listener:
        server = http_server.HttpServer(door, listener, Rules(connections=7, stalled_time=7.5))
        config = server._server.config
        assert (config.timeout_keep_alive, config.limit_concurrency, config.backlog) == (75, 7, 512)
        assert (config.h11_max_incomplete_event_size, config.timeout_graceful_shutdown) == (32 << 10, 2)
        assert (config.lifespan, config.ws, config.access_log) == ("off", "none", False)
        assert (config.proxy_headers, config.date_header, config.server_header) == (False, False, False)
        assert logging.getLogger("uvicorn.error").level == logging.CRITICAL
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7_500
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run)
            assert server.connections() == 0
            server.close()


# ---- what is told of the room ----------------------------------------------------------------------------------------


def fed(count: int) -> Feed:
    """One that has heard so many events, of which the first has the number 1000."""
    feed = Feed(15.0)
    for number in range(count):
        feed.hear(Note(seq=1000 + number, at=0.0, code=NoteCode.ODD, words="x"))
    return feed


@pytest.mark.parametrize(
    ("given", "before", "first"),
    [
        (None, None, None),  # from now on
        ("x", None, None),
        ("-1", None, None),
        ("²", None, None),
        ("", None, None),
        ("9" * 30, None, None),
        ("2003", None, None),
        ("2002", None, 2003),
        ("1700", None, 1701),
        ("1004", None, 1005),
        ("1003", None, 1004),  # the latest that is no longer kept: nothing is missed
        ("1002", 1004, 1004),
        ("0", 1004, 1004),
    ],
)
@body_of(virtually)
async def test_a_reader_of_events_hears_all_that_came_after_the_last_it_had(
    given: str | None, before: int | None, first: int | None
) -> None:
    feed, wire = fed(1_004), Wire()
    headers = [(b"last-event-id", given.encode("latin-1"))] if given is not None else []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shown, feed, wire, headers)
        await anyio.sleep(1.0)
        feed.hear(Note(seq=2004, at=0.0, code=NoteCode.ODD, words="x"))
        await anyio.sleep(1.0)
        feed.close()
    lines = wire.written.decode().splitlines()
    found = [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]
    assert found == list(range(first or 2004, 2005))
    missed = [
        json.loads(data.removeprefix("data: "))
        for line, data in itertools.pairwise(lines)
        if line == "event: lagged"
    ]
    assert missed == ([{"before": before}] if before else [])
    assert max(event.get("body", b"").count(b"id: ") for event in wire.sent) <= 100
    assert not wire.sent[-1].get("more_body"), "it has ended"


HEALTH = {"state": State.CONNECTED}


@pytest.mark.parametrize(
    ("row", "word", "usable"),
    [
        ({}, "idle", True),
        (HEALTH, "connected", True),
        ({**HEALTH, "disabled": True}, "connected", False),
        ({**HEALTH, "retry_in": 0.0}, "failed", False),
        ({**HEALTH, "retry_in": 2.0, "down": "x"}, "down", False),
        ({"needs_auth": True, "retry_in": 2.0, "down": "x"}, "needs_login", False),
        ({"broken": "", "needs_auth": True}, "broken", False),
        ({"state": State.DRAINING}, "draining", True),
    ],
)
def test_the_state_of_a_server_in_one_word(row: Any, word: str, usable: bool) -> None:
    status = ServerStatus("own", **row)
    assert (word_of(status), is_usable(status)) == (word, usable)


def test_the_map_has_everything_under_its_own_name_and_no_hidden_characters() -> None:
    hidden = "What \u200bit is"
    room = FakeRoom()
    room.entries["github"] = ServerEntry(
        "github",
        "h",
        tools=(CREATE_ISSUE,),
        resources=(README, {"name": "rel", "uri": "rel/path", "mimeType": "text/plain"}),
        templates=({"name": "day", "uriTemplate": "day://{n}", "description": hidden},),
        prompts=({"name": "ask", "arguments": [{"name": "a"}]}, {"name": "plain"}, {"name": "third"}),
    )
    room.reindex()
    said: dict[str, Any] = {}

    async def main() -> None:
        pages = Operations(cast("Any", room), "9.9", Feed(15.0)).pages()
        said.update(json.loads(bytes((await pages["/map"](cast("Any", None))).body)))

    virtually(main)
    assert {tool["name"]: tool["original"] for tool in said["tools"] if tool["kind"] == "tool"} == {
        "clock_now": "now",
        "github_create_issue": "create_issue",
    }
    assert [(each["name"], each["original"], each["arguments"]) for each in said["prompts"]] == [
        ("github_ask", "ask", [{"name": "a"}]),
        ("github_plain", "plain", []),
        ("github_third", "third", []),
    ]
    assert said["resources"] == [
        {
            "uri": "file:///readme",
            "server": "github",
            "original": "file:///readme",
            "name": "Read Me",
            "description": "What it is",
        },
        {
            "uri": "rel/path",
            "server": "github",
            "original": "rel/path",
            "name": "rel",
            "mimeType": "text/plain",
        },
    ]
    ((template,)) = said["templates"]
    assert (template["uri"], template["server"], "\u200b" in template["description"]) == (
        "day://{n}", "github", False,
    )  # fmt: skip
    assert said["counts"] == {
        "github": {"tools": 1, "resources": 2, "prompts": 3, "skills": 0},
        "clock": {"tools": 1, "resources": 0, "prompts": 0, "skills": 0},
    }
    assert said["unknownServers"] == ["fresh"]
