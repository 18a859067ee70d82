"""Whoever attacks the HTTP door is refused with the right code or cleaned up, and others are served meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.abc
import pytest
from tests.gateway.test_http_door import ACCEPT_BOTH, Held, held_call, text_of, with_door
from tests.support.asking import Asking, AskingServer
from tests.support.bodies import body_of
from tests.support.http_door import ACCEPT, Opened, Person, request
from tests.support.patience import PATIENCE

from greenroom.gateway.doors.http_auth import Access, BearerToken
from greenroom.gateway.doors.http_request import Rules
from greenroom.protocol.errors import UsageError

ANN, BEN = "token-of-ann-0123456789", "token-of-ben-0123456789"
TOKENS = (
    BearerToken.of("ann", ANN),
    BearerToken.of("ben", BEN),
    BearerToken.of("cyd", "token-of-cyd-0123456789", "work"),
)
HELLO = json.dumps(request("initialize", 1, {"protocolVersion": "2025-11-25", "capabilities": {}}))


def http(
    body: str | bytes = HELLO,
    *lines: str,
    path: str = "/mcp",
    method: str = "POST",
    host: str = "127.0.0.1",
    **less: Any,
) -> bytes:
    """A request as it goes over the wire. `lines` replace or add headers."""
    data = body.encode() if isinstance(body, str) else body
    headers = {
        "host": f"Host: {host}",
        "accept": f"Accept: {ACCEPT['accept']}",
        "content-type": "Content-Type: application/json",
        "content-length": f"Content-Length: {len(data)}",
        "authorization": f"Authorization: Bearer {ANN}",
    }
    extra: list[str] = []
    for line in lines:
        name = line.partition(":")[0].lower()
        if name in headers and not less.get("twice"):
            headers[name] = line
        else:
            extra.append(line)
    head = [f"{method} {path} HTTP/1.1", *headers.values(), *extra, "Connection: close", "", ""]
    return "\r\n".join(line for line in head[:-2] if line).encode() + b"\r\n\r\n" + data


DEEP = json.dumps(request("tools/call", 1, {"name": "own_echo"}))[:-2] + ',"arguments":{"a":' + "[" * 100_000
MODERN = "MCP-Protocol-Version: 2026-07-28"
# name, request, status, a word of the answer
ROWS: list[tuple[str, bytes, int, str]] = [
    ("foreign host", http(host="evil.example"), 421, "another name"),
    ("foreign host with our name in it", http(host="127.0.0.1.evil.example"), 421, ""),
    ("host with a user", http(host="127.0.0.1@evil.example"), 421, ""),
    ("no host", http(HELLO, "Host: ", host=""), 421, ""),
    ("two hosts", http(HELLO, "Host: evil.example", twice=True), 400, ""),
    ("foreign origin", http(HELLO, "Origin: https://evil.example"), 403, "origin"),
    ("origin of a file", http(HELLO, "Origin: null"), 403, "origin"),
    ("origin with our name in it", http(HELLO, "Origin: http://localhost.evil.example"), 403, ""),
    ("no token", http(HELLO, "Authorization:"), 401, "needed"),
    ("wrong token", http(HELLO, "Authorization: Bearer nobody"), 401, "not known"),
    ("another scheme", http(HELLO, f"Authorization: Basic {ANN}"), 401, ""),
    ("two tokens", http(HELLO, f"Authorization: Bearer {BEN}", twice=True), 400, "twice"),
    ("token in the query", http(HELLO, "Authorization:", path=f"/mcp?token={ANN}"), 401, ""),
    ("path traversal", http(path="/mcp/../health"), 404, ""),
    ("encoded path traversal", http(path="/mcp/%2e%2e/status"), 404, ""),
    ("encoded name of the path", http(path="/%6dcp"), 404, ""),
    ("unknown path", http(path="/admin"), 404, ""),
    ("unknown profile", http(path="/mcp/none"), 404, ""),
    (
        "token of another profile",
        http(HELLO, "Authorization: Bearer token-of-cyd-0123456789", path="/mcp/home"),
        404,
        "",
    ),
    ("another method", http("", method="PUT"), 405, "use GET, POST, DELETE"),
    ("a browser asks first", http("", method="OPTIONS"), 405, ""),
    ("GET of 2026-07-28", http("", MODERN, method="GET"), 405, "use POST"),
    ("accepts no JSON", http(HELLO, "Accept: text/event-stream"), 406, ""),
    ("accepts no stream", http(HELLO, "Accept: application/json"), 406, ""),
    ("a form", http(HELLO, "Content-Type: application/x-www-form-urlencoded"), 415, ""),
    ("plain text", http(HELLO, "Content-Type: text/plain"), 415, ""),
    ("oversize body", http(b" " * 20_000), 413, "10000"),
    ("oversize length", http(HELLO, "Content-Length: 99999999999999999999"), 400, "overflow"),
    ("a length over the bound", http(HELLO, "Content-Length: 10001"), 413, "10000"),
    ("two lengths", http(HELLO, "Content-Length: 5", twice=True), 400, ""),
    ("length and chunks", http("0\r\n\r\n", "Transfer-Encoding: chunked"), 400, "Transfer-Encoding"),
    ("space before a colon", http(HELLO, "Authorization : x"), 400, ""),
    ("a folded header", http(HELLO, "X-One: 1\r\n Authorization: Bearer x"), 400, "whitespace"),
    ("oversize head", http(HELLO, "X-Long: " + "x" * 40_000), 431, ""),
    ("a head that never ends", http(HELLO, "X-Long: " + "x" * 600_000), 431, ""),
    ("no HTTP", b"\x16\x03\x01 hello\r\n\r\n", 400, ""),
    ("deep JSON", http(DEEP[:9_000]), 400, "-32700"),
    ("no JSON", http("hello"), 400, "-32700"),
    ("a batch", http("[" + HELLO + "]"), 400, "-32600"),
    ("no method", http('{"jsonrpc":"2.0","id":1}'), 400, "-32600"),
    ("an id that is an object", http('{"jsonrpc":"2.0","id":{},"method":"ping"}'), 400, "-32600"),
    ("no session", http(json.dumps(request("ping"))), 400, "session"),
    ("GET without a session", http("", method="GET"), 400, "Session ID"),
    ("DELETE without a session", http("", method="DELETE"), 400, "Session ID"),
    (
        "a guessed session",
        http(json.dumps(request("ping")), "Mcp-Session-Id: " + "A" * 32),
        404,
        "Session not found",
    ),
    ("an empty session", http(json.dumps(request("ping")), "Mcp-Session-Id: "), 404, "Session not found"),
    (
        "an unknown version",
        http(json.dumps(request("ping")), "MCP-Protocol-Version: 2099-01-01"),
        400,
        "-32602",
    ),
    (
        "GET without an event stream",
        http("", "Accept: application/json", method="GET"),
        406,
        "text/event-stream",
    ),
    ("2026 with an answer", http('{"jsonrpc":"2.0","id":1,"result":{}}', MODERN), 400, "no requests"),
    ("2026 with a notification", http('{"jsonrpc":"2.0","method":"x"}', MODERN), 202, ""),
    (
        "2026 with params that are a list",
        http('{"jsonrpc":"2.0","id":1,"method":"x","params":[]}', MODERN),
        400,
        "-32602",
    ),
    (
        "a notification of an unknown version",
        http('{"jsonrpc":"2.0","method":"x"}', "MCP-Protocol-Version: 2099-01-01"),
        400,
        '"supported":["2026-07-28"],"requested":"2099-01-01"',
    ),
    (
        "2026 without meta",
        http(json.dumps(request("tools/list")), MODERN, "Mcp-Method: tools/list"),
        400,
        "-32602",
    ),
]


def stateless(method: str, *lines: str, **params: Any) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    said = request(method, 1, {**params, "_meta": meta})
    given = () if any("Version:" in line for line in lines) else (MODERN,)
    return http(json.dumps(said), *given, *lines)


IN_BODY = json.dumps(
    request("tools/list", 7, {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}})
)


def of_version(version: str, **meta: Any) -> bytes:
    said = {"io.modelcontextprotocol/protocolVersion": version, **meta}
    lines = (f"MCP-Protocol-Version: {version}", "Mcp-Method: tools/list")
    return http(json.dumps(request("tools/list", 7, {"_meta": said})), *lines)


STATELESS_ROWS: list[tuple[str, bytes, int, str]] = [
    (
        "an unknown version that says what it can do",
        of_version("2099-01-01", **{"io.modelcontextprotocol/clientCapabilities": {}}),
        400,
        '"code":-32022,"message":"Unsupported protocol version","data":{"supported":["2026-07-28"],"reque',
    ),
    ("2026 without its capabilities", of_version("2026-07-28"), 400, "clientCapabilities"),
    (
        "2026 with another version in its header",
        stateless("tools/list", "MCP-Protocol-Version: 2099-01-01", "Mcp-Method: tools/list"),
        400,
        "-32020",
    ),
    (
        "2026 in the body alone",
        stateless("tools/list", "MCP-Protocol-Version: 2025-11-25", "Mcp-Method: tools/list"),
        400,
        '"id":1,"error":{"code":-32020',
    ),
    (
        "2026 in the body alone, with an escaped slash",
        http(IN_BODY.replace("l/p", "l\\/p"), "MCP-Protocol-Version: 2025-06-18"),
        400,
        "-32020",
    ),
    ("2026 in the body, and no header", http(IN_BODY), 400, "-32020"),
    (
        "2026 without the name of its resource",
        stateless("resources/read", "Mcp-Method: resources/read", uri="a://b"),
        400,
        "params.uri",
    ),
    (
        "2026 without the name of its prompt",
        stateless("prompts/get", "Mcp-Method: prompts/get", name="own_p"),
        400,
        "params.name",
    ),
    ("2026 without its method", stateless("tools/list"), 400, "-32020"),
    ("2026 with another method", stateless("tools/list", "Mcp-Method: tools/call"), 400, "-32020"),
    (
        "2026 with two methods",
        stateless("tools/list", "Mcp-Method: tools/list", "Mcp-Method: x"),
        400,
        "twice",
    ),
    (
        "2026 with another name",
        stateless("tools/call", "Mcp-Method: tools/call", "Mcp-Name: x", name="own_echo"),
        400,
        "-32020",
    ),
    ("2026 with an unknown method", stateless("x/y", "Mcp-Method: x/y"), 404, "-32601"),
    (
        "2026 with a name in base64",
        stateless(
            "tools/call", "Mcp-Method: tools/call", "Mcp-Name: =?base64?b3duX2VjaG8=?=", name="own_echo"
        ),
        200,
        "result",
    ),
]


async def sent(port: int, data: bytes) -> str:
    """The answer to raw bytes, until the connection is closed."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            await stream.send(data)
        parts: list[bytes] = []
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                parts.append(await stream.receive())
        return b"".join(parts).decode("latin-1")


