"""One connection of the HTTP door, as whoever speaks HTTP in its own way meets it: raw bytes, real sockets."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest
from tests.gateway.test_http_door import Held, held_call, with_door
from tests.gateway.test_http_door_attacks import sent
from tests.support.asking import AskingServer
from tests.support.bodies import body_of
from tests.support.http_door import ACCEPT, HELLO, Opened, Person, request

from greenroom.gateway.doors.http_request import Rules

JSON = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: %b\r\n" % ACCEPT["accept"].encode()
LAST = b"GET /none HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def post(message: Any, *lines: bytes, person: Person | None = None, version: bytes = b"1.1") -> bytes:
    """A request whose body is sent by its length, on a connection that stays."""
    body = json.dumps(message).encode()
    head = b"".join(line + b"\r\n" for line in lines)
    if person is not None:
        head += b"Mcp-Session-Id: %b\r\n" % person.headers["mcp_session_id"].encode()
    return b"POST /mcp HTTP/%b\r\n%b%bContent-Length: %d\r\n\r\n%b" % (version, JSON, head, len(body), body)


def ids(answers: str) -> list[Any]:
    """Those of the JSON-RPC answers, in the order in which they came."""
    starts = [found.start() for found in re.finditer(r'\{"jsonrpc"', answers)]
    said = [json.JSONDecoder().raw_decode(answers, start)[0] for start in starts]
    return [each["id"] for each in said if "id" in each]


@body_of(with_door)
async def test_who_offers_another_protocol_is_answered_in_this_one(
    opened: Opened, server: AskingServer, /
) -> None:
    """As Java's client does with each request, whose body still comes in this one (RFC 9110, 7.8)."""
    person = await opened.session()
    offer = (
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAA",
    )
    asks = [post(request("ping", key), *offer, person=person) for key in (1, 2)]
    bodiless = b"GET /none HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n\r\n" % b"\r\n".join(offer)
    answers = await sent(
        opened.port, b"".join([*asks, bodiless, post(request("ping", 3), person=person), LAST])
    )
    assert ids(answers) == [1, 2, None, 3, None]
    chunked = asks[0].replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\nX-Was: ")
    head, _, body = chunked.partition(b"\r\n\r\n")
    async with await anyio.connect_tcp("127.0.0.1", opened.port) as stream:
        await stream.send(head + b"\r\n\r\n")
        for number in range(len(body)):  # each piece by itself
            await stream.send(b"1\r\n%b\r\n" % body[number : number + 1])
        await stream.send(b"0\r\nX-After: 1\r\n\r\n")
        assert ids((await stream.receive()).decode()) == [1]


@body_of(with_door)
async def test_what_stands_around_the_value_of_a_header_is_none_of_it(
    opened: Opened, server: AskingServer, /
) -> None:
    person = await opened.session()
    ask = post(request("ping", 1), b"Connection:close", person=person)
    for line in (b"Host: 127.0.0.1", b"Mcp-Session-Id: " + person.headers["mcp_session_id"].encode()):
        name, _, value = line.partition(b": ")
        ask = ask.replace(line, b"%b:\t %b \t" % (name, value))
    assert ids(await sent(opened.port, ask)) == [1]


@body_of(with_door)
async def test_requests_that_are_sent_at_once_are_answered_in_their_order(
    opened: Opened, server: AskingServer, /
) -> None:
    person = await opened.session()
    asks = [post(request("ping", key), person=person) for key in range(20)]
    assert ids(await sent(opened.port, b"".join([*asks, LAST]))) == [*range(20), None]


def test_a_later_request_waits_for_the_answer_to_the_one_before() -> None:
    held = Held()

    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        answers: list[str] = []

        async def send() -> None:
            both = post(held_call(), person=person) + post(request("ping", "next"), person=person) + LAST
            answers.append(await sent(opened.port, both))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await held.begun.wait()
            held.may_end.set()
        assert ids(answers[0])[-2:] == ["next", None]
        assert len(ids(answers[0])) == 3

    with_door(body, AskingServer({"held": held.act}))


@body_of(with_door, rules=Rules(sent_at_once=4))
async def test_who_sends_too_many_at_once_is_refused_and_those_before_are_answered(
    opened: Opened, server: AskingServer, /
) -> None:
    person = await opened.session()
    answers = await sent(
        opened.port, b"".join(post(request("ping", key), person=person) for key in range(200))
    )
    assert ids(answers)[:5] == [0, 1, 2, 3, None]
    assert "503 Service Unavailable" in answers


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@body_of(with_door)
async def test_an_older_client_gets_its_answer_and_then_the_end(
    opened: Opened, server: AskingServer, /, version: bytes
) -> None:
    person = await opened.session()
    ask = post(
        request("ping", 1),
        b"Connection: %b" % (b"close" if version == b"1.1" else b"keep-alive"),
        person=person,
        version=version,
    )
    answers = await sent(opened.port, ask)
    assert (ids(answers), "connection: close" in answers, "chunked" in answers) == ([1], True, False)


