"""The trace of a client's request goes on to the servers, whatever it passes through, and only in the form of W3C."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.test_conversations import talking
from tests.gateway.test_meta import ERAS
from tests.support import in_real_time, in_virtual_time
from tests.support.attached import background
from tests.support.http_door import MODERN, http_door
from tests.support.http_rooms import room_at
from tests.support.loops import on_asyncio
from tests.support.memory_client import MemoryClient
from tests.support.raw_http import raw_http
from tests.support.rooms import open_room, teach
from tests.support.rows import for_each
from tests.support.whole import direct_door, whole

from greenroom.protocol.trace_context import trace_in
from greenroom.testing.fake_servers import FakeServer, tool

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
TRACE = {
    "traceparent": PARENT,
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "baggage": "user=alice,a=%20;p",
}
CODE = 'import asyncio\nawait asyncio.gather(call("a", "echo", {}), call("a", "echo", {}))'
ASKED: Mapping[str, Mapping[str, tuple[str, dict[str, Any]]]] = {
    "direct": {"known": ("a_echo", {}), "other spelling": ("a-echo", {})},
    "proxy": {
        "known": ("mcp", {"tool": "a_echo"}),
        "other spelling": ("mcp", {"tool": "a-echo"}),
        "unknown": ("mcp", {"tool": "a_new", "args": {}}),
    },
    "meta": {"known": ("mcp_call", {"tool": "a_echo"}), "code": ("mcp_execute", {"code": CODE})},
}
WAYS = [(expose, way) for expose, ways in ASKED.items() for way in ways]
BAD_PARENTS = [
    "",
    "00-1",
    "garbage",
    PARENT.upper(),
    PARENT + "\n",
    PARENT + "-what",
    "ff" + PARENT[2:],
    "00-" + "0" * 32 + PARENT[35:],
    PARENT[:36] + "0" * 16 + "-01",
    "é" * 55,
    "0" * 1_000_000,
    7,
    None,
    ["00"],
    {"traceparent": PARENT},
]


async def _call(person: MemoryClient, name: str, arguments: Any, meta: Mapping[str, Any]) -> None:
    answer = await person.ask("tools/call", {"name": name, "arguments": arguments, "_meta": meta})
    assert not answer["result"].get("isError"), answer


@pytest.mark.parametrize(("expose", "way"), WAYS)
@ERAS
@in_real_time
async def test_what_is_asked_of_a_server_belongs_to_the_clients_trace(
    expose: str, way: str, meta: Mapping[str, Any] | None
) -> None:
    server = FakeServer([tool("echo"), tool("new")])
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        async with talking(room, expose) as talk, talk("ann") as ann:
            name, arguments = ASKED[expose][way]
            await _call(ann, name, arguments, {**(meta or {}), **TRACE})
            traced = len(server.calls)
            await _call(ann, name, arguments, meta or {})
    assert traced == (2 if way == "code" else 1)
    traces = [{key: call.get("_meta", {}).get(key) for key in TRACE} for call in server.calls]
    assert traces == [TRACE] * traced + [dict.fromkeys(TRACE)] * traced


@pytest.mark.parametrize("meta", [TRACE, {"traceparent": PARENT}, {"baggage": "a=b"}])
@in_virtual_time
async def test_a_program_gives_the_trace_of_one_call(meta: dict[str, Any]) -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.call("a_echo", meta={"team": "blue", **meta})
        await room.call("a_echo", meta={"team": "blue", "traceparent": "00-1"})
    assert [call["_meta"] for call in server.calls] == [{"team": "blue", **meta}, {"team": "blue"}]


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@in_virtual_time
async def test_a_forged_parent_is_left_out_and_the_call_is_made(expose: str) -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        async with talking(room, expose) as talk, talk("ann") as ann:
            name, arguments = ASKED[expose]["known"]
            for parent in BAD_PARENTS:
                await _call(ann, name, arguments, {"traceparent": parent, "tracestate": "a=1"})
    assert len(server.calls) == len(BAD_PARENTS)
    assert not [call for call in server.calls if {*TRACE} & {*call.get("_meta", {})}]


@for_each(
    ("said", "kept"),
    [
        ({"tracestate": "a=1,b@c=2, d=3"}, True),
        ({"tracestate": "a=" + "x" * 510}, False),
        ({"tracestate": "A=1"}, False),
        ({"tracestate": "a=1\r\nX-Evil: 1"}, False),
        ({"tracestate": ",".join(f"a{number}=1" for number in range(33))}, False),
        ({"baggage": "a=1;p=2;q , b = 2"}, True),
        ({"baggage": "a=" + "x" * 8190}, True),
        ({"baggage": "a=" + "x" * 8191}, False),
        ({"baggage": "a=1\nb=2"}, False),
        ({"baggage": "a=é"}, False),
        ({"baggage": ",".join(["a=1"] * 181)}, False),
    ],
)
def test_each_list_beside_the_parent_is_passed_whole_or_left_out(said: dict[str, str], kept: bool) -> None:
    found = trace_in({"traceparent": PARENT, **said})
    assert found is not None
    assert found.fields == {"traceparent": PARENT, **(said if kept else {})}


@pytest.mark.parametrize("era", ["2025-11-25", MODERN])
@on_asyncio
@in_real_time
async def test_over_http_the_trace_is_in_the_headers_too_and_the_message_counts_before_them(era: str) -> None:
    with raw_http(era) as server:
        async with room_at(server.url) as room, http_door(room) as opened:
            headers: Any = {**TRACE}
            person = await opened.session()

            async def ask(meta: Mapping[str, Any], **headers: str) -> None:
                said = {"name": "ok", "arguments": {}, **({"_meta": meta} if meta else {})}
                if era == MODERN:
                    await opened.stateless("tools/call", said, **headers)
                else:
                    await person.post(
                        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": said}, **headers
                    )

            await ask({}, **headers)
            await ask({"traceparent": OTHER}, **headers)
            await ask({}, traceparent="00-1")
            await ask({})
    calls = [seen for seen in server.requests if seen.method == "tools/call"]
    assert len(calls) == 4
    for seen, wanted in zip(calls, [TRACE, {"traceparent": OTHER}, {}, {}], strict=True):
        meta = seen.message["params"].get("_meta", {})
        assert {key: meta[key] for key in TRACE if key in meta} == wanted
        assert {key: seen.headers[key] for key in TRACE if key in seen.headers} == wanted


def test_it_passes_a_real_gateway_and_a_shared_room_to_a_real_server(tmp_path: Path) -> None:
    with (
        background(tmp_path, {"own": whole("own")}) as room,
        room.attach("--expose", "direct") as attached,
        direct_door(tmp_path, {"own": whole("own")}) as served,
    ):
        for client in (attached, served):
            client.initialize()
            said = {"name": "own_echo", "arguments": {"text": "x"}, "_meta": TRACE}
            answer = client.answer(client.send("tools/call", said))
            assert answer["result"]["_meta"]["x-echo"] == TRACE
