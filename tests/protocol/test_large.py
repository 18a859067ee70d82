"""Large JSON, decoded, shown and written in slices: what comes out is what one go makes of it, and no slice is long."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support import in_real_time
from tests.support.profiles import examples

from greenroom.actors.workers import in_turns
from greenroom.gateway.exposures.result_texts import making_outcome, outcome_of
from greenroom.protocol import content, json_text, large_message
from greenroom.protocol import large_json as large
from greenroom.protocol.bounds import MESSAGE_PARTS, MESSAGE_VALUES
from greenroom.protocol.cooperative import Slices, finish
from greenroom.protocol.jsonrpc.encoding import decode, decode_parts
from greenroom.protocol.jsonrpc.incoming import ServerMessage, decode_line, decode_result, read_client_line
from greenroom.protocol.jsonrpc.terms import RpcFault, WireFault
from greenroom.protocol.large_message import reading_client_line, reading_line, repairing_utf8
from greenroom.protocol.safe_text import mend_escapes, repair_utf8

_any = msgspec.json.Decoder()
TEXT = st.text(st.sampled_from('a"\\\n,{}[]:\u00e9\U0001f600\ud83d\ude00') | st.characters(), max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=6),
    max_leaves=40,
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn is small, and so are the steps; a test of a long text sets them back."""
    monkeypatch.setattr(large, "_STEP", 48)
    monkeypatch.setattr(large, "_TOKENS", 9)
    monkeypatch.setattr(large, "_PIECE", 16)
    monkeypatch.setattr(large_message, "_PIECE", 3)
    monkeypatch.setattr(json_text, "_PIECE", 7)
    monkeypatch.setattr(content, "_PIECE", 5)
    monkeypatch.setattr(content, "_BLOCKS", 2)


def in_one_go(data: bytes) -> tuple[bool, str]:
    try:
        return True, repr(decode(_any, data))
    except (msgspec.MsgspecError, UnicodeError):
        return False, ""


def in_slices(data: bytes) -> tuple[bool, str]:
    try:
        return True, repr(finish(large.decoding(data)))
    except WireFault:
        return False, ""


def said(value: Any, *, plain: bool, indent: int | None) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=plain, indent=indent).encode()
    except UnicodeEncodeError:  # half a character stands in UTF-8 only as an escape
        return json.dumps(value, indent=indent).encode()


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
@example({"a" * 99: "\\" * 99 + "\ud83d\ude00" * 30}, True, None)
@example([["x" * 200], "y" * 100, {"k": {}}], False, None)
def test_what_is_decoded_in_slices_is_what_the_decoder_makes_of_it(
    value: Any, plain: bool, indent: int | None
) -> None:
    data = said([value, value], plain=plain, indent=indent)

    assert in_slices(data) == in_one_go(data)


CHANGES = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.sampled_from(list(b'[]{},:"\\ 1a'))), max_size=4
)


@given(VALUES, CHANGES)
def test_what_is_no_json_is_refused_in_slices_where_the_decoder_refuses_it(
    value: Any, changes: list[tuple[int, int, int]]
) -> None:
    data = bytearray(json.dumps({"a": value, "b": value}).encode())
    for place, taken, put in changes:
        at = place % len(data)
        data[at : at + taken] = bytes([put])

    assert in_slices(bytes(data)) == in_one_go(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[",
        b"[]]",
        b"[] x",
        b"[" + b" " * 200 + b",]",
        b"[" + b"1," * 100 + b"]",
        b"{" + b'"a":1,' * 100 + b'"a":2}',
        b'{"a":1' + b' "b":2' * 50 + b"}",
        b'["' + b"x" * 200 + b'" "y"]',
        b'["' + b"x" * 200 + b'",]',
        b'["' + b"x" * 200 + b'":1]',
        b'{"' + b"x" * 200 + b'"}',
        b'{"a":"' + b"x" * 200 + b'","a":"' + b"y" * 200 + b'"}',
        b'{"' + b"x" * 200 + b'":"' + b"y" * 200 + b'"}',
        b'["' + b"x" * 200 + b"\\",
        b'["' + b"\\u00e9" * 50 + b'"]',
        b'["' + b"\\ud83d\\ude00" * 50 + b'"]',
        b'["' + b"\\ud83d" * 50 + b'"]',
        b"[" * 90 + b"1," * 90 + b"1" + b"]" * 90,
        b"[" * 90 + b"]" * 89 + b"}",
        b"[1" + b"0" * 400 + b"]",
        b"[" + b"1e400," * 20 + b"1]",
        b" " * 100 + b"[1]" + b" " * 100,
        b'"' + b"x" * 100 + b'"',
        b"[1" + b" " * 300 + b",2" + b" " * 300 + b"]",
        b"[1" + b" " * 300 + b"2]",
        b'{"a"' + b" " * 300 + b":" + b" " * 300 + b'{"b":[' + b" " * 300 + b"1]" + b" " * 300 + b"}}",
        b'{"a":[1,' + b" " * 300 + b"2]," + b" " * 300 + b"}",
    ],
    ids=lambda data: data[:20].decode() + str(len(data)),
)
def test_what_has_sharp_edges_is_cut_right(data: bytes) -> None:
    assert in_slices(data) == in_one_go(data)


