"""The envelope: every field kept, every oddity told apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.actors._peer import RpcError
from greenroom.protocol.errors import UsageError
from greenroom.protocol.halves import repair_utf8
from greenroom.protocol.jsonrpc import (
    Stamp,
    WireFault,
    answer_id_in,
    as_id,
    decode_error,
    decode_line,
    decode_params,
    decode_result,
    encode_notification,
    encode_reply,
    encode_request,
    excerpt,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), values, max_size=4)
MODERN = Stamp.of("2026-07-28", {"name": "us"}, {"roots": {}})


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(objects.filter(_is_json), st.integers(1, 10**9))
def test_what_is_asked_is_what_is_written(params: dict[str, Any], rpc_id: int) -> None:
    line = encode_request(rpc_id, "tools/call", params)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"jsonrpc": "2.0", "id": rpc_id, "method": "tools/call", "params": params}


@given(objects.filter(_is_json), st.booleans())
def test_a_stamp_adds_to_the_params_and_changes_nothing_of_them(
    params: dict[str, Any], progress: bool
) -> None:
    said = json.loads(encode_request(7, "tools/call", params, MODERN, progress=progress))["params"]
    meta = said.pop("_meta")
    own = params.pop("_meta", None)
    assert said == params
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientInfo"] == {"name": "us"}
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {"roots": {}}
    assert meta.get("progressToken") == (7 if progress else None)
    assert not isinstance(own, dict) or own.items() <= meta.items()


def test_a_caller_keeps_its_meta_but_cannot_speak_for_us() -> None:
    params = {"_meta": {"mine": 1, "progressToken": "theirs", "io.modelcontextprotocol/clientInfo": "forged"}}
    meta = json.loads(encode_request(7, "x", params, MODERN))["params"]["_meta"]
    assert meta["mine"] == 1
    assert "progressToken" not in meta
    assert meta["io.modelcontextprotocol/clientInfo"] == {"name": "us"}


def test_the_handshake_era_is_not_stamped() -> None:
    assert Stamp.of("2025-11-25", {"name": "us"}, {}).meta == b""
    assert encode_request(1, "ping", None) == b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


@given(objects.filter(_is_json))
def test_a_result_comes_through_field_by_field(result: dict[str, Any]) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 3, "result": result, "x": [1]}).encode()
    (message,) = decode_line(line)
    assert message.id == 3
    assert decode_result(bytes(message.result)) == result


@given(st.binary(max_size=60))
def test_no_line_raises_anything_but_a_wire_fault(line: bytes) -> None:
    try:
        decode_line(repair_utf8(line))
    except WireFault:
        answer_id_in(line)


@pytest.mark.parametrize(
    "line", [b"hello", b"", b"[", b"7", b'{"id":{}}', b"[" * 100_000, b'{"id":1,"result":NaN}']
)
def test_what_is_no_message_is_a_fault(line: bytes) -> None:
    with pytest.raises(WireFault):
        decode_line(line)


def test_a_batch_is_several_messages_where_the_protocol_has_it() -> None:
    line = b' [{"id":1,"result":{}},{"id":2,"result":{}}]'
    assert [message.id for message in decode_line(line, "2025-03-26")] == [1, 2]
    assert decode_line(b"[]", "2025-03-26") == []
    for version in (None, "2024-11-05", "2025-06-18", "2026-07-28"):
        with pytest.raises(WireFault, match="a batch, which"):
            decode_line(line, version)


def test_t35_a_batch_has_a_hundred_members_and_one_too_many_ends_its_decoding() -> None:
    full = b"[" + b",".join([b'{"id":1,"result":[[],{"a":"]"}]}'] * 100) + b"]"
    assert len(decode_line(full, "2025-03-26")) == 100
    with pytest.raises(WireFault, match="at most length 100"):
        decode_line(b"[" + b"{}," * 101 + b"]", "2025-03-26")
    with pytest.raises(WireFault, match="at most length 100"):  # what comes behind is not looked at
        decode_line(b"[" + b"{}," * 100 + b"{}" + b"nonsense" * 1000, "2025-03-26")


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b'{"jsonrpc":"2.0","id":17,"result":{"content":[', 17),
        (b' { "id" : 17 , "result":', 17),
        (b'{"id":"17","result":', 17),
        (b'{"id":17', None),  # more digits may follow
        (b'{"result":{"id":17,', None),  # not its own
        (b'{"jsonrpc":"2.0","id":17,"method":"roots/list"', None),  # a request of theirs
        (b'{"id":"abc","result":', None),
        (b" " * 300 + b'{"id":17,', None),
        (b"", None),
    ],
)
def test_the_id_of_a_broken_answer_is_read_only_when_it_is_sure(head: bytes, found: int | None) -> None:
    assert answer_id_in(head) == found


@pytest.mark.parametrize(
    ("result", "kind"), [(b"[]", "array"), (b"null", "null"), (b'"x"', "string"), (b"7", "number")]
)
def test_a_result_that_is_no_object_says_what_it_is(result: bytes, kind: str) -> None:
    with pytest.raises(WireFault, match=kind):
        decode_result(result)


def test_errors_are_kept_as_said_and_malformed_ones_are_faults() -> None:
    error = decode_error(b'{"code":-32000,"message":"no","data":{"a":[1]}}')
    assert (error.code, error.message, error.data, error.fault) == (-32000, "no", {"a": [1]}, False)
    assert decode_error(b'"boom"').fault
    assert decode_error(b'{"message":"no code"}').fault


def test_params_that_are_no_object_are_a_fault() -> None:
    (message,) = decode_line(b'{"method":"x","params":[1]}')
    with pytest.raises(WireFault, match="array"):
        decode_params(message.params)
    (message,) = decode_line(b'{"method":"x"}')
    assert decode_params(message.params) is None


def test_replies_and_notifications() -> None:
    assert json.loads(encode_reply("a", None)) == {"jsonrpc": "2.0", "id": "a", "result": {}}
    refused = json.loads(encode_reply(1.5, None, RpcError(-32601, "no", {"why": 1})))
    assert refused == {
        "jsonrpc": "2.0",
        "id": 1.5,
        "error": {"code": -32601, "message": "no", "data": {"why": 1}},
    }
    assert json.loads(encode_notification("n", {"a": 1})) == {
        "jsonrpc": "2.0",
        "method": "n",
        "params": {"a": 1},
    }


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}])
def test_what_json_cannot_say_is_the_callers_to_mend(value: object) -> None:
    with pytest.raises(UsageError, match="cannot be sent as JSON"):
        encode_request(1, "x", {"a": value})


def test_bad_utf8_is_replaced_and_good_lines_are_not_copied() -> None:
    good = "é".encode()
    assert repair_utf8(good) is good
    assert repair_utf8(b"\xff") == "\ufffd".encode()


def test_an_excerpt_is_printable_and_short() -> None:
    assert excerpt(b"\x1b[31mred\n\xff") == '"\\u001b[31mred\\n\ufffd"'
    for length in (79, 80):
        assert excerpt(b"a" * length) == f'"{"a" * length}"'
    assert excerpt(b"a" * 81) == f'"{"a" * 80}"… (81 bytes)'
    assert excerpt(b"a" * 2000) == f'"{"a" * 80}"… (2,000 bytes)'


@pytest.mark.parametrize(
    ("said", "number"),
    [
        (7, 7), ("7", 7), (7.0, 7), (7.5, 0), (-7, -7), ("-7", 0), ("7 ", 0), ("7.0", 0), ("\u0667", 0), ("", 0),
        ("1" * 18, int("1" * 18)), ("1" * 19, 0), (True, 0), (None, 0), ([7], 0), (float("inf"), 0),
    ],
)  # fmt: skip
def test_our_id_is_known_again_in_each_form_and_nothing_else_is_taken_for_it(said: Any, number: int) -> None:
    assert as_id(said) == number
