"""The envelope: every field kept, every oddity told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.protocol.errors import UsageError
from greenroom.protocol.jsonrpc.encoding import encode, encode_json, weigh
from greenroom.protocol.jsonrpc.incoming import (
    answer_id_in,
    as_id,
    decode_error,
    decode_line,
    decode_params,
    decode_result,
    excerpt,
    read_at,
    read_call,
    read_cancel,
    read_client_line,
    read_client_lines,
    read_head_id,
    read_id,
    read_meta,
    read_object,
    read_parts,
    read_plain_call,
    read_value,
)
from greenroom.protocol.jsonrpc.outgoing import (
    Stamp,
    encode_notification,
    encode_reply,
    encode_request,
    error_line,
    for_handshake,
    for_modern,
    large_array,
    large_result_line,
    raw_line,
    request_line,
    result_line,
)
from greenroom.protocol.jsonrpc.terms import RpcError, RpcFault, WireFault
from greenroom.protocol.safe_text import repair_utf8

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


@for_each(("stamp", "progress"), [(MODERN, False), (MODERN, True), (Stamp(), True)])
@for_each("own", [None, 5, [["a", 1]]])
@for_each("more", [{}, {"a": 1}], ids=["alone", "with more"])
def test_a_callers_meta_that_is_no_object_does_not_hide_ours(
    stamp: Stamp, progress: bool, own: Any, more: dict[str, Any]
) -> None:
    line = encode_request(7, "x", {"_meta": own, **more}, stamp, progress=progress)
    assert line.count(b'"_meta":') == 1  # of two, most servers take the last
    said = json.loads(line)["params"]
    meta = said.pop("_meta")
    assert said == more
    assert meta.get("progressToken") == (7 if progress else None)
    assert ("io.modelcontextprotocol/protocolVersion" in meta) == bool(stamp.meta)


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


@for_each("line", [b"hello", b"", b"[", b"7", b'{"id":{}}', b"[" * 100_000, b'{"id":1,"result":NaN}'])
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


@for_each(
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


@for_each(("result", "kind"), [(b"[]", "array"), (b"null", "null"), (b'"x"', "string"), (b"7", "number")])
def test_a_result_that_is_no_object_says_what_it_is(result: bytes, kind: str) -> None:
    with pytest.raises(WireFault, match=kind):
        decode_result(result)


def test_errors_are_kept_as_said_and_malformed_ones_keep_their_words() -> None:
    error = decode_error(b'{"code":-32000,"message":"no","data":{"a":[1]}}')
    assert (error.code, error.message, error.data, error.fault) == (-32000, "no", {"a": [1]}, False)
    for said, code, words in (
        (b'"boom"', -32603, "boom"),
        (b'{"message":"boom"}', -32603, "boom"),
        (b'{"code":"E_BOOM","message":"boom"}', -32603, "boom (code E_BOOM)"),
        (b'{"code":-32000.0,"message":"boom"}', -32000, "boom"),
        (b'{"code":1.5,"message":"boom"}', -32603, "boom"),
        (b'{"code":null,"message":"boom"}', -32603, "boom"),
        (b'{"code":5,"message":{"en":"boom"}}', -32603, '{"code":5,"message":{"en":"boom"}}'),
        (b'["boom"]', -32603, '["boom"]'),
        (b'{"code":5,"data":"boom"}', 5, '{"code":5,"data":"boom"}'),
    ):
        error = decode_error(said)
        assert (error.code, error.message, error.fault) == (code, words, False)
    assert decode_error(b'{"code":').fault


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


@for_each(
    ("said", "number"),
    [
        (7, 7), ("7", 7), (7.0, 7), (7.5, 0), (-7, -7), ("-7", 0), ("7 ", 0), ("7.0", 0), ("\u0667", 0), ("", 0),
        ("1" * 18, int("1" * 18)), ("1" * 19, 0), (True, 0), (None, 0), ([7], 0), (float("inf"), 0),
    ],
)  # fmt: skip
def test_our_id_is_known_again_in_each_form_and_nothing_else_is_taken_for_it(said: Any, number: int) -> None:
    assert as_id(said) == number


# ---- from a client --------------------------------------------------------------------------------------------------


def _fault(read: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(RpcFault) as caught:
        read()
    return caught.value.code, caught.value.message


@for_each(
    ("line", "code", "words"),
    [
        (b"", -32700, "Parse error: "),
        (b"{", -32700, "Parse error: "),
        (b"nonsense", -32700, "Parse error: "),
        (b'{"id":1,"method":"x","params":NaN}', -32700, "Parse error: "),
        (b'{"params":' + b"[" * 1_000_000, -32700, "Parse error: nested too deeply"),
        (b' [{"id":1}]', -32600, "Batches are not supported: send each JSON-RPC object by itself."),
        (b"7", -32600, "Not a JSON-RPC message: send each JSON-RPC object by itself."),
        (b'"[x]"', -32600, "Not a JSON-RPC message: send each"),
        (b'{"method":5}', -32600, "Not a JSON-RPC message: send each"),
    ],
)
def test_a_client_is_told_what_was_wrong_with_its_line(line: bytes, code: int, words: str) -> None:
    found = _fault(lambda: read_client_line(line))
    assert found[0] == code
    assert found[1].startswith(words)


LINES = (
    b'{"id":1,"method":"x"}',
    b'{"id":"\xc3\xa9","method":"x","params":{}}\r',
    b'{"method":"x","params":{"requestId":1}}',
    b'{"id":2,"result":{}}',
    b"",
    b"  ",
    b"[]",
    b'{"id":3,"result":' + b"[" * 3000,
    b'{"id":"\xff","method":"x"}',
    b'{"id":4,"method":"\\ud83d"}',
    b'{"id":5,"method":"x"',  # one message on this line and the next
    b',"params":{}}',
    b'{"id":6}{"id":7}',
    b'\xef\xbb\xbf{"id":8,"method":"x"}',
)


@given(st.lists(st.sampled_from(LINES), max_size=6))
def test_many_lines_are_read_as_each_of_them_is(lines: list[bytes]) -> None:
    def read(line: bytes) -> tuple[str | None, bytes]:
        try:
            message = read_client_line(line.removeprefix(b"\xef\xbb\xbf"))
        except RpcFault:
            return None, read_head_id(line)
        return message.method, bytes(message.id)

    found = list(read_client_lines(b"".join(line + b"\n" for line in lines)))
    assert [line for line, _ in found] == (lines or [b""])
    assert [(message.method, bytes(message.id)) for _, message in found] == [read(line) for line, _ in found]


@for_each("key", [b"1", b"-1", b"1.50", b'"a"', b'"\\u00e9"', b"0", b'""'])
def test_a_clients_id_stays_as_it_was_written(key: bytes) -> None:
    message = read_client_line(b'{"id": %b ,"method":"x"}' % key)
    assert read_id(message) == key


@for_each("key", [b"null", b"true", b"[1]", b"{}"])
def test_an_id_is_a_string_or_a_number_and_a_notification_has_none(key: bytes) -> None:
    message = read_client_line(b'{"id":%b,"method":"x"}' % key)
    assert _fault(lambda: read_id(message)) == (
        -32600,
        "Invalid request: the id must be a string or a number.",
    )
    assert read_id(read_client_line(b'{"method":"x"}')) == b""


def test_bad_utf8_of_a_client_is_replaced_and_half_a_character_is_kept_in_its_id_alone() -> None:
    message = read_client_line(b'{"id":"\xff","method":"x","params":{"a":"\xff"}}')
    assert (bytes(message.id), bytes(message.params)) == ('"\ufffd"'.encode(), '{"a":"\ufffd"}'.encode())
    message = read_client_line(b'{"id":"\\ud83d","method":"\\ud83d","params":{"a":"\\ud83d"}}')
    assert bytes(message.id) == b'"\\ud83d"'
    assert message.method == "\ufffd"
    assert b"ud83d" not in bytes(message.params)
    message = read_client_line(b'{"method":"x","params":{"a":"\\ud83d"}}')
    assert bytes(message.id) == b""


def test_half_a_character_of_a_server_is_kept_in_all_that_passes() -> None:
    (message,) = decode_line(
        b'{"id":"\\ud83d","method":"x","params":{"a":"\\ud83d"},"error":{"b":"\\ud83d"}}'
    )
    assert message.id == "\ud83d"
    assert bytes(message.params) == b'{"a":"\\ud83d"}'
    assert bytes(message.error) == b'{"b":"\\ud83d"}'
    (message,) = decode_line(b'{"id":7,"result":{"a":"\\ud83d"}}')
    assert (message.id, bytes(message.result), bytes(message.params)) == (7, b'{"a":"\\ud83d"}', b"")


@for_each(
    ("head", "key"),
    [
        (b'{"id":1,', b"1"),
        (b'{"id":"a"}', b'"a"'),
        (b'{"id":-5 ,', b"-5"),
        (b'{"id":' + b"1" * 18 + b",", b"1" * 18),
        (b'{"id":' + b"1" * 19 + b",", b""),
        (b'{"id":1.5,', b""),
        (b'{"id":"a\\n",', b""),
        (b'{"x":"' + b"y" * 242 + b'","id":1,', b""),
        (b'{"x":"' + b"y" * 241 + b'","id":1,', b"1"),
        (b'{"x":[],"id":1,', b""),
        (b'["id":1,', b""),
    ],
)
def test_the_head_of_a_line_shows_its_id_within_its_first_bytes(head: bytes, key: bytes) -> None:
    assert read_head_id(head) == key
    assert answer_id_in(head) == (int(key) if key.isdigit() else None)
    assert answer_id_in(b'{"id":"' + b"1" * 19 + b'",') is None


@for_each(
    ("params", "fields"),
    [
        (b'{"name":"t"}', ("t", None, None)),
        (b'{"name":"t","arguments":null,"_meta":null,"more":1}', ("t", None, None)),
        (b'{"name":"","arguments":{},"_meta":{"a":1}}', ("", {}, {"a": 1})),
        (b"{}", None),
        (b"", None),
        (b"null", None),
        (b'{"name":5}', None),
        (b'{"name":"t","arguments":[1]}', None),
        (b'{"name":"t","_meta":5}', None),
    ],
)
def test_the_params_of_a_call(params: bytes, fields: Any) -> None:
    raw = msgspec.Raw(params)
    if fields is None:
        code, text = _fault(lambda: read_call(raw))
        assert (code, text.partition(":")[0]) == (-32602, "Invalid params")
    else:
        found = read_call(raw)
        assert (found.name, found.arguments, found.meta) == fields


@for_each(
    ("params", "renamed"),
    [
        (b'{"name":"t"}', {"name": "new"}),
        (b'{"name":"t","arguments":{"a": 1}}', {"name": "new", "arguments": b'{"a": 1}'}),
        (b'{"name":"t","arguments":null}', {"name": "new", "arguments": b"null"}),
        (b'{"name":"t","_meta":{}}', None),
        (b'{"name":"t","task":1}', None),
        (b'{"arguments":{}}', None),
        (b"", None),
        (b"{", None),
    ],
)
def test_a_plain_call_passes_as_it_came_under_another_name(params: bytes, renamed: Any) -> None:
    found = read_plain_call(msgspec.Raw(params))
    if renamed is None:
        assert found is None
    else:
        assert found is not None
        said = found.renamed("new")
        assert {name: bytes(part) if name != "name" else part for name, part in said.items()} == renamed


@pytest.mark.parametrize("raw", [b"", b"null"])
def test_params_that_are_absent_are_empty(raw: bytes) -> None:
    params = msgspec.Raw(raw)
    assert read_object(params) == {}
    assert read_parts(params) == {}
    assert decode_params(params) is None


@for_each("raw", [b"[]", b"5", b'"x"', b"{", b"[" * 100_000])
def test_params_that_are_no_object_are_answered(raw: bytes) -> None:
    for read in (read_object, read_parts, read_cancel):
        code, text = _fault(lambda read=read: read(msgspec.Raw(raw)))
        assert (code, text.partition(":")[0]) == (-32602, "Invalid params")
    if len(raw) > 100:
        code, text = _fault(lambda: read_value(msgspec.Raw(raw)))
        assert (code, text) == (-32602, "Invalid params: nested too deeply")
    assert read_at(msgspec.Raw(raw), ["a"]) is None


def test_parts_of_params_are_decoded_on_request() -> None:
    params = read_parts(msgspec.Raw(b'{"_meta":{"a":1},"n":null,"o":{"p":{"q":[0]}}}'))
    assert read_meta(params) == {"a": 1}
    assert read_meta({}) is None
    assert read_meta({"_meta": msgspec.Raw(b"null")}) is None
    assert _fault(lambda: read_meta({"_meta": msgspec.Raw(b"[]")})) == (
        -32602,
        "Invalid params: _meta must be an object.",
    )
    assert (read_value(None), read_value(params["n"]), read_value(params["o"])) == (
        None,
        None,
        {"p": {"q": [0]}},
    )
    assert read_at(params, ["o", "p", "q"]) == [0]
    assert read_at(params, []) == params
    assert read_at(params, ["o", "nope", "q"]) is None
    assert read_at(params, ["n", "p"]) is None
    assert read_at({"a": {"b": 0}}, ["a", "b"]) == 0
    assert [
        read_cancel(msgspec.Raw(raw)) for raw in (b'{"requestId": 1.50}', b'{"requestId":"a"}', b"{}", b"")
    ] == [
        *(b"1.50", b'"a"'),
        *(b"", b""),
    ]


# ---- from a server, once more ---------------------------------------------------------------------------------------


@for_each(
    ("value", "kind"),
    [
        *((b"null", "null"), (b"[]", "an array"), (b'"x"', "a string"), (b"true", "a boolean")),
        *((b"7", "a number"), (b"7.5", "a number")),
    ],
)
@for_each("padding", [0, 1 << 17])
def test_what_is_no_object_is_named_however_long_it_is(value: bytes, kind: str, padding: int) -> None:
    with pytest.raises(WireFault, match=rf"^the result is not an object but {kind}$"):
        decode_result(b" " * padding + value)
    if value != b"null":
        with pytest.raises(WireFault, match=rf"^the params are not an object but {kind}$"):
            decode_params(msgspec.Raw(b" " * padding + value))
    with pytest.raises(WireFault, match=r"^not JSON: "):
        decode_result(b" " * padding + b"{")


def test_an_error_may_lack_its_message_and_its_data_may_be_anything() -> None:
    for said, message, data in (
        (b'{"code":5}', '{"code":5}', None),
        (b'{"code":5,"message":"","data":0,"more":1}', "", 0),
        (b'{"code":5,"message":"m","data":""}', "m", ""),
        (b'{"code":5,"message":"\\ud83d"}', "\ufffd", None),
    ):
        error = decode_error(said)
        assert (error.code, error.message, error.data, error.fault, error.broken) == (
            5,
            message,
            data,
            False,
            False,
        )
    for said in (b"{}", b"5", b'{"code":"5"}', b'{"code":5,"message":1}'):
        error = decode_error(said)
        assert (error.code, error.message, error.fault) == (-32603, said.decode(), False)
    assert decode_error(b"{").message.startswith("the error of the answer is malformed (")


# ---- what goes out, once more ---------------------------------------------------------------------------------------


@for_each("size", [10, (1 << 18) - 20, 1 << 18, 1 << 19])
def test_a_long_line_is_the_line_that_a_short_one_would_be(size: int) -> None:
    text = "x" * size
    line = encode_request(7, "tools/call", {"a": text})
    assert line == b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":"%b"}}\n' % text.encode()
    assert raw_line(b'"k"', text.encode()) == b'{"jsonrpc":"2.0","id":"k","result":%b}\n' % text.encode()


@for_each(
    ("params", "stamp", "progress", "said"),
    [
        (None, Stamp(), False, None),
        ({}, Stamp(), False, {}),
        (None, Stamp(), True, {"_meta": {"progressToken": 7}}),
        ({"a": 1}, Stamp(), True, {"a": 1, "_meta": {"progressToken": 7}}),
        ({"_meta": 5, "a": 1}, Stamp(), False, {"_meta": 5, "a": 1}),
        ({"_meta": {"progressToken": "own"}}, Stamp(), False, {"_meta": {"progressToken": "own"}}),
        ({"_meta": {"progressToken": "own", "x": 1}}, Stamp(), True, {"_meta": {"progressToken": 7, "x": 1}}),
        ({"_meta": {}}, Stamp(b'"v":1'), True, {"_meta": {"v": 1, "progressToken": 7}}),
        (
            {"_meta": {"io.modelcontextprotocol/logLevel": "debug", "io.modelcontextprotocol/x": 1}},
            Stamp(b'"v":1'),
            False,
            {"_meta": {"io.modelcontextprotocol/logLevel": "debug", "v": 1}},
        ),
    ],
)
def test_what_a_request_says_beside_its_params(params: Any, stamp: Stamp, progress: bool, said: Any) -> None:
    message = json.loads(encode_request(7, "x/y", params, stamp, progress=progress))
    expected = {"jsonrpc": "2.0", "id": 7, "method": "x/y"}
    assert message == (expected if said is None else {**expected, "params": said})


def test_a_client_gets_whatever_can_be_written() -> None:
    large = 10**30
    assert encode({"a": large, "b": "é"}) == b'{"a":1000000000000000000000000000000,"b":"\xc3\xa9"}'
    assert encode({"a": "\ud83d"}) == '{"a":"\ufffd"}'.encode()
    with pytest.raises(UsageError, match=r"^This cannot be sent as JSON: .*\. Use objects, arrays"):
        encode_json({"a": object()})
    assert (weigh({"a": "é"}), weigh({"a": object()}), weigh(None)) == (10, 0, 4)
    assert encode_notification("n", None) == b'{"jsonrpc":"2.0","method":"n"}\n'
    assert encode_notification("n", {}) == b'{"jsonrpc":"2.0","method":"n","params":{}}\n'
    with pytest.raises(UsageError):
        encode_notification("n", {"a": object()})
    assert json.loads(encode_notification("n", {"a": large}, encode))["params"] == {"a": large}
    assert request_line(b'"k"', "m", {"a": large}) == (
        b'{"jsonrpc":"2.0","id":"k","method":"m","params":{"a":%d}}\n' % large
    )
    assert result_line(b"1.50", {"a": large}) == b'{"jsonrpc":"2.0","id":1.50,"result":{"a":%d}}\n' % large


@pytest.mark.parametrize(
    "values", [[], ["x"], ["x" * 3_000_000, {"a": [1]}, "é"]], ids=["none", "one", "megabytes"]
)
def test_what_is_joined_in_steps_is_what_would_be_joined_at_once(values: list[Any]) -> None:
    array = large_array(values)
    assert bytes(array) == encode(values)
    for result in ({}, {"content": array}, {"content": array, "isError": True, "_meta": {}}):
        assert large_result_line(b"1", result) == result_line(b"1", result)


def test_an_error_is_answered_under_the_id_as_it_was_written_or_under_null() -> None:
    assert error_line(b"1.50", RpcFault(-1, "m")) == (
        b'{"jsonrpc":"2.0","id":1.50,"error":{"code":-1,"message":"m"}}\n'
    )
    assert json.loads(error_line(b"", RpcFault(-1, "m", 0))) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -1, "message": "m", "data": 0},
    }
    circle: list[Any] = []
    circle.append(circle)
    line = error_line(b"1", RpcFault(-1, "m", circle))
    assert json.loads(line)["error"] == {"code": -1, "message": "m"}, "what cannot be written is left out"


def test_a_servers_own_id_comes_back_as_it_was_even_with_half_a_character() -> None:
    assert encode_reply("\ud83d", {"a": 1}) == b'{"jsonrpc":"2.0","id":"\\ud83d","result":{"a":1}}\n'
    assert json.loads(encode_reply(0, {}))["id"] == 0
    assert json.loads(encode_reply("", None, RpcError(-1, "", 0)))["error"] == {
        "code": -1,
        "message": "",
        "data": 0,
    }


# ---- results of the other era ---------------------------------------------------------------------------------------

SIGNED = {"io.modelcontextprotocol/serverInfo": {"name": "us"}}


@for_each(
    ("result", "said"),
    [
        ({}, {"resultType": "complete", "ttlMs": 1, "_meta": SIGNED}),
        ({"resultType": "task", "ttlMs": 0}, {"resultType": "task", "ttlMs": 0, "_meta": SIGNED}),
        (
            {"a": [1], "_meta": {"x": 1}},
            {"resultType": "complete", "ttlMs": 1, "a": [1], "_meta": {"x": 1, **SIGNED}},
        ),
        (
            {"_meta": {"io.modelcontextprotocol/serverInfo": "forged"}},
            {"resultType": "complete", "ttlMs": 1, "_meta": SIGNED},
        ),
        ({"_meta": 5}, {"resultType": "complete", "ttlMs": 1, "_meta": SIGNED}),
    ],
)
def test_a_result_for_the_newer_era_has_a_type_and_is_signed_by_us(result: Any, said: Any) -> None:
    assert json.loads(for_modern(json.dumps(result).encode(), SIGNED, {"ttlMs": 1})) == said


@for_each(
    ("result", "said"),
    [
        ({"resultType": "complete", "ttlMs": 1, "cacheScope": "x", "a": 1}, {"a": 1}),
        ({"_meta": {"x": 1, **SIGNED}, "a": 1}, {"a": 1, "_meta": {"x": 1}}),
        ({"_meta": SIGNED, "a": {"resultType": 1}}, {"a": {"resultType": 1}}),
        ({"_meta": 5}, {}),
    ],
)
def test_a_result_for_the_older_era_has_nothing_of_the_newer(result: Any, said: Any) -> None:
    assert json.loads(for_handshake(json.dumps(result).encode())) == said


def test_an_excerpt_may_be_longer_and_a_reason_is_short() -> None:
    assert excerpt(b"a" * 100, 200) == f'"{"a" * 100}"'
    assert excerpt(b"a" * 300, 200) == f'"{"a" * 200}"… (300 bytes)'
