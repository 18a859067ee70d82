"""Start permits, with pencil and paper: who holds one, and who stands in line."""

from __future__ import annotations

import attrs


@attrs.define
class PermitsModel:
    places: int
    holders: set[int] = attrs.field(factory=set[int])
    line: list[int] = attrs.field(factory=list[int])

    def comes(self, who: int) -> list[int]:
        if who not in self.holders and who not in self.line:
            self.line.append(who)
        return self._go_in()

    def goes(self, who: int) -> list[int]:
        self.holders.discard(who)
        if who in self.line:
            self.line.remove(who)
        return self._go_in()

    def resize(self, places: int) -> list[int]:
        """Whoever is in stays in."""
        self.places = places
        return self._go_in()

    def _go_in(self) -> list[int]:
        """Who goes in now, in order."""
        free = max(0, self.places - len(self.holders))
        entering, self.line = self.line[:free], self.line[free:]
        self.holders |= set(entering)
        return entering
