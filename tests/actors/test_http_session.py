"""An expired session is no failure: it is begun again, once, for all callers, and what did not run is sent again."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.http_rooms import room_at
from tests.support.raw_http import MODERN, Handler, Seen, raw_http, text
from tests.support.stdio import until

from greenroom.protocol.errors import CallError, Reach, ServerLost
from greenroom.protocol.lifecycle import State


@in_real_time
async def test_t07_a_404_re_initialises_once_for_twenty_callers_and_replays_each_once() -> None:
    with raw_http() as server:
        async with room_at(server.url) as room:
            server.forget_sessions()
            answers: list[str] = []

            async def ask() -> None:
                answers.append((await room.call("ok")).text)

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(ask)
            assert answers == ["ok"] * 20
            assert server.methods().count("initialize") == 2
            (status,) = room.status()
            assert (status.incarnation, status.state) == (2, State.CONNECTED)
        assert room.drain_report is not None
        assert room.drain_report.completed == 20


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Bad Request: Server not initialized"),
        (200, "Server not initialized"),
        (404, "Session not found"),
    ],
)
@in_real_time
async def test_t07_each_form_of_being_forgotten_is_recovered_from(status: int, message: str) -> None:
    forgotten: list[Any] = []

    def forget(handler: Handler, seen: Seen) -> bool:
        if seen.method != "tools/call" or forgotten:
            return False
        forgotten.append(seen)
        handler.error(seen.message, -32000, message, status=status)
        return True

    with raw_http() as server:
        server.hook = forget
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "ok"
            assert server.methods().count("initialize") == 2
    assert forgotten


@pytest.mark.parametrize(("status", "code"), [(400, -32000), (200, -32000), (400, -32602)])
@in_real_time
async def test_another_error_is_the_calls_own(status: int, code: int) -> None:
    def refuse(handler: Handler, seen: Seen) -> bool:
        if seen.method == "tools/call":
            handler.error(seen.message, code, "Bad Request: not like that", status=status)
        return seen.method == "tools/call"

    with raw_http() as server:
        server.hook = refuse
        async with room_at(server.url) as room:
            with pytest.raises(CallError, match="not like that"):
                await room.call("ok")
            assert server.methods().count("initialize") == 1


@in_real_time
async def test_a_call_under_way_when_the_session_ends_is_not_sent_again() -> None:
    """It may have run: only the one that was told so is known not to have."""
    with raw_http() as server:
        ends: list[CallError] = []
        async with room_at(server.url) as room, anyio.create_task_group() as tasks:

            async def under_way() -> None:
                try:
                    await room.call("slow")
                except CallError as error:
                    ends.append(error)

            tasks.start_soon(under_way)
            assert await until(lambda: "tools/call" in server.methods())
            server.forget_sessions()
            assert (await room.call("ok")).text == "ok"
            assert await until(lambda: bool(ends))
            server.release.set()
        assert isinstance(ends[0], ServerLost)
        assert ends[0].reach is Reach.SENT
        assert "session expired" in str(ends[0])


@in_real_time
async def test_an_expired_session_is_no_death_for_the_circuit_breaker() -> None:
    with raw_http() as server:
        async with room_at(server.url, {"failureThreshold": 1}) as room:
            for _ in range(4):
                server.forget_sessions()
                assert (await room.call("ok")).text == "ok"
            (status,) = room.status()
            assert status.retry_in is None


@in_real_time
async def test_a_session_that_expires_at_every_call_ends_the_call_and_not_the_room() -> None:
    def forget(handler: Handler, seen: Seen) -> bool:
        if seen.method == "tools/call":
            handler.say(404)
        return seen.method == "tools/call"

    with raw_http() as server:
        server.hook = forget
        async with room_at(server.url) as room:
            with pytest.raises(ServerLost, match="session expired") as caught:
                await room.call("ok")
            assert caught.value.reach is Reach.NOT_SENT
            assert server.methods().count("tools/call") == 2


@in_real_time
async def test_the_session_is_ended_when_the_server_is_drained() -> None:
    with raw_http() as server:
        async with room_at(server.url) as room:
            await room.drain("raw")
            # The stream may have been asked for by another connection, which is served by another thread, just before.
            (ended,) = (each for each in server.requests if each.verb == "DELETE")
            assert ended.headers["mcp-session-id"] == "session-1"
            assert server.sessions == set()


# ---- the stream of what the server says unasked ---------------------------------------------------------------------


@in_real_time
async def test_t24_a_change_said_on_the_stream_is_one_reading_of_the_lists() -> None:
    said: list[Seen] = []

    def stream(handler: Handler, seen: Seen) -> bool:
        if seen.verb != "GET":
            return False
        handler.begin_events()
        handler.stage.release.wait(60)
        handler.stage.release.clear()
        change = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        handler.wfile.write(f"data: {json.dumps(change)}\n\n".encode() * 5)  # at once, on any machine
        said.append(seen)
        handler.stage.release.wait(60)
        return True

    with raw_http() as server:
        server.hook = stream
        async with room_at(server.url) as room:
            before = server.methods().count("tools/list")
            server.tools.append({"name": "newcomer", "inputSchema": {"type": "object"}})
            server.release.set()
            assert await until(lambda: "newcomer" in [target.name for target in room.tools()])
            assert server.methods().count("tools/list") == before + 1
            server.release.set()
    assert said


@in_real_time
async def test_t24_a_stream_that_comes_back_without_resuming_reads_the_lists_again() -> None:
    opened: list[Seen] = []
    has_changed = threading.Event()

    def stream(handler: Handler, seen: Seen) -> bool:
        if seen.verb != "GET":
            return False
        opened.append(seen)
        handler.begin_events()
        handler.wfile.write(b"retry: 50\n\n")
        (has_changed if len(opened) == 1 else handler.stage.release).wait(60)
        return True

    with raw_http() as server:
        server.hook = stream
        async with room_at(server.url) as room:
            server.tools.append({"name": "newcomer", "inputSchema": {"type": "object"}})
            has_changed.set()
            assert await until(lambda: "newcomer" in [target.name for target in room.tools()])
        assert "last-event-id" not in opened[1].headers


@in_real_time
async def test_a_stream_with_ids_is_resumed_from_the_last_one() -> None:
    opened: list[Seen] = []

    def stream(handler: Handler, seen: Seen) -> bool:
        if seen.verb == "GET" and "last-event-id" in seen.headers:
            opened.append(seen)
            handler.begin_events()
            handler.event({"jsonrpc": "2.0", "id": handler.stage.asked, "result": text("late")}, id="e2")
            return True
        if seen.method == "tools/call":
            handler.stage.asked = seen.message["id"]
            handler.begin_events()
            handler.wfile.write(b"id: e1\nretry: 30\ndata:\n\n")
            return True
        return False

    with raw_http() as server:
        server.hook = stream
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "late"
    assert [seen.headers["last-event-id"] for seen in opened] == ["e1"]


@in_real_time
async def test_what_a_server_asks_during_the_first_call_is_heard() -> None:
    """Servers of the SDKs ask on the stream of what they say unasked, and drop what nobody hears there."""
    streams: list[Handler] = []

    def stream(handler: Handler, seen: Seen) -> bool:
        if seen.verb == "GET":
            time.sleep(0.3)  # a loaded machine
            streams.append(handler)  # first: with the head of the answer the client may go on
            handler.begin_events()
            handler.stage.release.wait(60)
            return True
        if seen.method == "tools/call":
            for each in streams:
                each.event({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
            handler.result(seen.message, text(f"asked {len(streams)}"))
            return True
        return False

    with raw_http() as server:
        server.hook = stream
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "asked 1"
            assert await until(lambda: "q" in [_said(seen).get("id") for seen in server.requests])
            server.release.set()


def _said(seen: Seen) -> dict[str, Any]:
    return seen.message or {}


# ---- eras -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("2025-11-25", MODERN), (MODERN, "2025-11-25")])
@in_real_time
async def test_a_server_that_changes_its_era_is_met_anew(before: str, after: str) -> None:
    with raw_http(before) as server:
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "ok"
            server.era = after
            server.forget_sessions()
            assert (await room.call("ok")).text == "ok"
            entry = room.entry("raw")
            assert entry is not None
            assert entry.protocol_version == after


@in_real_time
async def test_the_newer_era_says_everything_in_each_request() -> None:
    with raw_http(MODERN) as server:
        async with room_at(server.url) as room:
            await room.call("ok", {"a": 1})
    for seen in server.requests:
        assert seen.verb == "POST"
        assert seen.headers["mcp-protocol-version"] == MODERN
        assert seen.headers["mcp-method"] == seen.method
        meta = seen.message["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == MODERN
        assert "mcp-session-id" not in seen.headers
    assert server.requests[-1].headers["mcp-name"] == "ok"


@in_real_time
async def test_the_older_era_carries_its_session_and_version() -> None:
    with raw_http() as server:
        async with room_at(server.url) as room:
            await room.call("ok")
    _, initialize, *rest = [seen for seen in server.requests if seen.verb == "POST"]
    assert "mcp-protocol-version" not in initialize.headers
    assert [seen.method for seen in rest] == ["notifications/initialized", "tools/list", "tools/call"]
    for seen in rest:
        assert seen.headers["mcp-session-id"] == "session-1"
        assert seen.headers["mcp-protocol-version"] == "2025-11-25"
        assert "mcp-method" not in seen.headers
