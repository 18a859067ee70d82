"""The log levels of servers: set by the room, or for the children of a session by that session."""

from __future__ import annotations

from ..protocol.address import Address
from ._directory import Directory
from ._records import ServerRecord, record_of


class LogLevels:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._levels: dict[str, dict[str | None, str]] = {}  # by scope: for a server, or for all (None)

    def set(self, level: str, server: str | None, session: str | None) -> None:
        """Set the level for all servers or for one; in a session, only for its own children. Live servers are told. A
        level for all servers replaces earlier levels for single ones."""
        if session is not None:
            scope = Address.of_session("", session).scope
            levels = self._levels.setdefault(scope, {}) if server is not None else {}
            levels[server] = level
            self._levels[scope] = levels
        else:
            for name, record in self._directory.records.items():
                if server in (None, name):
                    record.log_level = level
        for actor in self._directory.in_reach(session):
            if server in (None, actor.address.server):
                record = record_of(actor)
                if record.parent is not None:
                    record.log_level = self.of(actor.address.scope, record.parent)
                actor.subscriptions_changed()

    def of(self, scope: str, server: ServerRecord) -> str | None:
        """The level of this scope's child of a server."""
        own = self._levels.get(scope, {})
        return own.get(server.definition.name, own.get(None, server.log_level))

    def forget(self, scope: str) -> None:
        self._levels.pop(scope, None)
