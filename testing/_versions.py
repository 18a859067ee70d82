"""The versions of the servers' lists that a room knows, each time one changes.

A fake server's list names its version (`_server_faults.tools_of`). What a room knows of a server may never be replaced
by something older, not even for the moment until the next list arrives: so each change is looked at when it is told,
too.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.catalogue import ServerEntry
from ..protocol.events import CatalogueChanged, Event
from ..supervisor import Greenroom


class Versions:
    """`seen`: what was known of each server at the last look. `violations`: in words."""

    def __init__(self, room: Greenroom, servers: Iterable[str]) -> None:
        self.seen = dict.fromkeys(servers, 0)
        self.violations: list[str] = []
        self._room = room

    def read(self, event: Event) -> None:
        """An event of the room, in the step that emitted it."""
        if isinstance(event, CatalogueChanged) and event.address is not None:
            self.look(event.address.server)

    def look(self, server: str) -> None:
        entry = self._room.entry(server) if server in self._room.config.servers else None
        version = _version_of(entry) if entry is not None else 0
        if entry is not None and version < self.seen[server]:
            self.violations.append(f"{server}: version {version} replaced a newer one")
        self.seen[server] = version


def _version_of(entry: ServerEntry) -> int:
    names = (str(each["name"]) for each in entry.tools or ())
    return next(int(name[1:]) for name in names if name.startswith("v"))
