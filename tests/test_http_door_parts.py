"""The parts of the HTTP door that need no socket: bodies and answers, event streams, the feed."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import attrs
import pytest
from tests.support import run, run_virtual
from tests.support.numbers import numbers_of

from greenroom.gateway._http_door import Caller, Feed, HttpDoor, Rules, _server
from greenroom.gateway._http_door._refusals import CLOSE, STATUS_OF_ERROR, Refusal
from greenroom.gateway._http_door._reply import Reply
from greenroom.gateway._http_door._request import Gone, Hangup, Request
from greenroom.gateway._http_door._routing import SUBSCRIPTION_KEY, Read, Stateless, error_code, same_token
from greenroom.gateway._http_door._rules import rules_of
from greenroom.gateway._http_door._server import _Connection
from greenroom.gateway._http_door._session import HttpSession
from greenroom.gateway._http_door._stateless import Visitor
from greenroom.gateway._http_door._stream import Stream
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol.config import Settings

Headers = Iterable[tuple[bytes, bytes]]


class Wire:
    """What carries one request: its body comes in `pieces`, with `pause` seconds before each."""

    def __init__(self, pieces: Iterable[bytes] = (b"",), pause: float = 0.0) -> None:
        self.sent: list[Any] = []
        self.hangup = Hangup()
        self._pieces = list(pieces)
        self._pause = pause

    async def receive(self) -> dict[str, Any]:
        await anyio.sleep(self._pause if self._pieces else 3600.0)
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, event: Any) -> None:
        self.sent.append(event)

    def request(self, method: str = "POST", headers: Headers = ()) -> Request:
        state = {"hangup": self.hangup}
        scope = {"method": method, "raw_path": b"/mcp", "headers": list(headers), "state": state}
        return Request(scope, self.receive, self.send)

    @property
    def written(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.sent)

    @property
    def headers(self) -> Headers:
        return self.sent[0]["headers"]


def test_a_reply_that_is_decided_leaves_no_timer_behind() -> None:
    async def body() -> None:
        reply, loop = Reply(b"1", cast("Any", Stream)), cast("Any", asyncio.get_running_loop())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reply.decided, 3600.0)
            await anyio.lowlevel.checkpoint()
            assert loop._scheduled
            reply.finish(b"{}")
        assert all(timer.cancelled() for timer in loop._scheduled)

    run("asyncio", body)


def virtually(body: Callable[[], Awaitable[None]]) -> None:
    run_virtual("asyncio", body)


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "is_read", "closes"), [("POST", False, True), ("POST", True, False), ("GET", False, False)]
)
def test_a_connection_is_closed_when_the_body_that_comes_on_it_was_not_read(
    method: str, is_read: bool, closes: bool
) -> None:
    async def main() -> None:
        wire = Wire()
        request = wire.request(method)
        if is_read:
            await request.body(100, 1.0)
        await request.refuse(Refusal(415, "no"))
        assert (CLOSE in wire.headers) is closes

    virtually(main)


def test_the_pieces_of_a_body_have_one_time_together() -> None:
    async def main() -> None:
        request = Wire([b"[", b"1", b"]"], pause=20.0).request()
        with pytest.raises(Refusal, match="did not arrive in time"):
            await request.body(100, 50.0)
        assert anyio.current_time() == 50.0

    virtually(main)


def test_a_progress_token_is_a_number_or_a_text_and_never_both() -> None:
    tokens = (1, "1", True, 1.0)
    assert [same_token(one, other) for one, other in itertools.combinations(tokens, 2)] == [False] * 6
    assert all(same_token(one, one) for one in tokens)


class Pipe:
    """What `_Connection._check_flow` reads and calls."""

    def __init__(self, waiting: int, before: int) -> None:
        self.transport: Any = self
        self.waiting, self._unread, self.did = waiting, before, ""

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def _abort(self) -> None:
        self.did = "cut"

    def _watch_flow(self) -> None:
        self.did = "looks again"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has it")
def test_a_dead_peer_is_given_up_by_the_system_as_late_as_by_us() -> None:
    async def main() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as carrier,
        ):
            connection: Any = object.__new__(_Connection)
            connection.rules = Rules(stalled_time=7.5)
            connection._await_head = lambda: None
            transport: Any = SimpleNamespace(get_extra_info=lambda _name: carrier)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_server.H11Protocol, "connection_made", lambda *_: None)
                patch.setattr(_server, "_Gathering", lambda it: it)
                connection.connection_made(transport)
            assert carrier.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7_500
            assert carrier.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert carrier.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0

    run("asyncio", main)


def test_a_connection_that_is_lost_leaves_no_timer() -> None:
    cancelled: list[str] = []
    connection: Any = object.__new__(_Connection)
    connection.waiting = {connection: None}
    connection._head_due = SimpleNamespace(cancel=lambda: cancelled.append("head"))
    connection._stalled = SimpleNamespace(cancel=lambda: cancelled.append("stalled"))
    connection._keep_alive = SimpleNamespace(close=lambda: cancelled.append("keep-alive"))
    connection._hangup = Hangup()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_server.H11Protocol, "connection_lost", lambda *_: None)
        connection.connection_lost(None)
    assert (cancelled, connection.waiting) == (["head", "stalled", "keep-alive"], {})
    assert (connection._head_due, connection._stalled) == (None, None)


@pytest.mark.parametrize(("waiting", "cut"), [(1, []), (2, []), (3, [0])])
def test_of_too_many_connections_without_a_request_the_oldest_is_cut(waiting: int, cut: list[int]) -> None:
    done: list[int] = []
    table: dict[Any, None] = {}
    for number in range(waiting):
        connection: Any = object.__new__(_Connection)
        connection._loop = SimpleNamespace(call_later=lambda *_: None)
        connection.rules, connection.waiting = Rules(waiting_heads=2), table
        connection._abort = lambda number=number: done.append(number)
        connection._await_head()
    assert done == cut


@pytest.mark.parametrize(("before", "now", "does"), [(9, 9, "cut"), (9, 12, "cut"), (9, 8, "looks again")])
def test_a_peer_that_reads_slowly_is_not_one_that_does_not_read(before: int, now: int, does: str) -> None:
    pipe: Any = Pipe(now, before)
    _Connection._check_flow(pipe)
    assert pipe.did == does


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_who_claims_to_have_read_what_has_not_come_yet_hears_what_comes() -> None:
    async def main() -> None:
        stream, wire = Stream(0, Rules()), Wire()
        stream.put(b"1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.pump, wire.request("GET"), 900)
            await anyio.sleep(1.0)
            assert wire.written == b""
            stream.put(b"2")
            stream.end()
        assert wire.written == b"id: 0-2\nevent: message\ndata: 2\n\n"

    virtually(main)


def test_an_older_reader_that_goes_takes_nothing_from_the_newer_one() -> None:
    async def main() -> None:
        stream, older, newer = Stream(0, Rules()), Wire(), Wire()
        async with anyio.create_task_group() as tasks:
            first, second = older.request("GET"), newer.request("GET")
            tasks.start_soon(stream.pump, first)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(stream.pump, second)
            await anyio.lowlevel.checkpoint()
            stream._left(first)
            assert stream.has_reader
            stream.put(b"1")
            await anyio.sleep(1.0)
            assert (older.written, newer.written) == (b"", b"id: 0-1\nevent: message\ndata: 1\n\n")
            stream._left(second)
            assert not stream.has_reader
        assert stream.unread == 0

    virtually(main)


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


def test_a_client_that_does_not_read_gets_no_further_notifications_and_still_its_answer() -> None:
    talk = Talk(busy_bytes=len(NOTE))
    talk.asks(1)
    assert [talk.session.send(NOTE) for _ in range(3)] == [True, False, False]
    talk.is_answered(1)
    assert talk.session._streams[1].last == 2


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
def test_a_client_that_cannot_read_an_event_without_a_message_gets_none(
    version: str, is_primed: bool
) -> None:
    """What can be resumed begins with one, in which there is only its id."""

    async def main() -> None:
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

    virtually(main)


@pytest.mark.parametrize("event_id", ["9-1", "x", "1", "1-x", "-1-1"])
def test_who_comes_back_for_a_stream_that_is_gone_is_told_what_to_do(event_id: str) -> None:
    async def main() -> None:
        with pytest.raises(Refusal, match="Open one without Last-Event-ID") as refused:
            await Talk().session.listen(Wire().request("GET"), event_id)
        assert refused.value.status == 400

    virtually(main)


def test_a_session_that_ends_answers_what_is_open() -> None:
    talk = Talk()
    talk.asks(1)
    reply = talk.session._replies[b"1"]
    talk.session.close()
    assert reply.answer is not None
    said = json.loads(reply.answer)
    assert (said["id"], said["error"]["code"]) == (1, rpc.SERVER_ERROR)
    assert not talk.session._replies


def test_the_streams_of_the_last_answers_can_be_fetched_and_older_ones_are_forgotten() -> None:
    async def main() -> None:
        talk = Talk(ended_streams=2)
        for key in (1, 2, 3):
            talk.asks(key)
            talk.session.send(NOTE)
            talk.is_answered(key)
        with pytest.raises(Refusal, match="nothing is left"):
            await talk.session.listen(Wire().request("GET"), "1-1")
        for key in (2, 3):
            wire = Wire()
            await talk.session.listen(wire.request("GET"), f"{key}-1")
            assert b'"id":%d,"result"' % key in wire.written

    virtually(main)


def test_so_many_requests_of_a_client_without_a_session_are_open_and_no_more() -> None:
    async def main() -> None:
        visitor = Visitor(Caller(), None, Rules(open_requests=2), {}, lambda _work: None)
        for number in (1, 2, 3):
            said: Any = SimpleNamespace(meta={}, key=b"1")
            visitor._replies |= {each: cast("Any", None) for each in range(number)}
            if number < 2:
                with pytest.raises(AttributeError):  # it is taken, and there is no conversation here
                    await visitor.serve(said, cast("Any", None))
                visitor._replies.clear()
            else:
                with pytest.raises(Refusal, match="requests of this client"):
                    await visitor.serve(said, cast("Any", None))

    virtually(main)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_client_without_a_session_that_disconnects_has_cancelled_its_request(is_answered: bool) -> None:
    heard: list[Any] = []

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            visitor = Visitor(Caller(), None, Rules(), {}, tasks.start_soon)
            visitor.client = cast("Any", SimpleNamespace(receive=lambda line, *_: heard.append(line)))
            message = Read(
                rpc.read_client_line(b'{"jsonrpc":"2.0","id":"theirs","method":"ping"}'), b'"theirs"'
            )
            said = Stateless(message, b'"theirs"', "ping", {}, {}, b"")
            wire, gone = Wire(), anyio.Event()

            async def receive() -> dict[str, Any]:
                await gone.wait()
                return {"type": "http.disconnect"}

            wire.receive = receive
            tasks.start_soon(visitor.serve, said, wire.request())
            await anyio.sleep(1.0)
            if is_answered:
                visitor.send(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
            await anyio.sleep(1.0)
            gone.set()
            await anyio.sleep(1.0)
            assert visitor._replies == {}
            tasks.cancel_scope.cancel()
        cancelled = [line for line in heard if b"notifications/cancelled" in line]
        assert len(cancelled) == (0 if is_answered else 1)
        assert is_answered or b'"requestId":1' in cancelled[0]

    virtually(main)


# ---- the feed --------------------------------------------------------------------------------------------------------


def test_a_silent_feed_says_now_and_then_that_it_lives() -> None:
    async def main() -> None:
        feed, wire = Feed(15.0), Wire()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.show, wire.request("GET"))
            await anyio.sleep(50.0)
            feed.close()
        assert wire.written == b": \n\n" * 4

    virtually(main)


def test_the_numbers_are_those_that_were_decided() -> None:
    found = numbers_of("gateway/_http_door/*")
    assert found == {
        "_http_door._access._SHORTEST": 16,
        "_http_door._feed._KEPT": 1000,
        "_http_door._feed._AT_ONCE": 100,
        "_http_door._feed._DIGITS": 18,
        "_http_door._issuer_keys._FRESH": 600.0,
        "_http_door._issuer_keys._AGAIN": 60.0,
        "_http_door._issuer_keys._AGAIN_WITHOUT_ANY": 5.0,
        "_http_door._issuer_keys._LAST": 86400.0,
        "_http_door._metrics._SECONDS": (
            0.001,
            0.0025,
            0.005,
            0.01,
            0.025,
            0.05,
            0.1,
            0.25,
            0.5,
            1,
            2.5,
            5,
            10,
            30,
            60,
            300,
        ),
        "_http_door._metrics._WAITS": (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30),
        "_http_door._metrics._LEAST": 1,
        "_http_door._oauth._LEEWAY": 30,
        "_http_door._oauth._REMEMBERED": 1024,
        "_http_door._refusals.HEADER_MISMATCH": -32020,
        "_http_door._refusals.REQUEST_CANCELLED": -32800,
        "_http_door._request._DIGITS": 18,
        "_http_door._request.PIECE": 256 << 10,
        "_http_door._rules.MIB": 1 << 20,
        "_http_door._server._BACKLOG": 512,
        "_http_door._server._IDLE": 75.0,
        "_http_door._session._BYTES": 24,
    }


def test_the_bounds_are_those_that_were_decided_and_four_of_them_can_be_set() -> None:
    bounds = {
        "max_body": 4 << 20,
        "body_time": 30.0,
        "head_time": 10.0,
        "waiting_heads": 128,
        "connections": 4096,
        "stalled_time": 60.0,
        "keep_alive": 15.0,
        "commit_time": 2.0,
        "replay_events": 256,
        "replay_bytes": 1 << 20,
        "busy_bytes": 256 << 10,
        "ended_streams": 16,
        "ended_bytes": 2 << 20,
        "max_sessions": 1000,
        "session_idle": 1800.0,
        "session_life": 86_400.0,
        "gives_way": 60.0,
        "look_for_room": 1.0,
        "open_requests": 1024,
    }
    assert attrs.asdict(Rules()) == bounds
    assert attrs.asdict(rules_of(Settings())) == bounds
    settings = {"max_body": 7, "max_sessions": 8, "session_idle": 9.0, "session_life": 10.0}
    chosen = Settings(**{f"http_{name}": value for name, value in settings.items()})  # pyright: ignore[reportArgumentType]
    assert attrs.asdict(rules_of(chosen)) == {**bounds, **settings}


def test_each_error_of_a_request_without_a_session_has_its_status() -> None:
    assert STATUS_OF_ERROR == {
        -32700: 400,
        -32600: 400,
        -32602: 400,
        -32020: 400,
        -32021: 400,
        -32022: 400,
        -32601: 404,
    }
    assert error_code(rpc.error_line(b"7", rpc.RpcFault(-32022, "no"))) == -32022
    assert error_code(b'{"jsonrpc":"2.0","id":7,"result":{}}') is None


# ---- what a client without a session hears ---------------------------------------------------------------------------


def visited(*keys: bytes, **rules: Any) -> tuple[Visitor, list[Reply]]:
    """A client with an open request for each of these ids. The first has a progress token, the last wants logs."""
    visitor = Visitor(Caller(), None, Rules(**rules), {}, lambda _work: None)
    replies = [Reply(key, visitor._open_stream, "theirs" if key == keys[0] else None) for key in keys]
    replies[-1].wants_logs = True
    visitor._replies = dict(enumerate(replies, 1))
    return visitor, replies


def heard_by(reply: Reply) -> list[Any]:
    stream = reply.stream
    if stream is None:
        return []
    text = b"".join(stream._unread_frames()).decode()
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line[:7] == "data: {"]


def note(method: str, **params: Any) -> bytes:
    return rpc.encode_notification(method, params, rpc.encode)


def test_each_notification_goes_to_the_request_it_is_about_under_the_id_of_its_client() -> None:
    visitor, (first, second) = visited(b'"a"', b"7")
    assert visitor.send(note("notifications/progress", progressToken=1, progress=5))
    assert visitor.send(note("notifications/tools/list_changed", _meta={SUBSCRIPTION_KEY: 2}))
    assert visitor.send(note("notifications/resources/updated", uri="a://b", _meta={SUBSCRIPTION_KEY: 1}))
    assert visitor.send(note("notifications/message", level="info", data="x"))
    assert [(said["method"], said["params"]) for said in heard_by(first)] == [
        ("notifications/progress", {"progressToken": "theirs", "progress": 5}),
        ("notifications/resources/updated", {"uri": "a://b", "_meta": {SUBSCRIPTION_KEY: "a"}}),
    ]
    assert [(said["method"], said["params"]) for said in heard_by(second)] == [
        ("notifications/tools/list_changed", {"_meta": {SUBSCRIPTION_KEY: 7}}),
        ("notifications/message", {"level": "info", "data": "x"}),
    ]


@pytest.mark.parametrize("number", [0, 3, "1", None, 1.0])
def test_what_is_about_no_open_request_of_a_client_is_not_sent(number: Any) -> None:
    visitor, replies = visited(b"1", b"2")
    assert not visitor.send(note("notifications/progress", progressToken=number))
    assert not visitor.send(note("notifications/tools/list_changed", _meta={SUBSCRIPTION_KEY: number}))
    assert not visitor.send(b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}'), "it is asked in another way"
    assert visitor.send(b'{"jsonrpc":"2.0","id":"x","result":{}}')
    assert visitor.send(b'{"jsonrpc":"2.0","id":9,"result":{}}')
    assert [(reply.answer, reply.stream) for reply in replies] == [(None, None)] * 2


def test_a_client_without_a_session_that_does_not_read_hears_no_further_notifications() -> None:
    visitor, (only,) = visited(b"1", busy_bytes=0)
    for _ in range(3):
        visitor.send(note("notifications/message", level="info", data="x"))
    assert len(heard_by(only)) == 1
    visitor.send(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert [said["id"] for said in heard_by(only)] == [1]
    assert not visitor.is_listening


def test_what_is_open_when_a_client_without_a_session_ends_is_answered() -> None:
    visitor, replies = visited(b'"a"', b"2")
    visitor.close()
    said = [json.loads(reply.answer or b"") for reply in replies]
    assert [(each["id"], each["error"]["code"]) for each in said] == [
        ("a", rpc.SERVER_ERROR),
        (2, rpc.SERVER_ERROR),
    ]
    assert not visitor.is_listening


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("error", [ValueError("a secret"), Gone(), Refusal(418, "no tea")])
def test_whatever_goes_wrong_its_client_hears_of_it_once_and_no_secret(
    error: Exception, has_begun: bool
) -> None:
    notes: list[str] = []
    cut: list[bool] = []
    wire = Wire()

    async def route(request: Request) -> None:
        if has_begun:
            await request.begin_stream()
        raise error

    async def main() -> None:
        door: Any = object.__new__(HttpDoor)
        door._note = notes.append
        door._route = route
        state = {"hangup": wire.hangup, "abort": lambda: cut.append(True)}
        scope = {"type": "http", "method": "GET", "raw_path": b"/mcp", "headers": [], "state": state}
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


def test_a_request_whose_headers_are_refused_is_answered() -> None:
    wire = Wire()

    async def main() -> None:
        door: Any = object.__new__(HttpDoor)
        headers = [(b"authorization", b"a"), (b"authorization", b"b")]
        scope = {"type": "http", "method": "GET", "raw_path": b"/mcp", "headers": headers}
        await door(scope, wire.receive, wire.send)

    virtually(main)
    assert [event["status"] for event in wire.sent if "status" in event] == [400]
    assert b"twice" in wire.written


def test_a_peer_that_reads_again_is_no_longer_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it reads is judged by what waited when the look before was made."""
    done: list[str] = []
    waiting = [90]
    looks: list[Callable[[], None]] = []

    def call_later(seconds: float, look: Callable[[], None]) -> Any:
        assert seconds == 7.5
        looks.append(look)
        return SimpleNamespace(cancel=lambda: done.append("cancelled"))

    monkeypatch.setattr(_server.H11Protocol, "pause_writing", lambda _: done.append("paused"))
    monkeypatch.setattr(_server.H11Protocol, "resume_writing", lambda _: done.append("resumed"))
    connection: Any = object.__new__(_Connection)
    connection._loop = SimpleNamespace(call_later=call_later)
    connection.rules = Rules(stalled_time=7.5)
    connection.transport = SimpleNamespace(get_write_buffer_size=lambda: waiting[0])
    connection._stalled, connection._unread = None, 0
    connection._abort = lambda: done.append("cut")
    connection.pause_writing()
    waiting[0] = 50
    looks[-1]()
    assert (len(looks), done) == (2, ["paused"]), "it reads, slowly"
    connection.resume_writing()
    assert done == ["paused", "resumed", "cancelled"]
    assert connection._stalled is None
    connection.pause_writing()
    looks[-1]()
    assert done[3:] == ["paused", "cut"], "since the last look it has read nothing"
