"""The parts of HTTP that need no server: events out of chunks, headers out of bodies."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time, in_virtual_time
from tests.support.loops import on_asyncio
from tests.support.stdio import Call, Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.peer import LostReason
from greenroom.actors.transports.event_parser import EventParser, ServerEvent
from greenroom.actors.transports.http_client import (
    BadAnswer,
    Broken,
    ExchangeFault,
    LoginNeeded,
    SessionExpired,
    WrongTransport,
    _contained,
    _within_origin,
    all_faults_told,
    faults_told,
    lacks_scope,
    login_in_words,
    make_client,
    media_type,
    read_bounded,
    refusal_in_words,
    status_in_words,
)
from greenroom.actors.transports.http_client import said as said_of
from greenroom.actors.transports.http_peer import LAST_ANSWERS, LISTENS_WITHIN, Attempt, HttpPeer
from greenroom.actors.transports.streamable_http import AnswerStream, ToolHeaders
from greenroom.config.model import ServerDefinition
from greenroom.config.secrets import Hidden
from greenroom.protocol.bounds import LARGE_MESSAGE
from greenroom.protocol.errors import ConnectFailed, Reach
from greenroom.protocol.header_params import decode_value, encode_value, mismatch
from greenroom.protocol.jsonrpc.incoming import decode_line
from greenroom.protocol.jsonrpc.terms import RpcError
from greenroom.protocol.lifecycle import Reason


def parser(limit: int = 1 << 20) -> tuple[EventParser, list[bytes]]:
    heads: list[bytes] = []
    return EventParser(limit, lambda head, _bound: heads.append(head)), heads


# ---- events ---------------------------------------------------------------------------------------------------------

STREAM = (
    b": hello\r\nid: 7\nretry: 250\n\nevent: endpoint\r\ndata:/a\r\n\r\n"
    b"data: one\rdata:  two\r\rdata\n\nid: 8\ndata: {}\n\n"
)
EVENTS = [
    ServerEvent("endpoint", b"/a"),
    ServerEvent("message", b"one\n two"),
    ServerEvent("message", b"{}"),
]


@given(st.lists(st.integers(1, 12), max_size=60))
def test_events_are_the_same_however_they_are_cut(sizes: list[int]) -> None:
    events, _ = parser()
    found: list[ServerEvent] = []
    rest = STREAM
    for size in sizes:
        found += events.feed(rest[:size])
        rest = rest[size:]
    found += events.feed(rest)
    assert found == EVENTS
    assert (events.last_id, events.retry) == ("8", 0.25)


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
def test_an_event_over_the_bound_ends_where_it_ends_wherever_it_is_cut(ending: bytes) -> None:
    lines = [
        b"id: 1",
        b"data: " + b"y" * 20,
        b": note",
        b"data: more",
        b"data: tail",
        b"",
        b"data: after",
        b"",
        b"",
    ]
    data = ending.join(lines)
    for first in range(len(data)):
        for second in range(first, len(data)):
            events, heads = parser(limit=10)
            pieces = (data[:first], data[first:second], data[second:])
            found = [event for piece in pieces for event in events.feed(piece)]
            assert found == [ServerEvent("message", b"after")], pieces
            assert len(heads) == 1
    events, heads = parser(limit=10)
    found = [event for at in range(len(data)) for event in events.feed(data[at : at + 1])]
    assert (found, len(heads)) == ([ServerEvent("message", b"after")], 1)


@pytest.mark.parametrize("line", [b"data: " + b"x" * 100, b"data:\n", b"data: x\r\n"])
@pytest.mark.parametrize("size", [7, 1 << 13])
def test_an_event_costs_little_more_than_its_bytes(line: bytes, size: int) -> None:
    limit = 1 << 17
    events, heads = parser(limit)
    data = line * (limit // len(line) - 1)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    tracemalloc.start()
    try:
        for piece in pieces:
            assert events.feed(piece) == []
        found = [event for end in (b"\n", b"\n", b"\n") for event in events.feed(end)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found), heads) == (1, [])
    assert peak < 2 * len(data) + 50 * size + 16_384  # what else of the process allocates meanwhile


# ---- headers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("two words", "two words"),
        ("", ""),
        (" padded", "=?base64?IHBhZGRlZA==?="),
        ("Zoë", "=?base64?Wm/Dqw==?="),
        ("a\nb", "=?base64?YQpi?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
    ],
)
def test_a_value_survives_the_way(text: str, value: str) -> None:
    assert encode_value(text) == value


def tool(properties: dict[str, Any], **schema: Any) -> dict[str, Any]:
    return {"name": "play", "inputSchema": {"type": "object", "properties": properties, **schema}}


def test_annotated_arguments_are_mirrored() -> None:
    headers = ToolHeaders()
    nested = {"type": "object", "properties": {"row": {"type": "integer", "x-mcp-header": "Row"}}}
    annotated = {
        "city": {"type": "string", "x-mcp-header": "City"},
        "late": {"type": "boolean", "x-mcp-header": "Late"},
        "seat": nested,
        "note": {"type": "string"},
        "none": {"type": "string", "x-mcp-header": "None"},
    }
    assert headers.learn(tool(annotated)) is None
    arguments = {"city": "Zürich", "late": True, "seat": {"row": 3}, "note": "hush", "none": None}
    assert headers.headers("tools/call", {"name": "play", "arguments": arguments}) == {
        "Mcp-Method": "tools/call",
        "Mcp-Name": "play",
        "Mcp-Param-City": "=?base64?WsO8cmljaA==?=",
        "Mcp-Param-Late": "true",
        "Mcp-Param-Row": "3",
    }


@pytest.mark.parametrize(
    ("header", "value", "agree"),
    [
        ("Hello", "Hello", True),
        ("=?base64?SGVsbG8=?=", "Hello", True),
        ("=?base64?SGVsbG8?=", "Hello", False),  # no padding
        ("=?base64?SGVs!!!bG8=?=", "Hello", False),
        ("hello", "Hello", False),
        (None, "Hello", False),
        ("Hello", None, False),
        (None, None, True),
        ("42", 42, True),
        ("42.0", 42, True),
        ("42.5", 42, False),
        ("true", True, True),
        ("1", True, False),
        (None, ["Hello"], True),  # nothing that a header can say
    ],
)
def test_a_header_must_say_what_the_body_says(header: str | None, value: object, agree: bool) -> None:
    headers = {} if header is None else {b"mcp-param-region": header.encode()}
    said = mismatch({("region",): "Region"}, {"region": value}, headers)
    assert said == (None if agree else "Mcp-Param-Region")
    assert decode_value(encode_value("Zoë")) == "Zoë"


@pytest.mark.parametrize(
    "arguments",
    [
        msgspec.Raw(b'{"city": "Bern", "seat": {"row": 3}}'),  # the direct door's
        {
            "city": msgspec.Raw(b'"Bern"'),
            "seat": msgspec.Raw(b'{"row": 3}'),
        },  # those of a large call of the mcp tool
    ],
)
def test_a_call_that_is_passed_on_as_it_came_has_its_headers_too(arguments: object) -> None:
    headers = ToolHeaders()
    row = {"type": "object", "properties": {"row": {"type": "integer", "x-mcp-header": "Row"}}}
    assert headers.learn(tool({"city": {"type": "string", "x-mcp-header": "City"}, "seat": row})) is None
    said = headers.headers("tools/call", {"name": "play", "arguments": arguments})
    assert (said["Mcp-Param-City"], said["Mcp-Param-Row"]) == ("Bern", "3")


@pytest.mark.parametrize(
    "arguments", [msgspec.Raw(b"[1]"), msgspec.Raw(b"null"), msgspec.Raw(b'{"city": {}}'), None]
)
def test_arguments_that_say_nothing_there_have_no_header(arguments: object) -> None:
    headers = ToolHeaders()
    assert headers.learn(tool({"city": {"type": "string", "x-mcp-header": "City"}})) is None
    assert "Mcp-Param-City" not in headers.headers("tools/call", {"name": "play", "arguments": arguments})


@pytest.mark.parametrize(
    "broken",
    [
        tool({"a": {"type": "string", "x-mcp-header": ""}}),
        tool({"a": {"type": "string", "x-mcp-header": "two words"}}),
        tool({"a": {"type": "string", "x-mcp-header": 3}}),
        tool({"a": {"type": "number", "x-mcp-header": "A"}}),
        tool({"a": {"type": "object", "x-mcp-header": "A"}}),
        tool({"a": {"x-mcp-header": "A"}}),
        tool({"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}),
        tool({}, anyOf=[{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]),
        tool({"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}),
    ],
)
def test_a_tool_whose_annotations_break_the_rules_is_refused(broken: dict[str, Any]) -> None:
    assert ToolHeaders().learn(broken) is not None


def test_data_that_only_looks_like_an_annotation_is_none() -> None:
    harmless = tool(
        {"a": {"type": "object", "default": {"x-mcp-header": "A"}, "enum": [{"x-mcp-header": 1}]}}
    )
    assert ToolHeaders().learn(harmless) is None


def test_a_schema_nested_ten_thousand_deep_is_walked() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(10_000):
        schema = {"type": "object", "properties": {"a": schema}}
    assert ToolHeaders().learn({"name": "deep", "inputSchema": schema}) is None


# ---- one exchange, without a server ---------------------------------------------------------------------------------


class Scripted:
    """A carrier that does what the test says. `delivered`: the other messages."""

    def __init__(self, carry: Callable[[Attempt], Awaitable[None]]) -> None:
        self._carry = carry
        self.may_speak_both = False
        self.delivered: list[Any] = []
        self.listened = 0

    async def carry(self, attempt: Attempt) -> None:
        await self._carry(attempt)

    async def deliver(self, line: bytes) -> None:
        self.delivered.append(json.loads(line))

    async def listen(self, settled: Callable[[], object]) -> None:
        self.listened += 1
        await self.hear(settled)

    async def hear(self, settled: Callable[[], object]) -> None:
        """What the test says comes of listening."""

    async def leave(self) -> None:
        raise NotImplementedError


@asynccontextmanager
async def http_peer(
    carry: Callable[[Attempt], Awaitable[None]],
) -> AsyncGenerator[tuple[HttpPeer, Recorder, Scripted]]:
    hooks, carrier = Recorder(), Scripted(carry)
    async with anyio.create_task_group() as tasks:
        peer = HttpPeer(current_backend(), hooks, tasks, 1 << 20)
        peer.carrier = carrier
        yield peer, hooks, carrier
        tasks.cancel_scope.cancel()


async def _forgotten(attempt: Attempt) -> None:
    attempt.did_not_run()
    raise SessionExpired("HTTP 404")


@in_virtual_time
async def test_a_session_that_is_over_is_told_as_soon_as_nothing_is_under_way() -> None:
    async with http_peer(_forgotten) as (peer, hooks, _):
        call = Call("tools/call", {})
        peer.request(call)
        await hooks.lost.wait()
        assert anyio.current_time() == 0.0
        (reason,) = hooks.reasons
        assert (reason.text, reason.loss) == ("session expired: HTTP 404", Reason.EXPIRED)
        assert (call.ends, call.reach) == ([], Reach.NOT_SENT)
        late = Call("tools/call", {})
        peer.request(late)
        assert (late.ends, late.reach) == ([], Reach.NOT_SENT)


@pytest.mark.parametrize(("needs", "told_at"), [(0.4, 0.4), (60.0, LAST_ANSWERS)])
@in_virtual_time
async def test_others_under_way_have_a_moment_to_end(needs: float, told_at: float) -> None:
    async def carry(attempt: Attempt) -> None:
        if attempt.method == "ping":
            await _forgotten(attempt)
        await anyio.sleep(math.inf if attempt.method == "subscriptions/listen" else needs)

    async with http_peer(carry) as (peer, hooks, _):
        for method in ("tools/call", "subscriptions/listen", "ping"):
            peer.request(Call(method, {}))
        await hooks.lost.wait()
        assert anyio.current_time() == pytest.approx(told_at)


@in_virtual_time
async def test_a_loss_with_nothing_under_way_is_told_at_once_and_once() -> None:
    async with http_peer(_forgotten) as (peer, hooks, _):
        for text in ("first", *map(str, range(9))):
            peer.lose(LostReason(text))
        await anyio.sleep(0.01)
        assert [reason.text for reason in hooks.reasons] == ["first"]
        assert peer.is_silent


@in_virtual_time
async def test_nothing_overtakes_that_we_are_initialised() -> None:
    order: list[str] = []

    async def carry(attempt: Attempt) -> None:
        order.append(attempt.method)

    async with http_peer(carry) as (peer, _, carrier):
        told = anyio.Event()

        async def deliver(line: bytes) -> None:
            await anyio.sleep(2.0)
            order.append(json.loads(line)["method"])
            told.set()
            raise BadAnswer("HTTP 500")

        carrier.deliver = deliver
        peer.notify("notifications/initialized")
        peer.request(Call("tools/list"))
        await told.wait()
        await anyio.sleep(0.1)
        assert order == ["notifications/initialized", "tools/list"]
        assert carrier.listened == 1
        assert list(peer.notes.counts) == ["a message did not reach the server"]


@pytest.mark.parametrize(("opens_at", "sent_at"), [(0.4, 0.4), (60.0, LISTENS_WITHIN), (None, 0.0)])
@in_virtual_time
async def test_a_call_waits_until_its_servers_requests_can_be_heard(
    opens_at: float | None, sent_at: float
) -> None:
    sent: list[tuple[str, float]] = []

    async def carry(attempt: Attempt) -> None:
        sent.append((attempt.method, round(anyio.current_time() - 5.0, 3)))

    async with http_peer(carry) as (peer, _, carrier):

        async def hear(settled: Callable[[], object]) -> None:
            if opens_at is not None:  # else there is no such stream
                await anyio.sleep(opens_at)
                settled()
                await anyio.sleep_forever()

        carrier.hear = hear
        await anyio.sleep(5.0)
        peer.notify("notifications/initialized")
        for method in ("tools/list", "tools/call"):
            peer.request(Call(method))
        await anyio.sleep(2.0)
        peer.request(Call("prompts/get"))
        await anyio.sleep(0.1)
        assert dict(sent) == {"tools/list": 0.0, "tools/call": sent_at, "prompts/get": 2.0}


@in_virtual_time
async def test_progress_on_the_way_to_an_answer_arrives_in_order_and_before_it() -> None:
    async with http_peer(_forgotten) as (peer, _, carrier):
        pauses = iter([3.0, 2.0, 1.0, 0.0])
        deliver = carrier.deliver

        async def deliver_late(line: bytes) -> None:
            await anyio.sleep(next(pauses))
            if b'"progress":2' in line:
                raise BadAnswer("refused")
            await deliver(line)

        carrier.deliver = deliver_late
        for count in (1, 2, 3):
            peer.notify("notifications/progress", {"progressToken": 7, "progress": count})
        peer.reply(7, {})
        await anyio.sleep(5.9)
        assert len(carrier.delivered) == 1
        await anyio.sleep(1.0)
        said = [message.get("params", {}).get("progress", message.get("id")) for message in carrier.delivered]
        assert said == [1, 3, 7], "one that did not get there holds up nobody"


@pytest.mark.parametrize("own", [True, False])
@in_virtual_time
async def test_a_large_message_is_read_while_others_have_their_turns(own: bool) -> None:
    text = b'{"text":"%b"}' % (b"\\u00e9" * (LARGE_MESSAGE // 4))
    async with http_peer(_forgotten) as (peer, _, carrier):
        turns = [0, 0]

        async def carry(attempt: Attempt) -> None:
            data = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (attempt.rpc_id, text)
            peer.sent(attempt)
            turns[0] = turns[1]
            await (peer.take_for(attempt, data) if own else peer.hear(data))

        async def count() -> None:
            while not call.ends and turns[1] < 1_000_000:
                turns[1] += 1
                await anyio.lowlevel.checkpoint()

        carrier.carry = carry
        call = Call("tools/call", {})
        peer.request(call)
        await count()
        assert call.ends == [(text, None)]
        assert turns[1] - turns[0] >= 1


@in_virtual_time
async def test_a_large_body_that_is_no_message_fails_its_exchange() -> None:
    async with http_peer(_forgotten) as (peer, _, carrier):

        async def carry(attempt: Attempt) -> None:
            await peer.take_for(attempt, b'{"id":1,"result":{"x":"' + b"x" * LARGE_MESSAGE)

        carrier.carry = carry
        call = Call("tools/call", {})
        peer.request(call)
        await anyio.sleep(0.1)
        ((_, error),) = call.ends
        assert error is not None
        assert "not JSON-RPC: " in error.message


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b'{"jsonrpc":"2.0","id":%d,"result":{}}', True),
        (b'{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}', True),  # an error may not know its id
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}', True),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', False),
        (b'{"jsonrpc":"2.0","id":999,"result":{}}', False),
    ],
)
@in_virtual_time
async def test_an_answer_without_an_id_is_one_only_if_it_is_an_error(data: bytes, ends: bool) -> None:
    async with http_peer(_forgotten) as (peer, _, carrier):

        async def carry(attempt: Attempt) -> None:
            await peer.take_for(attempt, data % attempt.rpc_id if b"%d" in data else data)

        carrier.carry = carry
        call = Call("tools/call", {})
        peer.request(call)
        await anyio.sleep(0.1)
        ((_, error),) = call.ends
        assert ("another request" in error.message if error is not None else False) is not ends
        assert call.reach is Reach.ANSWERED


@in_virtual_time
async def test_a_peer_falls_back_once_and_what_it_had_sent_did_not_run() -> None:
    async def carry(attempt: Attempt) -> None:
        attempt.exchange.reach = Reach.SENT
        raise WrongTransport("HTTP 405")

    async with http_peer(carry) as (peer, _, _):
        seen: list[Reach] = []
        refused: list[str] = []

        async def carry_better(attempt: Attempt) -> None:
            seen.append(attempt.exchange.reach)

        def older(refusal: WrongTransport) -> Any:
            refused.append(str(refusal))
            return Scripted(carry_better)

        peer.fall_back = older
        for _ in range(2):
            peer.request(Call("initialize"))
            await anyio.sleep(0.1)
        assert (refused, seen) == (["HTTP 405"], [Reach.NOT_SENT] * 2)
        assert peer.fall_back is None


@in_virtual_time
async def test_the_fault_of_an_exchange_is_its_own() -> None:
    faults = {"broken": Broken("gone"), "bad": BadAnswer("no JSON")}

    async def carry(attempt: Attempt) -> None:
        attempt.exchange.reach = Reach.SENT
        raise faults[attempt.method]

    async with http_peer(carry) as (peer, hooks, _):
        broken, bad, left = Call("broken"), Call("bad"), Call("bad")
        for call in (broken, bad, left):
            peer.request(call)
        peer.abandon(left, "left")
        await anyio.sleep(0.1)
        (_, error), (_, fault) = broken.ends[0], bad.ends[0]
        assert error is not None
        assert fault is not None
        assert (error.broken, broken.reach) == (True, Reach.SENT)
        assert (fault.broken, fault.fault, bad.reach) == (False, True, Reach.ANSWERED)
        assert (left.ends, hooks.reasons) == ([], [])
        assert not peer._scopes


@in_virtual_time
async def test_a_negotiation_that_is_left_and_a_call_that_has_ended_are_not_cancelled() -> None:
    async def carry(attempt: Attempt) -> None:
        if attempt.method != "prompts/list":  # which never gets that far
            attempt.exchange.reach = Reach.SENT
        await anyio.sleep_forever()

    async with http_peer(carry) as (peer, _, carrier):
        for version, method, said in (
            ("2026-07-28", "tools/call", 0),  # there leaving is all that is said
            ("2025-11-25", "initialize", 0),
            ("2025-11-25", "prompts/list", 0),
            ("2025-11-25", "tools/call", 1),
        ):
            peer.protocol_version = version
            call = Call(method, {})
            peer.request(call)
            await anyio.sleep(0.1)
            peer.abandon(call, "left")
            peer.abandon(call, "left")
            await anyio.sleep(0.1)
            assert [message["method"] for message in carrier.delivered] == ["notifications/cancelled"] * said
            assert not peer._scopes
        assert carrier.delivered[0]["params"] == {"requestId": call.rpc_id, "reason": "left"}


# ---- the stream of one answer ---------------------------------------------------------------------------------------


class Body:
    """A response whose body is these chunks, at these times; then it stays open."""

    def __init__(self, *chunks: tuple[float, bytes], ends: bool = False) -> None:
        self.chunks, self.ends = chunks, ends
        self.is_left = False

    async def aiter_bytes(self) -> AsyncGenerator[bytes]:
        try:
            for seconds, chunk in self.chunks:
                await anyio.sleep(seconds)
                yield chunk
            if not self.ends:
                await anyio.sleep_forever()
        finally:
            self.is_left = True


@asynccontextmanager
async def answer_stream(version: str | None = None) -> AsyncGenerator[tuple[HttpPeer, AnswerStream, Call]]:
    attempts: list[Attempt] = []

    async def carry(attempt: Attempt) -> None:
        attempts.append(attempt)
        await anyio.sleep_forever()

    async with http_peer(carry) as (peer, _, _):
        peer.protocol_version = version
        call = Call("tools/call", {})
        peer.request(call)
        while not attempts:
            await anyio.sleep(0.001)
        yield peer, AnswerStream(attempts[0], peer, peer.take_for), call


ANSWER = b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n'


@in_virtual_time
async def test_an_answered_stream_is_left_a_moment_later() -> None:
    async with answer_stream() as (peer, stream, call):
        began = anyio.current_time()
        response: Any = Body((3.0, ANSWER), (0.04, b": still here\n\n"))
        await stream.read(response)
        assert call.ends == [(b"{}", None)]
        assert response.is_left
        assert anyio.current_time() - began == pytest.approx(3.05)
        assert peer.last_heard - began == pytest.approx(3.04)


@pytest.mark.parametrize(("version", "can"), [("2025-11-25", True), ("2026-07-28", False)])
@in_virtual_time
async def test_only_streams_of_the_older_era_are_resumed(version: str, can: bool) -> None:
    async with answer_stream(version) as (_, stream, _):
        assert not stream.is_resumable
        response: Any = Body((0.0, b"id: e1\n\n"), ends=True)
        await stream.read(response)
        assert stream.last_id == "e1"
        assert stream.is_resumable is can


@in_virtual_time
async def test_a_stream_is_resumed_while_something_comes_and_not_for_ever() -> None:
    opened: list[float] = []
    brings: list[bytes] = [b"", b"id: e2\n\n", b"", b""]
    async with answer_stream() as (peer, stream, _):

        async def again(of: AnswerStream) -> None:
            opened.append(anyio.current_time() - began)
            if not brings:
                raise Broken("nobody there")
            response: Any = Body((0.0, brings.pop(0)), ends=True)
            await of.read(response)

        response: Any = Body((0.0, b"id: e1\nretry: 500\n\n"), ends=True)
        await stream.read(response)
        began = anyio.current_time()
        with pytest.raises(Broken, match="could not be resumed"):
            await stream.resume(again)
        assert opened == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.5])
        assert peer.notes.counts["resuming an event stream failed"] == 1


# ---- the client -----------------------------------------------------------------------------------------------------


@in_real_time
async def test_a_way_to_log_in_that_is_left_half_way_is_closed() -> None:
    closed: list[str] = []

    class Login(httpx2.Auth):
        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            try:
                yield request
                raise RuntimeError("no browser")
            finally:
                closed.append("closed")

    request = httpx2.Request("GET", "http://127.0.0.1/")
    left = _contained(Login()).async_auth_flow(request)
    assert await anext(left) is request
    await left.aclose()
    assert closed == ["closed"]
    fails = _contained(Login()).async_auth_flow(request)
    await anext(fails)
    with pytest.raises(LoginNeeded, match="logging in failed: no browser"):
        await fails.asend(httpx2.Response(401))


@pytest.mark.parametrize(
    ("before", "after", "method", "may"),
    [
        ("http://h:1/a", "http://h:1/b", "POST", True),
        ("http://h:1/a", "http://h:2/a", "POST", False),
        ("http://h/a", "http://i/a", "POST", False),
        ("http://h/a", "https://h/a", "POST", True),
        ("http://h:80/a", "https://h:8443/a", "POST", False),
        ("https://h/a", "http://h/a", "POST", False),
        ("http://h/a", "http://u:p@h/a", "POST", False),
        ("http://h/a", "http://h/b", "GET", False),
    ],
)
def test_a_redirect_is_followed_within_the_origin(before: str, after: str, method: str, may: bool) -> None:
    response = httpx2.Response(307, request=httpx2.Request("POST", before))
    response.next_request = further = httpx2.Request(method, after)
    assert (_within_origin(response) is further) is may


@pytest.mark.parametrize(("limit", "fits"), [(10, True), (9, False)])
@in_real_time
async def test_a_body_of_just_the_bound_is_read(limit: int, fits: bool) -> None:
    response: Any = Body((0.0, b"12345"), (0.0, b"67890"), ends=True)
    if fits:
        assert await read_bounded(response, limit) == b"1234567890"
    else:
        with pytest.raises(BadAnswer, match="over the bound of 9 bytes"):
            await read_bounded(response, limit)
    assert response.is_left


def test_a_tool_that_is_listed_anew_mirrors_what_it_says_now() -> None:
    headers, call = ToolHeaders(), {"name": "play", "arguments": {"a": "x"}}
    assert headers.learn(tool({"a": {"type": "string", "x-mcp-header": "A"}})) is None
    assert "Mcp-Param-A" in headers.headers("tools/call", call)
    assert headers.learn(tool({"a": {"type": "string"}})) is None
    assert "Mcp-Param-A" not in headers.headers("tools/call", call)


# ---- events, once more ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"event: ping\n\ndata: x\n\n", [("message", b"x")]),  # a name is of one event, with or without data
        (b"event: ping\ndata: x\n\ndata: y\n\n", [("ping", b"x"), ("message", b"y")]),
        (b"event: a\nevent: b\ndata: x\n\n", [("b", b"x")]),
        (b"event:\ndata: x\n\n", [("message", b"x")]),
        (b"event: " + b"n" * 300 + b"\ndata: x\n\n", [("n" * 256, b"x")]),
        (b"data:\ndata: x\n\n", [("message", b"\nx")]),
        (b"data:\ndata:\n\n", [("message", b"\n")]),
        (b"data\n\ndata:  x \n\n", [("message", b" x ")]),
        (b"datas: x\n\n: data: y\n\n", []),
        (b"data: x", []),
    ],
)
def test_what_an_event_is(stream: bytes, found: list[tuple[str, bytes]]) -> None:
    for size in (1, 2, 3, len(stream)):
        events, heads = parser()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        seen = [event for piece in pieces for event in (*events.feed(piece), *events.feed(b""))]
        assert [(event.name, bytes(event.data)) for event in seen] == found
        assert heads == []


def test_a_line_that_ends_in_both_ways_ends_once_however_it_is_cut() -> None:
    for pieces in (
        (b"data: a\r", b"", b"\n\r", b"\n"),
        (b"data: a\r", b"\ndata: b\r\n\r\n"),
        (b"data: a\r", b"\r"),
    ):
        events, _ = parser()
        seen = [bytes(event.data) for piece in pieces for event in events.feed(piece)]
        assert seen == [b"a\nb" if b"data: b" in b"".join(pieces) else b"a"]


@pytest.mark.parametrize(("size", "fits"), [(64, True), (65, False)])
@pytest.mark.parametrize("cut", [3, 40, 200])
def test_an_event_of_just_the_bound_is_kept_and_one_over_it_is_told(size: int, fits: bool, cut: int) -> None:
    told: list[tuple[bytes, str]] = []
    events = EventParser(64, lambda head, bound: told.append((head, bound)))
    data = b"data: " + b"x" * size + b"\n\n"
    seen = [event for piece in (data[:cut], data[cut:]) for event in events.feed(piece)]
    assert [len(event.data) for event in seen] == ([size] if fits else [])
    assert told == ([] if fits else [(b"x" * size, "64 bytes an event")])


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        *[(b"0", 0.02), (b"19", 0.02), (b"21", 0.021), (b"999999999", 999_999.999), (b"1000000000", None)],
        *[(b"-5", None), (b"soon", None), (b"1e3", None)],
    ],
)
def test_the_time_until_a_stream_is_opened_again_is_in_milliseconds_and_never_nothing(
    said: bytes, seconds: float | None
) -> None:
    events, _ = parser()
    events.feed(b"retry: " + said + b"\n\n")
    assert events.retry == seconds


def test_an_id_has_its_bound_and_a_line_that_is_no_data_too() -> None:
    events, _ = parser()
    for said, kept in (("e1", True), ("é", True), ("a\tb", False), ("x" * 4096, True), ("x" * 4097, False)):
        events.feed(b"id: " + said.encode() + b"\n\n")
        assert events.last_id == (said if kept else "")
    events.feed(b"id: 7\n\n" + b"id: 8\0\n\n")
    assert events.last_id == "7", "one with a zero byte is none"
    events.feed(b"id\n\n")
    assert events.last_id == "", "an empty one resets it"
    for _ in range(50):
        assert events.feed(b": " + b"x" * 1000) == []
    assert len(events._line) < 10_000
    assert [bytes(event.data) for event in events.feed(b"\ndata: y\n\n")] == [b"y"]


# ---- headers, once more ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "play"}, "play"),
        ("tools/call", {"name": ""}, ""),
        ("tools/call", {"name": 5}, None),
        ("tools/call", {}, None),
        ("prompts/get", {"name": "Zoë"}, "=?base64?Wm/Dqw==?="),
        ("prompts/get", {"uri": "x"}, None),
        ("resources/read", {"uri": "a://ü", "name": "n"}, "=?base64?YTovL8O8?="),
        ("resources/subscribe", {"uri": "a://b"}, None),
        ("completion/complete", {"name": "x"}, None),
    ],
)
def test_a_request_is_routed_by_what_it_is_about(
    method: str, params: dict[str, Any], name: str | None
) -> None:
    headers = ToolHeaders()
    headers.learn(tool({"a": {"type": "string", "x-mcp-header": "A"}}))
    expected = {"Mcp-Method": method} if name is None else {"Mcp-Method": method, "Mcp-Name": name}
    assert headers.headers(method, params) == expected
    said = headers.headers(method, {"name": "play", "arguments": {"a": "x"}})
    assert said.get("Mcp-Param-A") == ("x" if method == "tools/call" else None), "only a tool has arguments"


# ---- the peer, once more --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_peer_that_is_about_to_be_lost_sends_nothing_more() -> None:
    carried: list[str] = []

    async def carry(attempt: Attempt) -> None:
        carried.append(attempt.method)
        await anyio.sleep(0.5)

    async with http_peer(carry) as (peer, hooks, _):
        peer.request(Call("tools/call"))
        await anyio.sleep(0.1)
        peer.lose(LostReason("over"))
        late = Call("late")
        peer.request(late)
        await hooks.lost.wait()
        assert anyio.current_time() == pytest.approx(0.5)
        assert (carried, late.ends, late.reach) == (["tools/call"], [], Reach.NOT_SENT)


@in_virtual_time
async def test_a_peer_that_was_silenced_says_nothing_of_what_comes_after() -> None:
    attempts: list[Attempt] = []

    async def carry(attempt: Attempt) -> None:
        attempts.append(attempt)
        await anyio.sleep(0.5)
        raise Broken("reset") if attempt.method == "breaks" else BadAnswer("no")

    async with http_peer(carry) as (peer, hooks, _):
        calls = [Call("breaks"), Call("tools/call")]
        for call in calls:
            peer.request(call)
        await anyio.sleep(0.1)
        peer.lose(LostReason("over"))
        peer.silence()
        peer.gap()
        await anyio.sleep(5)
        answer = decode_line(b'{"jsonrpc":"2.0","id":1,"result":{}}')[0]
        peer.answer(attempts[0], answer)
        assert [call.ends for call in calls] == [[], []]
        assert (hooks.reasons, hooks.gaps) == ([], 0)


@in_virtual_time
async def test_an_exchange_that_failed_is_over_and_one_that_was_left_is_not_sent_any_more() -> None:
    attempts: list[Attempt] = []

    async def carry(attempt: Attempt) -> None:
        attempts.append(attempt)
        if attempt.method == "breaks":
            raise Broken("reset")
        await anyio.sleep_forever()

    async with http_peer(carry) as (peer, _, _):
        failed, left = Call("breaks"), Call("tools/call")
        for call in (failed, left):
            peer.request(call)
        await anyio.sleep(0.1)
        peer.abandon(left, "left")
        for attempt in attempts:
            assert not peer.is_open(attempt)
            peer.sent(attempt)
            peer.answer(attempt, decode_line(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % attempt.rpc_id)[0])
        assert (len(failed.ends), left.ends) == (1, [])
        assert (failed.sent_at, left.sent_at) == ([], [])


@in_virtual_time
async def test_what_a_server_asks_on_a_calls_own_stream_is_about_that_call() -> None:
    during: list[Any] = []

    async def carry(attempt: Attempt) -> None:
        await peer_of[0].take_for(attempt, b'{"jsonrpc":"2.0","id":"q","method":"roots/list"}')

    peer_of: list[HttpPeer] = []
    async with http_peer(carry) as (peer, hooks, _):
        peer_of.append(peer)
        asked: Any = hooks
        asked.on_request = lambda rpc_id, method, params, call=None: during.append(call)
        call = Call("tools/call")
        peer.request(call)
        await anyio.sleep(0.1)
        assert during == [call]


# ---- deliveries, once more ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "waits"),
    [
        ("ping", False),
        ("tools/list", False),
        ("resources/list", False),
        ("resources/templates/list", False),
        ("prompts/list", False),
        ("logging/setLevel", False),
        ("tools/call", True),
        ("prompts/get", True),
        ("resources/read", True),
        ("completion/complete", True),
    ],
)
@on_asyncio
@in_virtual_time
async def test_only_what_may_make_a_server_ask_waits_for_the_stream_of_its_requests(
    method: str, waits: bool
) -> None:
    sent: list[float] = []

    async def carry(attempt: Attempt) -> None:
        sent.append(anyio.current_time())

    async with http_peer(carry) as (peer, _, carrier):

        async def hear(settled: Callable[[], object]) -> None:
            await anyio.sleep_forever()

        carrier.hear = hear
        peer.notify("notifications/initialized")
        peer.request(Call(method))
        await anyio.sleep(3.0)
        assert sent == pytest.approx([1.0 if waits else 0.0])


@in_virtual_time
async def test_our_answers_say_what_we_answer() -> None:
    async with http_peer(_forgotten) as (peer, _, carrier):
        peer.reply("a", {"roots": []})
        peer.reply(1.5, None, RpcError(-32601, "no", {"why": 1}))
        peer.notify("notifications/roots/list_changed", {"x": 1})
        await anyio.sleep(0.1)
        error = {"code": -32601, "message": "no", "data": {"why": 1}}
        assert sorted(carrier.delivered, key=str) == [  # none of them waits for another
            {"jsonrpc": "2.0", "id": "a", "result": {"roots": []}},
            {"jsonrpc": "2.0", "id": 1.5, "error": error},
            {"jsonrpc": "2.0", "method": "notifications/roots/list_changed", "params": {"x": 1}},
        ]


FORGOTTEN = SessionExpired("HTTP 404")


@pytest.mark.parametrize(
    ("fault", "loss", "note"),
    [
        (FORGOTTEN, Reason.EXPIRED, None),
        (LoginNeeded("HTTP 401"), Reason.NEEDS_AUTH, None),
        (BadAnswer("HTTP 500"), None, "HTTP 500: "),
        (Broken("reset"), None, "reset: "),
        (None, None, "not accepted within 30s: "),
    ],
)
@pytest.mark.parametrize(
    "what", ["notifications/initialized", "notifications/progress", "notifications/x", "reply"]
)
@on_asyncio
@in_virtual_time
async def test_what_becomes_of_a_message_that_is_not_accepted(
    fault: ExchangeFault | None, loss: Reason | None, note: str | None, what: str
) -> None:
    async with http_peer(_forgotten) as (peer, hooks, carrier):

        async def deliver(line: bytes) -> None:
            if fault is not None:
                raise fault
            await anyio.sleep_forever()

        carrier.deliver = deliver
        long = {"x": "y" * 5000}
        if what == "reply":
            peer.reply(7, long)
        else:
            peer.notify(what, long)
        await anyio.sleep(29.9)
        assert bool(hooks.notes) is (note is not None and fault is not None)
        await anyio.sleep(0.2)
        assert [reason.loss for reason in hooks.reasons] == ([] if loss is None else [loss])
        if note is None:
            assert hooks.notes == []
        else:
            (told,) = hooks.notes
            assert told.startswith(f"a message did not reach the server: {note}")
            assert len(told) < 300, "only its beginning is quoted"


# ---- faults in words ------------------------------------------------------------------------------------------------

KNOWN = [
    httpx2.ReadError("reset"),
    httpx2.StreamClosed(),
    httpx2.StreamConsumed(),
    httpx2.InvalidURL("bad"),
    httpx2.CookieConflict("two"),
    httpx2.TooManyRedirects("round"),
]


@pytest.mark.parametrize("error", KNOWN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("told", [faults_told, all_faults_told])
def test_whatever_the_library_raises_is_a_broken_exchange(error: Exception, told: Any) -> None:
    with pytest.raises(Broken) as caught, told():
        raise error
    assert "cannot be read" not in str(caught.value), "it is known"


def test_what_is_no_fault_of_the_library_is_told_only_where_it_runs_alone() -> None:
    with pytest.raises(ValueError, match="of ours"), faults_told():
        raise ValueError("of ours")
    with (
        pytest.raises(Broken, match=r"the answer cannot be read \(ValueError\)") as caught,
        all_faults_told(),
    ):
        raise ValueError("of the answer")
    assert "of the answer" not in str(caught.value)
    for fault in (BadAnswer("too long"), LoginNeeded("HTTP 401"), SessionExpired("HTTP 404")):
        with pytest.raises(type(fault)) as same, all_faults_told():
            raise fault
        assert same.value is fault


SCOPE = 'Bearer error="insufficient_scope", '


@pytest.mark.parametrize(
    ("status", "headers", "body", "words"),
    [
        (403, {}, b"", "HTTP 403 Forbidden"),
        (599, {}, b" \n", "HTTP 599"),
        (500, {}, b"out of ink", 'HTTP 500 Internal Server Error: "out of ink"'),
        (
            307,
            {"location": "http://x/"},
            b"moved",
            "HTTP 307 Temporary Redirect: redirected to http://x/, which is not",
        ),
        (307, {}, b"moved", 'HTTP 307 Temporary Redirect: "moved"'),
        (503, {"location": "http://x/"}, b"later", 'HTTP 503 Service Unavailable: "later"'),
        (
            403,
            {"www-authenticate": f'{SCOPE}scope="a b"'},
            b"no",
            '"no" (the login lacks the scope "a b": log in',
        ),
        (
            403,
            {"www-authenticate": f"{SCOPE}scope=a"},
            b"",
            'Forbidden (the login lacks the scope "a": log in',
        ),
        (403, {"www-authenticate": "Bearer ERROR=insufficient_scope"}, b"", "lacks a scope for this: log in"),
        (403, {"www-authenticate": f'{SCOPE}scope="{"s" * 300}"'}, b"", f'the scope "{"s" * 200}": log in'),
        (
            500,
            {"content-type": "Text/HTML; charset=x"},
            b"<p>",
            "Error: an HTML page; this URL does not appear",
        ),
        (
            500,
            {"content-type": "application/xhtml+xml"},
            b"<p>",
            "Error: an HTML page; this URL does not appear",
        ),
        (500, {"content-type": "text/plain"}, b"<p>", 'Error: "<p>"'),
        (500, {}, b"x" * 200, f'Error: "{"x" * 200}"'),
        (500, {}, b"x" * 201, f'Error: "{"x" * 200}"… (201 bytes)'),
    ],
)
def test_a_refusal_is_told_in_words(status: int, headers: dict[str, str], body: bytes, words: str) -> None:
    response = httpx2.Response(status, headers=headers)
    text = refusal_in_words(response, body)
    assert words in text
    assert ("scope" in text) is lacks_scope(response)
    assert text.startswith(status_in_words(status))


@pytest.mark.parametrize("status", [400, 401, 200])
def test_only_a_403_is_about_a_scope(status: int) -> None:
    assert not lacks_scope(httpx2.Response(status, headers={"www-authenticate": f'{SCOPE}scope="a"'}))


def test_a_login_that_is_wanted_is_told_with_the_beginning_of_its_challenge() -> None:
    for challenge, words in ((None, ""), ("Bearer", " (Bearer)"), ("B" * 201, f" ({'B' * 200})")):
        headers = {} if challenge is None else {"www-authenticate": challenge}
        assert login_in_words(httpx2.Response(401, headers=headers)) == f"HTTP 401 Unauthorized{words}"
    response = httpx2.Response(200, headers={"content-type": " Application/JSON ; charset=utf-8"})
    assert (media_type(response), media_type(httpx2.Response(200))) == ("application/json", "")
    assert said_of(response, b"x") == '"x"'


# ---- the client, once more ------------------------------------------------------------------------------------------


def _made(**more: Any) -> httpx2.AsyncClient:
    values: dict[str, Any] = {"url": "http://127.0.0.1:9/mcp", **more}
    return make_client(ServerDefinition("s", **values), None, 7.0)


def test_what_is_configured_takes_the_place_of_our_headers_in_whatever_case_it_is_written() -> None:
    plain = _made().headers
    assert plain["user-agent"].startswith("greenroom/")
    assert plain["accept-encoding"] == "gzip"
    headers = _made(headers={"user-agent": "mine", "ACCEPT-ENCODING": "identity", "X-Team": "stage"}).headers
    assert [value for name, value in headers.multi_items() if name in ("user-agent", "accept-encoding")] == [
        "mine",
        "identity",
    ]
    assert headers["x-team"] == "stage"


@on_asyncio
@in_real_time
async def test_who_made_a_client_is_told_the_headers_that_a_command_gives() -> None:
    asked = {
        "command": "/bin/sh",
        "args": ("-c", 'echo \'{"X-Sign": "planted"}\''),
        "timeoutMs": 60.0,
        "env": {},
    }
    definition = ServerDefinition("s", url="http://127.0.0.1:9", request_headers_command=asked)
    learned: list[Hidden] = []
    client = make_client(definition, None, 7.0, learned.extend)
    (sign,) = client.event_hooks["request"]
    request = httpx2.Request("GET", "http://127.0.0.1:9", extensions={"greenroom.ours": True})
    await sign(request)
    assert request.headers["x-sign"] == "planted"
    assert learned == [Hidden("the header X-Sign", "planted")]


@pytest.mark.parametrize("name", ["all_proxy", "HTTPS_PROXY"])
def test_a_client_that_cannot_be_made_says_whose_it_is_and_what_names_its_proxy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (
        "ALL_PROXY",
        "all_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
    ):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "gopher://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(
        ConnectFailed, match=rf'Server "s": the proxy that {name} names cannot be used'
    ) as caught:
        _made(url="https://127.0.0.1:9/mcp")
    assert caught.value.server == "s"
