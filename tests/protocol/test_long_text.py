"""A text of megabytes is looked through and read in pieces: wherever it is cut, nothing is missed or changed."""

from __future__ import annotations

import json

import pytest
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
