"""One message as it comes in: its values are counted and its text is repaired, however it is cut into pieces."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.actors import message_buffer
from greenroom.actors.message_buffer import LONG, MessageBuffer
from greenroom.protocol import value_count
from greenroom.protocol.bounds import LARGE_MESSAGE, MESSAGE_VALUES
from greenroom.protocol.value_count import ValueCount, has_more_values


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


JSON = st.recursive(
    st.none() | st.integers(0, 9) | st.text('ab,"[{\\', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text('a,"\\[', max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON, st.integers(2, 40), st.lists(st.integers(0), max_size=9), st.integers(0, 12))
def test_only_marks_outside_strings_are_values_however_they_are_cut_and_scanned(
    value: object, block: int, cuts: list[int], most: int
) -> None:
    """The block of a scan is as small as a string here, or as an escape."""
    data = json.dumps(value).encode()
    plain = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_count, "_BLOCK", block)
        values, held, over = ValueCount(most), bytearray(), False
        for piece in pieces(data, cuts) + [b" "] * len(data):  # so that the scan catches up
            held += piece
            over = values.add(piece, held) or over
        found = has_more_values(data, most)
    assert over is found is (sum(map(plain.count, (b"[", b"{", b",", b":"))) > most)


class Scanned(bytearray):
    """Counts how many of its bytes are looked at."""

    seen = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.seen += len(part)
        return part


@for_each("what, most_seen", [
    (b'{"a":"b"},', 4),
    (b'"",', 4),
    (b",", 4),
    (b'"a text and nothing else": 1,' + b" " * 40, 9),
])  # fmt: skip
def test_no_step_scans_more_than_a_few_times_what_came_and_none_is_told_late(
    what: bytes, most_seen: int
) -> None:
    """A scan of many marks and quotes takes long, and whoever reads the message holds others up meanwhile."""
    most, piece = MESSAGE_VALUES, what * ((1 << 18) // len(what))
    values, held, came, each = ValueCount(most), Scanned(), 0, sum(map(piece.count, (b"{", b",", b":")))
    is_over = False
    while not is_over:
        held += piece
        came += each
        before = held.seen
        is_over = values.add(piece, held)
        assert held.seen - before <= most_seen * len(piece)
    assert came <= most + 2 * each


def test_a_short_message_is_kept_as_it_comes() -> None:
    buffer = MessageBuffer()
    for piece in (b"[,,,", b"\xff", rb"\ud83d"):
        assert not buffer.add(piece)
    assert buffer.end() == b"[,,,\xff" + rb"\ud83d"
    assert not buffer.repaired


@pytest.mark.parametrize("what", [b"1,", b"[],", b"{},", b'"":1,'])
def test_a_long_message_with_too_many_values_is_told_at_once(what: bytes) -> None:
    buffer, over = MessageBuffer(), ""
    while not over:
        over = buffer.add(what * 20_000)
    assert over == f"{MESSAGE_VALUES:,} values and keys"
    assert len(buffer.data) < 3 * MESSAGE_VALUES
    assert not MessageBuffer().add(b'"%b"' % (what * MESSAGE_VALUES)), "in a string they are none"


@pytest.mark.parametrize("what", [rb"\n", rb"\u0061", rb"\\", rb"\ud83d\ude00", rb"\ud83d "])
@pytest.mark.parametrize("step", [7_000, 1 << 18])
def test_a_long_message_with_too_many_escapes_is_told_at_once(
    what: bytes, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: who looks into a message passes over as many as may be, and no step over more than came."""
    most = 700_000  # ten million of them take a test long
    monkeypatch.setattr(message_buffer, "MESSAGE_ESCAPES", most)
    buffer, over, came, each = MessageBuffer(), "", 0, what.count(b"\\") * (step // len(what))
    while not over:
        assert came <= most
        over = buffer.add(what * (step // len(what)))
        came += each
    assert over == f"{most:,} escaped characters"
    assert came - most <= 2 * each, "each is counted once, however they are repaired"
    few = MessageBuffer()
    for _ in range(7):
        assert not few.add(rb"\n" * 100_000), "as many as may be"
    assert len(few.end()) == 2 * most


@for_each("size", [LONG, LARGE_MESSAGE])
@for_each("step", [7, 1 << 16])
def test_a_large_message_is_repaired_however_it_is_cut_and_a_shorter_one_stays(size: int, step: int) -> None:
    buffer, began = MessageBuffer(), b"x" * (size - 20)
    text = "\u00e9\U0001f600".encode() + rb"\ud83d\ude00\\ud83d\ud83d." + b"\xc3\xff"
    buffer.add(began)
    for at in range(0, len(text), step):
        buffer.add(text[at : at + step])
    buffer.add(b"y" * 20)
    whole = buffer.end()
    if size == LONG:
        assert (type(whole), whole, buffer.repaired) == (bytes, began + text + b"y" * 20, False)
        return
    assert type(whole) is bytearray
    assert whole == began + "\u00e9\U0001f600".encode() + rb"\ud83d\ude00\\ud83d\ufffd." + (
        b"\xef\xbf\xbd" * 2 + b"y" * 20
    )
    assert buffer.repaired


def test_half_a_character_at_the_end_of_a_large_message_is_replaced_too() -> None:
    for end, repaired in ((b"\xc3", b"\xef\xbf\xbd"), (rb"\ud83d", rb"\ufffd"), (rb"\ud8", rb"\ud8")):
        buffer = MessageBuffer()
        buffer.add(b"x" * LARGE_MESSAGE + end)
        buffer.add(b"")
        assert buffer.end() == b"x" * LARGE_MESSAGE + repaired
