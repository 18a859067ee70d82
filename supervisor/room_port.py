"""What doors and exposures use of a room: the port, which is private.

A port sees a room in one scope: that of the whole room, or that of one session. Each client of a door has a session. A
server that is isolated per session has a child of its own for each session, and a profile shows a session a part of the
room. So what a client asks for goes through the port of its session.

`Greenroom` and `Session` have the methods for programs, and make their own requests through the same port. `port_of`
gives it to a door. A door never reaches further in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import anyio
import attrs
import msgspec

from ..actors.call import Call
from ..actors.recent import in_order
from ..actors.router import Sync, make_countable
from ..actors.server import is_unused
from ..actors.workers import in_turns
from ..catalogue.search import MAX_QUERY
from ..config.arguments import function, named_values, seconds
from ..config.model import Config, Isolation, Scrub
from ..protocol.address import Address
from ..protocol.bounds import RECENT_MINUTES
from ..protocol.errors import CallError, UsageError
from ..protocol.events import Note, NoteCode
from ..protocol.jsonrpc.incoming import read_parts, read_value
from ..protocol.jsonrpc.terms import MODERN_VERSIONS, RpcFault
from ..protocol.result import ToolResult
from ..protocol.safe_text import one_line
from ..protocol.status import ServerStatus, Shut
from ..protocol.trace_context import trace_in, without_trace
from ..safety.audit import Asked
from .caller import (
    Caller,
    is_modern,
    subscribe,
    tool_result,
    unsubscribe,
)
from .discovery import DISCOVERY_IDLE
from .records import addresses, status_row, still_there
from .runtime import accept, restart_outdated, tell_roots_changed
from .server_messages import LOG_LEVELS
from .skills import SkillRead, current_skill, read_directory, read_skill

if TYPE_CHECKING:
    from pathlib import Path

    from ..actors.event_stream import Subscription
    from ..actors.host import Host
    from ..actors.peer import Connector
    from ..actors.timers import Timer
    from ..catalogue.entries import Raw, ServerEntry
    from ..catalogue.fingerprints import PinKey
    from ..catalogue.index import Index
    from ..catalogue.namespace import Place, Target
    from ..protocol.events import Event, Kind
    from ..safety.approval_desk import Desk
    from ..safety.audit_file import AuditFile
    from ..tape.recent import LastMinutes
    from .tracing import Tracing

# Nearly always; whether it is another `Mapping` takes longer to find out.
_PLAIN: Final = (dict, type(None), msgspec.Raw)
SET_LEVEL: Final = "logging/setLevel"
CHANGES: Final = frozenset({SET_LEVEL, "resources/unsubscribe", "initialize"})  # the server, for everybody
ONLY_LOOK: Final = frozenset(
    {"resources/read", "prompts/get", "completion/complete", "resources/subscribe", "resources/unsubscribe"}
)
_ROWS: Final = 200  # rows of the status that are made in one go: a millisecond or two
Progress = Callable[[Mapping[str, Any]], None]


class Catalogue(Protocol):
    """What status, list, search, describe and instructions need, without any server. A port is a catalogue, and so is
    what a command reads from the cache."""

    @property
    def config(self) -> Config: ...
    @property
    def index(self) -> Index: ...

    def status(self, server: str | None = None) -> list[ServerStatus]:
        """A row for each server and for each further live address of a server. `server`: only its rows."""
        ...

    def entry(self, server: str) -> ServerEntry | None: ...


class RoomPort(Caller):
    """A room in one scope, for doors and exposures."""

    # ---- calls and other requests -----------------------------------------------------------------------------------

    def start_call(
        self,
        target: Target,
        arguments: Mapping[str, Any] | msgspec.Raw | None,
        on_end: Callable[[Call], None] | None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
        wait_by: float = math.inf,
        meta: Mapping[str, Any] | None = None,
        allowed: bool = False,
    ) -> Call:
        """Start a call without waiting for it. It ends with `on_end(call)`, exactly once, possibly before this returns.

        A door may give `arguments` as `Raw`, the JSON of an object on one line, so that they are decoded only where
        that is needed. `wait_by`: the time of the room's clock by which the call must be sent, if that is before its
        queue timeout. `meta`: the request's `_meta`. `allowed`: a person has allowed the call. Raises the `CallError`
        that refuses the call. For doors, which have no task per call.
        """
        if type(arguments) not in _PLAIN:
            with self.counting_refusals(Asked.of(target, arguments)):
                named_values(arguments, f"The arguments of {target.name}", target.server)
        if not target.may_be_called:
            raise self.refused(target.refusal(), Asked.of(target, arguments))
        if target.kind == "resource":
            call = Call("resources/read", {"uri": target.original}, replayable=True)
        else:
            if target.override is not None:
                with self.counting_refusals(Asked.of(target, arguments)):
                    given_ones = _values(arguments) if isinstance(arguments, msgspec.Raw) else arguments
                    arguments = target.override.own(given_ones, target.server)
            params = {"name": target.original, "arguments": arguments or {}}
            call = Call("tools/call", params, replayable=target.is_harmless)
        if named_values(meta, "meta", target.server) is not None:
            call.trace, meta = trace_in(meta or {}), without_trace(meta or {})
            call.params = {**(call.params or {}), "_meta": meta}
        call.tool = target.name
        if allowed:
            call.is_allowed = True
        if timeout is not None or on_progress is not None:
            check_options(timeout, on_progress)
        call.timeout = timeout
        call.on_end = on_end
        call.on_progress = on_progress
        call.wants_progress = on_progress is not None
        if wait_by < math.inf:
            call.wait_by = wait_by
        self.submit(target.server, call)
        return call

    def start_request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None,
        on_end: Callable[[Call], None] | None,
        *,
        tool: str | None = None,
        timeout: float | None = None,
        on_progress: Progress | None = None,
        replayable: bool = False,
        takes_inputs: bool = False,
    ) -> Call:
        """Start a request without waiting for it. It ends with `on_end(call)`, exactly once, possibly before
        this returns.

        `takes_inputs`: `on_end` handles a result that asks for more input. Raises the `CallError` with which
        it is refused, `UnknownServer`, and in a session `UsageError` for a request that would change a shared
        server for others. For doors, which have no task per request.
        """
        if type(params) not in _PLAIN:
            with self.counting_refusals():
                named_values(params, f"The params of {method}", server)
        if method in CHANGES:
            self.check_own(server, method)
        call = Call(
            method,
            params,
            tool=tool,
            timeout=timeout,
            replayable=replayable or method in ONLY_LOOK,
            on_end=on_end,
            on_progress=on_progress,
        )
        if takes_inputs:
            call.takes_inputs = True
        self.submit(server, call)
        return call

    def check_own(self, server: str, method: str) -> None:
        """Raises `UsageError` when this session shares the server with others."""
        self.check_server(server)
        if self.session is not None and self.live.root.isolation(server) is Isolation.PERSISTENT:
            use = {SET_LEVEL: "set_log_level(...)"}.get(method, "subscribe(...)")
            text = f'Server "{server}" is shared with others, and {method} would change it for them. Use `{use}`.'
            raise self.refused(UsageError(text, server=server))

    async def find_for_call(
        self, tool: str, arguments: Mapping[str, Any] | msgspec.Raw | None, server: str | None = None
    ) -> Target:
        """The tool of a call by its name. Its server is connected when needed, and has that connection still when this
        returns."""
        with (
            self.counting_refusals(Asked("tools/call", tool, server, arguments)),
            self.holding(arguments, server),
        ):
            return await self.find(tool, server)

    async def start_by_name(
        self,
        tool: str,
        arguments: Mapping[str, Any] | msgspec.Raw | None,
        on_end: Callable[[Call], None] | None,
        *,
        server: str | None = None,
        **options: Any,
    ) -> tuple[Target, Call]:
        """Find a tool by its name, connecting its server when needed, and start its call. `options`: those of
        `start_call`."""
        wait_by = self.wait_by()
        with ExitStack() as leases:
            with (
                self.counting_refusals(Asked("tools/call", tool, server, arguments)),
                self.holding(arguments, server),
            ):
                target = await self.find_leased(tool, server, leases, wait_by)
            return target, self.start_call(target, arguments, on_end, wait_by=wait_by, **options)

    def leaves_approval(self, target: Target) -> bool:
        """Whether a call of this tool from here has to be allowed, and only whoever makes it can ask a person."""
        approvals = self.live.root.approvals
        return approvals.asks and approvals.leaves_it_to(self.session, target)

    async def read_result(self, target: Target, answer: bytes, door: Scrub) -> ToolResult:
        """The result of a call of this tool, as this door shows it."""
        return tool_result(await self.scrubbed(target.server, door, answer), target)

    # ---- skills ---------------------------------------------------------------------------------------------------

    async def current_skill(self, server: str, uri: str) -> Target:
        """See `skills.current_skill`."""
        return await current_skill(self, server, uri)

    async def read_skill(
        self, name: str, path: str | None, server: str | None = None, *, door: Scrub = Scrub.ALL
    ) -> SkillRead:
        """See `skills.read_skill`."""
        return await read_skill(self, name, path, server, door=door)

    async def read_directory(self, server: str, uri: str, cursor: str | None) -> tuple[list[Raw], str | None]:
        """See `skills.read_directory`."""
        return await read_directory(self, server, uri, cursor)

    # ---- what is known ----------------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        return self.runtime.config if self.view is None else self.view.config

    def entry(self, server: str) -> ServerEntry | None:
        """What is known of a server, or None. Raises `UnknownServer`."""
        live, view = self.live, self.view
        if view is not None:
            view.check(server)
        live.root.record(server)
        entry = self.own_entry(server) or live.router.entry(server)
        return entry if view is None else view.entry(entry)

    def own_entry(self, server: str) -> ServerEntry | None:
        """What this session's own child has listed; None: it has listed nothing, or there is none."""
        return None if self.session is None else self.runtime.own_lists.entry(self.session, server)

    @property
    def is_learning(self) -> bool:
        """Whether servers of which nothing is known are still to be started for the first time, or to be discovered by
        this session."""
        return self.live.is_learning or bool(self.unlisted())

    def is_per_session(self, server: str) -> bool:
        """Whether each session has a process of this server of its own."""
        root = self.live.root  # the index follows it: a reload may have removed the server just now
        return server in root.records and root.isolation(server) is Isolation.PER_SESSION

    async def catalogued(self) -> None:
        """Wait until each such server was tried once, and the results are in the index."""
        live = self.in_loop
        await self.list_own()
        await live.catalogued()

    @property
    def finds_by_meaning(self) -> bool:
        """Whether the configuration asks for it."""
        return self.live.finds_by_meaning

    async def near(self, query: str) -> tuple[bytes, ...]:
        """The keys of what is near to `query` in meaning, the nearest first, if they are known."""
        return tuple(await self.live.near(self.index, query[:MAX_QUERY]))

    async def settled(self) -> Index:
        """Wait until everything that servers have listed so far is in the index. Returns the room's index."""
        return await self.in_loop.router.ref.ask(Sync)

    def status(self, server: str | None = None) -> list[ServerStatus]:
        """A row for each server, and one for each further live address. `server`: only its rows. The row of this
        session's own child replaces that of the server."""
        return self._seen(map(self._row, addresses(self.live.root, server)))

    async def surveyed(self) -> list[ServerStatus]:
        """`status`, with turns for others meanwhile, because there may be thousands of rows, or of tools to count."""
        await make_countable(self.live.router.index)
        await make_countable(self.index)
        return self._seen(await in_turns(addresses(self.live.root), self._row, _ROWS))

    def _seen(self, all_rows: Iterable[ServerStatus | None]) -> list[ServerStatus]:
        """Those of the room's rows that this scope may see, as it sees them."""
        rows = [row for row in all_rows if row is not None]
        if self.session is None:
            return rows
        view, scope = self.view, f"session:{self.session}"
        if view is not None:
            rows = [view.row(row) for row in rows if view.shows(row.server)]
        own = {row.server for row in rows if row.scope == scope}
        return [self._as_seen(row) for row in rows if row.scope == scope or row.server not in own]

    def _row(self, address: Address) -> ServerStatus | None:
        """The row of an address in the whole room, with what the catalogue has of its server. None: it is gone."""
        live = self.live
        if address.server not in live.root.records:
            return None
        index, entry = live.router.index, live.router.entry(address.server)
        row = status_row(live.root, address, live.context.backend.now(), index.counts(address.server))
        if entry is None:
            return row
        faults, problems = index.faults(row.server), entry.problems
        return attrs.evolve(row, faults=faults, problems=problems) if faults or problems else row

    def _as_seen(self, row: ServerStatus) -> ServerStatus:
        """The row with what this session's own child has listed."""
        if self.own_entry(row.server) is None:
            return row
        counts, faults = self.index.counts(row.server), self.index.faults(row.server)
        if counts is None:
            return attrs.evolve(row, tool_count=None, changed=(), hidden=(), faults=faults)
        return attrs.evolve(
            row, tool_count=counts.callable, changed=counts.changed, hidden=counts.hidden, faults=faults
        )

    # ---- subscriptions, and who answers servers ---------------------------------------------------------------------

    async def watch_resource(self, place: Place) -> None:
        """Ask a server to report changes of a resource. Counted: it ends after as many calls of `unwatch_resource`. For
        doors, which get the updates through their host."""
        await subscribe(self, place)

    def unwatch_resource(self, place: Place) -> None:
        """Undo one `watch_resource`. After the last one the server is told, without waiting for its answer."""
        unsubscribe(self, place)

    def is_stateless(self, server: str) -> bool:
        """Whether the server speaks 2026-07-28, as far as is known. Raises `UnknownServer`, `SessionNeeded`."""
        actor = self.actor(server)
        return is_modern(actor) if actor.peer is not None else actor.record.era_hint in MODERN_VERSIONS

    def answer_with(self, host: Host | None) -> None:
        """Let `host` answer the requests of servers and receive their notifications, instead of the callbacks. In a
        session: for what belongs to this session. Servers that were told other capabilities are connected again if
        nobody has used them yet; the others are told at their next start."""
        self.live.sessions.answer_with(host, self.session)
        self._restart_outdated()

    def restart_outdated(self) -> None:
        """Restart the unused servers that were not told all that the host can answer. In a session: its children and
        shared servers. A server that is being installed or discovered finishes first, and is checked when it is ready.
        Servers that have waited for a client are started."""
        self.live.begin()
        self._restart_outdated()

    def _restart_outdated(self) -> None:
        live, session = self.live, self.session
        if session is not None:
            declaration = live.sessions.declaration(session, Address.of_session("", session))
            live.own_lists.meet(session, declaration.capabilities)
        restart_outdated(live, session)

    def set_log_level(self, level: str, server: str | None = None) -> None:
        """See `Greenroom.set_log_level`."""
        if level not in LOG_LEVELS:
            raise UsageError(f'"{level}" is no log level. Use one of: {", ".join(LOG_LEVELS)}.')
        self.check_server(server)
        live, session = self.live, self.session
        root, is_heard = live.root, session is None or session in live.sessions.with_hosts
        if not is_heard and server is not None and root.isolation(server) is not Isolation.PER_SESSION:
            text = f'Server "{server}" is shared with others: set its level with `room.set_log_level(...)`.'
            raise UsageError(text)
        root.log_levels.set(level, server, session)

    def roots_changed(self) -> None:
        """See `Greenroom.roots_changed`."""
        tell_roots_changed(self.live, self.session)

    # ---- the client of a door ---------------------------------------------------------------------------------------

    def came_by(self, door: str, subject: str | None = None) -> None:
        """Tell the audit which door this session came by, and who is behind it, if the door knows."""
        self.door: str = door
        self.subject: str | None = subject

    def introduced(self, client: object) -> None:
        """Tell the audit what the client of this session says about itself."""
        self.client_said = client

    def unlisted(self) -> list[str]:
        """The servers whose lists belong to this session, because they are started with values that it gives, and whose
        lists it does not know yet."""
        if self.is_over or self.session is None:
            return []
        live = self.live
        return [
            name
            for name in live.of_sessions()
            if self.own_entry(name) is None
            and (self.view is None or self.view.shows(name))
            and live.root.records[name].available.is_usable
            and live.root.records[name].definition.bootstrap
            and not live.sessions.missing(live.root.records[name].definition, self.session)
        ]

    async def list_own(self) -> None:
        """Connect these servers, so that they list what they have. Those that cannot be connected are left out."""

        async def connect(server: str) -> None:
            with suppress(CallError, UsageError):  # the latter: the session is over by now
                await self.connect(server)
                actor = self.actor(server)
                if actor.is_connected and is_unused(actor):  # nobody has called it, and perhaps nobody will
                    actor.idling.shorten(DISCOVERY_IDLE)
                    actor.idling.begin(actor.connected_at)

        if self.is_over:
            return
        async with anyio.create_task_group() as tasks:
            for server in self.unlisted():
                tasks.start_soon(connect, server)

    def helper(self, name: str, command: Sequence[str], *, max_line: int) -> Connector:
        """A connector that starts a child of ours which is no server, for a door. See `Connectors.helper`."""
        return self.live.connectors.helper(name, command, max_line)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call a function that does not wait, by the timer of the room."""
        context = self.live.context
        return context.timers.at(context.backend.now() + seconds, callback)

    # ---- the whole room ---------------------------------------------------------------------------------------------

    def end_children_at(self, at: float | None) -> None:
        """End the processes of all servers at this time of `time.monotonic()`, even if this process is stopped by then,
        unless another time was said before. See `Guard.end_children_at`."""
        self.live.guard.end_children_at(at)

    def expect_clients(self) -> None:
        """Clients that can answer different things will come and go, in sessions. So shared servers are told from the
        start that they may ask for everything, and the room answers for a client that cannot. For a door, before the
        room is opened."""
        self.runtime.sessions.for_many = True

    def await_client(self, seconds: float) -> None:
        """One client will come soon and say what it can answer. Servers that start without a call start then, or after
        `seconds`, so that they are not told too little and started twice. For a door, before the room is opened."""
        self.runtime.client_within = seconds

    def shut(self) -> dict[str, Shut]:
        """The servers whose circuit breakers refuse because of what happened here, for other hosts."""
        found = ((name, record.breaker.shut()) for name, record in self.live.root.records.items())
        return {name: shut for name, shut in found if shut is not None}

    def heed_shut(self, others: Mapping[str, Shut]) -> None:
        """What the circuit breakers of other hosts say, by server. Servers that are not configured here do not count.
        See `CircuitBreaker.told`."""
        records = self.live.root.records
        for name, shut in others.items():
            if name in records:
                records[name].breaker.told(shut)

    @property
    def telemetry(self) -> Tracing | None:
        """What tells OpenTelemetry of this room; None: nobody wants to know."""
        return self.runtime.tracing

    def now(self) -> float:
        """The time of the room's clock, which is that of its events."""
        return self.live.context.backend.now()

    def listen(self, callback: Callable[[Event], None], kinds: Iterable[Kind]) -> Subscription:
        """Call `callback(event)` in the step that makes an event, until the subscription is closed."""
        return self.runtime.events.listen(callback, kinds)

    def keep_recent(self) -> None:
        """Keep more of the last events and calls for `recent`. For a door, before the room opens."""
        self.runtime.recent.keep_more()

    def recent(self, seconds: float) -> Callable[[], list[Event]]:
        """What has happened in the last so many seconds. The function that is returned needs no loop, and may take a
        while."""
        kept, since = self.runtime.recent, self.runtime.events.backend.now() - seconds
        return partial(in_order, *still_there(self.live.root, kept), since)

    def last_minutes(self, seconds: float = 60.0 * RECENT_MINUTES) -> LastMinutes:
        """What there is for a tape of the last so many seconds (`tape.recent`)."""
        from ..tape.recent import LastMinutes

        live, recent = self.live, self.runtime.recent
        events, calls = still_there(live.root, recent)
        secrets = live.context.secrets.copy()
        for _, server, session, found in recent.forgotten:
            secrets.remember(server, session, found)
        known = (live.router.entry(name) or live.own_lists.of_any(name) for name in live.root.records)
        return LastMinutes(
            live.config,
            secrets,
            [entry for entry in known if entry is not None and entry.known],
            events,
            calls,
            list(recent.refusals),
            list(recent.notices),
            self.now(),
            seconds,
        )

    @property
    def audit(self) -> AuditFile | None:
        """The audit file; None: there is none."""
        return self.runtime.audit

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many calls were not accepted so far, by error code."""
        return dict(self.live.context.tally.refusals)

    async def accept_shown(self, server: str, shown: Mapping[str, str]) -> list[str]:
        """Accept these changed definitions, by the names of their pins, as long as their fingerprints are those that
        were `shown`. Returns the names that were accepted. Raises `UnknownServer`, `OSError`."""
        return await accept(self.live, server, None, shown)

    def note(self, words: str, server: str | None = None) -> None:
        """Tell in an event what an owner has done, and to which server."""
        address = None if server is None else Address(server)
        self.runtime.events.emit(Note, address, code=NoteCode.OWNER, words=words)

    def stderr_log_of(self, server: str) -> Path | None:
        """The file with what this server writes to stderr. None: there is none."""
        return self.live.stderr_log_of(server)

    @property
    def slots_held(self) -> int:
        """How many slots of the pool are held, of `maxConnections`."""
        return self.live.root.admission.starts.slots_held

    @property
    def approvals(self) -> Desk:
        """The calls that wait for a person's yes. They are shown and decided at a terminal."""
        return self.live.root.approvals.desk

    @property
    def pin_keys(self) -> Mapping[str, PinKey]:
        """The keys of the configured servers in the catalogue and in the pins."""
        return self.live.pins.keys


def check_options(timeout: object, on_progress: object) -> None:
    seconds(timeout, "timeout")
    function(cast("Callable[..., Any] | None", on_progress), "on_progress")


def _values(arguments: msgspec.Raw) -> dict[str, Any]:
    """The arguments, decoded. Raises `UsageError` (code `invalid_args`), which names an argument that cannot be
    decoded."""
    found: dict[str, Any] = {}
    for name, part in read_parts(arguments).items():
        try:
            found[name] = read_value(part)
        except RpcFault as fault:
            why = fault.message.removeprefix("Invalid params: ").partition(" - at ")[0]
            text = f'Invalid args: the value of "{one_line(name)}" cannot be read: {why}.'
            raise UsageError(text, code="invalid_args") from None
    return found
