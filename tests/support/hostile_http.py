"""What a hostile HTTP server sends instead of an answer: whole responses, as bytes, each a few lines of data.

`ATTACKS` are meant to be expensive: small for the sender, long or large for the reader. `ODD` are meant to be
misunderstood. `responses` draws more of both.
"""

from __future__ import annotations

import zlib
from functools import cache

from hypothesis import strategies as st

MIB = 1 << 20
JSON, EVENTS = b"application/json", b"text/event-stream"


def response(body: bytes, *headers: bytes, kind: bytes = JSON, status: bytes = b"200 OK") -> bytes:
    """A response that ends with its connection."""
    lines = [b"HTTP/1.1 " + status, b"Content-Type: " + kind, b"Connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def packed(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


@cache
def zeros(times: int) -> bytes:
    """`MIB` times as many zeros, packed `times` times: made of one packed piece, over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = b"\0" * MIB
    first, again = (packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    data = first + again * 1023
    for _ in range(times - 1):
        data = packed(data)
    return data


GZIP = b"Content-Encoding: gzip"
CHUNKED = b"Transfer-Encoding: chunked"


@cache
def attacks() -> dict[str, bytes]:
    return {
        "packed": response(zeros(1), GZIP),
        "packed twice": response(zeros(2), GZIP, GZIP),
        "packed three times": response(zeros(3), b"Content-Encoding: gzip, gzip, gzip"),
        "packed three times, 5 KB": response(zeros(3) + b"\0" * 4700, b"Content-Encoding: gzip, gzip, gzip"),
        "a packed stream": response(zeros(1), GZIP, kind=EVENTS),
        "a stream packed three times": response(zeros(3), b"Content-Encoding: gzip,gzip,gzip", kind=EVENTS),
        "a packed refusal": response(zeros(1), GZIP, status=b"500 No"),
        "a packed login": response(zeros(1), GZIP, status=b"401 Who"),
        "a refusal packed three times": response(zeros(3), GZIP, GZIP, GZIP, status=b"404 No"),
        "many chunks": response(b"1\r\nx\r\n" * 11_000 + b"0\r\n\r\n", CHUNKED),
        "many chunks over the bound": response(b"1\r\nx\r\n" * 8 + b"fffff\r\n" + b"x" * 0xFFFFF + b"\r\n"
                                               + b"1\r\nx\r\n" * 11_000, CHUNKED),
        "many trailers": response(b"0\r\n" + b"a:\r\n" * 20_000 + b"\r\n", CHUNKED),
        "many headers": response(b"{}", *[b"a:"] * 20_000),
        "many cookies": response(b"{}", *[b"Set-Cookie: a%d=b" % n for n in range(250)]),
        "one long cookie": response(b"{}", b"Set-Cookie: " + b"a=b;" * 7000),
        "many interim answers": b"HTTP/1.1 100 \r\n\r\n" * 20_000 + response(b"{}"),
        "many empty lines": response(b"\n" * 100_000, kind=EVENTS),
        "many small lines": response(b"data:\r" * 50_000, kind=EVENTS),
        "many events": response(b'data:{"jsonrpc":"2.0","method":"x"}\n\n' * 10_000, kind=EVENTS),
        "many ids": response(b"id:1\nretry:0\n\n" * 20_000, kind=EVENTS),
    }  # fmt: skip


ODD: dict[str, bytes] = {
    "a session id that is no ASCII": response(b"{}", "Mcp-Session-Id: séance".encode()),
    "a session id that is not UTF-8": response(b"{}", b"Mcp-Session-Id: \xff\xfe"),
    "a long session id": response(b"{}", b"Mcp-Session-Id: " + b"x" * 20_000),
    "no session id": response(b"{}", b"Mcp-Session-Id:"),
    "an event id that is no ASCII": response("id: é\u2028\n\n".encode(), kind=EVENTS),
    "an event id with a tab": response(b"id: a\tb\x01\n\n", kind=EVENTS),
    "a long event id": response(b"id: " + b"x" * 200_000 + b"\n\n", kind=EVENTS),
    "a cookie that is no ASCII": response(b"{}", "Set-Cookie: a=é".encode(), b"Set-Cookie: b=\xff"),
    "a cookie with everything": response(b"{}", b"Set-Cookie: a=b; version=x; port=y; expires=z; max-age=-; path=%"),
    "brotli": response(b"\x0b\x01\x80{}\x03", b"Content-Encoding: br"),
    "zstandard": response(b"(\xb5/\xfd", b"Content-Encoding: zstd"),
    "an unknown encoding": response(b"{}", "Content-Encoding: größer".encode()),
    "no gzip": response(b"{}", GZIP),
    "half a gzip": response(packed(b"{}" * 500)[:20], GZIP),
    "gzip and more": response(packed(b"{}") + b"\0" * 100, GZIP),
    "an unknown charset": response(b"{}", kind=b"application/json; charset=zlib"),
    "charset UTF-16": response("{}".encode("utf-16"), kind=b"application/json; charset=utf-16"),
    "no content type": response(b"{}", kind=b""),
    "an image": response(b"\x89PNG", kind=b"image/png"),
    "a redirect to nowhere": response(b"", b"Location: http://[", status=b"307 There"),
    "a redirect to a bad port": response(b"", b"Location: //h:99999/", status=b"308 There"),
    "a redirect to a bad name": response(b"", b"Location: http://xn--/\xff", status=b"307 There"),
    "a redirect to another scheme": response(b"", b"Location: mailto:you", status=b"307 There"),
    "a redirect without a place": response(b"", status=b"302 There"),
    "switched": response(b"", b"Upgrade: x", status=b"101 Now"),
    "no content": response(b"{}", status=b"204 Nothing"),
    "not modified": response(b"{}", status=b"304 Same"),
    "status 999": response(b"{}", status=b"999 \xff"),
    "status 000": response(b"{}", status=b"000 None"),
    "a login in no ASCII": response(b"", b"WWW-Authenticate: Bearer \xff\x01", status=b"401 Who"),
    "two lengths": response(b"{}", b"Content-Length: 2", b"Content-Length: 3"),
    "a length below nothing": response(b"{}", b"Content-Length: -2"),
    "a chunk of no size": response(b"zz\r\n{}\r\n", CHUNKED),
    "a chunk too large": response(b"f" * 30 + b"\r\n{}\r\n", CHUNKED),
    "HTTP/9": b"HTTP/9.9 200 OK\r\n\r\n{}",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x16",
    "nothing": b"",
    "an endpoint that is not a URL": response(b"event: endpoint\ndata: http://[\n\n", kind=EVENTS),
    "an endpoint of bytes": response(b"event: endpoint\ndata: \xff\x00\x7f\n\n", kind=EVENTS),
    "an endpoint far too long": response(b"event: endpoint\ndata: /" + b"x" * 100_000 + b"\n\n", kind=EVENTS),
}  # fmt: skip

_NAMES = st.sampled_from(
    [
        b"Content-Type", b"Content-Encoding", b"Content-Length", b"Transfer-Encoding", b"Location", b"Set-Cookie",
        b"Mcp-Session-Id", b"WWW-Authenticate", b"Connection", b"Upgrade", b"Retry-After", b"Link", b"X\xff", b"",
    ]
)  # fmt: skip
_VALUES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            JSON, EVENTS, b"gzip", b"deflate", b"br", b"gzip, gzip", b"identity", b"chunked", b"0", b"2", b"-1", b"1e3",
            b"/", b"//", b"http://[::1", b"http://h:0x1", b"?", b"a=b; path=/; domain=.", b"a=\xff", b"close",
            b"text/event-stream; charset=idna", b'Bearer error="insufficient_scope", scope="\xe9"',
        ]
    ),
)  # fmt: skip
_STATUSES = st.sampled_from(
    [
        b"200 OK",
        b"202 Yes",
        b"204 No",
        b"101 Now",
        b"307 There",
        b"401 Who",
        b"403 No",
        b"404 Gone",
        b"500 Ill",
    ]
) | st.binary(max_size=8)
_BODIES = st.one_of(
    st.binary(max_size=64),
    st.sampled_from(
        [
            b"{}", packed(b"{}"), packed(b"data: {}\n\n"), b"data: {}\n\n", b"id: \xff\n\n", b"retry: 0\n\n",
            b"event: endpoint\ndata: //[\n\n", b"event: endpoint\ndata: /\xff\n\n", b"2\r\n{}\r\n0\r\n\r\n",
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"Server not initialized"}}',
            b'{"jsonrpc":"2.0","id":1,"error":{"code":1e99}}', b'{"jsonrpc":"2.0","id":null,"error":{}}', b"[{}]",
        ]
    ),
)  # fmt: skip


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A response that is nearly one, or nothing of the sort."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    lines = [b"HTTP/1.1 " + draw(_STATUSES), b"Connection: close"]
    lines += [name + b": " + value for name, value in draw(st.lists(st.tuples(_NAMES, _VALUES), max_size=5))]
    return b"\r\n".join(lines) + b"\r\n\r\n" + draw(_BODIES)
