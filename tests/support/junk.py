"""What nobody should ever send: strategies for broken, hostile and merely odd messages, and for cutting them up."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

_EDGES = st.sampled_from(
    [
        0,
        -1,
        2**31,
        2**53 + 1,
        2**63,
        2**64,
        -(2**64),
        10**400,
        0.5,
        -0.0,
        1e-320,
        1.7e308,
        True,
        None,
        "",
        "\0",
        "é",
    ]
)
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["x" * 300, "\x1b[2J", "\u2028", "../../etc", "${A:-${B}}", "\udfff"]
)
SCALARS = st.one_of(
    _EDGES, TEXTS, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)

# Bytes that are JSON to nobody, or JSON that only some can read.
FRAGMENTS = st.sampled_from(
    [
        b"", b" \t\r", b"\0", b"\xff\xfe", b"\xef\xbb\xbf{}", b"\xc3", b"\xed\xa0\x80", b"Listening on port 3000 ...",
        b"{", b"}", b"[", b"]", b"null", b"true", b"7", b'"', b'"\\ud800"', b'{"a":', b"[1,]", b"{'a':1}", b"[]",
        b"[" * 5000, b'{"a":' * 5000, b"[" * 900 + b"]" * 900, b"1e999", b"-", b"1" * 5000, b"NaN", b"Infinity",
        b'{"id":1e999}', b'{"id":[]}', b'{"id":{}}', b'{"id":true}', b'{"id":"\\ud800","method":"x"}',
        b'{"jsonrpc":"2.0"}', b'{"method":7}', b'{"method":null}', b'{"method":"x","params":[1]}',
        b'{"method":"x","params":1e999}', b'{"method":"x","method":"y"}', b'{"params":{},"params":[]}',
    ]
)  # fmt: skip
METHODS = st.one_of(
    st.sampled_from(
        ["ping", "initialize", "tools/list", "tools/call", "resources/read", "notifications/cancelled",
         "notifications/progress", "notifications/message", "sampling/createMessage", "roots/list",
         "notifications/tools/list_changed", "subscriptions/listen", "logging/setLevel", "resources/subscribe",
         "completion/complete", "prompts/get", "server/discover", "notifications/initialized"]
    ),
    TEXTS,
)  # fmt: skip


def dumped(value: Any) -> bytes:
    """JSON as any client may write it, a lone surrogate as an escape."""
    return json.dumps(value).encode()


def messages(ids: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Objects with the keys of JSON-RPC and any values."""
    parts = {"jsonrpc": st.just("2.0") | VALUES, "id": ids, "method": METHODS | VALUES, "params": VALUES}
    answers = {"result": VALUES, "error": VALUES | st.fixed_dictionaries({"code": VALUES, "message": VALUES})}
    return st.fixed_dictionaries({}, optional={**parts, **answers}).map(dumped)


def lines(ids: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """One line of junk, without its newline: fragments, bytes, messages, messages cut short or spoilt, batches."""
    whole = messages(ids)
    batches = st.lists(whole, max_size=4).map(lambda each: b"[" + b",".join(each) + b"]")
    cut = st.builds(lambda line, at: line[: at % (len(line) + 1)], whole, st.integers(0))
    spoilt = st.builds(_with_byte, whole, st.integers(0), st.integers(0, 255))
    huge = st.builds(lambda line, size: line + b" " * size, whole, st.integers(0, 6000))
    found = st.one_of(FRAGMENTS, st.binary(max_size=40), whole, whole, batches, cut, spoilt, huge)
    return found.map(lambda line: line.replace(b"\n", b" "))


def _with_byte(line: bytes, at: int, byte: int) -> bytes:
    at %= len(line) + 1
    return line[:at] + bytes([byte]) + line[at + 1 :]


CUTS = st.lists(st.integers(0), max_size=12)


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    """The same bytes, cut into pieces."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]
