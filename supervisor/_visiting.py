"""Visiting: starting a server that nobody knows anything of, for what it has to say.

A visit is a connect like any other, of the actor that calls go to, so a call that comes meanwhile joins it, and there
is one process. Afterwards the server stays a little while, because whoever waited for its list is about to call it. (A
server without a shared address is visited at an address of the visit's own, which goes at once.) A visit that fails is
tried again whenever the gate lets it, until the server has said what it has, or is taken down. How many at a time is
the admission's affair, which of them and in what order that of `_visits`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..actors import ServerActor
from ..protocol.address import SHARED, Address
from ..protocol.config import Lifecycle
from ..protocol.lifecycle import Cause, Ending, Reason, State
from ._directory import Directory
from ._records import ServerRecord, record_of
from ._starter import Starter

_SCOPE = Address.of_call("", "catalogue").scope
VISIT_IDLE = 10.0  # seconds that a server nobody has called stays after it was visited


class Visiting:
    def __init__(self, directory: Directory, starter: Starter, over: Callable[[str], None]) -> None:
        self._directory = directory
        self._starter = starter
        self._over = over  # told of the end of each try to visit a server, good or bad

    def begin(self, server: str) -> ServerActor:
        """Start it, as often as it takes; returns who does. Raises `UnknownServer`."""
        record = self._directory.record(server)
        visitor = record.visit or self._visitor(server)
        if visitor.is_connected:
            self._over(server)  # what it has is known
        elif record.visit is None:
            record.visit = visitor
            self._starter.request_by_policy(visitor)
        return visitor

    def can_begin(self, server: str) -> bool:
        """Whether it may be asked what it has."""
        record = self._directory.records.get(server)
        return record is not None and record.available.is_usable

    def begin_if_usable(self, server: str) -> bool:
        """False: it cannot be asked any more."""
        if self._directory.closing is not None or not self.can_begin(server):
            return False
        self.begin(server)
        return True

    def apart(self, server: str) -> ServerActor:
        """Who visits a server without a shared address, once, and goes then. Raises what a call would be refused
        with."""
        record = self._directory.record(server)
        refusal = self._directory.closing or record.refusal or record.gatekeeper.refuses_start()
        if refusal is not None:
            raise refusal.copy()
        return self._directory.actor(server, _SCOPE)

    def is_first_start(self, actor: ServerActor) -> bool:
        """It is being installed, or visited: what it is and has is still to come, and nothing is to stop it."""
        is_visited = actor.life.state is State.CONNECTING and record_of(actor).visit is actor
        return actor.is_installing or is_visited

    def learned(self, actor: ServerActor) -> None:
        """It has said what it has, whoever asked for it."""
        server = record_of(actor).server
        if server.visit is not None:
            self._end(server, actor)
        if actor.address.scope == _SCOPE:
            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.VISIT_OVER), 0)

    def tried(self, actor: ServerActor, *, is_over: bool) -> None:
        """A try has ended without an answer; it is the last one if `is_over`. Harmless for one that is no visit."""
        record = record_of(actor)
        if record.visit is actor:
            if is_over:
                record.visit = None
            self._over(actor.address.server)

    def _visitor(self, server: str) -> ServerActor:
        has_shared = self._directory.has_standing_address(server, None)
        return self._directory.actor(server, SHARED if has_shared else _SCOPE)

    def _end(self, record: ServerRecord, actor: ServerActor) -> None:
        """It is known now, whoever found it out: a visit that has not begun need not begin."""
        visitor, record.visit = record.visit, None
        if visitor is actor and not actor.is_awaited and record.definition.lifecycle is Lifecycle.LAZY:
            actor.idling.shorten(VISIT_IDLE)
        elif visitor is not None and visitor is not actor:
            visitor.start.by_policy = False
            if visitor.life.state is State.IDLE:
                visitor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.KNOWN), 0)
        self._over(record.definition.name)
