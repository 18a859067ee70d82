"""What waits at a door is counted from its arrival, and refused at the bound: calls of unknown tools, bodies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.gateway import faulty, serve
from tests.support.http_door import http_door, request
from tests.support.loops import on_asyncio
from tests.support.raw_request import send_slowly
from tests.support.rooms import open_room
from tests.support.stalls import memory_of

from greenroom import Greenroom
from greenroom.protocol.errors import CallError
from greenroom.testing import FakeServer

MIB = 1 << 20
BUSY = {"error": "server_busy", "reach": "not_sent"}


def hanging(latency: float = 1000.0) -> FakeServer:
    return FakeServer(initialize_latency=latency)


@pytest.mark.parametrize(("expose", "size"), [("direct", 3 * MIB), ("proxy", MIB // 2), ("meta", 3 * MIB)])
def test_t57_calls_of_unknown_tools_are_refused_at_the_bound(tmp_path: Path, expose: str, size: int) -> None:
    """A server that never says hello, and a client that sends many megabytes of calls to it."""
    most, count = 8 * MIB, 24 * MIB // size
    servers = {
        "never": faulty(tmp_path, "never", "--hang-at", "initialize"),
        "good": faulty(tmp_path, "good"),
    }
    text = "x" * size

    def call(name: str, text: str = text) -> dict[str, Any]:
        arguments = {"text": text}
        if expose == "direct":
            return {"name": name, "arguments": arguments}
        if expose == "proxy":
            return {"name": "mcp", "arguments": {"tool": name, "args": arguments}}
        server, _, tool = name.partition("_")
        return {"name": "mcp_call", "arguments": {"server": server, "tool": tool, "args": arguments}}

    with serve(
        tmp_path, servers, "--expose", expose, maxQueuedBytes=most, connectTimeoutMs=300_000
    ) as gateway:
        gateway.initialize()
        good = gateway.send("tools/call", call("good_echo"))
        gateway.answer(good)
        before = memory_of(gateway)
        sent = [gateway.send("tools/call", call("never_echo")) for _ in range(count)]
        gateway.answer(gateway.send("ping"))
        refused = [number for number in sent if number in gateway.answered]
        assert count - most // size <= len(refused) < count
        assert all(gateway.answered[number]["error"]["data"] == BUSY for number in refused)
        assert memory_of(gateway) - before < 5 * most
        known = gateway.answer(gateway.send("tools/call", call("good_echo", "hi")))
        assert "result" in known, "what need not wait is called"
        waiting = [number for number in sent if number not in gateway.answered]
        for number in waiting:
            gateway.tell("notifications/cancelled", {"requestId": number})
        again = gateway.send("tools/call", call("never_echo"))
        gateway.answer(gateway.send("ping"))
        assert again not in gateway.answered, "there is room again"
        assert gateway.end() == 0


def test_t57_what_surrounds_the_parameters_of_a_request_counts_too(tmp_path: Path) -> None:
    servers = {"never": faulty(tmp_path, "never", "--hang-at", "initialize")}
    with serve(tmp_path, servers, "--expose", "direct", maxQueuedBytes=MIB) as gateway:
        gateway.initialize()
        assert gateway.process.stdin is not None
        params = {"name": "never_echo", "arguments": {}}
        for number in range(100, 110):
            said = {
                "jsonrpc": "2.0",
                "id": number,
                "junk": "x" * (MIB // 4),
                "method": "tools/call",
                "params": params,
            }
            gateway.process.stdin.write(json.dumps(said).encode() + b"\n")
        gateway.process.stdin.flush()
        gateway.answer(gateway.send("ping"))
        assert len([number for number in gateway.answered if number >= 100]) == 7
        assert gateway.end() == 0


@on_asyncio
@in_real_time
async def test_t57_callers_over_http_share_the_bound_and_a_session_that_ends_gives_its_part_back() -> None:
    servers = {"never": hanging(), "good": FakeServer()}
    room = open_room(servers, maxQueuedBytes=4 * MIB, connectTimeoutMs=300_000)
    async with room, http_door(room) as opened, anyio.create_task_group() as tasks:
        people = [await opened.session() for _ in range(3)]
        params = {"name": "never_echo", "arguments": {"text": "x" * MIB}}
        refused: list[Any] = []
        ended: list[int] = []
        answers: list[str] = []

        async def call(one: Any, key: int) -> None:
            answer = await one.post(request("tools/call", key, params))
            answers.append(answer.text[:300])
            if '"server_busy"' in answer.text:
                refused.append(answer)
            ended.append(key)

        async def stateless(key: int) -> None:
            answer = await opened.stateless("tools/call", params, key)
            if '"server_busy"' in answer.text:
                refused.append(answer)
            ended.append(key)

        for key in range(8):
            tasks.start_soon(call, people[key % 3], key)
        tasks.start_soon(stateless, 8)
        while len(ended) < 6:
            await anyio.sleep(0.01)
        assert len(refused) == 6, answers
        known = await people[0].call("good_echo", 99, text="hi")
        assert "result" in known
        for one in people:
            await opened.http.delete("/mcp", headers=one.real_headers())
        while len(ended) < 9:
            await anyio.sleep(0.01)
        assert opened.door._conversations.inbound_budget.held == 0
        tasks.cancel_scope.cancel()


@on_asyncio
@in_real_time
async def test_t57_bodies_that_do_not_end_are_refused_at_the_bound() -> None:
    room = open_room({"good": FakeServer()}, maxQueuedBytes=MIB)
    async with room, http_door(room) as opened:
        one = await opened.session()
        answers = await send_slowly(opened.port, count=8, sent=MIB // 3, size=MIB)
        assert [answer[:12] for answer in answers].count(b"HTTP/1.1 503") == 5
        assert "result" in await one.call("good_echo", 2, text="hi")
        assert opened.door._conversations.inbound_budget.held == 0


@in_virtual_time
async def test_t57_calls_of_a_program_wait_for_their_server_within_the_same_bound() -> None:
    room: Greenroom = open_room({"never": hanging(50.0)}, maxQueuedBytes=1024, connectTimeoutMs=300_000)
    outcomes: list[str] = []

    async def call() -> None:
        try:
            await room.call("never_echo", {"text": "x" * 300})
        except CallError as error:
            outcomes.append(f"{error.code} {error.server!r} {error.reach.value}")
        else:
            outcomes.append("result")

    async with room, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(call)
        await anyio.sleep(1)
        assert outcomes == ["server_busy '' not_sent"] * 2
    assert room.drain_report is not None
    assert room.drain_report.refusals == {"server_busy": 2}
