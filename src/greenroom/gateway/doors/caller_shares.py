"""Places of one kind that the callers of a door share: sessions, requests in work, pages that watch.

None of several callers may take what others need: each may have half of all places, and something is kept for each that
has none yet. A quarter is kept for owners, who may have as many as are free: whoever only reads must never keep them
from deciding about a call. A caller that is alone may have all.

Rejected: an equal part for each. Most tokens are idle at most times, and of ten callers one with much to do would have
a tenth.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .http_request import Caller


class Shares:
    """`most`: the places. `callers`: how many are known to share them; `has_owners`: some of them are owners."""

    def __init__(self, most: int, callers: int = 1, *, has_owners: bool = False) -> None:
        self._most = most
        self._held: dict[str | None, int] = {}  # of those that are no owners
        self._of_owners = 0
        self._all = 0  # that are held
        self.divide(callers, has_owners=has_owners)

    def divide(self, callers: int, *, has_owners: bool) -> None:
        """So many callers share the places from now on. Nobody loses one."""
        self._callers = callers
        self._each = self._most if callers < 2 else max(1, self._most // 2)
        self._least = self._most // (2 * callers)
        self._for_owners = self._most // 4 if has_owners else 0

    def __len__(self) -> int:
        return self._all

    def has_room_for(self, caller: Caller) -> bool:
        """Whether this caller may take one more place."""
        if self._all >= self._most:
            return False
        if caller.is_owner or self._callers < 2:
            return True
        own = self._held.get(caller.name, 0)
        if own >= self._each:
            return False
        others = sum(min(self._least, held) for held in self._held.values()) - min(self._least, own)
        kept = max(0, (self._callers - 1) * self._least - others) + max(0, self._for_owners - self._of_owners)
        return own < self._least or self._all + kept < self._most

    def take(self, caller: Caller) -> bool:
        """Take a place for this caller, if there is one for it."""
        if not self.has_room_for(caller):
            return False
        self._all += 1
        if caller.is_owner:
            self._of_owners += 1
        else:
            self._held[caller.name] = self._held.get(caller.name, 0) + 1
        return True

    def give_back(self, caller: Caller) -> None:
        """Give back a place that this caller took."""
        self._all -= 1
        if caller.is_owner:
            self._of_owners -= 1
            return
        left = self._held.pop(caller.name) - 1
        if left:
            self._held[caller.name] = left

    @contextmanager
    def place(self, caller: Caller) -> Generator[bool]:
        """A place while this is open, if there is one: whether there is."""
        is_there = self.take(caller)
        try:
            yield is_there
        finally:
            if is_there:
                self.give_back(caller)
