"""The log levels that the room and its sessions want, and what each server is told.

The room's level applies to sessions that set none. A child of a session is told that session's level. A shared server
can be told only one: the most talkative that anybody wants, of the room and the sessions with a host of their own.
Whoever wants less is not given the rest (`_routing`). A server of 2026-07-28 reads the level in each request, so there
everybody's requests carry his own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..protocol.address import Address
from ._directory import Directory
from ._records import ServerRecord, record_of

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_RANK: Final = {level: rank for rank, level in enumerate(LOG_LEVELS)}
_NOTHING: Final[Mapping[str | None, str]] = {}


def is_heard(said: object, least: str | None) -> bool:
    """Whether a message of the level `said` is for somebody who wants `least` and above. None: all messages. A level
    that the protocol does not have is heard."""
    return least is None or not isinstance(said, str) or _RANK.get(said, len(_RANK)) >= _RANK[least]


class LogLevels:
    """`session` None stands for the room."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        # By session: for one server, or for all (None).
        self._wanted: dict[str | None, dict[str | None, str]] = {}

    def set(self, level: str, server: str | None, session: str | None) -> None:
        """Set the level for all servers or for one. Live servers are told. A level for all servers replaces earlier
        levels for single ones."""
        levels = self._wanted.setdefault(session, {}) if server is not None else {}
        levels[server] = level
        self._wanted[session] = levels
        self._tell_shared()
        for actor in self._directory.in_reach(session):
            record = record_of(actor)
            if record.parent is not None and server in (None, actor.address.server):
                record.log_level = self.of(actor.address.scope, record.parent)
                actor.subscriptions_changed()

    def wanted(self, session: str | None, server: str) -> str | None:
        """The level that this session itself has set for the server."""
        own = self._wanted.get(session, _NOTHING)
        return own.get(server, own.get(None))

    def least(self, session: str | None, server: str) -> str | None:
        """The level at which this session hears the server: its own, else the room's."""
        return self.wanted(session, server) or self.wanted(None, server)

    def of(self, scope: str, server: ServerRecord) -> str | None:
        """The level of this scope's child of a server."""
        return self.least(Address("", scope).session, server.definition.name)

    def shared(self, server: str) -> str | None:
        """What a server is told that all share: the most talkative level that anybody wants."""
        sees = self._directory.sessions.sees
        return _most_talkative(self.wanted(one, server) for one in self._who_count() if sees(one, server))

    def forget(self, session: str) -> None:
        if self._wanted.pop(session, None) is not None:
            self._tell_shared()

    def _who_count(self) -> list[str | None]:
        heard = self._directory.sessions.with_hosts
        return [session for session in self._wanted if session is None or session in heard]

    def _tell_shared(self) -> None:
        """Tell each shared server its level, if that has changed."""
        sessions, general, particular = self._directory.sessions, list[str | None](), list[str | None]()
        for one in self._who_count():
            if len(self._wanted[one]) == 1 and None in self._wanted[one] and sessions.sees_all(one):
                general.append(self._wanted[one][None])
            else:
                particular.append(one)
        most = _most_talkative(general)
        for name, record in self._directory.records.items():
            others = (self.wanted(one, name) for one in particular if sessions.sees(one, name))
            level = _most_talkative((most, *others))
            if level is not None and level != record.log_level:
                record.log_level = level
                actor = self._directory.shared_actor(name)
                if actor is not None:
                    actor.subscriptions_changed()


def _most_talkative(levels: Iterable[str | None]) -> str | None:
    return min((level for level in levels if level is not None), key=_RANK.__getitem__, default=None)
