"""Notes: reports what is odd about a server, without flooding the log.

A server that prints a banner should be reported once; one that prints a million lines must not fill the log. Each
kind of oddity is reported in full the first few times, and then only by its count, at each power of ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ..protocol.bounds import NOTES_IN_FULL
from ..protocol.secrets import without_logins


class Notes:
    """Counts oddities by kind and passes on those worth an event."""

    __slots__ = ("_on_note", "counts")

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._on_note = on_note
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, detail: str | Callable[[], str] = "") -> None:
        """Count one more of `kind` ("junk on stdout"). `detail` is shown while the kind is new; give it as a
        function when it is costly to make."""
        self.counts[kind] += 1
        count = self.counts[kind]
        if count <= NOTES_IN_FULL:
            detail = detail if isinstance(detail, str) else detail()
            self._on_note(f"{kind}: {without_logins(detail)}" if detail else kind)
        elif _is_power_of_ten(count):
            self._on_note(f"{kind}: {count:,} times so far")


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"
