"""What a gateway tells to OpenTelemetry about its clients' requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from tests.gateway.test_conversations import talking
from tests.gateway.test_meta import ERAS
from tests.gateway.test_trace_context import ASKED, PARENT, WAYS
from tests.support import in_real_time, in_virtual_time
from tests.support.http_door import MODERN, http_door
from tests.support.loops import on_asyncio
from tests.support.rooms import open_room, settle, teach
from tests.support.traced import Telemetry, Told

from greenroom.testing.fake_servers import FakeServer, tool

TRACE_ID, SPAN_ID = int(PARENT[3:35], 16), int(PARENT[36:52], 16)
CALLED = {"direct": "a_echo", "proxy": "mcp", "meta": "mcp_call"}


def of_trace(telemetry: Telemetry) -> list[Told]:
    return [told for told in telemetry.spans() if told.trace == TRACE_ID]


@pytest.mark.parametrize(("expose", "way"), WAYS)
@ERAS
@in_real_time
async def test_a_servers_span_is_below_the_clients_in_one_trace(
    expose: str, way: str, meta: Mapping[str, Any] | None
) -> None:
    telemetry, server = Telemetry(), FakeServer([tool("echo"), tool("new")])
    async with open_room({"a": server}, callbacks=telemetry.providers) as room:
        await teach(room, "a")
        await room.connect("a")
        async with talking(room, expose) as talk, talk("ann") as ann:
            name, arguments = ASKED[expose][way]
            said = {"name": name, "arguments": arguments, "_meta": {**(meta or {}), "traceparent": PARENT}}
            answer = await ann.ask("tools/call", said)
            assert not answer["result"].get("isError"), answer
    request, *calls = [told for told in of_trace(telemetry) if told.kind != "INTERNAL"]
    assert (request.name, request.kind, request.parent) == (f"tools/call {name}", "SERVER", SPAN_ID)
    assert len(calls) == len(server.calls) == (2 if way == "code" else 1)
    assert {(call.kind, call.parent) for call in calls} == {("CLIENT", request.id)}
    parents = {call["_meta"]["traceparent"].split("-")[2] for call in server.calls}
    assert parents == {f"{call.id:016x}" for call in calls}
    assert dict(request.said) == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "jsonrpc.request.id": "2",
        "mcp.protocol.version": "2025-11-25" if meta is None else MODERN,
        "mcp.session.id": "ann",
        "network.transport": "tcp",
        "greenroom.outcome": "result",
    }


@pytest.mark.parametrize("expose", CALLED)
@in_virtual_time
async def test_what_becomes_of_a_request_is_told(expose: str) -> None:
    telemetry = Telemetry()
    failing = FakeServer(
        [tool("echo"), tool("wrong"), tool("slow")],
        handler=lambda call: {"content": [], "isError": call.tool == "wrong"},
    )
    hung = FakeServer(call_latency=1e6)
    async with (
        open_room({"a": failing, "b": hung}, callbacks=telemetry.providers) as room,
        talking(room, expose) as talk,
    ):
        await room.connect("a")
        await room.connect("b")
        async with talk("ann") as ann:

            def begin(own: str) -> int:
                ours = {"tool": own}
                said = {"name": own} if expose == "direct" else {"name": CALLED[expose], "arguments": ours}
                return ann.begin("tools/call", said)

            await ann.answer(begin("a_echo"))
            await ann.answer(begin("a_wrong"))
            await ann.answer(begin("a_none"))
            left = begin("b_echo")
            await settle()
            ann.say({"method": "notifications/cancelled", "params": {"requestId": left}})
            await ann.ask("no/such", {})
            await ann.ask("tools/list", {})
            await anyio.sleep(60)
    told = [
        (each.said["mcp.method.name"], each.said["greenroom.outcome"], each.error)
        for each in telemetry.of("SERVER")
    ]
    assert told == [
        ("initialize", "result", None),
        ("tools/call", "result", None),
        ("tools/call", "tool_error", "tool_error"),
        ("tools/call", "tool_error", "tool_error"),
        ("tools/call", "cancelled", None),
        ("no/such", "error", "-32601"),
        ("tools/list", "result", None),
    ]
    durations = telemetry.durations("mcp.server.operation.duration")
    assert sum(point.count for _, point in durations) == len(told)
    [(attributes, session)] = telemetry.durations("mcp.server.session.duration")
    assert attributes == {"mcp.protocol.version": "2025-11-25", "network.transport": "tcp"}
    assert round(session.sum) == 60


@in_real_time
async def test_a_large_result_and_a_list_that_has_to_wait_end_their_spans_too() -> None:
    telemetry, text = Telemetry(), "x" * 3_000_000
    server = FakeServer(
        handler=lambda _call: {"content": [{"type": "text", "text": text}]}, start_latency=0.3
    )
    async with (
        open_room({"a": server}, callbacks=telemetry.providers, bootstrap=True) as room,
        talking(room, "direct") as talk,
        talk("ann") as ann,
    ):
        await ann.ask("tools/list", {})
        await ann.ask("tools/call", {"name": "a_echo"})
    hello, listed, call = telemetry.of("SERVER")
    assert [told.name for told in (hello, listed, call)] == ["initialize", "tools/list", "tools/call a_echo"]
    assert listed.seconds > 0.2
    assert (call.said["greenroom.outcome"], call.error) == ("result", None)


@on_asyncio
@in_real_time
async def test_over_http_a_request_of_either_era_has_its_span() -> None:
    telemetry, server = Telemetry(), FakeServer()
    async with open_room({"a": server}, callbacks=telemetry.providers) as room:
        await room.connect("a")
        async with http_door(room) as opened:
            person = await opened.session()
            said = {"name": "a_echo", "arguments": {}}
            request = {"jsonrpc": "2.0", "id": "one", "method": "tools/call", "params": said}
            await person.post(request, traceparent=PARENT)
            await opened.stateless("tools/call", said, key="two", traceparent=PARENT)
    requests = [told for told in of_trace(telemetry) if told.kind == "SERVER"]
    assert [told.parent for told in requests] == [SPAN_ID, SPAN_ID]
    assert [told.said["network.transport"] for told in requests] == ["tcp", "tcp"]
    assert [told.said["mcp.protocol.version"] for told in requests] == ["2025-11-25", MODERN]
    assert {told.parent for told in telemetry.of("CLIENT")} == {told.id for told in requests}


@in_real_time
async def test_an_unknown_name_shows_what_its_server_was_connected_for() -> None:
    telemetry, server = Telemetry(), FakeServer(initialize_latency=0.2, call_latency=0.1)
    async with (
        open_room({"a": server}, callbacks=telemetry.providers) as room,
        talking(room, "proxy") as talk,
        talk("ann") as ann,
    ):
        said = {"name": "mcp", "arguments": {"tool": "a_echo"}, "_meta": {"traceparent": PARENT}}
        await ann.ask("tools/call", said)
    # On a busy machine it waits a moment for the queue and for its slot as well, and each is told.
    told_of = of_trace(telemetry)
    request, connect, call = (told for told in told_of if told.name not in ("queue", "slot"))
    assert [told.name for told in (request, connect, call)] == [
        "tools/call mcp",
        "connect",
        "tools/call echo",
    ]
    assert {told.parent for told in told_of if told is not request} == {request.id}
    assert connect.seconds >= 0.2
    assert call.start >= connect.end
