"""A text of megabytes is looked through and read in pieces: wherever it is cut, nothing is missed or changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.protocol.jsonrpc.terms import RpcFault
from greenroom.protocol.long_text import holds, places, unquoted

PIECE = 1 << 18  # any size of pieces that divides it is met, too
WORD = b'"word"'


def test_a_word_is_found_at_each_place_around_a_cut() -> None:
    for at in (*range(8), *range(PIECE - 8, PIECE + 8), 3 * PIECE):
        text = b"x" * at + WORD + b"x" * PIECE
        assert (holds(text, WORD), list(places(text, WORD))) == (True, [at])


def test_a_word_that_overlaps_itself_is_found_once_at_each_place() -> None:
    text = b"a" * (PIECE + 3)
    assert list(places(text, b"aa")) == list(range(PIECE + 2))


@for_each("text", [b"", b"w", b'"wor' + b"x" * PIECE, b'"wor'])
def test_a_part_of_a_word_is_not_the_word(text: bytes) -> None:
    assert not holds(text, WORD)


@for_each("ascii_only", [True, False])
def test_a_string_means_the_same_wherever_it_is_cut(ascii_only: bool) -> None:
    odd = '\\ " \n \u0000 é 漢字 😀😀\\'
    for start in range(40):
        text = "a" * (PIECE - start) + odd + "b" * start
        quoted = json.dumps(text, ensure_ascii=ascii_only).encode()
        assert unquoted(quoted).decode() == text


def test_a_string_that_is_none_is_refused() -> None:
    with pytest.raises(RpcFault):
        unquoted(b'"%b\\x"' % (b"a" * PIECE))


@given(
    st.text(
        st.sampled_from(["a", "\\", '"', "\n", "é", "漢", "😀", "\ud83d", "\ude00", "/", "u", "d"]),
        max_size=24,
    ),
    st.integers(0, 40),
)
def test_a_text_across_a_cut_means_what_it_means_alone(text: str, before: int) -> None:
    """Halves of characters, too: two of them that are cut apart are one character all the same."""
    start = PIECE - before
    quoted = json.dumps(text).encode()
    assert unquoted(b'"' + b"a" * start + quoted[1:-1] + b'b"') == b"a" * start + unquoted(quoted) + b"b"


@given(
    st.binary(max_size=12).map(lambda text: bytes(97 + byte % 2 for byte in text)),
    st.integers(0, 14),
    st.data(),
)
def test_a_word_is_found_across_a_cut_wherever_it_is_found_in_one_piece(
    text: bytes, before: int, data: st.DataObject
) -> None:
    word = bytes(data.draw(st.lists(st.sampled_from(b"ab"), min_size=1, max_size=4)))
    start = PIECE - before
    alone = [at for at in range(len(text)) if text.startswith(word, at)]
    assert list(places(b"x" * start + text, word)) == [start + at for at in alone]
