"""What is held against a peer that says what nobody asked for.

Requests, notifications and junk have a budget in lines a second; one that is over it is read no faster, and waits for
us as we would for it. One that says nothing but junk is over after ten thousand lines of it, or twice the bytes a line
may have; any message begins the count anew.

An object of its own, also because CPython reads the fields of one with more than thirty far slower, and a peer's are
read for every call.
"""

from __future__ import annotations

from typing import Final

from ...protocol.bounds import JUNK_LINES, UNASKED_LINES

_MOST_UNASKED: Final = 12_000.0  # at once, after a time of silence
_LEAST_UNHEARD: Final = 1 << 20  # bytes without a message, however short its lines have to be


class FloodGuard:
    """`junk` lines and `unheard` bytes have come since the last message; `is_shut`: nothing more of it is read."""

    __slots__ = ("_budget", "_budget_at", "_most_bytes", "is_shut", "junk", "unheard")

    def __init__(self, max_line: int, now: float) -> None:
        self._most_bytes = max(2 * max_line, _LEAST_UNHEARD)
        self._budget, self._budget_at = _MOST_UNASKED, now
        self.junk = 0
        self.unheard = 0
        self.is_shut = False

    def count_junk(self, lines: int, junk: int) -> str:
        """Some `lines` were taken, `junk` of them of no use. Returns what it said, in words, if that was nothing but
        junk for too long: then it is shut."""
        if junk < lines:
            self.junk = self.unheard = 0
            return ""
        self.junk += junk
        if self.junk < JUNK_LINES and self.unheard <= self._most_bytes:
            return ""
        self.is_shut = True
        return f"{self.junk:,} lines" if self.junk >= JUNK_LINES else f"{self.unheard:,} bytes"

    def may_say(self, lines: int, now: float) -> bool:
        """Take `lines` that nobody asked for off the budget. False: it is used up."""
        refilled = self._budget + (now - self._budget_at) * UNASKED_LINES
        self._budget = min(refilled, _MOST_UNASKED) - lines
        self._budget_at = now
        return self._budget > 0