def test_what_is_nested_too_deeply_is_refused_and_says_so() -> None:
    with pytest.raises(WireFault, match="nested deeper than 900"):
        finish(large.decoding(b"[" * 5000 + b"]" * 5000))
    with pytest.raises(WireFault, match="not an object but an array"):
        finish(large.decoding_result(b"[]"))


def test_a_number_without_end_is_refused_before_it_is_decoded() -> None:
    for before, after in ((b"[1,", b"]"), (b'{"a":', b',"b":1}'), (b"[[[0.", b"]]]")):
        with pytest.raises(WireFault, match="a number is longer than 65,536 bytes"):
            finish(large.decoding(before + b"7" * 100_000 + after))
        assert in_slices(before + b"7" * 400 + after) == in_one_go(before + b"7" * 400 + after)
    assert in_slices(b"[1" + b" 2" * 100_000 + b"]") == (False, "")


NAMES = frozenset(("id", "method", "params", "result", "error"))
PARTS = st.dictionaries(st.sampled_from(sorted(NAMES)) | TEXT, VALUES, max_size=6)


@examples(60)
@given(PARTS, st.booleans())
def test_an_outline_has_the_members_as_they_came(value: Any, plain: bool) -> None:
    data = said(value, plain=plain, indent=None)

    parts = {name: bytes(part) for name, part in decode_parts(data).items() if name in NAMES}
    assert finish(large.outlining(data, NAMES)) == parts
    assert finish(large.outlining(bytearray(data), NAMES)) == parts


@examples(60)
@given(PARTS)
def test_an_outline_may_leave_out_what_only_spaces(value: Any) -> None:
    data = said(value, plain=True, indent=1)

    outline = finish(large.outlining(data, NAMES))
    assert {name: decode(_any, part) for name, part in outline.items()} == {
        name: decode(_any, part) for name, part in decode_parts(data).items() if name in NAMES
    }


@examples(60)
@given(PARTS, CHANGES)
def test_an_outline_is_refused_where_the_decoder_refuses_the_whole(
    value: Any, changes: list[tuple[int, int, int]]
) -> None:
    data = bytearray(json.dumps({**value, "params": [value, value]}).encode())
    for place, taken, put in changes:
        at = place % len(data)
        data[at : at + taken] = bytes([put])
    try:
        parts = decode_parts(data)
    except (msgspec.MsgspecError, UnicodeError):
        with pytest.raises(WireFault):
            finish(large.outlining(data, NAMES))
    else:
        outline = finish(large.outlining(data, NAMES))
        assert outline == {name: bytes(part) for name, part in parts.items() if name in NAMES}


IDS = st.integers(0, 99) | TEXT | st.none() | st.lists(st.integers(), max_size=1)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0"),
        "id": IDS,
        "method": TEXT | st.none(),
        "params": VALUES,
        "result": VALUES,
        "error": VALUES,
        "more": VALUES,
    },
)


def fields(message: Any) -> dict[str, Any]:
    values = {name: getattr(message, name) for name in NAMES}
    return {name: bytes(value) if isinstance(value, msgspec.Raw) else value for name, value in values.items()}


@examples(60)
@given(MESSAGES, st.booleans())
def test_a_message_read_in_slices_is_the_message_read_in_one_go(value: Any, plain: bool) -> None:
    data = said(value, plain=plain, indent=None)

    try:
        one = [fields(message) for message in decode_line(data)]
    except WireFault:
        with pytest.raises(WireFault):
            finish(reading_line(data, None))
    else:
        assert [fields(message) for message in finish(reading_line(data, None))] == one


@examples(60)
@given(MESSAGES | VALUES, st.booleans())
def test_a_clients_message_read_in_slices_is_the_message_read_in_one_go(value: Any, plain: bool) -> None:
    data = said(value, plain=plain, indent=None)

    assert outcome(lambda: finish(reading_client_line(data))) == outcome(lambda: read_client_line(data))


