"""Discovery: starting a server of which nothing is known, so that it lists what it has.

A discovery is an ordinary connect, of the actor that also takes calls. So a call that comes meanwhile joins it, and
there is one process. Afterwards the server stays connected for a little while, because a client that waited for its
list is about to call it, and would have to start it again. It is idle meanwhile, so it keeps nobody from a slot. (A
server without a shared address is started at an address for the discovery alone, which is removed at once.) Admission
bounds how many discoveries run at a time; `DiscoveryQueue` decides which, and in what order.

A failed discovery is tried again until the server has listed what it has, or is taken down: after five seconds, and
then each time after four times as long, up to an hour, because each try runs a command that nobody asked for. It is
tried at once when its entry, its command or its files change, or somebody asks, whatever its circuit breaker says. What
no second try can mend (there is no such command or package) waits for that alone. Where nothing is to be started in the
background (`bootstrap`), there is no second try. A keep-alive server is started again as its circuit breaker says,
whether its lists are known or not.

Each try of a definition in this room has twice the time of the one before to connect, up to five minutes: nobody waits
for it, and a server that only needs longer than `connectTimeoutMs` becomes known in the end. (A call that joins leaves
at its own time.) When somebody asks what the server has, the try that is under way has the configured time from then
on; if there is none, the next one has it. After that the doubling begins anew. The first try has the usual time,
whatever happened before the room was opened: who connects a server as soon as the room is open joins it, and is to be
told why it fails. The bound is for servers that hang: each holds a slot meanwhile.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from ..config.model import Lifecycle, ServerDefinition
from ..config.references import session_variables
from ..protocol.address import DISCOVERY, SHARED, Address
from ..protocol.errors import CallError, ConnectFailed
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.lifecycle import Cause, Ending, Reason, State

if TYPE_CHECKING:
    from ..actors.server import ServerActor
    from ..actors.timers import Timer
    from .servers import ServerList, ServerRecord

DISCOVERY_IDLE = 10.0  # seconds that a discovered server stays when nobody calls it


FIRST_RETRY: Final = 5.0  # seconds
LAST_RETRY: Final = 3600.0
PATIENCE: Final = 300.0  # seconds that a try may have at most, unless `connectTimeoutMs` is longer
LOOK_EVERY: Final = 10.0  # seconds between two looks at the files of a server whose discovery has failed
AT_ONCE: Final = 50  # discoveries that have begun and were not tried yet
# A registry of packages does not have it: npm, pip, uv.
_NO_PACKAGE: Final = lazy_pattern(
    r"\bE404\b|npm (?:error|ERR!) 404|not found in the package registry|No matching distribution found"
)


class Retry(msgspec.Struct, eq=False):
    """A discovery that has failed, and is tried again at this time, or when its files are no longer as they were."""

    at: float
    files: object
    timer: Timer | None = None


class Discovery:
    def __init__(
        self,
        servers: ServerList,
        over: Callable[[str], None],
        may_repeat: Callable[[ServerDefinition], bool],
    ) -> None:
        self._servers = servers
        self._over = over  # called at the end of each try to discover a server, good or bad
        self._may_repeat = may_repeat  # whether a failed discovery of this server is tried again by itself
        self._asked_for: set[str] = set()  # the servers whose next try somebody waits for
        self._retries: dict[str, Retry] = {}

    def begin(self, server: str) -> ServerActor:
        """Start the server until it has listed what it has. Returns the actor that is started. Raises
        `UnknownServer`."""
        record = self._servers.record(server)
        actor = record.discovery or self._discoverer(server)
        self.forget_retry(server)
        if actor.is_connected:
            actor.list_again(lambda error: self._listed_again(actor, error))
        elif record.discovery is None:
            record.discovery = actor
            self._servers.starts.places.discovers(record, actor)
            self._servers.starts.request_by_policy(actor)
        return actor

    def somebody_waits(self, server: str) -> None:
        """Somebody asks what the server has: a try that is under way, and otherwise the next one, has the configured
        time to connect. The next one begins whatever the circuit breaker says."""
        self._asked_for.add(server)
        self._servers.record(server).server.failed_discoveries = 0
        for actor in self._servers.actors_of(server):
            actor.somebody_waits()

    def begin_by_name(self, server: str) -> None:
        """Start a server for discovery before all others, whatever its circuit breaker says. If this try fails, the
        discovery goes on like any other."""
        if self._discoverer(server).is_connected:  # it lists again
            return
        actor, starts = self.begin(server), self._servers.starts
        record = self._servers.record(server)

        def over(_error: CallError | None) -> None:
            starts.withdraw(record, actor)
            let_go(actor)

        actor.on_connected(over, by_name=True)
        starts.request_by_name(record, actor)

    def _listed_again(self, actor: ServerActor, error: CallError | None) -> None:
        """A connected server has listed what it has again, or this error kept it from doing so. If its connection is
        over, it is started as others are. One that does not list and has nothing else to do is started anew."""
        server = actor.address.server
        if error is not None and actor.is_connected and not (actor.in_flight or actor.queued):
            actor.stop(Ending(Cause.RESTART))
        if error is not None and actor.is_connected:
            self._servers.record(server).listing_failed(_reason(error))
        elif error is not None and self.begin_if_usable(server):
            return
        self._over(server)

    def can_begin(self, server: str) -> bool:
        """Whether the server may be asked what it has. One that is started with credentials of a session is asked when
        a session calls or connects it."""
        record = self._servers.records.get(server)
        return record is not None and record.available.is_usable and not session_variables(record.definition)

    def begin_if_usable(self, server: str) -> bool:
        """False: the server cannot be asked any more."""
        is_asked_for = server in self._asked_for
        self._asked_for.discard(server)
        if self._servers.closing is not None or not self.can_begin(server):
            return False
        is_refused = self._servers.record(server).breaker.refuses_start() is not None
        if is_asked_for and is_refused and not self._discoverer(server).is_connected:
            self.begin_by_name(server)
        else:
            self.begin(server)
        return True

    def apart(self, server: str, session: str | None) -> ServerActor:
        """The actor for one discovery of a server without a shared address. It is removed afterwards. Raises
        the error with which a call of this session, or of none, would be refused."""
        record = self._servers.record(server)
        self._servers.sessions.check(record.definition, session)
        refusal = self._servers.closing or record.refusal or record.breaker.refuses_start()
        if refusal is not None:
            raise refusal.copy()
        return self._servers.actor_at(Address(server, DISCOVERY, session))

    def is_first_start(self, actor: ServerActor) -> bool:
        """Whether the server is being installed, or connects for discovery. Its lists are not known yet, so nothing
        should stop it."""
        record = self._servers.records.get(actor.address.server)
        is_connecting = actor.life.state is State.CONNECTING
        is_discovered = is_connecting and record is not None and record.discovery is actor
        return actor.is_installing or is_discovered

    def learned(self, record: ServerRecord, actor: ServerActor) -> None:
        """The server has given its lists, for whatever reason it was started."""
        server = record.server
        self.forget_retry(actor.address.server)
        server.failed_discoveries = 0
        if server.discovery is not None:
            self._end(server, actor)
        if actor.address.scope == DISCOVERY:
            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.DISCOVERY_OVER), 0)

    def tried(self, record: ServerRecord, actor: ServerActor, *, is_over: bool) -> None:
        """A try to discover has ended without the lists. `is_over`: it was the last one. Does nothing for an
        actor that was not started for discovery."""
        if record.discovery is actor:
            if is_over:
                record.discovery = None
            self._over(actor.address.server)

    # ---- again -------------------------------------------------------------------------------------------------------

    def failed(self, record: ServerRecord, actor: ServerActor, error: CallError | None) -> None:
        """The actor's discovery has failed and is over. Try again later, or when something has changed, if it may be
        repeated."""
        server = actor.address.server
        self.forget_retry(server)
        if not self._may_repeat(record.definition):
            return
        tries = min(record.failed_starts, 10)  # in a row
        wait = min(FIRST_RETRY * 4 ** max(0, tries - 1), LAST_RETRY)
        at = math.inf if _is_lasting(error) else self._now(actor) + wait
        self._retries[server] = retry = Retry(at, files_of(record.definition))
        self._wait(actor, retry)

    def patience(self, record: ServerRecord, usual: float) -> float:
        """Seconds that the next try has to connect, where a call's would have `usual`."""
        return max(usual, min(usual * 2.0 ** min(record.server.failed_discoveries, 10), PATIENCE))

    def is_to_retry(self, server: str) -> bool:
        """Whether a discovery of the server has failed and is tried again later by itself."""
        return server in self._retries

    def retry_at(self, server: str) -> float:
        """When a failed discovery of the server is tried again by itself. Infinite: not by time alone."""
        retry = self._retries.get(server)
        return math.inf if retry is None else retry.at

    def forget_retry(self, server: str) -> None:
        """It is tried now, is known, or has another entry."""
        retry = self._retries.pop(server, None)
        if retry is not None and retry.timer is not None:
            retry.timer.cancel()

    def _wait(self, actor: ServerActor, retry: Retry) -> None:
        when = min(retry.at, self._now(actor) + LOOK_EVERY)
        retry.timer = actor.context.timers.at(when, lambda: self._look(actor, retry))

    def _look(self, actor: ServerActor, retry: Retry) -> None:
        server = actor.address.server
        if not self.can_begin(server):
            self.forget_retry(server)
        elif self._now(actor) >= retry.at or files_of(actor.definition) != retry.files:
            self.begin_if_usable(server)
        else:
            self._wait(actor, retry)

    def _now(self, actor: ServerActor) -> float:
        return actor.context.backend.now()

    def _discoverer(self, server: str) -> ServerActor:
        """The actor that is started for the lists of a server."""
        has_shared = self._servers.has_standing_address(server, None)
        return self._servers.actor(server, SHARED if has_shared else DISCOVERY)

    def _end(self, record: ServerRecord, actor: ServerActor) -> None:
        """What the server has is known now: a discovery that has not begun need not begin."""
        discoverer, record.discovery = record.discovery, None
        if discoverer is actor and not actor.is_awaited and record.definition.lifecycle is Lifecycle.LAZY:
            actor.shorten_idle_time(DISCOVERY_IDLE)
        elif discoverer is not None and discoverer is not actor:
            discoverer.start.by_policy = False
            if discoverer.life.state is State.IDLE:
                discoverer.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.KNOWN), 0)
        self._over(record.definition.name)