@body_of(with_door)
async def test_who_waits_to_be_asked_for_a_body_is_asked_or_refused_by_its_head(
    opened: Opened, server: AskingServer, /
) -> None:
    hello = post(request("initialize", 5, {**HELLO, "capabilities": {}}), b"Expect: 100-continue")
    head, _, body = hello.partition(b"\r\n\r\n")
    async with await anyio.connect_tcp("127.0.0.1", opened.port) as stream:
        await stream.send(head + b"\r\n\r\n")
        assert await stream.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send(body)
        assert ids((await stream.receive()).decode()) == [5]
    refused = await sent(
        opened.port, head.replace(b"application/json\r\nAccept", b"text/plain\r\nAccept") + b"\r\n\r\n"
    )
    assert refused.startswith("HTTP/1.1 415 ")


def post_of(length: bytes) -> bytes:
    """The head of a request whose body has this length."""
    return b"POST /mcp HTTP/1.1\r\n%bContent-Length: %b\r\n\r\n" % (JSON, length)


CHUNKED = b"POST /mcp HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % JSON
# What is sent, how it is answered; then the connection is closed.
BROKEN: list[tuple[str, bytes, int]] = [
    ("a chunk of no size", CHUNKED + b"x\r\n", 400),
    ("a chunk of more bytes than there are numbers", CHUNKED + b"f" * 17 + b"\r\n", 400),
    ("a chunk that is longer than it says", CHUNKED + b"1\r\nab\r\n", 400),
    ("an extension that never ends", CHUNKED + b"1;" + b"x" * 600_000, 431),
    ("a trailer that never ends", CHUNKED + b"1\r\n{\r\n0\r\nX: " + b"x" * 600_000, 431),
    ("trailers that never end", CHUNKED + b"1\r\n{\r\n0\r\n" + b"X: y\r\n" * 100_000, 431),
    ("very many headers", b"GET /mcp HTTP/1.1\r\n" + b"a:\r\n" * 1_000 + b"Host: 127.0.0.1\r\n\r\n", 431),
    ("empty lines that never end", b"\r\n" * 300_000, 431),
    ("a path that never ends", b"GET /" + b"x" * 600_000, 431),
    ("a long path", b"GET /%b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % (b"x" * 33_000), 431),
    ("a packed body", CHUNKED.replace(b"chunked", b"gzip, chunked"), 400),
    ("a tunnel", b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    ("a version of its own", b"GET /mcp HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", 400),
    ("no version", b"GET /mcp\r\n\r\n", 400),
    ("the next version", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("a method of its own", b"FOO /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    ("lines that end in their own way", b"GET /mcp HTTP/1.1\nHost: 127.0.0.1\n\n", 400),
    ("a null in a header", b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\x00\r\n\r\n", 400),
    ("a length of very many digits", post_of(b"0" * 5_000 + b"9"), 413),
    ("a length with a sign", b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: +2\r\n\r\n{}", 400),
    ("another server's URL", b"GET http://evil.example/mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
]  # fmt: skip


@pytest.mark.parametrize(("data", "status"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
@body_of(with_door)
async def test_what_is_no_http_is_refused_behind_the_answers_to_what_was(
    opened: Opened, server: AskingServer, /, data: bytes, status: int
) -> None:
    person = await opened.session()
    good = post(request("ping", 1), person=person)
    for before in (b"", good):
        closed = data if status != 404 else data.replace(b"Host", b"Connection: close\r\nHost")
        answers = await sent(opened.port, before + closed)
        assert ids(answers) == [*([1] if before else []), None]
        assert re.findall(r"HTTP/1\.1 (\d{3}) ", answers)[-1] == str(status), answers
    assert (await person.ask("ping"))["result"] == {}


@body_of(with_door)
async def test_a_body_in_very_many_pieces_holds_up_nobody(opened: Opened, server: AskingServer, /) -> None:
    """As many as may wait to be read: each costs the same, however many there are."""
    person = await opened.session()
    body = json.dumps(request("ping", 1, {"x": "x" * 200_000})).encode()
    pieces = b"".join(b"1\r\n%b\r\n" % body[number : number + 1] for number in range(len(body)))
    head = b"Mcp-Session-Id: %b\r\nConnection: close\r\n" % person.headers["mcp_session_id"].encode()
    answers = await sent(opened.port, CHUNKED.replace(b"Host", head + b"Host") + pieces + b"0\r\n\r\n")
    assert ids(answers) == [1]
