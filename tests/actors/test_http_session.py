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
from tests.support.patience import PATIENCE
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


RESTARTED = [
    # how a server that has lost its sessions refuses a request of one of them: its status, its content type and body
    (400, "json", {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
    (400, "json", {"code": -32600, "message": "Missing or invalid Mcp-Session-Id header"}),
    (200, "json", {"code": -32001, "message": "Session not found"}),
    (200, "json", {"code": -32600, "message": "Invalid Request: session expired"}),
    (404, "json", {"code": -32601, "message": "Session not found"}),
    (422, "json", {"code": -32602, "message": "Unknown session ID: 5f1e-a0"}),
    (400, "text", "Invalid or missing session ID"),
    (403, "text", "The session has been terminated"),
    (410, "text", "Session 5f1e-a0 no longer exists"),
    (500, "text", "Internal error: session not found"),
    (401, "text", "Unauthorized: Session ID is not valid"),
    (400, "object", {"error": "No transport found for sessionId"}),
    (400, "object", {"detail": {"message": "Mcp-Session-Id is required"}}),
    (503, "object", {"error": {"message": "client must be initialized first"}}),
]


@pytest.mark.parametrize(("status", "kind", "body"), RESTARTED, ids=[f"{it[0]} {it[1]}" for it in RESTARTED])
@in_real_time
async def test_a_server_that_lost_its_sessions_is_used_again_in_whichever_words_it_says_so(
    status: int, kind: str, body: Any
) -> None:
    old: set[str] = set()

    def restarted(handler: Handler, seen: Seen) -> bool:
        if seen.verb == "GET":
            handler.say(404)  # it has a route for POST alone
            return True
        if seen.headers.get("mcp-session-id") not in old:
            return False
        if kind == "json":
            handler.json({"jsonrpc": "2.0", "id": None, "error": body}, status)
        elif kind == "object":
            handler.json(body, status)
        else:
            handler.say(status, body.encode())
        return True

    with raw_http() as server:
        server.hook = restarted
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "ok"
            old |= server.sessions
            answers: list[str] = []

            async def ask() -> None:
                answers.append((await room.call("ok")).text)

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(ask)
            assert answers == ["ok"] * 5
            assert server.methods().count("initialize") == 2


OWN = [
    # what says something else, and may have been said by a tool that ran
    (200, -32000, "browser session not found"),
    (200, -32603, "Session not found"),
    (200, -32000, "The cart was emptied: session expired"),
    (400, -32000, "your login session has expired"),
    (500, -32603, "database not initialized"),
    (403, -32000, "Invalid session token"),
    (404, -32601, "Method not found"),
    (404, -32602, "no such thing"),
]


@pytest.mark.parametrize(("status", "code", "message"), OWN)
@in_real_time
async def test_what_is_not_about_the_transports_session_is_the_calls_own_and_is_not_sent_again(
    status: int, code: int, message: str
) -> None:
    def refuse(handler: Handler, seen: Seen) -> bool:
        if seen.method == "tools/call":
            handler.error(seen.message, code, message, status=status)
        return seen.method == "tools/call"

    with raw_http() as server:
        server.hook = refuse
        async with room_at(server.url) as room:
            with pytest.raises(CallError, match=message) as caught:
                await room.call("ok")
            assert caught.value.reach is Reach.ANSWERED
            assert server.methods().count("tools/call") == 1
            assert server.methods().count("initialize") == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 406, 410, 422, 501])
@in_real_time
async def test_a_server_that_refuses_get_has_no_stream_and_can_be_used(status: int) -> None:
    def refuse(handler: Handler, seen: Seen) -> bool:
        if seen.verb == "GET":
            handler.say(status, b"session not found")
        return seen.verb == "GET"

    with raw_http() as server:
        server.hook = refuse
        async with room_at(server.url) as room:
            for _ in range(3):
                assert (await room.call("ok")).text == "ok"
            assert server.methods().count("initialize") == 1
            assert [seen.verb for seen in server.requests].count("GET") == 1


REFUSALS = [
    (
        400,
        b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "No valid session ID provided"}}',
    ),
    (400, b"Server not initialized"),
    (401, b""),
    (403, b""),
    (404, b""),
    (404, b"Session not found"),
    (405, b""),
    (422, b"Field required: id"),
    (500, b"boom"),
]


ERAS = ("2025-11-25", MODERN, "2025-03-26")
REFUSED = [(ERAS[place % 3], *refusal) for place, refusal in enumerate(REFUSALS)]


@pytest.mark.parametrize(("era", "status", "body"), REFUSED, ids=[f"{it[1]} {it[2][:9]!r}" for it in REFUSED])
@in_real_time
async def test_a_server_that_takes_requests_alone_can_be_used(era: str, status: int, body: bytes) -> None:
    """Whatever it says to a notification, or to an answer of ours: requests decide whether it knows us."""
    refused: list[str] = []

    def refuse(handler: Handler, seen: Seen) -> bool:
        if seen.verb == "POST" and {"id", "method"} <= seen.message.keys():
            return False
        if seen.verb == "POST":
            refused.append(seen.method)
        handler.say(status, body)
        return True

    with raw_http(era) as server:
        server.hook = refuse
        async with room_at(server.url) as room:
            for _ in range(3):
                assert (await room.call("ok")).text == "ok"
            (state,) = room.status()
            assert (state.incarnation, state.state) == (1, State.CONNECTED)
    assert refused == ([] if era == MODERN else ["notifications/initialized"])
    assert server.methods().count("initialize") == (0 if era == MODERN else 1)


@in_real_time
async def test_a_refused_answer_of_ours_ends_no_call() -> None:
    """A server asks for roots within a call, refuses the answer as of no session, and answers the call."""
    asked: list[Any] = []
    refused: list[Any] = []

    def refuse(handler: Handler, seen: Seen) -> bool:
        if seen.verb == "POST" and not seen.method:
            refused.append(seen.message["id"])
            handler.say(404, b"Session not found")
        elif seen.method == "tools/call" and not asked:
            asked.append(seen)
            handler.begin_events()
            handler.event({"jsonrpc": "2.0", "id": "q", "method": "ping"})
            assert handler.stage.release.wait(PATIENCE)
            handler.event({"jsonrpc": "2.0", "id": seen.message["id"], "result": text("whole")})
        else:
            return False
        return True

    with raw_http() as server:
        server.hook = refuse
        answers: list[str] = []
        async with room_at(server.url) as room, anyio.create_task_group() as tasks:

            async def ask() -> None:
                answers.append((await room.call("ok")).text)

            tasks.start_soon(ask)
            assert await until(lambda: bool(refused))
            assert (await room.call("ok")).text == "ok"
            server.release.set()
        assert answers == ["whole"]
        assert server.methods().count("initialize") == 1


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
        handler.stage.release.wait(PATIENCE)
        handler.stage.release.clear()
        change = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        handler.wfile.write(f"data: {json.dumps(change)}\n\n".encode() * 5)  # at once, on any machine
        said.append(seen)
        handler.stage.release.wait(PATIENCE)
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
        (has_changed if len(opened) == 1 else handler.stage.release).wait(PATIENCE)
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
            handler.stage.release.wait(PATIENCE)
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
