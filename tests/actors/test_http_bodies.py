"""How bodies and frames come in: each bound on its own, and what our environment says of proxies and certificates."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import anyio
import httpcore2
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time, run
from tests.support.gateway import serve
from tests.support.hostile_http import packed
from tests.support.http_rooms import room_at
from tests.support.raw_http import Handler, Seen, raw_http, text
from tests.support.rows import for_each

from greenroom.actors.transports import http_bounds
from greenroom.actors.transports.event_parser import EventParser
from greenroom.actors.transports.http_bounds import OURS, PIECE, DecodedBody, Frame, read_bounded, take_over
from greenroom.actors.transports.http_client import trusted_certificates
from greenroom.actors.transports.http_faults import BadAnswer
from greenroom.protocol.bounds import (
    HTTP_ASIDE_BYTES,
    HTTP_COOKIES,
    HTTP_COOKIES_AT_ONCE,
    HTTP_HEAD_LINES,
    HTTP_INTERIM,
    HTTP_PACKED,
    LARGE_MESSAGE,
    MESSAGE_ESCAPES,
    MESSAGE_VALUES,
)
from greenroom.protocol.errors import ConnectFailed


class Raw(httpx2.AsyncByteStream):
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.asked = 0

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for piece in self.pieces:
            self.asked += 1
            await anyio.lowlevel.checkpoint()
            yield piece


async def read(raw: Raw, encoding: str, *, limit: int | None = None, is_lines: bool = False) -> list[bytes]:
    return [piece async for piece in DecodedBody(raw, encoding, limit=limit, is_lines=is_lines)]


DATA = bytes(range(256)) * 2000


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", DATA),
        ("identity, UTF-8", DATA),
        ("gzip", packed(DATA)),
        ("X-GZIP", packed(DATA)),
        ("deflate", zlib.compress(DATA)),
        ("deflate", zlib.compress(DATA)[2:-4]),
        ("gzip", packed(DATA) + b"more"),
    ],
)
@in_real_time
async def test_a_body_is_decoded_in_bounded_pieces(encoding: str, body: bytes) -> None:
    for size in (1 << 20, 1000, 1):
        cut = [body[at : at + size] for at in range(0, min(len(body), 3000 * size), size)]
        found = await read(Raw(*cut), encoding)
        assert b"".join(found) == DATA[: sum(map(len, found))]
        assert size == 1 or sum(map(len, found)) == len(DATA)
        assert max(map(len, found)) <= PIECE


@pytest.mark.parametrize("encoding", ["gzip, gzip", "deflate,gzip", "br", "zstd", "gzip, br", "größer"])
@in_real_time
async def test_what_is_encoded_otherwise_is_refused(encoding: str) -> None:
    with pytest.raises(BadAnswer, match="asked for gzip, or none"):
        await read(Raw(b"{}"), encoding)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\n\r"])
@pytest.mark.parametrize(("lines", "is_cut"), [(128, False), (129, True)])
@in_real_time
async def test_a_piece_of_many_lines_is_cut_where_each_is_work(end: bytes, lines: int, is_cut: bool) -> None:
    ends = (end * lines)[:lines]
    data = b"x" * (5_000 - lines) + ends
    assert await read(Raw(data), "", is_lines=False) == [data]
    found = await read(Raw(data), "", is_lines=True)
    assert list(map(len, found)) == ([2048, 2048, 904] if is_cut else [5_000])
    assert b"".join(found) == data


@in_real_time
async def test_a_body_of_just_its_bound_is_no_flood() -> None:
    assert sum(map(len, await read(Raw(b"x" * 10, b"x" * 10), "", limit=20))) == 20
    with pytest.raises(BadAnswer, match="over the bound of 20 bytes"):
        await read(Raw(b"x" * 10, b"x" * 11), "", limit=20)
    tight = b"\0" * HTTP_ASIDE_BYTES
    assert sum(map(len, await read(Raw(packed(tight)), "gzip", is_lines=True))) == len(tight)
    data = b"x" * (3 * HTTP_ASIDE_BYTES)
    assert sum(map(len, await read(Raw(*[data[:65_536]] * 48), "", is_lines=True))) == len(data)
    with pytest.raises(BadAnswer, match="not encoded as its header says"):
        await read(Raw(b"plain"), "gzip")


@in_real_time
async def test_a_bound_ends_a_body_and_nothing_more_of_it_is_read() -> None:
    long, stream = (
        Raw(packed(b"\0" * 2 * HTTP_ASIDE_BYTES), *[b"x"] * 50),
        Raw(packed(b"\0" * 8 * HTTP_ASIDE_BYTES), *[b"x"] * 50),
    )
    with pytest.raises(BadAnswer, match="over the bound of 1,048,576 bytes"):
        await read(long, "gzip", limit=HTTP_ASIDE_BYTES)
    with pytest.raises(BadAnswer, match=f"packed over {HTTP_PACKED} times"):
        await read(stream, "gzip", is_lines=True)
    assert (long.asked, stream.asked) <= (2, 2)


@in_real_time
async def test_only_a_stream_of_events_may_not_be_packed_tightly() -> None:
    data = b"\0" * 8 * HTTP_ASIDE_BYTES
    assert sum(map(len, await read(Raw(packed(data)), "gzip"))) == len(data)


# ---- frames ---------------------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
FRAMES: dict[str, tuple[bytes, bool]] = {
    "a head": (HEAD + b"a: b\r\n" * (HTTP_HEAD_LINES - 5) + b"\r\n0\r\n\r\n", True),
    "a head of many lines": (HEAD + b"a:\r\n" * HTTP_HEAD_LINES, False),
    "a long head": (HEAD + b"a: " + b"x" * 40_000, False),
    "interim answers": (b"HTTP/1.1 103 \r\n\r\n" * HTTP_INTERIM + HEAD + b"\r\n", True),
    "many interim answers": (b"HTTP/1.1 103 \r\n\r\n" * (HTTP_INTERIM + 1) + HEAD + b"\r\n", False),
    "a body like a head": (b"HTTP/1.1 200 OK\r\n\r\n" + b"a:\r\n" * 5000, True),
    "a chunk like trailers": (HEAD + b"\r\n4e20\r\n" + b"a:\r\n" * 5000 + b"\r\n0\r\n\r\n", True),
    "a head of just its lines": (HEAD + b"a: b\r\n" * 253 + b"\r\n0\r\n\r\n", True),
    "a head of a line too many": (HEAD + b"a: b\r\n" * 254 + b"\r\n0\r\n\r\n", False),
    "a head of just its bytes": (
        HEAD + b"a: " + b"x" * (32_768 - len(HEAD) - 7) + b"\r\n\r\n0\r\n\r\n",
        True,
    ),
    "a head of a byte too many": (
        HEAD + b"a: " + b"x" * (32_768 - len(HEAD) - 6) + b"\r\n\r\n0\r\n\r\n",
        False,
    ),
    "chunks in small letters": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding:chunked\r\n\r\n0\r\n" + b"a:\r\n" * (HTTP_HEAD_LINES + 2),
        False,
    ),
    "an upgrade is an answer": (b"HTTP/1.1 101 \r\n\r\n" + b"HTTP/1.1 103 \r\n\r\n" * 50, True),
    "trailers": (HEAD + b"\r\n5;x=y\r\n0\r\na:\r\n0\r\n" + b"a:\r\n" * 99 + b"\r\n", True),
    "many trailers": (HEAD + b"\r\n5\r\n0\r\na:\r\n0\r\n" + b"a:\r\n" * (HTTP_HEAD_LINES + 2), False),
    "a chunk without an end to its size": (HEAD + b"\r\n5;" + b"x" * 40_000, False),
    "no chunk": (HEAD + b"\r\n?\r\n" + b"a:\r\n" * 5000, True),
}


@given(st.sampled_from(sorted(FRAMES)), st.lists(st.integers(1, 50), max_size=30))
def test_a_frame_is_followed_however_it_is_cut(name: str, sizes: list[int]) -> None:
    rest, fits = FRAMES[name]
    frame = Frame()
    try:
        for size in sizes:
            frame.look(rest[:size])
            rest = rest[size:]
        frame.look(rest)
    except httpcore2.RemoteProtocolError:
        assert not fits
    else:
        assert fits


class Network(httpcore2.AsyncNetworkStream):
    """What a server says, a piece for each read; and what was asked of it."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.most: list[int] = []
        self.closed = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.most.append(max_bytes)
        return self.pieces.pop(0)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        pass

    async def aclose(self) -> None:
        self.closed = True


