"""Splits chunks into lines, in linear time and bounded memory.

Only new bytes are searched for the newline, and the held part of a line grows in place. A large line is handed
over without a copy, as a `bytearray` that then belongs to its receiver: a copy would stall the loop by a millisecond
per megabyte. Of a line over the bound only the head is kept, so that the exchange it answers can be named; the rest is
thrown away up to its newline. (The SDK's loop searches and copies all it has at each chunk: 40 MB took it seven
seconds.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...protocol.large_message import LARGE_MESSAGE
from ...protocol.slices import Slices
from .._values import Values

HEAD = 256  # bytes of an over-long line that are kept
LINES_A_TURN: Final = 100


class LineSplitter:
    """Feed it chunks; it returns the complete lines, without their newline, and reports lines over a bound.

    A chunk that ends a large line goes to `on_large` instead, if there is one: that line and the lines behind it.
    `on_overlong(head, bound)` is called as soon as a bound is crossed, not when the line ends: it may never end.
    `bound` says in words which one: a number of bytes, or of values (`_values`).
    """

    __slots__ = ("_dropping", "_held", "_limit", "_on_large", "_on_overlong", "_values")

    def __init__(
        self,
        limit: int,
        on_overlong: Callable[[bytes, str], None],
        on_large: Callable[[list[bytes | bytearray]], None] | None = None,
    ) -> None:
        self._on_large = on_large
        self._values: Values | None = None  # the values counted in a line that comes in many pieces
        self._limit = limit
        self._on_overlong = on_overlong
        self._held = bytearray()
        self._dropping = False

    @property
    def unfinished(self) -> bytes | None:
        """The head of a line whose end has not come; empty if that line was reported already. None: there is none."""
        return bytes(self._held[:HEAD]) if self._held or self._dropping else None

    @property
    def held(self) -> bytearray | None:
        """What has come of the line whose end has not; None: that line is dropped. Not to be changed."""
        return None if self._dropping else self._held

    def skip(self) -> None:
        """Drop everything up to the next newline."""
        self._dropping = True

    def feed(self, chunk: bytes) -> list[bytes | bytearray]:
        """The lines that end in `chunk`; a large one as a `bytearray`."""
        lines: list[Any] = chunk.split(b"\n")
        rest = lines.pop()
        if lines and (self._held or self._dropping):
            lines[0:1] = self._finish(lines[0])
            if self._on_large is not None and lines and type(lines[0]) is bytearray:
                self._on_large(lines)
                lines = []
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
        return [line if len(line) >= LARGE_MESSAGE else bytes(line)]

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
    in a turn, or one slice of a large line, and others get their turn in between. Nothing more is read before all are
    taken."""

    _large: Slices[None] | None = None  # the next line, while it is read in slices

    def put(self, lines: list[bytes | bytearray]) -> None:
        """Fill it with `lines`; it must be empty."""
        self[:] = lines[::-1]

    def turn(self) -> list[bytes | bytearray]:
        """Remove and return the lines of one turn, in their order."""
        lines = self[: -LINES_A_TURN - 1 : -1]
        del self[-LINES_A_TURN:]
        return lines

    def take(
        self,
        take: Callable[[bytes | bytearray], object],
        taking: Callable[[bytearray], Slices[None]],
    ) -> int:
        """Take one turn's share of them. Returns how many lines were taken whole."""
        first = self[-1]
        if type(first) is not bytearray:
            lines = self.turn()
            for line in lines:
                take(line)
            return len(lines)
        self._large = self._large or taking(first)
        try:
            next(self._large)
        except StopIteration:
            self._large = None
            del self[-1:]  # if taking it did not clear all lines
            return 1
        return 0

    def clear(self) -> None:
        super().clear()
        self._large = None
