"""The caller of requests: the room's machinery, and the scope that requests are made in.

A room and each of its sessions hold one `Caller`. It finds the actor of a request, hands calls to that actor,
counts calls that are refused before they reach an actor, and waits for a server to be connected. It decides
nothing. What doors and exposures do beside, and what a request is about, is in `room_port`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
import msgspec

from ..actors.call import Call
from ..actors.current_trace import CURRENT
from ..actors.router import Sync, make_resolvable, make_searchable
from ..actors.server import ServerActor
from ..actors.workers import LONG_WORK, aside
from ..catalogue.entries import ServerEntry
from ..catalogue.index import Index
from ..catalogue.namespace import Ambiguous, Missing, Place, Target
from ..config.arguments import name_of, named_values, text
from ..config.model import Scrub
from ..config.secrets import Secrets
from ..protocol.bounds import LARGE_MESSAGE
from ..protocol.errors import (
    AmbiguousTool,
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    GreenroomError,
    ProtocolFault,
    Reach,
    RoomClosed,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
    UsageError,
    some_of,
)
from ..protocol.jsonrpc.encoding import weigh
from ..protocol.jsonrpc.incoming import decode_result
from ..protocol.jsonrpc.terms import MODERN_VERSIONS, WireFault
from ..protocol.lifecycle import Cause, Ending
from ..protocol.result import ToolResult, decoded
from ..safety.audit import Asked
from .profiles import ProfileView
from .runtime import Runtime

_OFF, _MCP, _ALL = Scrub.OFF, Scrub.MCP, Scrub.ALL  # as in `actors.peer`: each call names these


class Caller:
    """Makes requests in one scope. `session` is None for the room itself. `view` is the part of the room that it sees;
    None: everything.

    For an audit (`audit_trail`), `door` says how requests come here, `subject` for whom, and the client info which
    program sent them.
    """

    door: str = "embedded"
    subject: str | None = None
    client_said: object = None

    def __init__(self, runtime: Runtime, session: str | None = None, view: ProfileView | None = None) -> None:
        self.runtime = runtime
        self.session = session
        self.view = view
        self.is_over = False  # a session's end

    async def scrubbed(self, server: str, door: Scrub, answer: bytes) -> bytes:
        """An answer of a server as this door may show it."""
        scrubber = self.scrubber(server, door)
        if scrubber is None or len(answer) < LONG_WORK:
            return answer if scrubber is None else scrubber.scrub(answer)
        return await aside(partial(scrubber.scrub, answer))

    def scrubber(self, server: str, door: Scrub) -> Secrets | None:
        """What scrubs the results of a server at this door; None: nothing does. `door`: `MCP`, where a tool of ours
        gives them to a model, or `ALL` for any other. The configuration says it, for all servers and for each. It is
        asked at each result, so a reload counts at once."""
        config = self.runtime.config
        definition = config.servers.get(server)
        rule = (definition.scrub if definition is not None else None) or config.settings.scrub
        if rule is _OFF or (rule is _MCP and door is not _MCP):
            return None
        return self.runtime.root.context.secrets.of_server(server, self.session)

    @property
    def live(self) -> Runtime:
        """The machinery. Raises `UsageError` before the room is opened, and after the end of the session."""
        if self.is_over:
            raise UsageError(f"The session {self.session!r} is over; open another with `room.session(...)`.")
        if not self.runtime.is_built:
            raise UsageError(
                "The room is not open yet: use `async with Greenroom.open(...) as room`, or `await room.start()`."
            )
        return self.runtime

    @property
    def in_loop(self) -> Runtime:
        """The machinery, for what waits or changes something. Raises as `live` and `check_loop` do."""
        self.live.check_loop()
        return self.runtime

    @property
    def index(self) -> Index:
        """The published index of all names. It can still be read when a session is over."""
        runtime = self.runtime
        if not runtime.is_built:
            return self.live.router.index
        shown = runtime.router.index if self.view is None else self.view.index
        return shown if self.session is None else runtime.own_lists.index(self.session, shown)

    def actor(self, server: str) -> ServerActor:
        """The actor that a request from here goes to. Raises `UnknownServer`, `SessionNeeded`."""
        self.check_server(server)
        return self.live.root.actor_for(server, self.session)

    def check_server(self, server: str | None) -> None:
        """Raises `UnknownServer`. None stands for any server."""
        if server is not None:
            if self.view is not None:
                self.view.check(server)
            self.live.root.record(server)

    # ---- handing over a call ----------------------------------------------------------------------------------------

    def submit(self, server: str, call: Call, *, allowed: bool = False) -> None:
        """Hand the call to its actor in this scope. Raises the `CallError` with which it is refused.

        A call that somebody has to allow is held first, unless it is `allowed` (`safety.approval_desk`)."""
        live = self.runtime
        if self.is_over or not live.is_running or not live.context.backend.is_here():
            live = self.in_loop  # only then can it raise; this saves looking
            text = "The room is not open; the call was not sent. Call inside `async with Greenroom.open(…)`."
            if live.is_copy and live.root.closing is not None:
                text = live.root.closing.message
            raise self.refused(RoomClosed(text, server=server))
        root = live.root
        call.client = self.session
        if call.trace is None:
            call.trace = CURRENT.get()
        try:
            if self.view is not None:
                self.view.check(server)
            if root.approvals.asks and not allowed and root.approvals.holds(self, server, call):
                return
            actor = root.actor_for(server, self.session)
        except CallError as error:
            raise self.refused(error) from None
        try:
            actor.calls.submit(call)
        except CallError:
            root.forget_unused(actor)
            raise

    async def ask_raw(self, server: str, call: Call) -> bytes:
        """Hand the call over and wait for its result, as the server sent it. Raises the call's `CallError`."""
        try:
            self.submit(server, call)
        except CallError:
            await anyio.lowlevel.checkpoint()  # a loop around a refusal must not starve others
            raise
        return await call.wait()

    async def ask(
        self, server: str, call: Call, *, most: float = math.inf, is_definition: bool = False
    ) -> dict[str, Any]:
        """Hand the call over and wait for its result, decoded. It may have at most so many bytes. A definition is not
        scrubbed as results are (`catalogue.definition_secrets`). Raises the call's `CallError`."""
        answer = await self.ask_raw(server, call)
        if len(answer) > most:
            text = f'Server "{server}" answered {call.method} with more than {most:,} bytes.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
        try:
            return decode_result(answer if is_definition else await self.scrubbed(server, _ALL, answer))
        except WireFault as error:
            text = f'Server "{server}" answered {call.method} with what cannot be read: {error}.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED) from None

    def refused(self, error: CallError, asked: Asked | None = None) -> CallError:
        """Count a request that ends before an actor has accepted or refused it, for the drain report. `asked`: what
        it was, if it is no call yet."""
        context = self.live.context
        context.tally.refuse(error)
        context.recent.refused(
            error, asked.name if asked is not None else None, self.session, context.backend.now()
        )
        return error

    @contextmanager
    def counting_refusals(self, asked: Asked | None = None) -> Generator[None]:
        """Count errors raised inside as refused requests. For the search for a request's server. `asked`: the request,
        for an audit."""
        try:
            yield
        except CallError as error:
            Caller.refused(self, error, asked)  # an audit notes it by itself
            raise

    @contextmanager
    def holding(self, arguments: object, server: str | None) -> Generator[None]:
        """Count the arguments among those of waiting calls. For the search for a call's server. Raises `Busy`, and
        `UsageError` if `arguments` are no arguments, before a server is started for them."""
        if not isinstance(arguments, msgspec.Raw):
            named_values(arguments, "The arguments", server or "")
        context = self.live.context
        size, most = weigh(arguments), context.settings.max_queued_bytes
        if context.queued_bytes + size > most:
            why = f"the parameters of waiting calls would be over {most:,} bytes"
            raise Busy(server or "", in_flight=0, queued=0, oldest_age=0.0, retry_after=1.0, why=why)
        context.queued_bytes += size
        try:
            yield
        finally:
            context.queued_bytes -= size

    def listed(self, server: str) -> ServerEntry | None:
        """What the server has listed for this scope, whether it is shown here or not."""
        own = None if self.session is None else self.runtime.own_lists.entry(self.session, server)
        return own or self.live.router.entry(server)

    # ---- for an audit -----------------------------------------------------------------------------------------------

    def noting(self, asked: Asked) -> AbstractContextManager[None]:
        """Tell the audit how the search for a request's server failed. Doors put it around a search of their own."""
        return nullcontext()

    def turned_away(self, asked: Asked, why: GreenroomError | str) -> None:
        """Tell the audit that a door has answered this request itself, with this error or error code, because there is
        no server for it. Does nothing if the audit was told of the same error before."""

    # ---- waiting for a connection -----------------------------------------------------------------------------------

    def wait_by(self) -> float:
        """The time until which a request that begins to wait for a server now may wait."""
        context = self.live.context
        return context.backend.now() + context.settings.queue_timeout

    async def connect_by_name(self, server: str) -> None:
        """Connect the server now, whatever its circuit breaker says, and wait until its lists are in the index."""
        await self.connect(server, by_name=True)
        await self.in_loop.router.ref.ask(Sync)

    async def connect(self, server: str, *, by_name: bool = False, wait_by: float = math.inf) -> bool:
        """Wait until the server is connected. Returns False if it was connected already.

        `by_name`: bypass the circuit breaker, and have a connected server list what it has again. Otherwise wait as a
        call would wait, and no longer than a call or than until `wait_by`. When the wait ends, a running attempt goes
        on. A server without a standing address in this scope (it has a child per call, or a child per session and this
        is no session) is started for discovery instead.
        """
        self.check_server(server)
        live = self.in_loop
        root, settings, backend = live.root, live.context.settings, live.context.backend
        limit = min(settings.queue_timeout, wait_by - backend.now())
        if by_name:
            definition = root.record(server).definition
            limit += definition.connect_timeout or settings.connect_timeout
        if not root.has_standing_address(server, self.session):
            if by_name:
                root.bring_back(server)
            await self._discover(server, limit)
            return True
        actor = self.actor(server)
        if actor.is_connected and (not by_name or await self._list_again(actor)):
            return False
        waiter, box = backend.waiter(), list[CallError | None]()

        def connected(error: CallError | None) -> None:
            box.append(error)
            waiter.set()

        starter = root.supervision.starter
        stop_waiting = actor.on_connected(connected, by_name=by_name)
        try:
            starter.request_by_name(actor) if by_name else starter.request_as_called(actor)
            with anyio.fail_after(limit):
                await waiter.wait()
        except TimeoutError:
            raise _not_ready(actor, limit) from None
        finally:
            stop_waiting()
            starter.withdraw(actor)
        if box[0] is not None:
            raise box[0].copy()
        return True

    async def _list_again(self, actor: ServerActor) -> bool:
        """Have a connected server list what it has again. Returns False if its connection has ended. If it does not
        list, it is stopped when it has nothing else to do; otherwise this raises `ConnectFailed`."""
        incarnation, waiter = actor.life.incarnation, self.live.context.backend.waiter()
        box = list[CallError | None]()

        def listed(error: CallError | None) -> None:
            box.append(error)
            waiter.set()

        release = actor.idling.lease()
        try:
            actor.list_again(listed)
            await waiter.wait()
        finally:
            release()
        error = box[0]
        if error is None:
            return True
        if actor.is_connected and actor.life.incarnation == incarnation:
            if open_calls := actor.in_flight + actor.queued:
                calls = "1 call is" if open_calls == 1 else f"{open_calls} calls are"
                reason = error.reason if isinstance(error, ConnectFailed) else error.message
                text = f"{reason} ({calls} in flight there, so it was not started anew)"
                raise ConnectFailed(text, server=actor.address.server)
            actor.stop(Ending(Cause.RESTART))
        return False

    async def _discover(self, server: str, limit: float) -> None:
        """Start the server once to learn what it has. Raises the error that kept it from starting."""
        over = anyio.Event()
        box: list[CallError | None] = []

        def discovered(actor: ServerActor) -> None:
            ending = actor.life.ending
            box.append(ending.error if ending is not None else None)
            over.set()

        actor = self.live.root.supervision.discover_apart(server, self.session, discovered)
        try:
            with anyio.fail_after(limit):
                await over.wait()
        except TimeoutError:
            raise _not_ready(actor, limit) from None
        if box[0] is not None:
            raise box[0].copy()

    def lease(self, server: str) -> Callable[[], None]:
        """Keep the server's connection from being evicted. Returns the function that ends this."""
        if not self.live.root.has_standing_address(server, self.session):
            return _nothing
        return self.actor(server).idling.lease()

    # ---- from names to servers --------------------------------------------------------------------------------------
    #
    # A name is looked up in the router's published index. If an unknown name has a server's prefix, that server is
    # connected (if its circuit breaker lets it) and the name is looked up again. The server is leased until the call is
    # made, so that it is not evicted in between.
    #
    # A URI that the index does not know goes to the only server that may have it. If there are several, the request is
    # refused with these candidates, so that no server gets a request that was not meant for it.

    async def find_leased(self, name: str, server: str | None, leases: ExitStack, wait_by: float) -> Target:
        """The tool of this name. A server that was connected for it is kept connected until `leases` is closed.

        Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`, and what kept the server from connecting.
        """
        name_of(name, "a tool")
        await make_resolvable(self.index)
        found = self.resolve(name, server)
        if not isinstance(found, Missing):
            return found
        refused: CallError | None = None
        connected = list[str]()
        # A server that is given by name is asked even if the index has nothing of it: a disabled one says so.
        for candidate in found.servers or ((server,) if server is not None else ()):
            # One at a time: do not hold the slot of one server while waiting for the slot of the next.
            with ExitStack() as lease:
                lease.callback(self.lease(candidate))
                try:
                    if await self.connect(candidate, wait_by=wait_by):
                        connected.append(candidate)
                except CallError as error:
                    refused = refused or error
                    continue
                index = await self.live.router.ref.ask(Sync)
                if index.get(name) is None:
                    await make_resolvable(index)
                again = self.resolve(name, server)
                if not isinstance(again, Missing):
                    leases.push(lease.pop_all())
                    return again
        if refused is not None:
            raise refused
        await make_searchable(self.index)
        raise self.unknown_tool(name, found.servers, connected)

    async def find(self, name: str, server: str | None = None) -> Target:
        """The tool of this name. If it is unknown, connect the server it may belong to and look again.

        Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`, and the error that kept the server from connecting.
        """
        with ExitStack() as leases:
            return await self.find_leased(name, server, leases, self.wait_by())

    def resolve(self, name: str, server: str | None) -> Target | Missing:
        """Look a tool's name up in the index. Raises `AmbiguousTool`, `UnknownServer`."""
        self.check_server(server)
        found = self.index.resolve(name_of(name, "a tool"), server)
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(name, found.candidates)
        return found

    def unknown_tool(
        self, name: str, servers: Sequence[str] = (), connected: Sequence[str] = ()
    ) -> UnknownTool:
        """The error for a name that no server has, with similar names. `connected`: the servers that were connected to
        search their lists."""
        index = self.index
        names = [target.name for server in servers[:1] for target in index.tools(server)]
        message = f'Tool "{name}" not found.'
        message += f' Server "{servers[0]}" has: {some_of(names)}.' if names else ""
        return UnknownTool(name, message=message, suggestions=index.suggest(name), connected=connected)

    async def find_prompt(self, name: str, server: str | None = None) -> Target:
        """The prompt of this name. Raises `UnknownPrompt`, `AmbiguousTool`, `UnknownServer`, and what kept the server
        from connecting."""
        self.check_server(server)
        found = self._resolve_prompt(name, server)
        wait_by = self.wait_by()
        for candidate in found.servers if isinstance(found, Missing) else ():
            await self.connect(candidate, wait_by=wait_by)
            await self.live.router.ref.ask(Sync)
            again = self._resolve_prompt(name, server)
            if isinstance(again, Target):
                return again
        if isinstance(found, Missing):
            raise UnknownPrompt(name, [target.name for target in self.index.prompts(server)])
        return found

    async def find_reference(
        self, ref: Mapping[str, Any], server: str | None = None
    ) -> tuple[str, Mapping[str, Any]]:
        """The server of a completion's reference, and the reference in that server's own names. Raises as
        `Calls.complete` does."""
        match ref:
            case {"type": "ref/prompt", "name": str(name)}:
                target = await self.find_prompt(name, server)
                return target.server, {**ref, "name": target.original}
            case {"type": "ref/resource", "uri": str(uri)}:
                self.check_server(server)
                place = _placed(uri, server, self.index.resolve_template(uri))
                return place.server, {**ref, "uri": place.original}
            case _:
                raise UsageError(
                    'A completion is for {"type": "ref/prompt", "name": …} or {"type": "ref/resource", "uri": …}.'
                )

    def locate(self, uri: str, server: str | None = None) -> Place:
        """The server and URI at which a resource is read. Raises `UnknownResource`, `AmbiguousTool`,
        `UnknownServer`."""
        self.check_server(server)
        return _placed(uri, server, self.index.resolve_uri(text(uri, "A URI")))

    def _resolve_prompt(self, name: str, server: str | None) -> Target | Missing:
        found = self.index.resolve_prompt(name_of(name, "a prompt"), server)
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(name, found.candidates, what="Prompt")
        return found


