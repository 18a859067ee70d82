"""One message as it comes in, piece by piece. A long one is counted on the way, and a large one repaired, so that
nobody has to go through all of it at once when it is whole.

It is not the number of bytes that makes a message slow to read but the number of its values. A key takes as long to
pass over as a value, so it counts as one. So the values of a long message are counted while it comes, and one with too
many is never read. Three steps keep the counting cheap:

* A message of a few chunks is not counted.
* In a longer message all marks that can begin a value are counted, inside strings too.
* Only when those are too many are the marks inside strings told from the others. With each further piece eight times
  its length of the held bytes is scanned, until the scan has caught up. It is behind at the end only if the marks
  became too many shortly before it, and then they are not many more than allowed.

What is no JSON in the text of a large message is replaced here too (`JsonRepair`): a shorter one can be repaired in one
go, if that is needed at all.
"""

from __future__ import annotations

from typing import Final

from ..protocol.bounds import DECODED_ESCAPES, DECODED_VALUES, LARGE_MESSAGE, MESSAGE_VALUES
from ..protocol.safe_text import JsonRepair

LONG = 1 << 17  # bytes; a message this long is counted
_BLOCK = 1 << 17  # bytes scanned in one step
_FASTER = 8  # how much faster the scan is than the pieces that come
_MARKS = (b"[", b"{", b",", b":")  # each stands before a value, or behind a key
_REST = bytes(set(range(256)) - set(b'"'.join(_MARKS)))


class MessageBuffer:
    """The message, as far as it has come: `data`. `repaired`: some of it was not UTF-8."""

    __slots__ = ("_repair", "_values", "data")

    def __init__(self) -> None:
        self.data: bytearray = bytearray()
        self._values: ValueCount | None = None
        self._repair: JsonRepair | None = None

    @property
    def repaired(self) -> bool:
        return self._repair is not None and self._repair.has_replaced

    def add(self, piece: bytes | bytearray) -> str:
        """Take one more piece. Returns the exceeded bound, in words, or an empty string."""
        if self._repair is not None:
            piece = self._repair.take(piece)
        self.data += piece
        if len(self.data) <= LONG:
            return ""
        if self._values is None:
            self._values, piece = ValueCount(MESSAGE_VALUES), self.data
        if self._repair is None and len(self.data) >= LARGE_MESSAGE:
            # What is repaired has another length, so it is counted from its beginning.
            self._values, self._repair = ValueCount(MESSAGE_VALUES), JsonRepair()
            self.data = bytearray(piece := self._repair.take(self.data))
        return f"{MESSAGE_VALUES:,} values and keys" if self._values.add(piece, self.data) else ""

    def end(self) -> bytes | bytearray:
        """The whole message; a large one as it is held here, without a copy. Nothing may be added afterwards."""
        if self._repair is not None:
            self.data += self._repair.take(b"", is_last=True)
        return self.data if len(self.data) >= LARGE_MESSAGE else bytes(self.data)


class ValueCount:
    """Counts the values of one text, as far as it has come. `add` each piece."""

    __slots__ = ("_at", "_exact", "_in_string", "_marks", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._marks = 0  # all there are, also those in strings
        self._exact = 0  # marks outside strings, as far as the scan has come
        self._at = 0  # where the scan is
        self._in_string = False

    def add(self, piece: bytes | bytearray, held: bytes | bytearray) -> bool:
        """Count one more piece, with which `held` already ends. Returns whether there are too many."""
        self._marks += sum(_count(piece, mark) for mark in _MARKS)
        if self._marks > self._most:
            behind = self._at + _FASTER * len(piece)
            while self._at < min(behind, len(held)) and self._exact <= self._most:
                if not self._tell_apart(held):
                    break
        return self._exact > self._most

    def _tell_apart(self, held: bytes | bytearray) -> int:
        """Scan one block, and return its length. A quote without a backslash before it begins or ends a string, so
        between such quotes every other part is a string. Whole blocks are scanned at once: otherwise millions of short
        strings would take longer to scan than to decode."""
        block = bytes(held[self._at : self._at + _BLOCK])
        if (len(block) - len(block.rstrip(b"\\"))) % 2:
            block = block[:-1]  # what follows the last backslash is still to come
        self._at += len(block)
        plain = block.replace(rb"\\", b"").replace(rb"\"", b"")
        parts = plain.translate(None, _REST).split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        self._exact += sum(map(outside.count, _MARKS))
        return len(block)


_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")  # in JSON they are white space


def on_one_line(text: bytes | bytearray) -> bytes | bytearray:
    """JSON, or a piece of it, on one line; the same object if it is."""
    return text.translate(_ONE_LINE) if text.find(b"\n") >= 0 or text.find(b"\r") >= 0 else text


def takes_long_to_decode(text: bytes) -> bool:
    """Whether a whole JSON text has so many values or escapes that decoding it in one go would hold others up. Of a
    large text, ask in a thread."""
    return has_more_values(text, DECODED_VALUES) or text.count(b"\\") > DECODED_ESCAPES


def has_more_values(text: bytes | bytearray, most: int) -> bool:
    """Whether a whole JSON text has more values than `most`. Of a large text, ask in a thread."""
    values = ValueCount(most)
    return values.add(text, text)


def _count(piece: bytes | bytearray, mark: bytes) -> int:
    """`piece.count(mark)`, but faster when there is none, as in an image: `count` goes byte by byte."""
    return piece.count(mark) if piece.find(mark) >= 0 else 0