def outcome(read: Callable[[], Any]) -> dict[str, Any]:
    try:
        return fields(read())
    except RpcFault as fault:
        return {"code": fault.code}


@pytest.mark.parametrize("name", ["id", "method"])
def test_a_message_whose_id_or_method_is_a_book_is_refused(name: str) -> None:
    data = b'{"%b":"%b"}' % (name.encode(), b"x" * 70_000)

    with pytest.raises(WireFault, match=f"its {name} is longer than 65,536 bytes"):
        finish(reading_line(data, None))
    with pytest.raises(RpcFault) as found:
        finish(reading_client_line(data))
    assert found.value.code == -32600


@given(st.lists(st.sampled_from([b"a", "é".encode(), "\U0001f600".encode(), b"\xff", b"\xc3", b"\xf0\x9f"])))
def test_text_is_repaired_in_slices_as_in_one_go(pieces: list[bytes]) -> None:
    data = b"".join(pieces)

    repaired = finish(repairing_utf8(data))
    assert repaired == repair_utf8(data)
    assert (repaired is data) == (repair_utf8(data) is data)


ESCAPED = [b"a", rb"\\", rb"\"", rb"\u00e9", rb"\ud83d", rb"\uDe00", "é".encode(), b"ud83d" * 4]


@given(st.lists(st.sampled_from(ESCAPED)), st.integers(20, 60))
def test_half_characters_are_mended_in_slices_as_in_one_go(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_message, "_PIECE", size)
        mended = finish(large_message.mending_escapes(data))
    assert mended == (mend_escapes(data) or data)
    assert (mended is data) == (mend_escapes(data) is None)


@given(VALUES)
def test_what_is_written_in_slices_is_what_the_library_writes(value: Any) -> None:
    assert finish(json_text.writing(value)) == json.dumps(value, ensure_ascii=False, default=str)


BLOCKS = st.lists(
    VALUES
    | st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
    | st.fixed_dictionaries({"type": st.just("resource"), "resource": VALUES}),
    max_size=8,
)
RESULTS = st.fixed_dictionaries(
    {}, optional={"content": BLOCKS, "structuredContent": VALUES, "isError": st.booleans()}
) | st.fixed_dictionaries({"contents": BLOCKS})


@given(RESULTS)
def test_what_is_shown_in_slices_is_what_is_shown_in_one_go(result: dict[str, Any]) -> None:
    one = outcome_of("s", None, result, max_bytes=30, max_lines=4)
    other = finish(making_outcome("s", None, result, max_bytes=30, max_lines=4))

    assert other.spill_text == one.spill_text
    assert other.guarded.stats == one.guarded.stats
    where = None if one.spill_text is None else Path("p")
    assert other.answer(where).as_result() == one.answer(where).as_result()


def longest(work: Slices[Any]) -> tuple[float, float]:
    """The longest slice, and all of them, in seconds of this thread. What was there before is not gone through again
    by the garbage collector meanwhile; what the work makes is, as in a gateway."""
    took: list[float] = []
    gc.collect()
    gc.freeze()
    while True:
        began = time.thread_time()
        try:
            next(work)
        except StopIteration:
            return max(took), sum(took)
        took.append(time.thread_time() - began)