def _not_ready(actor: ServerActor, waited: float) -> CallTimeout:
    server = actor.address.server
    text = f'Server "{server}" was not ready within {waited:.3g}s ({actor.doing}); nothing was sent.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def _nothing() -> None:
    pass


def _placed(uri: str, server: str | None, found: Place | Ambiguous | Missing) -> Place:
    if server is not None:
        own = isinstance(found, Place) and found.server == server
        return found if own and isinstance(found, Place) else Place(uri, server, uri, record={})
    if isinstance(found, Place):
        return found
    if isinstance(found, Ambiguous):
        raise AmbiguousTool(uri, found.candidates, what="Resource")
    if len(found.servers) == 1:
        return Place(uri, found.servers[0], uri, record={})
    raise UnknownResource(uri, found.servers)


# --------------------------------------------------------------------------------------------------------------
#
#
# Reads what servers answered.


def tool_result(answer: bytes, target: Target) -> ToolResult:
    """Raises `ProtocolFault` for an answer that is no result. A large one is decoded when it is asked for."""
    return ToolResult(answer if len(answer) >= LARGE_MESSAGE else decoded(answer, target), target)


# ---- Subscriptions to resources: asking a server to report changes, and reading what it reports ---------------------
#
# Subscribers of a resource are counted per actor (`actors.incarnation`). The first one subscribes at the
# server, and the last one unsubscribes. With a server of the 2026-07-28 era this is done through its open
# stream.

