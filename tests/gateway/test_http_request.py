"""One request of the HTTP door as it comes in pieces, and its one answer. No network, in virtual time."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

import anyio
import attrs
import pytest
from tests.support import in_real_time, run_virtual
from tests.support.bodies import body_of
from tests.support.loops import on_asyncio
from tests.support.rows import for_each

from greenroom.config.model import Settings
from greenroom.gateway.doors import http_request, http_server
from greenroom.gateway.doors.door_connection import DoorConnection, DoorConnections
from greenroom.gateway.doors.http_app import HttpDoor
from greenroom.gateway.doors.http_auth import Access
from greenroom.gateway.doors.http_request import (
    CLOSE,
    Caller,
    ClientGone,
    Deadlines,
    DoorRequest,
    HttpRefusal,
    Rules,
    body_time,
    rules_of,
)
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol.errors import UsageError

Headers = Iterable[tuple[bytes, bytes]]


class Wire(asyncio.Transport):
    """A connection without a network, on which one request comes: its body in `pieces`, with `pause` seconds before
    each. `door`: what the request is given to."""

    def __init__(
        self,
        pieces: Iterable[bytes] = (),
        pause: float = 0.0,
        door: Callable[[DoorRequest], object] = lambda _request: None,
    ) -> None:
        super().__init__()
        self.raw = b""
        self.is_cut = False
        self._is_closed = False
        self._sends = False
        self.unsent = list(pieces)
        self._pause = pause
        self._door = door
        self._requests: list[DoorRequest] = []
        self._connection = DoorConnection(DoorConnections(self._take, Rules()))
        self._connection.connection_made(self)

    def request(
        self, method: str = "POST", headers: Headers = (), target: bytes = b"/mcp", *, is_whole: bool = True
    ) -> DoorRequest:
        """The request, whose head has come. `is_whole`: its body will."""
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        how = b"content-length: 0\r\n" if is_whole and not self.unsent else b"transfer-encoding: chunked\r\n"
        self._connection.data_received(b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method.encode(), target, lines, how))
        self._send(is_whole)
        return self._requests[0]

    def _take(self, request: DoorRequest) -> None:
        self._requests.append(request)
        self._door(request)

    def _send(self, is_whole: bool) -> None:
        """The body, or its next piece."""
        if self._is_closed or not self.unsent:
            return
        if self._pause and self._sends:
            self._send_piece()
        while self.unsent and not self._pause:
            self._send_piece()
        if self.unsent:
            self._sends = True
            asyncio.get_running_loop().call_later(self._pause, self._send, is_whole)
        elif is_whole:
            self._connection.data_received(b"0\r\n\r\n")

    def _send_piece(self) -> None:
        piece = self.unsent.pop(0)
        self._connection.data_received(b"%x\r\n%b\r\n" % (len(piece), piece))

    def goes(self) -> None:
        """The client disconnects."""
        self.close()

    # ---- a transport ---------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        self.raw += data

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.is_cut = True
        self.close()

    def is_closing(self) -> bool:
        return self._is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    # ---- what was answered ---------------------------------------------------------------------------------------

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1])

    @property
    def headers(self) -> Headers:
        lines = self.raw.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]

    @property
    def written(self) -> bytes:
        """The body, as far as it is written."""
        rest = self.raw.partition(b"\r\n\r\n")[2]
        if (b"transfer-encoding", b"chunked") not in self.headers:
            return rest
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return body

    @property
    def is_whole(self) -> bool:
        return self.raw.endswith(b"\r\n0\r\n\r\n")


def asked(headers: Headers) -> DoorRequest:
    """A request of which only the headers matter."""
    return DoorRequest(cast("Any", None), "POST", b"/mcp", dict(headers))


def virtually(body: Callable[[], Awaitable[None]]) -> None:
    run_virtual("asyncio", body)


def within(seconds: float) -> Deadlines[DoorRequest]:
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


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("is_whole", [False, True])
@body_of(virtually)
async def test_a_connection_is_closed_after_a_request_that_has_not_come_whole(
    method: str, is_whole: bool
) -> None:
    wire = Wire([b"{}"])
    wire.request(method, is_whole=is_whole).refuse(HttpRefusal(415, "no"))
    assert (CLOSE in wire.headers) is wire.is_closing() is not is_whole


@body_of(virtually)
async def test_the_pieces_of_a_body_have_one_time_together() -> None:
    request = Wire([b"[", b"1", b"]"], pause=20.0).request()
    with pytest.raises(HttpRefusal, match="did not arrive in time"):
        await request.body(100, within(50.0))
    assert anyio.current_time() == 50.0


ONLY_ONCE = (
    *(b"host", b"origin", b"authorization", b"content-length", b"content-type", b"mcp-session-id"),
    *(b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"last-event-id", b"mcp-param-region"),
)


@pytest.mark.parametrize("name", [*ONLY_ONCE, b"accept", b"x-forwarded-for", b"mcp-params"])
@body_of(virtually)
async def test_a_header_that_all_must_read_alike_is_given_once(name: bytes) -> None:
    twice = Wire().request(headers=[(b"x-other", b"0"), (name, b"0"), (name, b"1")])
    if name not in ONLY_ONCE:
        assert (twice.fault, twice.headers[name]) == (None, b"1")
    else:
        assert twice.fault is not None
        assert (twice.fault.status, twice.fault.headers) == (400, (CLOSE,))


@pytest.mark.parametrize(("more", "is_refused"), [(0, False), (1, True)])
@body_of(virtually)
async def test_a_head_is_as_long_as_it_may_be(more: int, is_refused: bool) -> None:
    room = (32 << 10) - len("/mcp" + "content-length" + "0" + "x-one" + "x-two") - 100
    fault = Wire().request(headers=[(b"x-one", b"x" * 100), (b"x-two", b"x" * (room + more))]).fault
    assert (fault is not None and (fault.status, fault.headers) == (431, (CLOSE,))) is is_refused


@for_each(
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
    assert asked([(b"accept", accept)]).accepts(b"application/json") is takes
    assert not asked([]).accepts(b"application/json")


@pytest.mark.parametrize(
    ("pieces", "most", "body"),
    [
        ([b"12345"], 5, b"12345"),
        ([b"123456"], 5, 413),
        ([b"123", b"45"], 5, b"12345"),
        ([b"123", b"456", b"7"], 5, 413),
        ([b"1\r2\n3"], 9, b"1 2 3"),
        ([b"1\r2", b"3"], 9, b"1 23"),
        ([b"12", b"\n3", b"4\r"], 9, b"12 34 "),
    ],
)
@pytest.mark.parametrize("pause", [0.0, 1.0])
@body_of(virtually)
async def test_a_body_comes_whole_on_one_line_and_is_no_longer_than_it_may_be(
    pieces: list[bytes], most: int, body: bytes | int, pause: float
) -> None:
    request = Wire(pieces, pause).request()
    if isinstance(body, bytes):
        found = await request.body(most, within(10.0))
        assert (found, type(found)) == (body, bytes)
    else:
        with pytest.raises(HttpRefusal, match=f"{most} bytes") as refused:
            await request.body(most, within(10.0))
        assert refused.value.status == body


@body_of(virtually)
async def test_of_a_body_that_is_too_long_no_more_is_waited_for() -> None:
    wire = Wire([b"x" * 10] * 100, pause=1.0)
    with pytest.raises(HttpRefusal, match="25 bytes"):
        await wire.request().body(25, within(1000.0))
    assert len(wire.unsent) == 97
    wire.goes()


@body_of(virtually)
async def test_only_a_body_of_a_megabyte_is_handed_on_without_a_copy() -> None:
    for size, kind in (((1 << 20) - 1, bytes), (1 << 20, bytearray)):
        body = await Wire([b" " * 1000, b" " * (size - 1000)]).request().body(2 << 20, within(10.0))
        assert (len(body), type(body)) == (size, kind)


@pytest.mark.parametrize("before", [0, 1])
@body_of(virtually)
async def test_a_client_that_goes_before_its_body_has_come_is_not_answered(before: int) -> None:
    wire = Wire([b"{"] * before)
    request = wire.request(is_whole=False)
    wire.goes()
    with pytest.raises(ClientGone):
        await request.body(100, within(10.0))
    request.answer(200, b"{}")
    assert wire.raw == b""


@body_of(virtually)
async def test_what_is_answered_has_its_length() -> None:
    for status, body, length in ((200, b"abc", [b"3"]), (202, b"", [b"0"])):
        wire = Wire()
        wire.request("GET").answer(status, body, ((b"x-own", b"2"),))
        assert [value for name, value in wire.headers if name == b"content-length"] == length
        assert (b"x-own", b"2") in wire.headers
        assert wire.written == body


@body_of(virtually)
async def test_a_long_answer_is_written_once() -> None:
    wire, body = Wire(), bytes(range(256)) * 2_048
    wire.request("GET").answer(200, body + b"!")
    await anyio.sleep(0.1)
    assert wire.written == body + b"!"
    assert not wire.is_closing()


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


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("error", [ValueError("a secret"), ClientGone(), HttpRefusal(418, "no tea")])
def test_whatever_goes_wrong_its_client_hears_of_it_once_and_no_secret(
    error: Exception, has_begun: bool
) -> None:
    notes: list[str] = []

    class Wrong(Access):
        async def caller(self, request: DoorRequest) -> Caller:
            if has_begun:
                request.begin_stream()
            raise error

        def caller_known(self, request: DoorRequest) -> Caller | bytes:
            return b""

    async def main() -> Wire:
        door = HttpDoor(cast("Any", None), Wrong("127.0.0.1"), Rules(), note=notes.append)
        wire = Wire(door=door)
        wire.request("GET", [(b"host", b"localhost")])
        await anyio.sleep(0.1)
        return wire

    wire = run_virtual("asyncio", main)
    is_bug = isinstance(error, ValueError)
    status = [500] if is_bug else [418] if isinstance(error, HttpRefusal) else []
    assert ([wire.status] if wire.raw else []) == ([200] if has_begun else status)
    assert wire.is_cut is (is_bug and has_begun)
    assert b"secret" not in wire.raw
    if is_bug and not has_begun:
        assert json.loads(wire.written)["error"]["code"] == rpc.INTERNAL_ERROR
    assert len(notes) == is_bug
    assert all("report it: ValueError at test_http_request.py, line" in said for said in notes)
    assert "secret" not in "".join(notes)


def test_four_bounds_of_the_door_can_be_set() -> None:
    chosen = {"max_body": 7, "max_sessions": 8, "session_idle": 9.0, "session_life": 10.0}
    settings: dict[str, Any] = {f"http_{name}": value for name, value in chosen.items()}
    assert attrs.asdict(rules_of(Settings(**settings))) == {**attrs.asdict(Rules()), **chosen}


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
async def test_the_system_is_told_when_a_connection_is_dead() -> None:
    with http_server.bound("127.0.0.1", 0) as listener:
        server = http_server.HttpServer(lambda _request: None, listener, Rules(stalled_time=7.5))
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7_500
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run)
            assert server.connections() == 0
            server.close()
