"""Discovery: starting a server of which nothing is known, so that it lists what it has.

A discovery is an ordinary connect, of the actor that also takes calls. So a call that comes meanwhile joins it, and
there is one process. Afterwards the server stays connected for a little while, because a client that waited for its
list is about to call it. (A server without a shared address is started at an address for the discovery alone, which is
removed at once.) A failed discovery is tried again whenever the circuit breaker allows it, until the server has listed
what it has, or is taken down. Admission bounds how many discoveries run at a time; `DiscoveryQueue` decides which, and
in what order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import anyio

from ..actors.server import ServerActor
from ..config.model import Lifecycle
from ..config.references import session_variables
from ..protocol.address import DISCOVERY, SHARED, Address
from ..protocol.errors import CallError, ConnectFailed
from ..protocol.lifecycle import Cause, Ending, Reason, State
from .admission import Starter
from .records import Directory, ServerRecord, record_of

DISCOVERY_IDLE = 10.0  # seconds that a discovered server stays when nobody calls it


class Discovery:
    def __init__(self, directory: Directory, starter: Starter, over: Callable[[str], None]) -> None:
        self._directory = directory
        self._starter = starter
        self._over = over  # called at the end of each try to discover a server, good or bad

    def begin(self, server: str) -> ServerActor:
        """Start the server until it has listed what it has. Returns the actor that is started. Raises
        `UnknownServer`."""
        record = self._directory.record(server)
        actor = record.discovery or self._actor(server)
        if actor.is_connected:
            actor.list_again(lambda error: self._listed_again(actor, error))
        elif record.discovery is None:
            record.discovery = actor
            self._starter.request_by_policy(actor)
        return actor

    def begin_by_name(self, server: str) -> None:
        """Start a server for discovery, whatever its circuit breaker says. If this try fails, the discovery goes on
        like any other."""
        if self._actor(server).is_connected:  # it lists again
            return
        actor = self.begin(server)
        actor.on_connected(lambda _error: self._starter.withdraw(actor), by_name=True)
        self._starter.request_by_name(actor)

    def _listed_again(self, actor: ServerActor, error: CallError | None) -> None:
        """A connected server has listed what it has again, or this error kept it from doing so. If its connection is
        over, it is started as others are. One that does not list and has nothing else to do is started anew."""
        server = actor.address.server
        if error is not None and actor.is_connected and not (actor.in_flight or actor.queued):
            actor.stop(Ending(Cause.RESTART))
        if error is not None and actor.is_connected:
            record_of(actor).note_failure(_reason(error), actor.context.backend.now(), 0)
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
        """The actor for one discovery of a server without a shared address. It is removed afterwards. Raises
        the error with which a call of this session, or of none, would be refused."""
        record = self._directory.record(server)
        self._directory.sessions.check(record.definition, session)
        refusal = self._directory.closing or record.refusal or record.breaker.refuses_start()
        if refusal is not None:
            raise refusal.copy()
        return self._directory.actor_at(Address(server, DISCOVERY, session))

    def is_first_start(self, actor: ServerActor) -> bool:
        """Whether the server is being installed, or connects for discovery. Its lists are not known yet, so nothing
        should stop it."""
        is_discovered = actor.life.state is State.CONNECTING and record_of(actor).discovery is actor
        return actor.is_installing or is_discovered

    def learned(self, actor: ServerActor) -> None:
        """The server has given its lists, for whatever reason it was started."""
        server = record_of(actor).server
        if server.discovery is not None:
            self._end(server, actor)
        if actor.address.scope == DISCOVERY:
            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.DISCOVERY_OVER), 0)

    def tried(self, actor: ServerActor, *, is_over: bool) -> None:
        """A try to discover has ended without the lists. `is_over`: it was the last one. Does nothing for an
        actor that was not started for discovery."""
        record = record_of(actor)
        if record.discovery is actor:
            if is_over:
                record.discovery = None
            self._over(actor.address.server)

    def _actor(self, server: str) -> ServerActor:
        has_shared = self._directory.has_standing_address(server, None)
        return self._directory.actor(server, SHARED if has_shared else DISCOVERY)

    def _end(self, record: ServerRecord, actor: ServerActor) -> None:
        """What the server has is known now: a discovery that has not begun need not begin."""
        discoverer, record.discovery = record.discovery, None
        if discoverer is actor and not actor.is_awaited and record.definition.lifecycle is Lifecycle.LAZY:
            actor.idling.shorten(DISCOVERY_IDLE)
        elif discoverer is not None and discoverer is not actor:
            discoverer.start.by_policy = False
            if discoverer.life.state is State.IDLE:
                discoverer.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.KNOWN), 0)
        self._over(record.definition.name)


def _reason(error: CallError) -> str:
    return error.reason if isinstance(error, ConnectFailed) else error.message


# ---- DiscoveryQueue: servers that will be started to list what they have, a few dozen at a time ----------------------
#
# A server with unknown tools is started once so that it lists them. A configuration may have thousands of such
# servers, so most wait here as a name only: an actor for each, with a queue entry and timers, would make a room
# slow to start and to end. A server that is called meanwhile does not wait for its turn here; the call starts it.

AT_ONCE: Final = 50  # discoveries that have begun and were not tried yet


class DiscoveryQueue:
    """`begin(server)` starts one discovery, or returns False when that is no longer possible; `tried` reports its
    end."""

    def __init__(self, begin: Callable[[str], bool]) -> None:
        self._begin = begin
        self._begun: set[str] = set()
        self._later: dict[str, None] = {}  # in order
        self._is_beginning = False
        self._all_tried = anyio.Event()

    def __bool__(self) -> bool:
        """Whether there are servers that were not tried yet."""
        return bool(self._begun or self._later)

    def ask(self, servers: Iterable[str]) -> None:
        """Start them in this order, after those that were requested earlier."""
        for server in servers:
            if server in self._begun:
                self._begin(server)  # a discovery under way is joined
            else:
                self._later[server] = None
        if self and self._all_tried.is_set():
            self._all_tried = anyio.Event()
        self._go_on()

    def tried(self, server: str) -> None:
        """The server has been tried once, with or without success. Does nothing for a server that was not
        asked."""
        self._begun.discard(server)
        self._later.pop(server, None)
        self._go_on()

    def close(self) -> None:
        """Start no more discoveries, and release everybody who waits."""
        self._begun.clear()
        self._later.clear()
        self._all_tried.set()

    async def wait(self) -> None:
        """Wait until every server was tried once."""
        while self:
            await self._all_tried.wait()

    def _go_on(self) -> None:
        if self._is_beginning:  # a discovery may end while it is begun; the loop that runs then goes on
            return
        self._is_beginning = True
        try:
            while self._later and len(self._begun) < AT_ONCE:
                server = next(iter(self._later))
                del self._later[server]
                self._begun.add(server)
                if not self._begin(server):
                    self._begun.discard(server)
        finally:
            self._is_beginning = False
        if not self:
            self._all_tried.set()
