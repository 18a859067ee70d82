"""T35: a message of very many values costs its own call, and nobody else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gateway import faulty, serve
from tests.support.stalls import assert_not_held_up, hostile, memory_of, waits

from greenroom.actors.values import Values
from greenroom.protocol.bounds import MESSAGE_PARTS, MESSAGE_VALUES

HEAD = '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":['
LARGE: dict[str, Any] = {
    "batch": ("[", "{},", "{}]\n", 16 << 20),
    "arrays": (HEAD, "[],", "[]]}}\n", 48 << 20),
    "numbers": (HEAD, "1,", "1]}}\n", 48 << 20),
}


@pytest.mark.parametrize("kind", LARGE)
def test_t35_a_message_of_very_many_values_freezes_nobody(tmp_path: Path, kind: str) -> None:
    before, middle, after, size = LARGE[kind]
    said = {"before": before, "middle": middle, "count": size // len(middle), "after": after}
    servers = {"good": faulty(tmp_path, "good"), "bad": hostile("2025-03-26")}
    # Nothing in the batch answers the call: it ends by its time.
    patience = 5_000 if kind == "batch" else 50_000
    settings: dict[str, Any] = {"requestTimeoutMs": patience, "stopTimeoutMs": 500}
    with serve(tmp_path, servers, "--expose", "direct", **settings) as gateway:
        gateway.greet()
        waits(gateway, "good_echo", 5)
        gateway.answer(gateway.send("tools/call", {"name": "bad_echo", "arguments": {}}))
        calm, held = waits(gateway, "good_echo"), memory_of(gateway)
        number = gateway.send("tools/call", {"name": "bad_say", "arguments": said})
        meanwhile = waits(gateway, "good_echo")

        answer = json.dumps(gateway.answer(number))
        assert "over the bound of" in answer or kind == "batch", answer[:300]
        assert_not_held_up(calm, meanwhile)
        assert memory_of(gateway) - held < 64 << 20
        assert gateway.end() == 0


def test_t35_a_long_text_full_of_brackets_and_commas_is_one_value(tmp_path: Path) -> None:
    said = {
        "before": '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"',
        "middle": '[{\\"a\\",1}],\\\\',
        "count": 300_000,
        "after": '"}]}}\n',
    }
    with serve(tmp_path, {"bad": hostile()}, "--expose", "direct") as gateway:
        gateway.greet()
        gateway.answer(gateway.send("tools/call", {"name": "bad_echo", "arguments": {}}))
        answer = gateway.answer(gateway.send("tools/call", {"name": "bad_say", "arguments": said}))
        assert answer["result"]["content"][0]["text"] == '[{"a",1}],\\' * 300_000
        assert gateway.end() == 0


@given(
    st.lists(st.sampled_from([b"[", b"{", b",", b'"', b"\\\\", b'\\"', b"ab", b"\\"]), max_size=60), st.data()
)
def test_values_outside_strings_are_counted_however_the_line_is_cut(
    said: list[bytes], data: st.DataObject
) -> None:
    line, held, values = b"".join(said), bytearray(), Values()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(line)), max_size=5)))
    for begin, end in zip([0, *cuts], [*cuts, len(line)], strict=True):
        held += line[begin:end]
        assert values.add(line[begin:end], held) == ""
        values._tell_apart(held)
    expected, inside, escaped = 0, False, False
    for byte in line:
        if byte == 0x22 and not escaped:
            inside = not inside
        elif not inside:
            expected += byte in b"[{,"
        escaped = byte == 0x5C and not escaped
    assert values._exact == expected


def test_the_bounds_are_of_values_and_of_objects_and_arrays() -> None:
    for middle, bound in (
        (b"1,", f"{MESSAGE_VALUES:,} values"),
        (b"[],", f"{MESSAGE_PARTS:,} objects and arrays"),
    ):
        held, values, over = bytearray(), Values(), ""
        while not over:
            held += middle * 10_000
            over = values.add(middle * 10_000, held)
        assert over == bound
