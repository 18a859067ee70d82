"""How much of a long list one answer holds: at most the requested entries, within the output guard's bounds.

A client requests the rest with `offset`, so a list is not cut in the middle and no file is needed. An entry
that is too long for any page is cut: a list is for finding things, and `describe` shows all of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

_AROUND: Final = 1_024  # bytes kept free for the text above and below a list
_LINES_AROUND: Final = 16
_CUT: Final = "… (cut here; describe it for the rest)"


@attrs.frozen
class Bounds:
    """The output guard's bounds for one answer: bytes of UTF-8, and lines. 0: no bound."""

    max_bytes: int = 0
    max_lines: int = 0

    def fitting(self, entries: Sequence[str], between: str = "\n") -> list[str]:
        """The first entries, as many as fit one answer when joined by `between`. If not even one fits, the
        first entry, cut."""
        size, lines, breaks = self._bytes, self._lines, between.count("\n")
        kept: list[str] = []
        for entry in entries:
            size -= _size(entry) + len(between)
            lines -= entry.count("\n") + max(1, breaks)
            if size < 0 or lines < 0:
                break
            kept.append(entry)
        return kept or [self._cut(entry) for entry in entries[:1]]

    def _cut(self, entry: str) -> str:
        lines = entry.split("\n", self._lines)[: self._lines]
        size = max(0, self._bytes - len(_CUT.encode()))
        return "\n".join(lines).encode(errors="replace")[:size].decode(errors="ignore") + _CUT

    @property
    def _bytes(self) -> int:
        return max(1, self.max_bytes - _AROUND) if self.max_bytes else 1 << 40

    @property
    def _lines(self) -> int:
        return max(1, self.max_lines - _LINES_AROUND) if self.max_lines else 1 << 40


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