_MOST_UPDATES: Final = 1024  # kept for a slow reader; an update only says "look again"


class Updates:
    """The updates of one resource, as an async iterator: each is the `params` of one notification, in order.

    A slow reader loses the oldest updates, since one update says as much as many. The iteration ends when the
    room does.
    """

    def __init__(self) -> None:
        self._found: deque[Mapping[str, Any]] = deque(maxlen=_MOST_UPDATES)
        self._messages = anyio.Event()
        self._is_over = False

    def put(self, params: Mapping[str, Any]) -> None:
        self._found.append(params)
        self._messages.set()

    def end(self) -> None:
        """There will be no more updates. Those that have come are still read."""
        self._is_over = True
        self._messages.set()

    def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._found:
            if self._is_over:
                raise StopAsyncIteration
            self._messages = anyio.Event()
            await self._messages.wait()
        return self._found.popleft()


@asynccontextmanager
async def subscribed(caller: Caller, place: Place) -> AsyncGenerator[Updates]:
    """The updates of this resource, as long as the context is open."""
    updates = Updates()

    def heard(params: Mapping[str, Any]) -> None:
        if _is_about(params.get("uri"), place.original):
            updates.put(params)

    stop_hearing = caller.in_loop.room_host.subscribe(caller.actor(place.server).address, heard, updates.end)
    try:
        await subscribe(caller, place)
        try:
            yield updates
        finally:
            unsubscribe(caller, place)
    finally:
        stop_hearing()


