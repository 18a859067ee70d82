"""Notes: what is odd about a server, said without shouting.

A server that prints a banner deserves to be told of it once; one that prints a million lines must not fill the log with
them. Each kind of oddity is reported in full the first few times and then by its count, at each power of ten.
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
        """One more of `kind` ("junk on stdout"), with a detail that is shown while the kind is new. One that costs
        something to say is given as a function."""
        self.counts[kind] += 1
        count = self.counts[kind]
        if count <= NOTES_IN_FULL:
            detail = detail if isinstance(detail, str) else detail()
            self._on_note(f"{kind}: {without_logins(detail)}" if detail else kind)
        elif _is_power_of_ten(count):
            self._on_note(f"{kind}: {count:,} times so far")


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"
