"""How much there is in a long message: counted while it comes in, so that one too many is never decoded.

Passing over a value costs some 40 ns and making one more than that, so what freezes a loop is not a message of many
bytes but one of many values. Counting is cheap in three steps: a message of a few chunks is not looked at; of a longer
one the marks that begin values are counted, wherever they stand; only where those are too many are the ones in strings
told from the others: some of what is held for each further piece, until that has caught up.
"""

from __future__ import annotations

from ..protocol.bounds import MESSAGE_PARTS, MESSAGE_VALUES

LONG = 1 << 17  # bytes of a message from which on its values are counted
_AT_ONCE = 1 << 17  # bytes told apart for each piece: twice as fast as they come
_MARKS = b'",[{'
_REST = bytes(set(range(256)) - set(_MARKS))


def _count(piece: bytes | bytearray, mark: bytes) -> int:
    """`piece.count(mark)`, which goes byte by byte; that there is none of it, as in an image, is seen at once."""
    return piece.count(mark) if piece.find(mark) >= 0 else 0


class Values:
    """The values of one message, as far as it has come. `add` each piece of it."""

    __slots__ = ("_at", "_exact", "_in_string", "_marks", "_part_marks", "_parts")

    def __init__(self) -> None:
        self._marks = 0  # commas, brackets and braces, in strings too
        self._part_marks = 0  # brackets and braces of them
        self._exact = 0  # the same outside strings, once they are told apart
        self._parts = 0
        self._at = 0  # how far they are
        self._in_string = False

    def add(self, piece: bytes | bytearray, held: bytearray) -> str:
        """One more piece, which `held` ends with by now. Returns the bound it is over, in words, or nothing."""
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
        """The same for whoever keeps `values` from when there is much to count: None until then."""
        if len(held) <= LONG:
            return None, ""
        if values is None:
            values, piece = Values(), held
        return values, values.add(piece, held)

    def _tell_apart(self, held: bytearray) -> None:
        """A quote that no backslash stands before begins or ends a string, and between two of them every other part is
        one. Done with whole blocks at a time, or millions of short strings would take longer than decoding them."""
        block = bytes(held[self._at : self._at + _AT_ONCE])
        if (len(block) - len(block.rstrip(b"\\"))) % 2:
            block = block[:-1]  # what the last backslash stands before is still to come
        self._at += len(block)
        plain = block.replace(rb"\\", b"").replace(rb"\"", b"")
        parts = plain.translate(None, _REST).split(b'"')
        self._count(b"".join(parts[self._in_string :: 2]))
        self._in_string ^= len(parts) % 2 == 0

    def _count(self, outside: bytes | bytearray) -> None:
        parts = outside.count(b"[") + outside.count(b"{")
        self._parts += parts
        self._exact += parts + outside.count(b",")
