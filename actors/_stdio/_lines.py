"""Splits chunks into lines, in linear time and bounded memory.

Only new bytes are searched for the newline, and the held part of a line grows in place. A large line is handed
over without a copy, as a `bytearray` that then belongs to its receiver: a copy would stall the loop by a millisecond
per megabyte. Of a line over the bound only the head is kept, so that the exchange it answers can be named; the rest is
thrown away up to its newline. (The SDK's loop searches and copies all it has at each chunk: 40 MB took it seven
seconds.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from .._values import Values

HEAD = 256  # bytes of an over-long line that are kept
LARGE_LINE = 1 << 20  # bytes; a line of this size or more is not copied
LINES_A_TURN: Final = 100


class LineSplitter:
    """Feed it chunks; it returns the complete lines, without their newline, and reports lines over a bound.

    `on_overlong(head, bound)` is called as soon as a bound is crossed, not when the line ends: it may never end.
    `bound` says in words which one: a number of bytes, or of values (`_values`).
    """

    __slots__ = ("_dropping", "_held", "_limit", "_on_overlong", "_values")

    def __init__(self, limit: int, on_overlong: Callable[[bytes, str], None]) -> None:
        self._values: Values | None = None  # the values counted in a line that comes in many pieces
        self._limit = limit
        self._on_overlong = on_overlong
        self._held = bytearray()
        self._dropping = False

    def feed(self, chunk: bytes) -> list[bytes | bytearray]:
        """The lines that end in `chunk`; a large one as a `bytearray`."""
        lines = cast("list[bytes | bytearray]", chunk.split(b"\n"))
        rest = lines.pop()
        if lines and (self._held or self._dropping):
            lines[0:1] = self._finish(lines[0])
        if rest:
            self._hold(rest)
        if len(chunk) > self._limit:  # only then can a line that came in one piece be too long
            lines = [line for line in lines if self._fits(line)]
        return lines

    def _hold(self, part: bytes | bytearray) -> None:
        if self._dropping:
            return
        self._held += part
        if len(self._held) > self._limit:
            self._drop(self._bytes())
        else:
            self._values, over = Values.counted(self._values, part, self._held)
            if over:
                self._drop(over)

    def _bytes(self) -> str:
        return f"{self._limit:,} bytes a line"

    def _finish(self, part: bytes | bytearray) -> list[bytes | bytearray]:
        """The line that ends with `part`; an empty list when the line is over the bound."""
        self._hold(part)
        if self._dropping:
            self._dropping = False
            return []
        line, self._held, self._values = self._held, bytearray(), None
        return [line if len(line) >= LARGE_LINE else bytes(line)]

    def _drop(self, bound: str) -> None:
        head, self._held, self._values = bytes(self._held[:HEAD]), bytearray(), None
        self._dropping = True
        self._on_overlong(head, bound)

    def _fits(self, line: bytes | bytearray) -> bool:
        if len(line) <= self._limit:
            return True
        self._on_overlong(bytes(line[:HEAD]), self._bytes())
        return False


class LinesLeft(list["bytes | bytearray"]):
    """Lines that were read and not yet taken, the last one first. However many lines a read brings, a hundred are taken
    in a turn, and others get their turn in between. Nothing more is read before all are taken."""

    def put(self, lines: list[bytes | bytearray]) -> None:
        """Fill it with `lines`; it must be empty."""
        self[:] = lines[::-1]

    def turn(self) -> list[bytes | bytearray]:
        """Remove and return the lines of one turn, in their order."""
        lines = self[: -LINES_A_TURN - 1 : -1]
        del self[-LINES_A_TURN:]
        return lines