@in_real_time
async def test_each_answer_on_a_connection_has_a_frame_of_its_own() -> None:
    plain = b"HTTP/1.1 200 OK\r\n\r\n"
    full = HEAD + b"a: b\r\n" * (HTTP_HEAD_LINES - 5) + b"\r\n0\r\n\r\n"
    network = Network(full, full, plain, b"body", HEAD + b"a:\r\n" * HTTP_HEAD_LINES)
    stream = http_bounds._BoundedStream(network)
    for _ in range(2):
        await stream.write(b"POST")
        assert await stream.read(1 << 20) == full
    await stream.write(b"POST")
    for piece in (plain, b"body"):
        assert await stream.read(1 << 20) == piece
    assert network.most == [http_bounds._FIRST_READ] * 3 + [http_bounds._LAST_READ]
    await stream.write(b"POST")
    with pytest.raises(httpcore2.RemoteProtocolError, match="head of the answer is over"):
        await stream.read(1 << 20)
    assert network.most[-1] == http_bounds._FIRST_READ
    network.pieces = [b"x"]
    await stream.write(b"POST")
    assert await stream.read(1) == b"x"
    assert network.most[-1] == 1
    await stream.aclose()
    assert network.closed


# ---- what is ours ---------------------------------------------------------------------------------------------------