def _is_lasting(error: CallError | None) -> bool:
    """Whether no second try can help before something has changed."""
    if not isinstance(error, ConnectFailed):
        return False
    return error.is_lasting or any(map(_NO_PACKAGE.search, (error.reason, *error.stderr_tail)))


def files_of(definition: ServerDefinition) -> object:
    """What the files are like by which a server is started: its command, the files among its arguments, its folder and
    its `envFile`. Equal as long as nobody has changed them."""
    from ..config.command_faults import file_of

    if definition.command is None:
        return None
    path = definition.env.get("PATH") or os.environ.get("PATH")
    folder = definition.cwd or ""
    command = file_of(definition.command, definition.cwd, path) or os.path.join(folder, definition.command)
    named = (os.path.join(folder, arg) for arg in definition.args if not arg.startswith("-"))
    return [_stamp(file) for file in (command, folder, definition.env_file, *named) if file]


def _stamp(file: str) -> tuple[str, int, int, int] | str:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return file
    return file, found.st_mtime_ns, found.st_size, found.st_mode


def let_go(actor: ServerActor) -> None:
    """The visit is over: a server that was only asked what it has, and that nobody has called since it connected, does
    not stay for its idle time."""
    is_lazy = actor.definition.lifecycle is Lifecycle.LAZY
    if is_lazy and actor.is_connected and not actor.is_awaited and actor.is_unused:
        actor.shorten_idle_time(DISCOVERY_IDLE)
        actor.begin_idling(actor.connected_at)


def _reason(error: CallError) -> str:
    return error.reason if isinstance(error, ConnectFailed) else error.message


class DiscoveryQueue:
    """Servers that will be started to list what they have, a few dozen at a time. `begin(server)` starts one discovery,
    or returns False when that is no longer possible; `tried` reports its end.

    A server with unknown tools is started once so that it lists them. A configuration may have thousands of such
    servers, so most wait here as a name only: an actor for each, with a queue entry and timers, would make a room slow
    to start and to end. A server that is called meanwhile does not wait for its turn here; the call starts it.
    """

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