def with_tokens(
    body: Callable[[Opened, AskingServer], Any], server: AskingServer | None = None, **rules: Any
) -> None:
    given: dict[str, Any] = {"max_body": 10_000, **rules}
    chosen = Rules(**given)
    with_door(body, server, access=Access("127.0.0.1", TOKENS), rules=chosen)


async def person_of(opened: Opened, token: str = ANN) -> Person:
    return await opened.session(authorization=f"Bearer {token}")


def test_each_attack_has_its_code_and_others_are_served() -> None:
    wrong: list[str] = []

    async def body(opened: Opened, _server: AskingServer) -> None:
        ann = await person_of(opened)
        for name, data, status, word in (*ROWS, *STATELESS_ROWS):
            answer = await sent(opened.port, data)
            found = re.match(r"HTTP/1\.1 (\d{3})", answer)
            if found is None or int(found[1]) != status or word not in answer:
                wrong.append(f"{name}: not {status} {word!r} but {answer[:300]!r}")
            if ANN in answer or BEN in answer or ann.headers["mcp_session_id"] in answer:
                wrong.append(f"{name}: tells a secret")
        assert text_of(await ann.call("own_echo", text="hi")) == "hi"

    with_tokens(body)
    assert not wrong, "\n".join(wrong)


@body_of(with_tokens)
async def test_a_refusal_for_a_missing_token_says_which_kind_is_needed(
    opened: Opened, server: AskingServer, /
) -> None:
    missing, wrong = (
        await opened.post(request("ping")),
        await opened.post(request("ping"), authorization="Bearer x"),
    )
    assert missing.headers["www-authenticate"] == 'Bearer realm="greenroom"'
    assert wrong.headers["www-authenticate"] == 'Bearer realm="greenroom", error="invalid_token"'


