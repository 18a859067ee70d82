"""Notices that somebody has logged in at a server that is parked because it wants a login.

`greenroom auth` is another process, and all it does is to write a file. As long as a server is parked, its file is
looked at every second, through the room's one timer. Nothing is looked at while no server is parked. A login counts as
new when it is another one than at the last attempt to connect. A renewed token does not, so a server that refuses every
token is not tried again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from ..config.model import ServerDefinition
from ..protocol.errors import CallError
from .records import Use, record_of

if TYPE_CHECKING:
    from ..actors.room_context import RoomContext
    from .records import Directory


_EVERY: Final = 1.0  # seconds


class _Place(msgspec.Struct):
    """Where a server's login is."""

    url: str
    pi: str | None  # where pi keeps its own, if its settings say so
    made: str | None  # the login at the last attempt to connect
    stamp: object = None
    is_watched: bool = False


class LoginWatch:
    """`logged_in(server)` is called for a server that was parked and has a new login."""

    def __init__(self, context: RoomContext, directory: Directory, logged_in: Callable[[str], None]) -> None:
        self._context = context
        self._directory = directory
        self._logged_in = logged_in
        self._places: dict[str, _Place] = {}

    def connecting(self, definition: ServerDefinition) -> None:
        """An attempt to connect begins. `definition` is expanded."""
        from ..actors.login.logins import logins, may_log_in

        if definition.url is None or not may_log_in(definition):
            self._places.pop(definition.name, None)
            return
        place = self._places.get(definition.name)
        if place is None or (place.url, place.pi) != (definition.url, definition.pi_logins):
            place = self._places[definition.name] = _Place(definition.url, definition.pi_logins, None)
        place.made = logins(place.pi).made(definition.name, definition.url)

    def parked(self, server: str) -> None:
        place = self._places.get(server)
        if place is not None and not place.is_watched:
            place.is_watched = True
            self._wait(server, place)

    def _is_parked(self, server: str) -> bool:
        record = self._directory.records.get(server)
        if record is None:
            return False
        records = [record, *map(record_of, record.actors.values())]
        return any(one.available.use is Use.NEEDS_LOGIN for one in records)

    def _wait(self, server: str, place: _Place) -> None:
        now = self._context.backend.now()
        self._context.timers.at(now + _EVERY, lambda: self._look(server, place))

    def _look(self, server: str, place: _Place) -> None:
        from ..actors.login.logins import logins

        if self._directory.closing is not None or self._places.get(server) is not place:
            return
        if not self._is_parked(server):
            place.is_watched = False
            return
        store = logins(place.pi)
        stamp = store.stamp(server, place.url)
        if stamp != place.stamp:
            place.stamp = stamp
            made = store.made(server, place.url) if stamp is not None else None
            if made is not None and made != place.made:
                place.is_watched = False
                try:
                    self._logged_in(server)
                except CallError:  # it was disabled, or removed, meanwhile
                    return
                return
        self._wait(server, place)
