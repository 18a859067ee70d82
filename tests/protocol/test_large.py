"""Large messages: only the envelope is read, and what is inside stays as it came."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.protocol.bounds import LARGE_MESSAGE
from greenroom.protocol.jsonrpc.incoming import (
    decode_line,
    decode_result,
    plain_call,
    read_client_line,
    read_large_parts,
)
from greenroom.protocol.jsonrpc.terms import RpcFault, WireFault
from greenroom.protocol.safe_text import JsonRepair, mend_escapes, repair_utf8

PIECES = [
    *(b"a", rb"\\", rb"\"", rb"\u00e9", rb"\ud83d", rb"\uDe00", b"ud83d" * 4),
    *("é".encode(), "\U0001f600".encode(), b"\xff", b"\xc3", b"\xf0\x9f"),
]


@given(st.lists(st.sampled_from(PIECES)), st.integers(1, 20))
def test_text_is_repaired_in_pieces_as_in_one_go(parts: list[bytes], size: int) -> None:
    data, repair = b"".join(parts), JsonRepair()
    found = [repair.take(data[at : at + size]) for at in range(0, len(data), size)]
    found.append(repair.take(b"", is_last=True))

    valid = bytes(repair_utf8(data))
    assert b"".join(found) == (mend_escapes(valid) or valid)
    assert repair.has_replaced is (valid != data)


def large(line: bytes) -> bytearray:
    """A line with as many spaces around it as make it large."""
    return bytearray(line.rjust(LARGE_MESSAGE))


def test_the_parts_of_a_large_message_stay_as_they_came() -> None:
    result = b'{"a": [1, {"b":"\\u00e9"}], "x":"%b"}' % (b"x" * LARGE_MESSAGE)
    (message,) = decode_line(bytearray(b'{"id":7,"result":%b,"more":[]}' % result))
    assert (message.id, message.method, bytes(message.result)) == (7, None, result)
    asked = read_client_line(bytearray(b'{"id":"a","method":"m","params":%b}' % result))
    assert (bytes(asked.id), asked.method, bytes(asked.params)) == (b'"a"', "m", result)


@for_each("line", [b"{", b'{"id":1,"result":{"a":}}', b'{"id":1,"result":["x\ty"]}', b"y", b"7", b""])
def test_a_large_line_that_is_no_message_is_none(line: bytes) -> None:
    with pytest.raises(WireFault):
        decode_line(large(line))


def _fault(line: bytes) -> tuple[int, str]:
    with pytest.raises(RpcFault) as caught:
        read_client_line(large(line))
    return caught.value.code, caught.value.message


@for_each(
    ("line", "code", "words"),
    [
        (b"[{}]", -32600, "Batches are not supported: send each JSON-RPC object by itself."),
        (b" 5", -32600, "Not a JSON-RPC message: send each JSON-RPC object by itself."),
        (b'{"id":1', -32700, "Parse error: "),
        (b'{"method":5}', -32600, "Not a JSON-RPC message: "),
        (b"[" * 100_000, -32600, "Batches are not supported: "),
        (b'{"params":' + b"[" * 1_000_000, -32700, "Parse error: nested too deeply"),
        (b'{"id":"' + b"x" * 65_535 + b'"}', -32600, "Invalid request: its id is longer than 65,536 bytes."),
        (
            b'{"method":"' + b"x" * 65_537 + b'"}',
            -32600,
            "Invalid request: its method is longer than 65,536 bytes.",
        ),
    ],
    ids=lambda said: repr(said)[:40],
)
def test_a_client_is_told_what_was_wrong_with_its_large_line(line: bytes, code: int, words: str) -> None:
    found = _fault(line)
    assert found[0] == code
    assert found[1].startswith(words)


def test_an_id_and_a_method_of_just_their_bound_are_read() -> None:
    for name in ("id", "method"):
        data = large(b'{"%b":"%b"}' % (name.encode(), b"x" * 65_534))
        (message,) = decode_line(data)
        assert getattr(message, name) == "x" * 65_534
        read_client_line(data)
        with pytest.raises(WireFault, match=f"its {name} is longer than 65,536 bytes"):
            decode_line(large(b'{"%b":"%b"}' % (name.encode(), b"x" * 65_537)))


def test_the_params_of_a_large_message_are_read_by_their_parts() -> None:
    def read(params: bytes) -> Any:
        return read_large_parts(msgspec.Raw(params))

    assert read(b'{"name": "t","arguments":{"a": 1} }') == {
        "name": msgspec.Raw(b'"t"'),
        "arguments": msgspec.Raw(b'{"a": 1}'),
    }
    for broken in (b"[1]", b'{"a":1'):
        with pytest.raises(RpcFault, match=r"^Invalid params: ") as caught:
            read(broken)
        assert caught.value.code == -32602
    long = b"x" * LARGE_MESSAGE
    fits = b'{"arguments":"%b","inputResponses":"%b","_meta":"%b"}' % (long, long, b"x" * 262_100)
    assert len(bytes(read(fits)["_meta"])) == 262_102
    keys = b",".join(b'"%d":1' % number for number in range(30_000))
    for rest in (b'"_meta":"%b"' % long, b'"name":"%b"' % long, b'"arguments":1,' * 20_000 + b'"a":1', keys):
        with pytest.raises(RpcFault, match="may have 262,144 bytes beside arguments and inputResponses"):
            read(b'{"arguments":"%b",%b}' % (long, rest))


@for_each(
    ("parts", "found"),
    [
        ({"name": b'"t"', "arguments": b"{}"}, ("t", b"{}")),
        ({"name": b'"t"'}, ("t", b"")),
        ({"name": b'""', "arguments": b"null"}, ("", b"null")),
        ({"name": b'"%b"' % (b"x" * 65_534)}, ("x" * 65_534, b"")),
        ({"name": b'"%b"' % (b"x" * 65_535)}, None),
        ({"name": b"5"}, None),
        ({"arguments": b"{}"}, None),
        ({"name": b'"t"', "_meta": b"{}"}, None),
        ({}, None),
    ],
)
def test_a_large_call_is_a_plain_one_if_it_has_nothing_else(parts: dict[str, bytes], found: Any) -> None:
    call = plain_call({name: msgspec.Raw(part) for name, part in parts.items()})
    assert (None if call is None else (call.name, bytes(call.arguments))) == found


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_is_afterwards_as_it_was(was_on: bool) -> None:
    """Also when there is nothing to decode. A program that embeds us may have turned it off."""
    long = b'{"a":"' + b"x" * (1 << 17) + b'"}'
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        assert decode_result(long)
        assert gc.isenabled() is was_on
        with pytest.raises(WireFault):
            decode_result(long[:-1])
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()
