"""Limits a peer that sends lines nobody asked for.

Requests, notifications and junk share a budget in lines per second. A peer over its budget is not read for a while,
so it has to wait for us. A peer that sends only junk is shut after ten thousand lines, or after twice the bytes that
one line may have. Any message resets that count.

It is no part of the peer for speed, too: CPython reads the fields of an object with more than thirty of them far
slower, and the fields of a peer are read for every call.
"""

from __future__ import annotations

from typing import Final

from ...protocol.bounds import JUNK_LINES, UNASKED_LINES

_MOST_UNASKED: Final = 12_000.0  # lines that a peer may send at once after a time of silence
_LEAST_UNHEARD: Final = (
    1 << 20
)  # bytes without a message that are always allowed, however small `max_line` is


class FloodGuard:
    """Counts what has come since the last message: `junk` lines and `unheard` bytes. When `is_shut`, the peer is not
    read any more."""

    __slots__ = ("_budget", "_budget_at", "_most_bytes", "is_shut", "junk", "unheard")

    def __init__(self, max_line: int, now: float) -> None:
        self._most_bytes = max(2 * max_line, _LEAST_UNHEARD)
        self._budget, self._budget_at = _MOST_UNASKED, now
        self.junk: int = 0
        self.unheard: int = 0
        self.is_shut = False

    def heard(self) -> None:
        """A message has come, though it was too long to be read."""
        self.junk = self.unheard = 0

    def count_junk(self, lines: int, junk: int) -> str:
        """Count `lines` that were read; `junk` of them were not messages. When there has been only junk for too long,
        shut the peer and return in words how much it sent; else an empty string."""
        if junk < lines:
            self.heard()
            return ""
        self.junk += junk
        if self.junk < JUNK_LINES and self.unheard <= self._most_bytes:
            return ""
        self.is_shut: bool = True
        return f"{self.junk:,} lines" if self.junk >= JUNK_LINES else f"{self.unheard:,} bytes"

    def may_say(self, lines: int, now: float) -> bool:
        """Subtract `lines` that nobody asked for from the budget. Returns False when the budget is used up."""
        refilled = self._budget + (now - self._budget_at) * UNASKED_LINES
        self._budget = min(refilled, _MOST_UNASKED) - lines
        self._budget_at = now
        return self._budget > 0
