"""The runtime: everything that runs while a room is open, in one owner task.

`Runtime.run` builds the room context and starts the timers, the core actors (router, then catalogue writer)
and the standing servers. It reports this through `started`, then waits for the request to stop and ends
everything in order: the servers in parallel under one deadline, then the writer (its file flushed), then the
router, then the timers.

The task runs shielded from its surroundings. On trio and anyio the only way to end it is `request_stop`, so a
cancelled host still gets an ordered, bounded end. Native asyncio cancellation ignores shields. In that case
the task group's own cancellation ends every owner task, and each connection's `finally` kills its tree
synchronously.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio.abc import TaskStatus
from msgspec.structs import replace

from ..actors.backend import current_backend, sole
from ..actors.call import Call, Tally
from ..actors.call_events import tell_calls
from ..actors.catalogue_writer import CatalogueWriter, Flush, Save, SaveFailure, WriteOrder
from ..actors.event_stream import EventStream
from ..actors.fork import inert_in_forks
from ..actors.last_minutes import RecentHistory
from ..actors.mailbox import CoreActor
from ..actors.peer import ConnectorFactory, Handshake, Listing
from ..actors.room_context import RoomContext, Spawner
from ..actors.router import DefinedServers, IndexRequest, LearnedEntry, Router
from ..actors.server import ServerActor
from ..actors.timers import Timers, at_most
from ..actors.transports.guard import Guard
from ..actors.transports.stderr_log import StderrLog, StderrLogs, stderr_log_path
from ..actors.watchers import Order, Watchers
from ..actors.workers import apart
from ..catalogue.entries import LastFailure, ServerEntry
from ..catalogue.fingerprints import accepted_with
from ..catalogue.namespace import Target
from ..catalogue.search_cache import SearchCache
from ..catalogue.store import CatalogueStore, FileStore, own_folder
from ..config.credentials import of_environment
from ..config.known_secrets import KnownSecrets
from ..config.model import Config, Isolation, ServerDefinition
from ..config.references import session_variables
from ..protocol.address import Address
from ..protocol.errors import RoomClosed, UnknownTool, UsageError
from ..protocol.events import CatalogueChanged, Note, NoteCode
from ..protocol.lifecycle import Cause, Ending, Reason
from ..protocol.status import DrainReport
from ..protocol.trace_context import TraceContext
from ..safety.pinning import Pins
from .attachments import Attachment, RoomSeam
from .connectors import Connectors
from .discovery import DiscoveryQueue
from .known_servers import CachedServers, entry_of, is_unchanged, recall
from .policy.breaker import Intensity
from .profiles import Profiles
from .program_log import is_unlogged, log_notes
from .reload import ReloadPlan
from .server_messages import Callbacks, LogLevels, RoomHost, Routing
from .servers import ServerList, ServerRecord, StandingServers
from .session_lists import OwnLists
from .sessions import Sessions
from .shutdown import Shutdown

if TYPE_CHECKING:
    from ..actors.transports.http_connection import AuthFor
    from ..catalogue.index import Index
    from .meaning_search import MeaningSearch


FLUSH_TIME = 2.0
LIMIT: Final = 3  # restarts of a core actor in `PERIOD` seconds
PERIOD: Final = 60.0


_open_runs = set[str]()


def open_runs() -> frozenset[str]:
    """The `run_id`s of the rooms of this process that are open now: their processes are no orphans."""
    return frozenset(_open_runs)


class Runtime:
    """The machinery of one room, from its start to its end. It is made before the loop runs, and `run` completes it."""

    context: RoomContext
    servers: ServerList
    router: Router
    writer: CatalogueWriter
    connectors: Connectors
    room_host: RoomHost
    replay: Any = None  # of a tape (`tape.replay_servers.Replay`), if servers answer from one

    def __init__(
        self,
        config: Config,
        store: CatalogueStore,
        *,
        bootstrap: bool | None,
        connectors: ConnectorFactory | None = None,
        auth: AuthFor | None = None,
        client_info: Mapping[str, Any],
        callbacks: Callbacks | None = None,
    ) -> None:
        self.config: Config = config
        self.is_built: bool = False  # the attributes above exist, and stay
        self.is_running: bool = False
        self.is_copy: bool = False  # in a fork of the process that the room runs in
        self.failure: BaseException | None = None
        self.report: DrainReport | None = None
        self.client_within: float = (
            0.0  # seconds to wait for a client to say what it can answer, before servers are started
        )
        self._has_begun = False
        self._is_logged = not is_unlogged()
        self.watchers: Watchers = Watchers()
        self.recent: RecentHistory = RecentHistory()
        self.watchers.add(self.recent, Order.LAST_MINUTES)
        self.attachments: dict[str, Attachment] = {}  # by name; opened before it, and closed after it
        self._stamp_trace: Callable[[Call], TraceContext | None] | None = None  # set before it is built
        self.store = store
        self.pins: Pins = Pins(store)
        self._forms = SearchCache(on_news=self._keep_forms)
        self._may_discover = bootstrap  # None: as configured
        self._connectors = connectors
        self._auth = auth
        self._client_info = dict(client_info)
        self._closing = Shutdown()
        self._hashes: Mapping[str, str] = {}
        self._failed: dict[str, LastFailure] = {}  # how servers last failed that have not worked since
        self.profiles: Profiles = Profiles(lambda: self.config, lambda: self.router.index)
        self.sessions: Sessions = Sessions(callbacks or Callbacks())
        self.own_lists: OwnLists = OwnLists(self._shares)
        self._model: str | bool = False  # the setting that `_meaning` is of
        self._meaning: MeaningSearch | None = None
        self._with_variables: tuple[Config, Sequence[str]] | None = None  # what `of_sessions` found in it

    @property
    def _bootstrap(self) -> bool:
        """Whether servers are started just to learn what they have."""
        return self.config.settings.bootstrap if self._may_discover is None else self._may_discover

    def _is_discovered(self, definition: ServerDefinition) -> bool:
        """Whether this server is started in the background, just to learn what it has."""
        return self._bootstrap and definition.bootstrap

    @cached_property
    def events(self) -> EventStream:
        """The room's event stream. It exists before the room is built, so that an early reader misses nothing. It must
        be read for the first time in the event loop that the room will run in."""
        return EventStream(current_backend())

    @cached_property
    def secrets(self) -> KnownSecrets:
        """What no text that leaves the room may show. It begins with those of our environment."""
        return KnownSecrets(of_environment(os.environ))

    @property
    def seam(self) -> RoomSeam:
        """What attachments are given of the room."""

        def stamp_with(stamp: Callable[[Call], TraceContext | None]) -> None:
            self._stamp_trace = stamp

        return RoomSeam(lambda: self.config, self.events, self.secrets, self.watchers, stamp_with)

    @cached_property
    def reloading(self) -> anyio.Lock:
        """The lock that a reload holds, so that the next reload begins from its result."""
        return anyio.Lock()

    # ---- from outside -----------------------------------------------------------------------------------------------

    def check_loop(self) -> None:
        """Raises `UsageError` in another event loop than that of the open room: what waits there is never woken. What
        only reads, such as a search, does not ask, because a thread may do it."""
        if self.is_running and not self.context.backend.is_here():
            raise UsageError(
                "This room was opened in another event loop, and can only be awaited there. From a thread use "
                "`asyncio.run_coroutine_threadsafe(room.call(…), loop).result()` or `anyio.from_thread.run`; for "
                "another loop, such as that of the next test, open another room."
            )

    def request_stop(self, patience: float | None = None) -> None:
        """Begin to end the room. `patience`: seconds for calls in flight; None: the configured drain time. A later
        request changes nothing, unless it is less patient."""
        self._closing.ask(patience, self.config.settings.drain_timeout)
        if self.is_running:
            self._stop.set()

    def disown(self) -> None:
        """This is a copy in a forked process: nobody can use it, and it has nothing to end."""
        self.is_copy, self.is_running = True, False
        _open_runs.discard(self.run_id)
        text = "This room belongs to the process that forked this one. Open another here, after the fork."
        self.servers.closing = RoomClosed(text, server="")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """The owner task of the room, from its start to its end."""
        try:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as tasks:
                    self._build(tasks)
                    self.is_built = self.is_running = True
                    _open_runs.add(self.run_id)
                    await self._start(tasks)
                    task_status.started()
                    await self._wait_for_stop()
                    await self._end()
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            self.failure = sole(group)
            raise self.failure from None
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._close()

    # ---- start ------------------------------------------------------------------------------------------------------

    def _build(self, tasks: anyio.abc.TaskGroup) -> None:
        inert_in_forks(self)
        self._thread = threading.get_ident()
        backend, settings = current_backend(), self.config.settings
        self._stop = backend.waiter()
        if self._closing.is_asked_for:
            self._stop.set()
        self._standing = StandingServers()
        self._discoveries = DiscoveryQueue(lambda server: self.servers.discovery.begin_if_usable(server))
        events = self.events
        hidden = self.secrets
        events.hide = lambda address, text: hidden.of(address).without(text)
        if self._is_logged:
            self._log_problems = log_notes(events)
            self._log_problems(self.config.problems)
        levels = LogLevels(self.sessions)
        routing = Routing(
            self.sessions,
            levels,
            lambda address: self.servers.open_calls(address),
            lambda server: self.servers.may_be_apart(server),
        )
        self.room_host = RoomHost(self.sessions, routing, partial(note_callback, events))
        self.run_id: str = f"{os.getpid()}-{secrets.token_hex(8)}"  # shows the owner's pid
        self.guard: Guard = Guard(
            backend, self.run_id, lambda text: events.emit(Note, code=NoteCode.GUARD, words=text)
        )
        self.connectors = Connectors(
            backend, lambda: self.config.settings, self.guard, hidden, self.run_id, self._auth, self.sessions,
            lambda: self.servers.logins, own_folder(self.store), self._stderr_log,
        )  # fmt: skip
        self.context = RoomContext(
            backend=backend,
            timers=Timers(backend.now, partial(note_timer, events)),
            events=events,
            settings=settings,
            connect=self._connectors or self.connectors,
            spawner=Spawner(backend, tasks),
            client_info=self._client_info,
            host=self.room_host,
            secrets=hidden,
            watchers=self.watchers,
            stamp_trace=self._stamp_trace,
        )
        self.watchers.note = lambda text: events.emit(Note, code=NoteCode.CALLBACK, words=text)
        tell_calls(events, self.watchers)
        self.recent.now = backend.now
        events.listen(self.recent.heard, self.recent.kinds)
        self.servers = ServerList(
            self.context,
            self._learn,
            self._discoveries.tried,
            self._failing,
            self.sessions,
            levels,
            self._is_discovered,
        )
        self.servers.heed(self.config)
        entries = self._known = self._take(self.recall(self.config))
        for entry in filter(attrgetter("known"), entries.values()):
            self.watchers.tell(self.watchers.knew, entry)
        for name, definition in self.config.servers.items():
            record = self.servers.define(definition)
            known = entries.get(name)
            record.era_hint = known.protocol_version if known is not None else None
            self._remind(record)
        for name, problem in self.config.broken.items():
            self.servers.define(ServerDefinition(name), problem)
        for entry in entries.values():
            self._heed(None, entry)
        self.router = Router(
            backend, events, self.config.servers, entries, settings, self._remember, self._forms
        )
        self.writer = CatalogueWriter(backend, events, self.pins, self.heed_pins)

    @cached_property
    def _stderr_logs(self) -> StderrLogs | None:
        folder, events = own_folder(self.store), self.events
        if folder is None:
            return None
        return StderrLogs(
            folder,
            lambda text: events.emit(Note, code=NoteCode.STDERR_LOG, words=text),
            self.context.backend,
            self.servers.why_stopped,
        )

    def stderr_log_of(self, server: str) -> Path | None:
        """Where the log of this server is. None: nobody writes one."""
        folder, key = own_folder(self.store), self._hashes.get(server)
        return None if folder is None or key is None else stderr_log_path(folder, server, key)

    def _stderr_log(self, address: Address, incarnation: int) -> StderrLog | None:
        logs, key, hidden = self._stderr_logs, self._hashes.get(address.server), self.context.secrets
        if logs is None or key is None:
            return None
        return logs.of(key, address, incarnation, lambda: hidden.of(address).without)

    def recall(self, config: Config) -> CachedServers:
        """What the cache knows of the servers as this configuration defines them. May run in a thread."""
        return recall(config, self.store, self.pins.store)

    def _take(self, recalled: CachedServers) -> dict[str, ServerEntry]:
        same = {name for name, known in self._hashes.items() if recalled.hashes.get(name) == known}
        here = {name: failure for name, failure in self._failed.items() if name in same}
        self._hashes, self._failed = recalled.hashes, {**recalled.failures, **here}
        self.own_lists.recall(recalled.variants)
        self._forms.records.clear()
        self._forms.records.update(recalled.searched)
        for warning in recalled.warnings:
            self.context.events.emit(Note, code=NoteCode.CATALOGUE_FILE, words=warning)
        self.pins.take(recalled.pin_keys, recalled.pins, recalled.hashes_now)
        self._mark_own()
        return {name: self.pins.marked(entry) for name, entry in recalled.entries.items()}

    async def _start(self, tasks: anyio.abc.TaskGroup) -> None:
        events = self.context.events
        self._tasks = tasks
        tasks.start_soon(self.context.timers.run, name="greenroom timers")
        tasks.start_soon(self.guard.watch, name="greenroom guard")
        if self._stderr_logs is not None:
            tasks.start_soon(self._stderr_logs.run, name="greenroom stderr logs")
        tasks.start_soon(self.context.spawner.run, name="greenroom spawner")
        self._core_scopes: list[anyio.CancelScope] = []
        for actor in (self.router.core, self.writer.core):
            scope = anyio.CancelScope()
            self._core_scopes.append(scope)
            tasks.start_soon(_run_core, actor, events, scope, name=f"greenroom {actor.name}")
        self._heed_meaning()
        if self.client_within > 0:
            self.context.timers.at(self.context.backend.now() + self.client_within, self._begin_alone)
        else:
            self.begin()

    def _heed_meaning(self) -> None:
        """Find tools by meaning from now on, or no longer, as the configuration says."""
        model = self.config.settings.semantic_search
        if model == self._model:
            return
        self._model, before = model, self._meaning
        if before is not None:
            before.end()
        self._meaning = None
        if model is not False and self.servers.closing is None:
            from . import meaning_search as by_meaning

            self._meaning = by_meaning.MeaningSearch(
                model, self.store.file.path if isinstance(self.store, FileStore) else None,
                self.config.settings.cache_max_age,
                connector=lambda: self.connectors.helper(by_meaning.NAME, by_meaning.command(), by_meaning.LINE),
                events=self.context.events,
                settled=lambda: self.router.ref.ask(IndexRequest),
                tell=lambda text: self.context.events.emit(Note, code=NoteCode.MEANING, words=text),
            )  # fmt: skip
            self._tasks.start_soon(self._meaning.run, name="greenroom meaning")

    async def near(self, index: Index, query: str) -> Sequence[bytes]:
        """The keys of what is near to the query in meaning in `index`, the nearest first. None without the setting
        `semanticSearch`, and until the vectors are made."""
        return () if self._meaning is None else await self._meaning.near(index, query)

    @property
    def finds_by_meaning(self) -> bool:
        return self._meaning is not None

    def begin(self) -> None:
        """Start the servers that start without a call: eager, keep-alive and unknown ones. Does nothing the second
        time."""
        if not self._has_begun and self.is_running:
            self._has_begun = True
            self._standing.connect(self.servers)
            self.servers.starts.begin()
            self._discover_unknown(self._known)

    def _begin_alone(self) -> None:
        """No client has come in time. One may still come, and nothing of what starts now is ended for it."""
        if not self._has_begun:
            self.sessions.for_many = True
            self.begin()

    def _discover_unknown(self, known: Mapping[str, ServerEntry]) -> None:
        """Start each server of which nothing is known, in the background, so that it lists what it has."""
        asked = self.servers.records.items()
        waits = self.servers.discovery.is_to_retry
        unknown = [
            name for name, record in asked if name not in known and self._is_discovered(record.definition)
        ]
        self.discover([name for name in unknown if not waits(name)])

    def discover(self, names: Iterable[str]) -> list[str]:
        """Discover what these servers have. Returns those that can be started. `catalogued` waits for the first try."""
        discovery = self.servers.discovery
        usable = [name for name in names if discovery.can_begin(name)]
        self._discoveries.ask(usable)
        return usable

    def discover_now(self, names: Iterable[str]) -> list[str]:
        """As `discover`, for somebody who waits for it: no try may take longer than the configured time to connect, and
        no circuit breaker keeps one waiting."""
        discovery = self.servers.discovery
        usable = [name for name in names if discovery.can_begin(name)]
        for name in usable:
            discovery.somebody_waits(name)
        return self.discover(usable)

    def discover_by_name(self, name: str) -> list[str]:
        """As `discover_now` for one server, before all others."""
        usable = self.discover_now([name])
        for each in usable:
            self.servers.discovery.begin_by_name(each)
        return usable

    @property
    def is_learning(self) -> bool:
        """Whether what a discovery finds is still to come, or is not in the index yet."""
        return bool(self._discoveries) or self.router.is_behind

    async def ready(self) -> None:
        """Wait until every eager and keep-alive server has connected, or has failed to once."""
        await self._standing.wait()

    async def catalogued(self) -> None:
        """Wait until every server to be discovered was tried once, and the results are in the index."""
        await self._discoveries.wait()
        await self.router.ref.ask(IndexRequest)

    # ---- reload -----------------------------------------------------------------------------------------------------

    def apply(
        self, config: Config, plan: ReloadPlan, recalled: CachedServers, defined: Collection[str] = ()
    ) -> Sequence[Callable[[], None]]:
        """Make `config` the configuration of the room, as the plan says, with what the cache knows of it (`recalled`).
        Servers that the plan keeps do not notice. `defined`: those of the servers to start that are defined already.

        Returns further steps, which must all be done. Each removes or redefines one server; there may be thousands. A
        server stays as it is until its step is done.
        """
        before, self.config = self.config, config
        self.context.settings = config.settings
        self.watchers.tell(self.watchers.reconfigured, config)
        self.servers.settings_changed(config, {*plan.replace, *plan.remove})
        known = {name: entry for name in self._hashes if (entry := self.router.entry(name)) is not None}
        hashes, same = self._hashes, {*plan.keep, *plan.live}
        entries = self._take(recalled)
        for name, entry in known.items():
            now = self._hashes.get(name)
            if now is not None and now == hashes[name]:
                entries[name] = self.pins.marked(entry)
            elif now is not None and name in same:
                # The hash differs because a file has appeared in the folder, which the server itself may have made.
                entries[name] = self.pins.marked(replace(entry, definition_hash=now))
        self.router.ref.tell_system(DefinedServers(config.servers, entries, config.settings))
        servers, live = self.servers, frozenset(plan.live)
        # What could not be used before is in no plan, but has a record, too.
        gone = [name for name in before.broken if name not in config.servers]
        removed = [
            partial(servers.remove, name) for name in (*plan.remove, *gone) if name not in config.broken
        ]
        changed = [
            partial(servers.redefine, config.servers[name], same_process=name in live)
            for name in (*plan.live, *plan.replace)
        ]
        return [*removed, *changed, partial(self._finish_reload, before, plan, entries, defined)]

    def _finish_reload(
        self, before: Config, plan: ReloadPlan, entries: Mapping[str, ServerEntry], defined: Collection[str]
    ) -> None:
        """The last step of a reload: define the new and the broken servers, start what must run, and report the
        reload."""
        config = self.config
        for name in plan.start:
            if name not in defined:
                self.servers.define(config.servers[name])
        for name in (*plan.replace, *plan.start):
            self._remind(self.servers.record(name))
        for name, problem in config.broken.items():
            self.servers.define(ServerDefinition(name), problem)
            for actor in self.servers.actors_of(name):
                actor.stop(Ending(Cause.DISABLED, reason=Reason.BAD_DEFINITION))  # there is nothing to start
        for entry in entries.values():  # the new configuration may treat changed tools in another way
            self._heed(entry, entry)
        started = set(plan.start)
        for actor in self.servers.standing():
            if actor.address.server in started:
                self.servers.starts.request_by_policy(actor)
        known = set(before.problems)
        new = [problem for problem in config.problems if problem not in known]
        if self._is_logged:
            self._log_problems(new)
        problems = "; ".join(map(str, new))
        told = f"{plan}. Problems: {problems}" if problems else str(plan)
        self.context.events.emit(Note, code=NoteCode.CONFIGURATION, words=f"configuration reloaded: {told}")
        self._heed_meaning()
        if self.servers.closing is None:  # it may have begun to close between two steps
            self._discover_unknown(entries)

    def of_sessions(self) -> Sequence[str]:
        """The servers whose definition has variables of a session, if discovery is on. The lists of such a server
        belong to the session that it is started for."""
        if not self._bootstrap:
            return ()
        config = self.config
        if self._with_variables is None or self._with_variables[0] is not config:
            names = [name for name, one in config.servers.items() if session_variables(one)]
            self._with_variables = config, names
        return [name for name in self._with_variables[1] if name in self.servers.records]

    # ---- sessions ---------------------------------------------------------------------------------------------------

    async def end_session(self, name: str) -> None:
        """End the session's children. Returns when nothing of them is left; until then the session's name is taken."""
        self.sessions.end(name)
        self.own_lists.forget(name)
        try:
            left = self.servers.end_session(name) if self.is_running else []
            gone = [anyio.Event() for _ in left]
            for actor, event in zip(left, gone, strict=True):
                self.servers.on_closed(actor, event.set)
            for event in gone:
                await event.wait()
            if self.is_built:
                self.room_host.routing.forget(name)
                self.servers.forget_credentials(name)
        finally:
            self.sessions.ended(name)

    def tell_roots_changed(self, session: str | None) -> None:
        """Tell the servers which know of roots that the roots have changed. A shared server is told for a session only
        if nobody else could answer what the roots are; otherwise it would ask and be refused."""
        servers, able = self.servers, self.room_host.routing.able
        actors = servers.in_reach(session)
        if session is not None:
            actors += [
                one for one in self._shared_with(session) if able(one.address, "roots/list") == [session]
            ]
        for actor in actors:
            peer = actor.peer if actor.is_connected else None
            if peer is not None and "roots" in (actor.declared or {}):
                peer.notify("notifications/roots/list_changed")

    def _shared_with(self, session: str) -> list[ServerActor]:
        """The shared actors that exist for a session."""
        sees = self.sessions.sees
        actors = self.servers.all_actors()
        return [one for one in actors if one.address.is_common and sees(session, one.address.server)]

    # ---- what servers say -------------------------------------------------------------------------------------------

    def _learn(
        self, record: ServerRecord, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int
    ) -> None:
        name = actor.address.server
        for problem in listing.problems:
            actor.note(NoteCode.UNREAD, problem)
        known, session = self.router.entry(name), actor.address.session
        entry = entry_of(record, actor, self._hashes.get(name, ""), handshake, listing, revision)
        if actor.address.is_for_handshakes and not actor.is_connected and known is not None and known.known:
            return  # the shared one has listed that already
        is_asked = record.discovery is not None
        max_age = self.config.settings.cache_max_age
        if session is None and not is_asked and known is not None and is_unchanged(known, entry, max_age):
            return
        is_private = bool(session_variables(actor.definition))
        if not is_private:
            entry = self.pins.learned(entry, listing.prints, known)
            self._heed(known, entry)
        if session is None:
            self.router.ref.tell_system(LearnedEntry(entry))
        else:
            self._learn_own(session, actor, entry, known, is_private=is_private)
        self._discoveries.tried(name)  # whatever led to this answer

    def _learn_own(
        self,
        session: str,
        actor: ServerActor,
        entry: ServerEntry,
        known: ServerEntry | None,
        *,
        is_private: bool,
    ) -> None:
        """Take in what a session's own child has listed. Others are told only what any new child would list. If clients
        can answer different things, the room keeps the lists that the first of them got, or a client that can answer
        nothing."""
        for_others = not is_private and actor.is_unused
        if self.sessions.is_open(session) and self.own_lists.learn(session, entry, for_others=for_others):
            self.context.events.emit(CatalogueChanged, actor.address)
        if not for_others:
            return
        if known is None or not known.known or entry.told in ("", known.told):
            self.router.ref.tell_system(LearnedEntry(entry))
        else:
            self._remember(entry)

    def _shares(self, server: str, known: ServerEntry | None) -> bool:
        """Whether sessions share this server, and the lists that are `known` were read from the shared one in this
        run."""
        if server not in self.servers.records or self.servers.isolation(server) is not Isolation.PERSISTENT:
            return False
        return self.sessions.for_many or (known is not None and known.revision > 0)

    def _remind(self, record: ServerRecord) -> None:
        """Put into the record of a newly defined server how this definition failed in an earlier run, unless it has
        worked since."""
        record.note_failure(None, 0)
        failure = self._failed.get(record.definition.name)
        if failure is not None and not failure.needs_login:
            ago = time.time() - failure.at
            at = self.context.backend.now() - ago
            record.note_failure(failure.why, failure.starts, at, failure.kind)

    def _failing(self, server: str, failure: LastFailure | None) -> None:
        if failure is None and server not in self._failed:
            return
        if failure is None:
            del self._failed[server]
        else:
            self._failed[server] = failure
        if server in self._hashes:
            self.writer.ref.tell_system(SaveFailure(server, self._hashes[server], failure))

    def _remember(self, entry: ServerEntry) -> None:
        self.writer.ref.tell_system(Save(entry))

    def _keep_forms(self, news: Mapping[str, Sequence[Target]]) -> None:
        """Save what search has made of these tools, so that the next room need not make it again."""
        if not self.is_running or not isinstance(self.store, FileStore):
            return
        write = partial(self.store.searched.save, news, time.time())
        if threading.get_ident() == self._thread:
            self.writer.ref.tell_system(WriteOrder(write))
        else:  # a thread of the embedder's, who searches there, or the one that makes long indexes
            write()

    def heed_pins(self) -> None:
        """Read the pinned definitions again, for another process may have changed them, and update the index."""
        for name in self.pins.heeded():
            entry = self.router.entry(name)
            if entry is not None and (marked := self.pins.marked(entry)) is not entry:
                self._heed(entry, marked)
                self.router.ref.tell_system(LearnedEntry(marked))
        self._mark_own()

    def _mark_own(self) -> None:
        """Update which tools of the sessions' own children are in quarantine."""
        for session, server in self.own_lists.mark(self._marked):
            self.context.events.emit(CatalogueChanged, Address.of_session(server, session))

    def _marked(self, entry: ServerEntry) -> ServerEntry:
        definition = self.config.servers.get(entry.server)
        is_private = definition is None or bool(session_variables(definition))
        return entry if is_private else self.pins.marked(entry)

    def _heed(self, before: ServerEntry | None, entry: ServerEntry) -> None:
        self.servers.heed_changes(self.config, before, entry)

    # ---- what the owner accepts -------------------------------------------------------------------------------------

    async def accept(
        self, server: str | None, tool: str | None, shown: Mapping[str, str] | None = None
    ) -> list[str]:
        """The owner accepts tools whose definitions have changed: see `Greenroom.accept`. `shown`: the fingerprints
        that were shown, if only these are accepted."""
        if server is None:
            await self._at_the_store(self.pins.look)
            return []
        self.servers.record(server)
        tools = None if tool is None else self._named(server, tool)
        await self.writer.ref.ask(Flush)  # what was learned until now is in the store
        if (
            server not in self.pins.keys
        ):  # it cannot be used, or was removed meanwhile: nothing of it is pinned
            return []
        entry = self.router.entry(server)  # another room may have seen other definitions
        return await self._at_the_store(lambda: self.pins.accept(server, tools, shown or entry))

    async def _at_the_store(self, work: Callable[[], _T]) -> _T:
        try:
            return await apart(work) if self.pins.blocks else work()
        finally:
            self.heed_pins()
            await self.router.ref.ask(IndexRequest)

    def _named(self, server: str, tool: str) -> list[str]:
        """The names under which the tool (or another item) is remembered, and what is accepted with it. Raises
        `UnknownTool`."""
        index = self.router.index
        counts = index.counts(server)
        changed = () if counts is None else counts.changed
        pin = tool if tool in changed else index.pin_of(tool, server)
        if pin is None:
            raise UnknownTool(tool, message=f'Server "{server}" has no tool "{tool}".')
        return accepted_with(pin, changed)

    async def _wait_for_stop(self) -> None:
        try:
            await self._stop.wait()
        except BaseException:
            # The loop itself is being torn down (native cancellation): start nothing any more.
            self.servers.closing = RoomClosed("The room was cancelled; the call was not sent.", server="")
            raise

    # ---- end --------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """End the servers in parallel, then the writer, then the router; one deadline for all."""
        await self._closing.close_servers(self.context, self.servers)
        async with at_most(FLUSH_TIME if self._closing.patience else 0.2):
            await self.writer.ref.ask(Flush)
        for scope in reversed(self._core_scopes):
            scope.cancel()

    def _close(self) -> None:
        """Whatever happened, leave nothing running, waiting or uncounted. Does not wait."""
        if not self.is_running:
            return
        self.is_running: bool = False
        _open_runs.discard(self.run_id)
        closed = RoomClosed("The room has closed.", server="")
        self.servers.abort(closed)
        self.servers.release()
        self._standing.release()
        self._discoveries.close()
        self.writer.core.close(closed)
        self.router.core.close(closed)
        self.guard.close()
        self.room_host.close()
        self.context.events.close()
        self.report = report_of(self.context.tally, is_final=True)

    @property
    def report_so_far(self) -> DrainReport | None:
        """The drain report of the end, or of now while the room is open. None before the room is opened."""
        if self.report is None and self.is_running:
            return report_of(self.context.tally, is_final=False)
        return self.report