@body_of(with_tokens)
async def test_t20_a_session_does_not_exist_for_another_token(
    opened: Opened, server: AskingServer, /
) -> None:
    ann = await person_of(opened)
    stolen = {**ann.real_headers(), "authorization": f"Bearer {BEN}", "accept": ACCEPT_BOTH}
    for answer in (
        await ann.post(request("ping"), authorization=f"Bearer {BEN}"),
        await opened.http.get("/mcp", headers=stolen),
        await opened.http.delete("/mcp", headers=stolen),
    ):
        assert (answer.status_code, "Session not found" in answer.text) == (404, True)
    assert (await ann.ask("ping"))["result"] == {}


@body_of(with_tokens)
async def test_t20_stateless_clients_with_other_tokens_share_no_child(
    opened: Opened, server: AskingServer, /
) -> None:
    for token in (ANN, BEN, ANN):
        params = {"name": "own_echo", "arguments": {}}
        assert (
            await opened.stateless("tools/call", params, authorization=f"Bearer {token}")
        ).status_code == 200
    assert server.starts == 2


@body_of(with_tokens, waiting_heads=8, head_time=0.5)
async def test_half_open_connections_are_closed_and_others_served(
    opened: Opened, server: AskingServer, /
) -> None:
    half: list[anyio.abc.SocketStream] = []
    try:
        for number in range(30):
            half.append(await anyio.connect_tcp("127.0.0.1", opened.port))
            if number % 2:
                await half[-1].send(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        ann = await person_of(opened)
        assert text_of(await ann.call("own_echo", text="hi")) == "hi"
        for stream in half:  # the oldest at once, the others when their time is over
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
    finally:
        for stream in half:
            await stream.aclose()


def test_who_has_sent_a_request_is_not_one_of_those_that_say_nothing() -> None:
    held = Held()

    async def body(opened: Opened, _server: AskingServer) -> None:
        ann = await person_of(opened)
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await ann.call("own_held"))

        async with anyio.create_task_group() as calls:
            calls.start_soon(call)
            await held.begun.wait()
            for silent in range(2):  # as many as may be silent at once
                stream = await anyio.connect_tcp("127.0.0.1", opened.port)
                calls.start_soon(closed_later, stream)
                while opened.server.connections() < 2 + silent:
                    await anyio.sleep(0.01)
            held.may_end.set()
            while not answers:
                await anyio.sleep(0.01)
            calls.cancel_scope.cancel()
        assert text_of(answers[0]) == "late"

    async def closed_later(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    with_tokens(body, AskingServer({"held": held.act}), waiting_heads=2)


@body_of(with_tokens, head_time=0.1)
async def test_a_connection_that_waits_for_its_next_request_counts_among_no_unfinished_heads(
    opened: Opened, server: AskingServer, /
) -> None:
    """Its request was answered while it was being read: nothing of a next one has come."""
    person = await person_of(opened)
    note = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    for _ in range(3):
        assert (await person.post(note)).status_code == 202
    await anyio.sleep(0.25)  # longer than a head may take
    assert (await person.post(note)).status_code == 202
    assert opened.server.connections() == 1


@body_of(with_tokens, head_time=0.2)
async def test_the_head_of_a_second_request_may_take_as_long_as_that_of_the_first(
    opened: Opened, server: AskingServer, /
) -> None:
    ann = await person_of(opened)
    before = opened.server.connections()
    session = f"Mcp-Session-Id: {ann.headers['mcp_session_id']}"
    whole = http(json.dumps(request("ping")), session).replace(b"Connection: close\r\n", b"")
    async with await anyio.connect_tcp("127.0.0.1", opened.port) as stream:
        await stream.send(whole)
        assert b'"result":{}' in await stream.receive()
        await anyio.sleep(0.4)  # between two requests there is time
        assert opened.server.connections() == before + 1
        await stream.send(whole[:40])
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(PATIENCE):
            await stream.receive()


@pytest.mark.parametrize("reads", [True, False])
def test_a_client_that_reads_slowly_is_not_one_that_does_not_read(reads: bool) -> None:
    async def fat(_asking: Asking, _arguments: Any) -> Any:
        return "x" * 12_000_000

    async def body(opened: Opened, _server: AskingServer) -> None:
        ann = await person_of(opened)
        before = opened.server.connections()
        session = f"Mcp-Session-Id: {ann.headers['mcp_session_id']}"
        call = http(json.dumps(request("tools/call", 1, {"name": "own_fat"})), session)
        with socket.socket() as slow:
            slow.connect(("127.0.0.1", opened.port))
            slow.setblocking(False)
            slow.sendall(call)
            while opened.server.connections() == before:
                await anyio.sleep(0.01)
            came = 0
            while reads:
                await anyio.wait_readable(slow)
                if not (piece := slow.recv(100_000)):
                    break
                came += len(piece)
                await anyio.sleep(0.02)
            while opened.server.connections() > before:
                await anyio.sleep(0.01)
        assert came > 12_000_000 or not reads
        assert (await ann.ask("ping"))["result"] == {}

    # All that a slow one reads takes longer, and a busy machine does not let it wait so long between two pieces.
    with_tokens(body, AskingServer({"fat": fat}), stalled_time=2.0 if reads else 0.5)


@body_of(with_tokens, waiting_heads=2)
async def test_who_sends_a_whole_request_is_not_cut_however_many_do_so_at_once(
    opened: Opened, server: AskingServer, /
) -> None:
    ann = await person_of(opened)
    session = f"Mcp-Session-Id: {ann.headers['mcp_session_id']}"
    answers: list[bytes] = []
    streams: list[anyio.abc.SocketStream] = []

    def ping(number: int) -> bytes:
        return http(json.dumps(request("ping", number)), session).replace(b"Connection: close\r\n", b"")

    for number in range(12):  # one after the other, so that no more than one waits for a head
        streams.append(await anyio.connect_tcp("127.0.0.1", opened.port))
        await streams[-1].send(ping(number))
        await streams[-1].receive()
    for number, stream in enumerate(streams):  # the door runs only after all have sent
        os.write(stream.extra(anyio.abc.SocketAttribute.raw_socket).fileno(), ping(100 + number))
    for stream in streams:
        answers.append(await stream.receive())
        await stream.aclose()
    assert [b'"result":{}' in answer for answer in answers] == [True] * 12


@body_of(with_tokens)
async def test_hundreds_of_clients_may_connect_before_the_first_of_them_sends(
    opened: Opened, server: AskingServer, /
) -> None:
    ann = await person_of(opened)
    ping = http(json.dumps(request("ping", 1)), f"Mcp-Session-Id: {ann.headers['mcp_session_id']}")
    streams = [await anyio.connect_tcp("127.0.0.1", opened.port) for _ in range(300)]
    answered = 0
    while opened.server.connections() < len(streams):
        await anyio.sleep(0.01)
    for stream in streams:
        async with stream:
            await stream.send(ping)
            answered += b'"result":{}' in await stream.receive()
    assert answered == len(streams)


@body_of(with_tokens, body_time=0.2)
async def test_a_body_that_never_ends_is_refused(opened: Opened, server: AskingServer, /) -> None:
    slow = await sent(opened.port, http(HELLO, "Content-Length: 9000"))
    assert slow.startswith("HTTP/1.1 408 ")


@body_of(with_tokens, body_time=0.2, max_body=1_000_000)
async def test_a_body_that_came_while_the_loop_stood_still_is_read(
    opened: Opened, server: AskingServer, /
) -> None:
    long = HELLO + " " * 400_000
    head, _, body = http(long, "Expect: 100-continue").partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", opened.port)) as client:
        client.sendall(head + b"\r\n\r\n")
        await anyio.wait_readable(client)
        assert b" 100 " in client.recv(1000)  # its time has begun

        def send() -> None:
            over = time.monotonic() + 0.3
            client.sendall(body)  # the system holds it
            while time.monotonic() < over:
                pass

        sender = threading.Thread(target=send)
        sender.start()
        sender.join()  # and the loop stands still meanwhile
        await anyio.wait_readable(client)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


@body_of(with_tokens, replay_bytes=100_000, busy_bytes=1 << 30)
async def test_a_client_that_never_reads_its_stream_is_cut(opened: Opened, server: AskingServer, /) -> None:
    ann = await person_of(opened)
    await ann.call("own_echo")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", opened.port))
        session = f"Mcp-Session-Id: {ann.headers['mcp_session_id']}"
        deaf.sendall(http("", session, method="GET").replace(b"Connection: close\r\n", b""))
        stream = ann.opened.door.sessions
        said = {"level": "info", "data": "x" * 60_000}
        connections = opened.server.connections
        while not (before := connections()) or before < 2:
            await anyio.sleep(0.01)
        while connections() == before:
            server.tell("notifications/message", said)
            await anyio.sleep(0.01)
    assert len(stream) == 1
    assert text_of(await ann.call("own_echo", text="hi")) == "hi"


def test_a_client_killed_in_a_call_costs_nobody_else() -> None:
    held = Held()

    async def body(opened: Opened, server: AskingServer) -> None:
        ann, ben = await person_of(opened), await person_of(opened, BEN)
        session = f"Mcp-Session-Id: {ann.headers['mcp_session_id']}"
        async with await anyio.connect_tcp("127.0.0.1", opened.port) as stream:
            await stream.send(http(json.dumps(held_call()), session))
            await held.begun.wait()
        assert text_of(await ben.call("own_echo", text="hi")) == "hi"
        assert not held.cancelled.is_set()
        held.may_end.set()
        assert (await ann.ask("ping"))["result"] == {}
        assert len(server.live) == 2

    async def echo(_asking: Asking, arguments: Any) -> Any:
        return arguments.get("text")

    with_tokens(body, AskingServer({"held": held.act, "echo": echo}))


def test_where_others_can_reach_it_a_token_is_needed() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7", "gateway.example"):
        with pytest.raises(UsageError, match="--token-file"):
            Access(host)
        Access(host, TOKENS)
    for host in ("127.0.0.1", "localhost", "::1"):
        Access(host)


def test_tokens_are_not_shown() -> None:
    assert ANN not in repr(TOKENS)
    for text in ("short", "with a space in it 123", "täst-token-0123456789"):
        with pytest.raises(UsageError, match="'ann'") as refused:
            BearerToken.of("ann", text)
        assert text not in str(refused.value)
