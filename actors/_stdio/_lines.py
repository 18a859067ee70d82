"""Lines out of chunks, in linear time and bounded memory.

Only new bytes are searched for the newline; the parts of a long line are kept apart and joined once, when it ends. Over
the bound a line is not kept at all: its head is, so that the exchange it answers can be named, and the rest is thrown
away up to its newline. (The SDK's loop searches and copies all it has at each chunk: 40 MB took it seven seconds.)
"""

from __future__ import annotations

from collections.abc import Callable

HEAD = 256  # bytes of an over-long line that are kept


class LineSplitter:
    """Feed it chunks; it returns the whole lines, without their newline, and tells `on_overlong` of the others.

    `on_overlong(head)` is called as soon as the bound is crossed, not when the line ends: it may never end.
    """

    __slots__ = ("_dropping", "_held", "_limit", "_on_overlong", "_parts")

    def __init__(self, limit: int, on_overlong: Callable[[bytes], None]) -> None:
        self._limit = limit
        self._on_overlong = on_overlong
        self._parts: list[bytes] = []
        self._held = 0
        self._dropping = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in `chunk`."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and (self._parts or self._dropping):
            lines[0:1] = self._finish(lines[0])
        if rest:
            self._hold(rest)
        if len(chunk) > self._limit:  # only then can a line that came in one piece be too long
            lines = [line for line in lines if self._fits(line)]
        return lines

    def _hold(self, part: bytes) -> None:
        if self._dropping:
            return
        self._parts.append(part)
        self._held += len(part)
        if self._held > self._limit:
            self._drop()

    def _finish(self, part: bytes) -> list[bytes]:
        """The line that `part` ends: none if it is over the bound."""
        self._hold(part)
        line = [] if self._dropping else [b"".join(self._parts)]
        self._forget(dropping=False)
        return line

    def _drop(self) -> None:
        head = b"".join(self._parts)[:HEAD]  # once per over-long line
        self._forget(dropping=True)
        self._on_overlong(head)

    def _forget(self, *, dropping: bool) -> None:
        self._parts, self._held, self._dropping = [], 0, dropping

    def _fits(self, line: bytes) -> bool:
        if len(line) <= self._limit:
            return True
        self._on_overlong(line[:HEAD])
        return False
