"""One message as it comes in, piece by piece. A long one is counted on the way, and a large one repaired, so that
nobody has to go through all of it at once when it is whole.

The values of a long message are counted while it comes (`protocol/value_count.py`), and its escapes, and one with too
many is never read: a decoder holds the interpreter until it has passed over all of them, once for each who looks into
the message, in whatever thread. A message of a few chunks is not counted. Rejected: to pass over a message in parts,
each time that somebody looks into it.

What is no JSON in the text of a large message is replaced here too (`JsonRepair`): a shorter one can be repaired in one
go, if that is needed at all.
"""

from __future__ import annotations

from typing import Final

from ..protocol.bounds import LARGE_MESSAGE, MESSAGE_ESCAPES, MESSAGE_VALUES
from ..protocol.safe_text import JsonRepair
from ..protocol.value_count import ValueCount, count_of

LONG = 1 << 17  # bytes; a message this long is counted


class MessageBuffer:
    """The message, as far as it has come: `data`. `repaired`: some of it was not UTF-8."""

    __slots__ = ("_escapes", "_repair", "_values", "data")

    def __init__(self) -> None:
        self.data: bytearray = bytearray()
        self._values: ValueCount | None = None
        self._escapes = 0
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
            self._values, self._escapes, self._repair = ValueCount(MESSAGE_VALUES), 0, JsonRepair()
            self.data = bytearray(piece := self._repair.take(self.data))
        self._escapes += count_of(piece, b"\\")
        if self._escapes > MESSAGE_ESCAPES:
            return f"{MESSAGE_ESCAPES:,} escaped characters"
        return f"{MESSAGE_VALUES:,} values and keys" if self._values.add(piece, self.data) else ""

    def end(self) -> bytes | bytearray:
        """The whole message; a large one as it is held here, without a copy. Nothing may be added afterwards."""
        if self._repair is not None:
            self.data += self._repair.take(b"", is_last=True)
        return self.data if len(self.data) >= LARGE_MESSAGE else bytes(self.data)


_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")  # in JSON they are white space


def on_one_line(text: bytes | bytearray) -> bytes | bytearray:
    """JSON, or a piece of it, on one line; the same object if it is."""
    return text.translate(_ONE_LINE) if text.find(b"\n") >= 0 or text.find(b"\r") >= 0 else text
