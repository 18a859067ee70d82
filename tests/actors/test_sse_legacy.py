"""The event stream of 2024-11-05, and when it is tried: only where an older server is what a refusal can mean."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.http_rooms import room_at
from tests.support.patience import PATIENCE
from tests.support.raw_http import MIB, Handler, Seen, raw_http, text
from tests.support.stdio import until

from greenroom.protocol.errors import CallError, ConnectFailed, NeedsAuth, ProtocolFault, Reach, ServerLost


class OlderServer:
    """A hook that speaks the older transport; POSTs to its stream's own path are refused with `status`."""

    def __init__(self, status: int = 405, *, endpoint: str = "/messages?session=1") -> None:
        self.status = status
        self.endpoint = endpoint
        self.streams: list[Handler] = []
        self.hang_up = threading.Event()
        self.opened = 0

    def __call__(self, handler: Handler, seen: Seen) -> bool:
        if seen.verb == "GET":
            self._stream(handler)
        elif handler.path != "/messages?session=1":
            handler.say(self.status)
        else:
            self._take(handler, seen)
        return True

    def _stream(self, handler: Handler) -> None:
        self.opened += 1
        self.streams.append(handler)
        handler.begin_events()
        handler.wfile.write(f"event: endpoint\ndata: {self.endpoint}\n\n".encode())
        while not self.hang_up.wait(0.01) and not handler.stage.release.is_set():
            continue
        self.hang_up.clear()

    def _take(self, handler: Handler, seen: Seen) -> None:
        handler.say(202)
        if "id" in seen.message:
            answer = self._answer(seen)
            if answer is not None:
                self.streams[-1].event(
                    {"jsonrpc": "2.0", "id": seen.message["id"], **answer}, event="message"
                )

    def _answer(self, seen: Seen) -> dict[str, Any] | None:
        match seen.method:
            case "initialize":
                info = {"name": "older", "version": "1"}
                initialized = {
                    "protocolVersion": "2024-11-05",
                    "capabilities": {"tools": {}},
                    "serverInfo": info,
                }
                return {"result": initialized}
            case "tools/list":
                names = ("ok", "long", "hang")
                return {"result": {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in names]}}
            case "tools/call":
                name = seen.message["params"]["name"]
                said = "x" * 2 * MIB if name == "long" else name
                return None if name == "hang" else {"result": text(said)}
            case other:
                return {"error": {"code": -32601, "message": f"Method not found: {other}"}}


@pytest.mark.parametrize("status", [404, 405, 406, 415])
@in_real_time
async def test_a_refusal_that_an_older_server_gives_is_met_with_the_older_transport(status: int) -> None:
    with raw_http() as server:
        server.hook = OlderServer(status)
        async with room_at(server.url) as room:
            assert (await room.call("ok")).text == "ok"
            entry = room.entry("raw")
            assert entry is not None
            assert entry.protocol_version == "2024-11-05"
            server.release.set()


@pytest.mark.parametrize("status", [400, 401, 403, 500, 503])
@in_real_time
async def test_any_other_refusal_is_the_answer(status: int) -> None:
    with raw_http() as server:
        server.hook = older = OlderServer(status)
        async with room_at(server.url, connect=False) as room:
            kind = NeedsAuth if status == 401 else ConnectFailed
            with pytest.raises(kind, match=f"HTTP {status}"):
                await room.connect("raw")
        assert older.opened == 0


@in_real_time
async def test_insisting_on_streamable_http_never_tries_the_older_one() -> None:
    with raw_http() as server:
        server.hook = older = OlderServer(405)
        async with room_at(server.url, connect=False, httpTransport="streamable-http") as room:
            with pytest.raises(ConnectFailed, match="HTTP 405"):
                await room.connect("raw")
        assert older.opened == 0


@in_real_time
async def test_insisting_on_the_older_one_never_posts_to_the_stream() -> None:
    with raw_http() as server:
        server.hook = OlderServer()
        async with room_at(server.url, httpTransport="sse") as room:
            assert (await room.call("ok")).text == "ok"
            server.release.set()
        assert server.requests[0].verb == "GET"


