"""How many values a JSON text has, counted without reading it.

It is not the number of bytes that makes a text slow to read but the number of its values. A key takes as long to pass
over as a value, so it counts as one. A decoder keeps the interpreter's lock until it has all of a text, so whoever
decodes megabytes counts first, and refuses or passes on what has too many. Two steps keep the counting cheap:

* All marks that can begin a value are counted, inside strings too.
* Only when those are half as many as may be are the marks inside strings told from the others. With each further piece
  eight times its length of the held bytes is scanned, until the scan has caught up; less where nearly every byte is a
  mark or a quote, because such bytes take several times as long. It is behind at the end only if the marks became many
  shortly before it, and then they are not many more than allowed.

Nothing here goes over more than a block at once, so in a thread it lets the others run.
"""

from __future__ import annotations

from collections.abc import Callable

from .bounds import DECODED_ESCAPES, DECODED_VALUES

_BLOCK = 1 << 17  # bytes scanned in one step
_FASTER = 8  # how much faster the scan is than the pieces that come
_COSTS = 3  # how many further bytes a mark or a quote counts as
_MARKS = (b"[", b"{", b",", b":")  # each stands before a value, or behind a key
_REST = bytes(set(range(256)) - set(b'"'.join(_MARKS)))
_FEW = 8  # marks for each quote: then the strings are few
_ZERO, _ONE = b"01"
_QUOTES = bytes(_ONE if byte == ord('"') else _ZERO for byte in range(256))


class ValueCount:
    """Counts the values of one text, as far as it has come. `add` each piece."""

    __slots__ = ("_at", "_exact", "_in_string", "_marks", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._marks = 0  # all there are, also those in strings
        self._exact = 0  # marks outside strings, as far as the scan has come
        self._at = 0  # where the scan is
        self._in_string = False

    def add(self, piece: bytes | bytearray, held: bytes | bytearray, *, to_the_end: bool = False) -> bool:
        """Count one more piece, which `held` already has. Returns whether there are too many. `to_the_end`: nothing
        follows, so all of it is scanned if that is needed at all."""
        self._marks += sum(count_of(piece, mark) for mark in _MARKS)
        if self._marks > self._most // 2:
            left = len(held) * (1 + _COSTS) if to_the_end else _FASTER * len(piece)
            while left > 0 and self._at < len(held) and self._exact <= self._most:
                cost = self._tell_apart(held)
                left -= cost
                if not cost:
                    break
        return self._exact > self._most

    def _tell_apart(self, held: bytes | bytearray) -> int:
        """Scan one block, and return what it cost, in bytes that are no marks. A quote without a backslash before it
        begins or ends a string, so between such quotes every other part is one. Where strings are many, a step for each
        would take longer than to decode them. There each mark is inside one if the quotes before it are odd, and that
        is told of the whole block in a few operations on numbers with a bit for each mark and quote."""
        block = bytes(held[self._at : self._at + _BLOCK])
        if (len(block) - len(block.rstrip(b"\\"))) % 2:
            block = block[:-1]  # what follows the last backslash is still to come
        self._at += len(block)
        plain = block.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _REST)
        found = plain.count(b'"')
        if found * _FEW < len(plain):
            parts = plain.split(b'"')
            self._exact += sum(map(len, parts[self._in_string :: 2]))
            self._in_string ^= found % 2 == 1
        elif plain:
            inside = quotes = int(plain.translate(_QUOTES), 2)  # the first byte is the highest bit
            reach = 1
            while reach < len(plain):
                inside ^= inside >> reach  # now of so many quotes before it
                reach *= 2
            if self._in_string:
                inside ^= (1 << len(plain)) - 1
            self._exact += len(plain) - (inside | quotes).bit_count()
            self._in_string = inside & 1 == 1
        return len(block) + _COSTS * len(plain)


def takes_long_to_decode(text: bytes) -> bool:
    """Whether a whole JSON text has so many values or escapes that decoding it in one go would hold others up. Of a
    large text, ask in a thread."""
    return has_more_values(text, DECODED_VALUES) or has_more_escapes(text, DECODED_ESCAPES)


def has_more_values(
    text: bytes | bytearray, most: int, checkpoint: Callable[[], object] = lambda: None
) -> bool:
    """Whether a whole JSON text has more values than `most`. Of a large text, ask in a thread. `checkpoint` is called
    after each block; what it raises ends the counting."""
    if len(text) <= most:
        return False
    values = ValueCount(most)
    for at in range(0, len(text), _BLOCK):
        if values.add(text[at : at + _BLOCK], text):
            return True
        checkpoint()
    return values.add(b"", text, to_the_end=True)


def has_more_escapes(text: bytes | bytearray, most: int) -> bool:
    """Whether a whole JSON text has more backslashes than `most`. Of a large text, ask in a thread."""
    found = 0
    for at in range(0, len(text) if len(text) > most else 0, _BLOCK):
        found += text.count(b"\\", at, at + _BLOCK)
        if found > most:
            return True
    return False


def count_of(piece: bytes | bytearray, mark: bytes) -> int:
    """`piece.count(mark)`, but faster when there is none, as in an image: `count` goes byte by byte."""
    return piece.count(mark) if piece.find(mark) >= 0 else 0
