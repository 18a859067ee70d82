"""What is odd about a server: noted without flooding the log, and told in the error of a request that got no answer.

A server that prints a banner should be reported once; one that prints a million lines must not fill the log. Each
kind of oddity is reported in full the first few times, and then only by its count, at each power of ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from ..config.scrubbing import without_logins
from ..protocol.bounds import NOTES_IN_FULL
from ..protocol.events import NoteCode
from ..protocol.safe_text import counted


class ServerNotes:
    """Counts oddities by kind and passes on those worth an event."""

    __slots__ = ("_on_note", "counts")

    def __init__(self, on_note: Callable[[NoteCode, str], None]) -> None:
        self._on_note = on_note
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, detail: str | Callable[[], str] = "", code: NoteCode = NoteCode.ODD) -> None:
        """Count one more of `kind` ("junk on stdout"). `detail` is shown while the kind is new; give it as a
        function when it is costly to make."""
        self.counts[kind] += 1
        count = self.counts[kind]
        if count <= NOTES_IN_FULL:
            detail = detail if isinstance(detail, str) else detail()
            self._on_note(code, f"{kind}: {without_logins(detail)}" if detail else kind)
        elif _is_power_of_ten(count):
            self._on_note(code, f"{kind}: {count:,} times so far")


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"


class StrayMessages(msgspec.Struct, gc=False):
    """What came that was no answer to anything."""

    lines: int = 0  # that were no messages, but for blank ones
    first: str = ""  # of these
    foreign_id: str = ""  # that of the first answer to no request of ours

    def said(self, channel: str) -> str:
        """In words; empty if there was nothing of the kind."""
        if self.lines:
            what = "that is not JSON-RPC" if self.lines == 1 else "that are not JSON-RPC, the first"
            return f"it wrote {counted(self.lines, 'line')} to {channel} {what}: {self.first}"
        return f"it answered to id {self.foreign_id}, which no request has" if self.foreign_id else ""