@in_real_time
async def test_where_neither_is_spoken_both_refusals_are_told() -> None:
    def no(handler: Handler, seen: Seen) -> bool:
        handler.say(404, b"<html>nothing here</html>", "text/html")
        return True

    with raw_http() as server:
        server.hook = no
        async with room_at(server.url, connect=False) as room:
            with pytest.raises(
                ConnectFailed, match=r"no Streamable HTTP \(HTTP 404.*older event stream: HTTP 404"
            ):
                await room.connect("raw")


@in_real_time
async def test_an_endpoint_on_another_origin_gets_nothing() -> None:
    with raw_http() as elsewhere, raw_http() as server:
        server.hook = OlderServer(endpoint=elsewhere.url)
        async with room_at(server.url, connect=False) as room:
            with pytest.raises(ConnectFailed, match="another origin"):
                await room.connect("raw")
            server.release.set()
        assert elsewhere.requests == []


@in_real_time
async def test_an_answer_over_the_bound_ends_its_own_call() -> None:
    with raw_http() as server:
        server.hook = OlderServer()
        async with room_at(server.url, {"maxLineBytes": MIB}) as room:
            with pytest.raises(ProtocolFault, match="over the bound of 1,048,576 bytes an event"):
                await room.call("long")
            assert (await room.call("ok")).text == "ok"
            server.release.set()


@in_real_time
async def test_t06_when_the_stream_ends_the_next_call_opens_another() -> None:
    with raw_http() as server:
        server.hook = older = OlderServer()
        ends: list[CallError] = []
        async with room_at(server.url) as room, anyio.create_task_group() as tasks:

            async def under_way() -> None:
                try:
                    await room.call("hang")
                except CallError as error:
                    ends.append(error)

            tasks.start_soon(under_way)
            assert await until(lambda: "tools/call" in server.methods())
            older.hang_up.set()
            assert await until(lambda: bool(ends))
            assert isinstance(ends[0], ServerLost)
            assert "closed its event stream" in str(ends[0])
            assert ends[0].reach is Reach.SENT
            assert (await room.call("ok")).text == "ok"
            assert older.opened == 2
            server.release.set()


# ---- initialize ----------------------------------------------------------------------------------------------------


@in_real_time
async def test_t05_a_server_that_never_answers_initialize_costs_the_connect_time() -> None:
    def silent(handler: Handler, seen: Seen) -> bool:
        handler.stage.release.wait(2 * PATIENCE)
        handler.cut()
        return True

    with raw_http() as server:
        server.hook = silent
        limits = {"probeTimeoutMs": 100}
        async with room_at(server.url, limits, connect=False, connectTimeoutMs=1500) as room:
            with anyio.fail_after(PATIENCE), pytest.raises(ConnectFailed, match="no answer"):
                await room.connect("raw")
            server.release.set()


@in_real_time
async def test_a_probe_that_is_answered_late_does_not_delay_initialize() -> None:
    def late(handler: Handler, seen: Seen) -> bool:
        if seen.method == "server/discover":
            handler.stage.release.wait(2 * PATIENCE)
        return False

    with raw_http() as server:
        server.hook = late
        with anyio.fail_after(PATIENCE):
            async with room_at(server.url, {"probeTimeoutMs": 200}) as room:
                assert (await room.call("ok")).text == "ok"
                server.release.set()


@in_real_time
async def test_an_older_server_is_told_the_trace_in_the_headers_too() -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with raw_http() as server:
        server.hook = OlderServer()
        async with room_at(server.url) as room:
            await room.call("ok", meta={"traceparent": parent})
            await room.call("ok")
    first, second = (seen for seen in server.requests if seen.method == "tools/call")
    assert first.headers["traceparent"] == first.message["params"]["_meta"]["traceparent"] == parent
    assert "traceparent" not in second.headers
