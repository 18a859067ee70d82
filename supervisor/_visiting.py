"""Visiting: starting a server of which nothing is known, to learn what it has.

A visit is an ordinary connect, of the actor that also takes calls. So a call that comes meanwhile joins it,
and there is one process. Afterwards the server stays connected for a little while, because a client that
waited for its list is about to call it. (A server without a shared address is visited at an address of the
visit's own, which is removed at once.) A failed visit is tried again whenever the gate allows it, until the
server has listed what it has, or is taken down. Admission bounds how many visits run at a time; `_visits`
decides which, and in what order.
"""

from __future__ import annotations

from collections.abc import Callable

from ..actors import ServerActor
from ..protocol.address import SHARED, VISIT, Address
from ..protocol.config import Lifecycle
from ..protocol.errors import CallError, ConnectFailed
from ..protocol.interpolate import session_variables
from ..protocol.lifecycle import Cause, Ending, Reason, State
from ._directory import Directory
from ._records import ServerRecord, record_of
from ._starter import Starter

VISIT_IDLE = 10.0  # seconds that a visited server stays when nobody calls it


class Visiting:
    def __init__(self, directory: Directory, starter: Starter, over: Callable[[str], None]) -> None:
        self._directory = directory
        self._starter = starter
        self._over = over  # called at the end of each try to visit a server, good or bad

    def begin(self, server: str) -> ServerActor:
        """Visit the server, as often as it takes. Returns the actor that visits it. Raises `UnknownServer`."""
        record = self._directory.record(server)
        visitor = record.visit or self._visitor(server)
        if visitor.is_connected:
            visitor.list_again(lambda error: self._listed_again(visitor, error))
        elif record.visit is None:
            record.visit = visitor
            self._starter.request_by_policy(visitor)
        return visitor

    def _listed_again(self, actor: ServerActor, error: CallError | None) -> None:
        """A connected server has listed what it has again, or this error kept it from doing so. If its connection is
        over, it is visited as others are. One that does not list and has nothing else to do is started anew."""
        server = actor.address.server
        if error is not None and actor.is_connected and not (actor.in_flight or actor.queued):
            actor.stop(Ending(Cause.RESTART))
        if error is not None and actor.is_connected:
            for record in (record_of(actor), record_of(actor).server):
                record.failure, record.failed_at = _reason(error), actor.context.backend.now()
        elif error is not None and self.begin_if_usable(server):
            return
        self._over(server)

    def can_begin(self, server: str) -> bool:
        """Whether the server may be asked what it has. One that is started with credentials of a session is asked when
        a session calls or connects it."""
        record = self._directory.records.get(server)
        return record is not None and record.available.is_usable and not session_variables(record.definition)

    def begin_if_usable(self, server: str) -> bool:
        """False: the server cannot be asked any more."""
        if self._directory.closing is not None or not self.can_begin(server):
            return False
        self.begin(server)
        return True

    def apart(self, server: str, session: str | None) -> ServerActor:
        """The actor for one visit of a server without a shared address. It is removed after the visit. Raises
        the error with which a call of this session, or of none, would be refused."""
        record = self._directory.record(server)
        self._directory.sessions.check(record.definition, session)
        refusal = self._directory.closing or record.refusal or record.gatekeeper.refuses_start()
        if refusal is not None:
            raise refusal.copy()
        return self._directory.actor_at(Address(server, VISIT, session))

    def is_first_start(self, actor: ServerActor) -> bool:
        """Whether the server is being installed or visited. Its lists are not known yet, so nothing should
        stop it."""
        is_visited = actor.life.state is State.CONNECTING and record_of(actor).visit is actor
        return actor.is_installing or is_visited

    def learned(self, actor: ServerActor) -> None:
        """The server has given its lists, whoever asked for them."""
        server = record_of(actor).server
        if server.visit is not None:
            self._end(server, actor)
        if actor.address.scope == VISIT:
            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.VISIT_OVER), 0)

    def tried(self, actor: ServerActor, *, is_over: bool) -> None:
        """A try to visit has ended without the lists. `is_over`: it was the last one. Does nothing for an
        actor that does not visit."""
        record = record_of(actor)
        if record.visit is actor:
            if is_over:
                record.visit = None
            self._over(actor.address.server)

    def _visitor(self, server: str) -> ServerActor:
        has_shared = self._directory.has_standing_address(server, None)
        return self._directory.actor(server, SHARED if has_shared else VISIT)

    def _end(self, record: ServerRecord, actor: ServerActor) -> None:
        """What the server has is known now: a visit that has not begun need not begin."""
        visitor, record.visit = record.visit, None
        if visitor is actor and not actor.is_awaited and record.definition.lifecycle is Lifecycle.LAZY:
            actor.idling.shorten(VISIT_IDLE)
        elif visitor is not None and visitor is not actor:
            visitor.start.by_policy = False
            if visitor.life.state is State.IDLE:
                visitor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.KNOWN), 0)
        self._over(record.definition.name)


def _reason(error: CallError) -> str:
    return error.reason if isinstance(error, ConnectFailed) else error.message
