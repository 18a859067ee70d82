"""A room as one session sees it. Doors make their calls through it.

Each client of a door has a session. A server that is isolated per session has a child of its own for each
session, which ends with the session. So requests to servers go through the session, which finds the child.
Everything else goes to the room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..protocol.slices import Slices, finish

if TYPE_CHECKING:
    from ..protocol.catalogue import ServerEntry
    from ..protocol.config import Config
    from ..protocol.index import Index
    from ..protocol.status import ServerStatus
    from ..supervisor import Greenroom, Session


class InSession:
    """A `DirectRoom` made of the methods of an open session and of its room.

    The bound methods are taken once. So a call through here is a call of the session's method and costs
    nothing more.
    """

    def __init__(self, room: Greenroom, session: Session) -> None:
        self._room = room
        self._session = session
        self._view = session.view
        self._scope = f"session:{session.name}"
        # Requests to servers.
        self.call = session.call
        self.connect = session.connect
        self.find = session.find
        self.find_prompt = session.find_prompt
        self.find_reference = session.find_reference
        self.helper = session.helper
        self.is_stateless = session.is_stateless
        self.locate = session.locate
        self.noting = session.noting
        self.scrubber = session.scrubber
        self.start_call = session.start_call
        self.start_request = session.start_request
        self.turned_away = session.turned_away
        self.unwatch_resource = session.unwatch_resource
        self.watch_resource = session.watch_resource
        # What the client can answer and wants to hear.
        self.answer_with = session.answer_with
        self.restart_outdated = session.restart_outdated
        self.roots_changed = session.roots_changed
        self.set_log_level = session.set_log_level
        # Everything else.
        self.settled = room.settled

    @property
    def config(self) -> Config:
        return self._room.config if self._view is None else self._view.config

    @property
    def index(self) -> Index:
        return self._session.index

    def entry(self, server: str) -> ServerEntry | None:
        entry = self._session.own_entry(server)
        if self._view is None:
            return entry or self._room.entry(server)
        self._view.check(server)
        return self._view.entry(entry or self._room.entry(server))

    @property
    def is_learning(self) -> bool:
        """Whether something is not known yet that this session would see: of the room, or of its own servers."""
        return self._room.is_learning or bool(self._session.unlisted())

    async def catalogued(self) -> None:
        """Wait until all of that was asked once, and the answers are in the index."""
        await self._session.list_own()
        await self._room.catalogued()

    def status(self) -> list[ServerStatus]:
        """The room's rows. Where this session has a child of its own, that child's row stands in place of the
        server's."""
        return finish(self.surveying())

    def surveying(self, server: str | None = None) -> Slices[list[ServerStatus]]:
        """The same in slices, for all servers or for one."""
        rows = yield from self._room.surveying(server)
        view = self._view
        if view is not None:
            rows = [view.row(row) for row in rows if view.shows(row.server)]
        own = {row.server for row in rows if row.scope == self._scope}
        return [self._as_seen(row) for row in rows if row.scope == self._scope or row.server not in own]

    def _as_seen(self, row: ServerStatus) -> ServerStatus:
        """The row with what this session's own child has listed."""
        if self._session.own_entry(row.server) is None:
            return row
        counts, faults = self.index.counts(row.server), self.index.faults(row.server)
        if counts is None:
            return attrs.evolve(row, tool_count=None, changed=(), hidden=(), faults=faults)
        return attrs.evolve(
            row, tool_count=counts.callable, changed=counts.changed, hidden=counts.hidden, faults=faults
        )