_T = TypeVar("_T")


async def _run_core(actor: CoreActor[Any], events: EventStream, scope: anyio.CancelScope) -> None:
    with scope:
        await keep_running(actor, events)


def note_timer(events: EventStream, error: BaseException) -> None:
    text = "".join(traceback.format_exception(error))
    events.emit(Note, code=NoteCode.BUG, words=f"a timer failed\n{text}")


def note_callback(events: EventStream, address: Address, error: Exception) -> None:
    """Report that a callback which only listens has raised, with its traceback. Nobody else is affected."""
    text = "".join(traceback.format_exception(error))
    events.emit(Note, address, code=NoteCode.CALLBACK, words=f"a callback of the room failed: {text}")


class CoreActorFailed(RuntimeError):
    """A core actor of Greenroom kept failing. Please report it, with the traceback below."""


async def keep_running(actor: CoreActor[Any], events: EventStream) -> None:
    """Run the actor until this is cancelled. Raises `CoreActorFailed` when it fails too often.

    When a step of a core actor raises, the actor is started again on its old mailbox. The message that broke it is
    gone, and the error goes to the sender if it waits for an answer. More than `LIMIT` restarts in `PERIOD` seconds
    mean that restarting does not help. Then the error is raised and ends the room. No server can cause this; it is our
    own bug.
    """
    intensity = Intensity()
    while True:
        try:
            await actor.run()
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            words = f"the {actor.name} failed and is restarted\n{text}"
            events.emit(Note, code=NoteCode.BUG, words=words)
            intensity, too_often = intensity.restarted(actor.backend.now(), LIMIT, PERIOD)
            if too_often:
                failure = CoreActorFailed(f"the {actor.name} failed more than {LIMIT} times in {PERIOD:g} s")
                actor.close(failure)
                raise failure from error


def report_of(tally: Tally, *, is_final: bool) -> DrainReport:
    """What became of every call."""
    return DrainReport(
        tally.accepted,
        tally.completed,
        tally.failed,
        tally.cancelled,
        tally.refused,
        dict(sorted(tally.refusals.items())),
        0 if is_final else tally.open,
        is_final,
    )