def test_certificates_that_cannot_be_read_are_told_where_they_matter(
    backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)

    async def main() -> None:
        with raw_http() as server:
            for path, why in (
                (tmp_path / "absent.pem", "No such file or directory"),
                (junk, r"\[X509: NO_CERTIFICATE_OR_CRL_FOUND\] .*"),
            ):
                monkeypatch.setenv("SSL_CERT_FILE", str(path))
                trusted_certificates.cache_clear()
                async with room_at(server.url) as room:
                    assert (await room.call("ok")).text == "ok"
                async with room_at(server.url.replace("http", "https"), connect=False) as room:
                    words = (
                        rf"\(SSL_CERT_FILE in this process's environment\): {why}\. Correct that, or unset it"
                    )
                    with pytest.raises(ConnectFailed, match=words):
                        await room.connect("raw")

    try:
        run(backend, main)
    finally:
        trusted_certificates.cache_clear()


@pytest.mark.parametrize("url", ["http://xn--/mcp", "http://a b/"])
@in_real_time
async def test_a_url_that_is_none_is_a_connect_error(url: str) -> None:
    async with room_at(url, connect=False) as room:
        with pytest.raises(ConnectFailed):
            await room.connect("raw")


@in_real_time
async def test_cookies_are_kept_few_short_and_plain() -> None:
    said = [b"machine=7", b"odd=\xff", b"tab=a\tb", b"long=" + b"x" * 9000]

    def hook(handler: Handler, seen: Seen) -> bool:
        if seen.method != "tools/call":
            return False
        handler.result(
            seen.message, text("ok"), {"Set-Cookie": said.pop(0).decode("latin-1")} if said else {}
        )
        return True

    with raw_http() as server:
        server.hook = hook
        async with room_at(server.url) as room:
            for _ in range(5):
                await room.call("ok")
        assert server.requests[-2].headers["cookie"] == "machine=7"
    assert not said


def test_as_many_cookies_are_kept_as_there_may_be() -> None:
    jar = http_bounds.Cookies(keeps=True)
    request = httpx2.Request("GET", "http://server.test/")
    for number in range(HTTP_COOKIES + 3):
        response = httpx2.Response(200, headers={"set-cookie": f"c{number}=v"}, request=request)
        httpx2.Cookies(jar).extract_cookies(response)
    assert [cookie.name for cookie in jar] == [f"c{number}" for number in range(HTTP_COOKIES)]
    many = [("set-cookie", f"d{number}=v") for number in range(HTTP_COOKIES_AT_ONCE + 1)]
    for headers, kept in ((many[:-1], HTTP_COOKIES_AT_ONCE), (many, 0)):
        jar = http_bounds.Cookies(keeps=True)
        httpx2.Cookies(jar).extract_cookies(httpx2.Response(200, headers=headers, request=request))
        assert len(jar) == kept


@pytest.mark.parametrize(
    ("what", "bound"),
    [
        (b"[],", f"{MESSAGE_VALUES:,} values and keys"),
        (b"1,", f"{MESSAGE_VALUES:,} values and keys"),
        (rb"\\", f"{MESSAGE_ESCAPES:,} escaped characters"),
    ],
)
@in_real_time
async def test_t35_what_comes_over_http_has_no_more_to_pass_over_than_a_line(what: bytes, bound: str) -> None:
    told: list[str] = []
    parser = EventParser(1 << 26, lambda _head, bound: told.append(bound))
    what *= 20_000
    parser.feed(b'data: {"x":[')
    for _ in range(400):
        parser.feed(what)
    assert parser.feed(b"1]}\n\n") == []
    assert told == [bound]
    assert [event.data for event in parser.feed(b"data: {}\n\n")] == [b"{}"], "the next one is read"

    response = httpx2.Response(200, stream=Raw(b'{"x":[', *[what] * 300))
    with pytest.raises(BadAnswer, match=f"over the bound of {told[0]}"):
        await read_bounded(response, 1 << 26)


@pytest.mark.parametrize(
    ("ours", "status", "bounded"), [(True, 200, False), (True, 500, True), (False, 200, True)]
)
@in_real_time
async def test_only_an_answer_to_us_may_be_longer_than_what_is_read_beside_it(
    ours: bool,
    status: int,
    bounded: bool,
) -> None:
    request = httpx2.Request("POST", "http://h", extensions={OURS: True} if ours else {})
    headers = {"content-encoding": "gzip", "content-type": "text/plain; charset=latin-1"}
    raw = Raw(packed(b"x" * 1_048_576 + "é".encode()))
    response = httpx2.Response(status, headers=headers, request=request, stream=raw)
    await take_over(response)
    assert "content-encoding" not in response.headers, "else the library would decode it once more"
    if bounded:
        with pytest.raises(BadAnswer, match="over the bound of 1,048,576 bytes"):
            await response.aread()
    else:
        await response.aread()
        assert response.text.endswith("xé")
    await response.aclose()


