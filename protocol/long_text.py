"""Reads texts of megabytes in pieces.

`bytes.find` and a decoder keep the interpreter's lock until they are done, for tens of milliseconds, and one answer is
looked through several times. Here each step goes over a piece only, so a thread lets the others run in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from . import jsonrpc as rpc
from .safe_text import end_of_characters

_PIECE: Final = 1 << 18  # bytes


def holds(text: bytes, word: bytes) -> bool:
    """Whether the word is in the text."""
    return next(places(text, word), -1) >= 0


def places(text: bytes, word: bytes) -> Iterator[int]:
    """Where the word begins, each time that it is in the text."""
    end, over = len(text), len(word) - 1
    for start in range(0, end, _PIECE):
        to = min(start + _PIECE + over, end)
        at = text.find(word, start, to)
        while at >= 0:
            yield at
            at = text.find(word, at + 1, to)


def unquoted(quoted: bytes) -> bytes:
    """The text that a JSON string stands for, in UTF-8. Raises `RpcFault`."""
    text, pieces, left = memoryview(quoted)[1:-1], list[bytes](), b""
    for at in range(0, len(text), _PIECE):
        piece = left + bytes(text[at : at + _PIECE])
        end = len(piece) if at + _PIECE >= len(text) else end_of_characters(piece)
        left = piece[end:]
        pieces.append(rpc.read_value(msgspec.Raw(b'"%b"' % piece[:end])).encode(errors="replace"))
    return b"".join(pieces)