LARGE = {
    "keys": b'{"x":{%b}}' % b",".join(b'"k%07d":1' % n for n in range(MESSAGE_VALUES // 4)),
    "objects": b'{"x":[%b]}' % b",".join([b'{"a":1,"b":{"c":"\\n"}}'] * (MESSAGE_PARTS // 3)),
    "lines": b'{"x":"%b"}' % (b"a line of some length, and its end\\n" * 200_000),
}


@pytest.mark.parametrize("kind", LARGE)
def test_t35_no_slice_takes_much_of_what_all_of_it_takes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of all of it, and not a time: that is nearly the same on a busy machine. The best of three counts,
    because a machine can make one slice slow, but not the same slice each time."""
    monkeypatch.undo()

    seen = [longest(large.decoding(LARGE[kind])) for _ in range(3)]
    most, whole = min(seen, key=lambda one: one[0] / one[1])

    assert most < whole / 5, f"{most * 1e3:.1f} ms of {whole * 1e3:.0f}"


@in_real_time
async def test_t35_others_have_their_turns_while_a_large_result_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    raw = b'{"content":[],"x":[%b]}' % b",".join([b'"some text"'] * 50_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await anyio.lowlevel.checkpoint()
        assert await in_turns(large.decoding_result(raw)) == decode_result(raw)
        tasks.cancel_scope.cancel()
    assert turns > 20


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_is_afterwards_as_it_was(was_on: bool) -> None:
    """Also when there is nothing to decode. A program that embeds us may have turned it off."""
    large = b'{"a":"' + b"x" * (1 << 17) + b'"}'
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        assert decode_result(large)
        assert gc.isenabled() is was_on
        with pytest.raises(WireFault):
            decode_result(large[:-1])
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


def _fault(work: Slices[Any]) -> tuple[int, str]:
    with pytest.raises(RpcFault) as caught:
        finish(work)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (b"[{}]", -32600, "Not a JSON-RPC message: send one JSON-RPC object per line."),
        (b" 5", -32600, "Not a JSON-RPC message: send one JSON-RPC object per line."),
        (b'{"id":1', -32700, "Parse error: not JSON: it ends too early"),
        (b'{"method":5}', -32600, "Not a JSON-RPC message: "),
        (b'{"id":"' + b"x" * 65_535 + b'"}', -32600, "Invalid request: its id is longer than 65,536 bytes."),
        (
            b'{"method":"' + b"x" * 65_535 + b'"}',
            -32600,
            "Invalid request: its method is longer than 65,536 bytes.",
        ),
    ],
)
def test_a_client_is_told_what_was_wrong_with_its_long_line(line: bytes, code: int, words: str) -> None:
    found = _fault(reading_client_line(line))
    assert found[0] == code
    assert found[1].startswith(words)


def test_an_id_and_a_method_of_just_their_bound_are_read() -> None:
    for name in ("id", "method"):
        data = b'{"%b":"%b"}' % (name.encode(), b"x" * 65_534)
        (message,) = finish(reading_line(data, None))
        assert getattr(message, name) == "x" * 65_534
        finish(reading_client_line(data))


def test_the_params_of_a_large_message_are_read_by_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def read(params: bytes) -> Any:
        return large_message.reading_params(ServerMessage(params=msgspec.Raw(params)))

    assert finish(read(b'{"name": "t","arguments":{"a": 1} }')) == {
        "name": msgspec.Raw(b'"t"'),
        "arguments": msgspec.Raw(b'{"a": 1}'),
    }
    assert _fault(read(b"[1]")) == (-32602, "Invalid params: not a JSON object")
    assert _fault(read(b'{"a":1')) == (-32602, "Invalid params: not JSON: it ends too early")
    for size, fits in ((262_144, True), (262_145, False)):
        params = b'{"_meta":"%b"}' % (b"x" * (size - 2))
        if fits:
            assert len(bytes(finish(read(params))["_meta"])) == size
        else:
            assert _fault(read(params)) == (
                -32602,
                "Invalid params: _meta of a long message may have 262,144 bytes.",
            )


@pytest.mark.parametrize(
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
    call = large_message.plain_call({name: msgspec.Raw(part) for name, part in parts.items()})
    assert (None if call is None else (call.name, bytes(call.arguments))) == found


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, False)])
def test_a_key_has_its_bound_and_a_value_has_none(
    size: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "_LONGEST_KEY", 100)
    data = b'{"%b":"%b"}' % (b"k" * size, b"v" * 500)
    if fits:
        assert finish(large.decoding(data)) == {"k" * size: "v" * 500}
        assert finish(large.outlining(data)).keys() == {"k" * size}
    else:
        with pytest.raises(WireFault, match="a key is longer than 100 bytes"):
            finish(large.decoding(data))


@pytest.mark.parametrize(("depth", "fits"), [(900, True), (901, False)])
def test_just_as_deep_as_it_may_be(depth: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for before, after in ((b"[", b"]"), (b'{"a":', b"}")):
        data = before * depth + b"1" + after * depth
        if fits:
            assert in_slices(data) == in_one_go(data)
        else:
            with pytest.raises(WireFault, match="nested deeper than 900"):
                finish(large.decoding(data))


def test_all_members_are_outlined_where_none_is_named_and_the_last_of_a_name_counts() -> None:
    long = b'"%b"' % (b"x" * 300)
    data = b' {"a":1,"b":%b,"a":[2],"b":{"c":%b} , "d" : %b}' % (long, long, long)
    assert finish(large.outlining(data)) == {"a": b"[2]", "b": b'{"c":%b}' % long, "d": long}
    assert finish(large.outlining(data, frozenset())) == {}
    for wrong in (b"", b"[]", b" 5"):
        with pytest.raises(WireFault, match="not a JSON object"):
            finish(large.outlining(wrong))