@for_each(
    ("chunks", "most"),
    [
        ([b"4\r\nabcd\r\n"], 32_768),
        ([b"4\r\nabcd\r\n"] * 3, 32_768),
        ([b"1\r\na\r\n" * 255], 32_768),
        ([b"1\r\na\r\n" * 256], 16_384),
        ([b"1\r\na\r\n" * 256, b"4\r\nabcd\r\n"], 32_768),
    ],
)
def test_more_is_read_at_once_of_a_body_in_chunks_as_long_as_these_are_few(
    chunks: list[bytes], most: int
) -> None:
    frame = Frame()
    frame.look(HEAD + b"\r\n")
    for chunk in chunks:
        frame.look(chunk)
    assert frame.most == most


@in_real_time
async def test_what_is_asked_of_the_network_is_asked_of_it_with_its_times() -> None:
    asked: list[Any] = []

    class Recorded(Network):
        async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            asked.append(("read", timeout))
            return b"HTTP/1.1 200 OK\r\n\r\n"

        async def write(self, buffer: bytes, timeout: float | None = None) -> None:
            asked.append((buffer, timeout))

        async def start_tls(
            self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
        ):
            asked.append((ssl_context, server_hostname, timeout))
            return Recorded()

        def get_extra_info(self, info: str) -> Any:
            return f"of {info}"

    class Connects(httpcore2.AsyncNetworkBackend):
        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> httpcore2.AsyncNetworkStream:
            asked.append((host, port, timeout, local_address, socket_options))
            if host == "never":
                await anyio.sleep_forever()
            return Recorded()

        async def sleep(self, seconds: float) -> None:
            asked.append(seconds)

    network = http_bounds._BoundedNetwork(Connects())
    await network.sleep(2.5)
    stream = await network.connect_tcp("h", 80, 1.5, "::1", [(1, 2, 3)])
    tls: Any = object()
    secured = await stream.start_tls(tls, "h.test", 3.5)
    assert asked == [2.5, ("h", 80, None, "::1", [(1, 2, 3)]), (tls, "h.test", None)], (
        "the time is counted by us"
    )
    with pytest.raises(httpcore2.ConnectTimeout):
        await network.connect_tcp("never", 80, 0.01)
    for each in (stream, secured):
        del asked[:]
        await each.write(b"POST", 4.5)
        await each.read(1 << 20, 5.5)
        assert asked == [(b"POST", 4.5), ("read", 5.5)]
        assert each.get_extra_info("socket") == "of socket"
        await each.write(b"POST")
        each._stream.read = Network(HEAD + b"a:\r\n" * HTTP_HEAD_LINES).read  # pyright: ignore
        with pytest.raises(httpcore2.RemoteProtocolError, match="head of the answer is over"):
            await each.read(1 << 20)


# ---- results that are laid out on several lines --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expose", "newline", "by_events"),
    [("direct", "\n", False), ("direct", "\r\n", True), ("proxy", "\r\n", False)],
)
def test_a_result_on_several_lines_reaches_a_client_that_reads_lines(
    tmp_path: Path, expose: str, newline: str, by_events: bool
) -> None:
    def spread(handler: Handler, seen: Seen) -> bool:
        if seen.method != "tools/call":
            return False
        words = "a\nb" if seen.message["params"]["name"] == "ok" else "a\nb" * (LARGE_MESSAGE // 4)
        answer = {"jsonrpc": "2.0", "id": seen.message["id"], "result": text(words)}
        said = json.dumps(answer, indent=1).replace("\n", newline)
        if by_events:
            handler.begin_events()
            for line in said.splitlines():
                handler.wfile.write(f"data: {line}{newline}".encode())
            handler.wfile.write(newline.encode())
        else:
            handler.say(200, said.encode(), "application/json")
        return True

    with raw_http("2025-11-25") as server:
        server.hook = spread
        with serve(tmp_path, {"s": {"url": server.url}}, "--expose", expose) as gateway:
            gateway.initialize()
            for tool in ("ok", "slow"):
                params = {"name": f"s_{tool}", "arguments": {}}
                if expose == "proxy":
                    params = {"name": "mcp", "arguments": {"tool": f"s_{tool}", "args": {}}}
                answer = gateway.answer(gateway.send("tools/call", params))
                assert answer["result"]["content"][0]["text"].startswith("a\nb")