async def subscribe(caller: Caller, place: Place) -> None:
    """Connect the server and ask it to report changes of this resource."""
    actor = caller.actor(place.server)
    await caller.connect(place.server)
    if place.original not in actor.subscriptions.uris and not is_modern(actor):
        call = Call("resources/subscribe", {"uri": place.original}, replayable=True)
        await caller.ask_raw(place.server, call)
    if actor.subscriptions.add(place.original):
        actor.subscriptions_changed()


def unsubscribe(caller: Caller, place: Place) -> None:
    """One subscriber has gone. After the last one the server is told so, without waiting for its answer."""
    try:
        actor = caller.live.root.actor_for(place.server, caller.session)
    except CallError:
        return  # the server is no longer configured
    if not actor.subscriptions.drop(place.original) or not caller.live.is_running:
        return
    if actor.is_connected and not is_modern(actor):
        call = Call(
            "resources/unsubscribe", {"uri": place.original}, replayable=True, on_end=lambda _call: None
        )
        try:
            caller.submit(place.server, call)
        except CallError:
            return  # it cannot be told now, and its next incarnation will not be asked to report changes
    actor.subscriptions_changed()


def is_modern(actor: ServerActor) -> bool:
    """Whether the server it is connected to speaks 2026-07-28."""
    return actor.peer is not None and actor.peer.protocol_version in MODERN_VERSIONS


def _is_about(told: object, uri: str) -> bool:
    """Whether an update is about this resource, or about a part of it (the protocol allows both)."""
    return isinstance(told, str) and (told == uri or told.startswith(uri.rstrip("/") + "/"))
