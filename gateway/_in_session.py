"""A room as one session sees it: what a door calls through.

Each client of a door has a session. A server that is isolated per session has one child for it, which ends with it. So
whatever goes to a server goes through the session, which finds the child. Everything else is the room's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..protocol.slices import Slices, finish

if TYPE_CHECKING:
    from ..protocol.config import Config
    from ..protocol.index import Index
    from ..protocol.status import ServerStatus

_ASKED_OF_SERVERS: Final = (
    "call",
    "complete",
    "connect",
    "find",
    "find_prompt",
    "find_reference",
    "get_prompt",
    "is_stateless",
    "locate",
    "read_resource",
    "request",
    "start_call",
    "start_request",
    "unwatch_resource",
    "watch_resource",
)


_ASKED_OF_THE_ROOM: Final = (
    "answer_with",
    "catalogued",
    "entry",
    "events",
    "reconnect",
    "refresh",
    "restart_outdated",
    "roots_changed",
    "set_log_level",
    "settled",
)


class InSession:
    """A `DirectRoom`. `room` is a `Greenroom`, `session` an open session of it.

    Each name is said, and none passed on by `__getattr__`: a class that has one looks every name up the slow way.
    """

    def __init__(self, room: Any, session: Any) -> None:
        self._room = room
        self._scope = f"session:{session.name}"
        for name in _ASKED_OF_SERVERS:
            setattr(self, name, getattr(session, name))
        for name in _ASKED_OF_THE_ROOM:
            setattr(self, name, getattr(room, name))

    @property
    def config(self) -> Config:
        return self._room.config

    @property
    def index(self) -> Index:
        return self._room.index

    @property
    def is_learning(self) -> bool:
        return self._room.is_learning

    def status(self) -> list[ServerStatus]:
        """The room's rows. Where this session has a child of its own, that child's row stands in place of the
        server's."""
        return finish(self.surveying())

    def surveying(self, server: str | None = None) -> Slices[list[ServerStatus]]:
        """The same in slices, or of one server."""
        surveying: Slices[list[ServerStatus]] = self._room.surveying(server)
        rows = yield from surveying
        own = {row.server for row in rows if row.scope == self._scope}
        return [row for row in rows if row.scope == self._scope or row.server not in own]
