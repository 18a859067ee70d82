"""Counts the values in a long message while it comes in, so that a message with too many is never decoded.

Skipping a value costs about 40 ns, and creating one costs more. So it is not the number of bytes that blocks the loop
but the number of values. Three steps keep the counting cheap:

* A message of a few chunks is not counted.
* In a longer message all marks that can begin a value are counted, inside strings too.
* Only when those are too many are the marks inside strings told from the others. Part of the held bytes is scanned
  with each further piece, until the scan has caught up.
"""

from __future__ import annotations

from ..protocol.bounds import MESSAGE_PARTS, MESSAGE_VALUES

LONG = 1 << 17  # bytes; the values of a message this long are counted
_AT_ONCE = 1 << 17  # bytes scanned for each new piece: twice as fast as they come in
_MARKS = b'",[{'
_REST = bytes(set(range(256)) - set(_MARKS))


def _count(piece: bytes | bytearray, mark: bytes) -> int:
    """`piece.count(mark)`, but faster when there is none, as in an image: `count` goes byte by byte."""
    return piece.count(mark) if piece.find(mark) >= 0 else 0


class Values:
    """Counts the values of one message, as far as it has come in. `add` each piece."""

    __slots__ = ("_at", "_exact", "_in_string", "_marks", "_part_marks", "_parts")

    def __init__(self) -> None:
        self._marks = 0  # commas, brackets and braces, also those in strings
        self._part_marks = 0  # the brackets and braces among them
        self._exact = 0  # marks outside strings, as far as the scan has come
        self._parts = 0
        self._at = 0  # where the scan is
        self._in_string = False

    def add(self, piece: bytes | bytearray, held: bytearray) -> str:
        """Count one more piece, with which `held` already ends. Returns the exceeded bound, in words, or an empty
        string."""
        parts = _count(piece, b"[") + _count(piece, b"{")
        self._part_marks += parts
        self._marks += parts + _count(piece, b",")
        if self._part_marks <= MESSAGE_PARTS and self._marks <= MESSAGE_VALUES:
            return ""
        self._tell_apart(held)
        if self._parts > MESSAGE_PARTS:
            return f"{MESSAGE_PARTS:,} objects and arrays"
        return f"{MESSAGE_VALUES:,} values" if self._exact > MESSAGE_VALUES else ""

    @staticmethod
    def counted(
        values: Values | None, piece: bytes | bytearray, held: bytearray
    ) -> tuple[Values | None, str]:
        """The same for a caller that creates `values` only when there is much to count; until then it is None."""
        if len(held) <= LONG:
            return None, ""
        if values is None:
            values, piece = Values(), held
        return values, values.add(piece, held)

    def _tell_apart(self, held: bytearray) -> None:
        """Scan one block. A quote without a backslash before it begins or ends a string, so between such quotes every
        other part is a string. Whole blocks are scanned at once: otherwise millions of short strings would take
        longer to scan than to decode."""
        block = bytes(held[self._at : self._at + _AT_ONCE])
        if (len(block) - len(block.rstrip(b"\\"))) % 2:
            block = block[:-1]  # what follows the last backslash is still to come
        self._at += len(block)
        plain = block.replace(rb"\\", b"").replace(rb"\"", b"")
        parts = plain.translate(None, _REST).split(b'"')
        self._count(b"".join(parts[self._in_string :: 2]))
        self._in_string ^= len(parts) % 2 == 0

    def _count(self, outside: bytes | bytearray) -> None:
        parts = outside.count(b"[") + outside.count(b"{")
        self._parts += parts
        self._exact += parts + outside.count(b",")
