"""`Greenroom`, the public door that an embedder, the gateway and the command line hold.

It adds no mechanism. Calls and requests are the public methods of `Calls`, which a session has too.
Everything that runs is in the `Runtime`, in the task of `owner`. This module tells what is known of servers,
and has the operations on servers by name.

Only these start a server: a call (of a known tool, or of an unknown name with its prefix), its lifecycle, a
visit to learn what it has, and a request by name (`connect`, `restart`).
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import anyio
import anyio.lowlevel
import attrs
import msgspec

from ..actors.call import Call
from ..actors.event_stream import Subscription
from ..actors.host import Host
from ..actors.peer import Connector, ConnectorFactory
from ..actors.router import Sync
from ..actors.server import ServerActor, is_unused
from ..actors.workers import all_of, apart, in_turns
from ..catalogue.entries import ServerEntry
from ..catalogue.fingerprints import PinKey
from ..catalogue.index import Index
from ..catalogue.namespace import Missing, Place, Target
from ..catalogue.search import SearchPage, search
from ..catalogue.store import open_store
from ..config.arguments import function, kinds_of, maker, name_of, named_values, seconds, text
from ..config.files import open_config, with_objects
from ..config.model import Config, Isolation, Scrub
from ..protocol.address import Address
from ..protocol.cooperative import Pace, Slices, finish
from ..protocol.errors import CallError, UsageError
from ..protocol.events import Kind
from ..protocol.jsonrpc.incoming import read_value
from ..protocol.jsonrpc.terms import MODERN_VERSIONS
from ..protocol.large_json import LARGE
from ..protocol.lifecycle import Cause, Ending, State
from ..protocol.result import Completion, PromptMessages, ResourceContents, ToolResult
from ..protocol.status import ServerStatus
from ..protocol.version import VERSION
from ..safety.approval import OnApproval
from ..safety.approval_desk import Desk
from ..safety.audit import Asked
from .audit_trail import audit_file, caller_of
from .caller import (
    Caller,
    Names,
    Updates,
    is_modern,
    scrubbed_in_turns,
    subscribe,
    subscribed,
    tool_result,
    tool_result_in_turns,
    unsubscribe,
)
from .discovery import VISIT_IDLE
from .owner import Owner
from .profiles import ProfileView
from .records import addresses, status_row
from .reload import ReloadPlan, plan_reload
from .root import to_reconnect
from .runtime import DrainReport, Recalled, Runtime, accept, restart_outdated, tell_roots_changed
from .server_messages import LOG_LEVELS, Answer, Callbacks, OnLog, OnNotification, Roots

if TYPE_CHECKING:
    from ..actors.transports.http_connection import AuthFor
    from ..protocol.model_calls import Format, Told, ToolCall
    from .call_stream import CallStream


# --------------------------------------------------------------------------------------------------------------
#
#
# The requests to servers in one scope: the public methods that a room and a session have in common.
#
# These methods make a `Call` of the request and hand it to the `Caller` of the room or session, which knows the scope.
# Names (`Names`) and subscriptions (`Updates`) are in `caller`. Every request is an ordinary call of the server's
# actor: it connects, waits, times out and is counted like one. The result is the server's own object.
#
# A room and a session each hold a `Caller` for their own scope. This class, from which both inherit, has the public
# methods that make requests through it. Rejected: an object for these methods too, held by both. Then both would have
# to repeat all twenty public methods only to pass them on. In return, nothing may be here that only a room has.

# Nearly always; whether it is another `Mapping` takes longer to find out.
_PLAIN: Final = (dict, type(None), msgspec.Raw)
_SET_LEVEL: Final = "logging/setLevel"
_CHANGES: Final = frozenset({_SET_LEVEL, "resources/unsubscribe", "initialize"})  # the server, for everybody
_ONLY_LOOK: Final = frozenset(
    {"resources/read", "prompts/get", "completion/complete", "resources/subscribe", "resources/unsubscribe"}
)
Progress = Callable[[Mapping[str, Any]], None]


class OwnTool(Protocol):
    """A tool for a model that is no server's."""

    @property
    def name(self) -> str: ...

    async def run(self, arguments: Mapping[str, Any], /) -> ToolResult: ...


class Calls:
    """The methods that send requests to servers."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._names = Names(caller)
        self.scrubber = caller.scrubber  # doors, which are given bytes, scrub by themselves
        self.noting = caller.noting  # and refuse some requests by themselves
        self.turned_away = caller.turned_away

    @property
    def index(self) -> Index:
        """The published index of all names."""
        return self._caller.index

    # ---- tools ------------------------------------------------------------------------------------------------------

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        on_progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        """Call a tool (or read a resource) by its name. Connects its server when needed.

        `timeout`: seconds after the call is sent, instead of the server's timeout. `on_progress(params)` gets
        every progress notification as the server sent it. `meta` is sent as the request's `_meta`. Raises a
        `CallError`, which says how far the call got; `UnknownTool`, `AmbiguousTool` and `UnknownServer` are
        among them. Cancelling this cancels the call.
        """
        if type(tool) is not str:
            name_of(tool, "a tool")
        target = self._caller.index.get(tool) if server is None else None
        wait_by, leases = math.inf, None
        try:
            if target is None:
                wait_by, leases = self._caller.wait_by(), ExitStack()
                with (
                    self._caller.counting_refusals(Asked("tools/call", tool, server, arguments)),
                    self._caller.holding(arguments, server),
                ):
                    target = await self._names.find(tool, server, leases, wait_by)
            try:
                call = self.start_call(
                    target,
                    arguments,
                    None,
                    timeout=timeout,
                    on_progress=on_progress,
                    wait_by=wait_by,
                    meta=meta,
                )
            except CallError:
                # Others get a turn after a refusal, so a loop of refused calls cannot starve them.
                await anyio.lowlevel.checkpoint()
                raise
        finally:
            if leases is not None:
                leases.close()
        answer = await call.wait()
        if len(answer) >= LARGE or self.scrubber(target.server, Scrub.ALL) is not None:
            return await self._result(target, answer, Scrub.ALL)
        return ToolResult(tool_result(answer, target), target)

    @asynccontextmanager
    async def stream_call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[CallStream]:
        """`call`, with its progress as an async iterator:

        `async with room.stream_call("build") as run: async for progress in run: …`, then `await run.result()`.

        Leaving the block before the call has ended cancels it. On entering, this raises what `call` raises for a call
        that is not accepted; `result` raises the rest.
        """

        from .call_stream import CallStream

        async def read(call: Call) -> ToolResult:
            return await self._result(target, await call.wait(), Scrub.ALL)

        stream = CallStream(read)
        call: Call | None = None
        try:
            target, call = await self._start(
                tool,
                arguments,
                stream.ended,
                server=server,
                timeout=timeout,
                on_progress=stream.progressed,
                meta=meta,
            )
            yield stream
        finally:
            if call is not None:
                call.cancel()

    async def run_tool_calls(
        self, calls: Iterable[Any] | None, format: Format, *, also: Iterable[OwnTool] = ()
    ) -> list[dict[str, Any]]:
        """Call the tools that a model wants to call, all at once. Returns the messages to put behind the model's own,
        in the order of `calls`. Nothing is raised for a call that goes wrong: the model is told why, and what to do.

        `format="openai"`: `calls` are the `tool_calls` of a chat completion's message, or the `output` of a response.
        `format="anthropic"`: the `content` of a message. What is no tool call is passed over. Texts are cut as for the
        `mcp` tool, and lose credentials as there (`scrub`). `also`: further tools, such as a `SearchTool`.
        """
        from ..protocol.model_calls import read_calls, told_back

        wanted = read_calls(calls, format)
        own = {tool.name: tool for tool in also}
        told: dict[int, Told] = {}

        async def run(number: int, call: ToolCall) -> None:
            told[number] = await self._told_of(call, own.get(call.name))

        async with anyio.create_task_group() as tasks:
            for number, call in enumerate(wanted):
                tasks.start_soon(run, number, call)
        return told_back([told[number] for number in range(len(wanted))], format)

    async def _told_of(self, call: ToolCall, own: OwnTool | None) -> Told:
        """Run one call of a model. The model is told every error, but not a cancellation."""
        from ..protocol.content import arguments_may_be_at_fault, expected_parameters
        from ..protocol.model_calls import Told

        if call.problem:
            return Told.failed(call, call.problem)
        try:
            if own is not None:
                result = await own.run(call.arguments)
            else:
                target, running = await self._start(call.name, call.arguments, None)
                result = await self._result(target, await running.wait(), Scrub.MCP)
        except CallError as error:
            found = self.index.get(call.name) if arguments_may_be_at_fault(error) else None
            return Told.failed(call, error.message + expected_parameters(found, error.message))
        settings = self._caller.live.context.settings
        blocks = result.for_model(max_bytes=settings.output_max_bytes, max_lines=settings.output_max_lines)
        return Told(call, blocks, result.is_error)

    async def _start(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        on_end: Callable[[Call], None] | None,
        *,
        server: str | None = None,
        **options: Any,
    ) -> tuple[Target, Call]:
        """Find a tool, as `call` does, and start its call. `options`: those of `start_call`."""
        wait_by = self._caller.wait_by()
        with ExitStack() as leases:
            with (
                self._caller.counting_refusals(Asked("tools/call", tool, server, arguments)),
                self._caller.holding(arguments, server),
            ):
                target = await self._names.find(tool, server, leases, wait_by)
            return target, self.start_call(target, arguments, on_end, wait_by=wait_by, **options)

    async def _result(self, target: Target, answer: bytes, door: Scrub) -> ToolResult:
        scrubber = self.scrubber(target.server, door)
        if scrubber is not None:
            answer = await scrubbed_in_turns(scrubber.scrubbing(answer))
        large = len(answer) >= LARGE
        raw = await tool_result_in_turns(answer, target) if large else tool_result(answer, target)
        return ToolResult(raw, target)

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
    ) -> Call:
        """Start a call without waiting for it. It ends with `on_end(call)`, exactly once, possibly before
        this returns.

        `arguments` of a door may be `Raw`, the JSON of an object on one line: then nobody decodes them who need not.
        `wait_by`: the time of the room's clock by which it must be sent, if that is before its queue timeout.
        `meta`: the request's `_meta`. Raises the `CallError` with which it is refused. For doors, which have
        no task per call.
        """
        if type(arguments) not in _PLAIN:
            with self._caller.counting_refusals(Asked.of(target, arguments)):
                named_values(arguments, f"The arguments of {target.name}", target.server)
        if not target.may_be_called:
            raise self._caller.refused(target.refusal(), Asked.of(target, arguments))
        if target.kind == "resource":
            call = Call("resources/read", {"uri": target.original}, replayable=True)
        else:
            if target.override is not None:
                with self._caller.counting_refusals(Asked.of(target, arguments)):
                    given_ones = read_value(arguments) if isinstance(arguments, msgspec.Raw) else arguments
                    arguments = target.override.own(given_ones, target.server)
            params = {"name": target.original, "arguments": arguments or {}}
            call = Call("tools/call", params, replayable=target.is_harmless)
        if named_values(meta, "meta", target.server) is not None:
            call.params = {**(call.params or {}), "_meta": dict(meta or {})}
        call.tool = target.name
        if timeout is not None or on_progress is not None:
            _check(timeout, on_progress)
        call.timeout = timeout
        call.on_end = on_end
        call.on_progress = on_progress
        call.wants_progress = on_progress is not None
        if wait_by < math.inf:
            call.wait_by = wait_by
        self._caller.submit(target.server, call)
        return call

    async def find(self, name: str, server: str | None = None) -> Target:
        """Resolve a name. If it is unknown, connect the server it may belong to and resolve again.

        Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`, and the error that kept the server from
        connecting.
        """
        with ExitStack() as leases:
            return await self._names.find(name, server, leases, self._caller.wait_by())

    # ---- resources and prompts --------------------------------------------------------------------------------------

    def resources(self, server: str | None = None) -> tuple[Place, ...]:
        """Every resource (of one server), sorted by URI; `record` is the server's own object. Starts nothing."""
        self._caller.check_server(server)
        return self.index.resources(server)

    def templates(self, server: str | None = None) -> tuple[Place, ...]:
        """Every resource template (of one server), sorted. Starts nothing."""
        self._caller.check_server(server)
        return self.index.templates(server)

    def prompts(self, server: str | None = None) -> tuple[Target, ...]:
        """Every prompt (of one server), sorted by name. Starts nothing."""
        self._caller.check_server(server)
        return self.index.prompts(server)

    async def read_resource(
        self,
        uri: str,
        server: str | None = None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> ResourceContents:
        """Read a resource. A resource that is in no list can be read too, if only one server's template
        matches or `server` is given.

        `timeout`: seconds after the request is sent. Raises `CallError`s, `UnknownResource`, `AmbiguousTool`,
        `UnknownServer`.
        """
        with self._caller.counting_refusals(Asked("resources/read", uri, server)):
            place = self.locate(uri, server)
        raw = await self.request(
            place.server, "resources/read", {"uri": place.original}, timeout=timeout, on_progress=on_progress
        )
        return ResourceContents(raw)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        server: str | None = None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> PromptMessages:
        """Get a prompt by its name. Connects its server when needed, also to find out whether it has the
        prompt.

        `timeout`: seconds after the request is sent. Raises `CallError`s, `UnknownPrompt`, `AmbiguousTool`,
        `UnknownServer`.
        """
        with self._caller.counting_refusals(Asked("prompts/get", name, server, arguments)):
            target = await self.find_prompt(name, server)
        params: dict[str, Any] = {"name": target.original}
        if arguments is not None:
            override = target.override
            params["arguments"] = arguments if override is None else override.own(arguments, target.server)
        raw = await self.request(
            target.server, "prompts/get", params, timeout=timeout, on_progress=on_progress
        )
        return PromptMessages(raw)

    async def complete(
        self,
        ref: Mapping[str, Any],
        argument: Mapping[str, str],
        *,
        context: Mapping[str, Any] | None = None,
        server: str | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Complete an argument of a prompt (`{"type": "ref/prompt", "name": …}`, a name of ours) or of a
        template (`{"type": "ref/resource", "uri": …}`). `argument`: `{"name": …, "value": …}`.

        Raises as `get_prompt` and `read_resource` do, and `UsageError` for another kind of ref.
        """
        with self._caller.counting_refusals():
            owner, own = await self.find_reference(ref, server)
        params: dict[str, Any] = {"ref": own, "argument": argument}
        if context is not None:
            params["context"] = context
        return Completion(await self.request(owner, "completion/complete", params, timeout=timeout))

    def answer_with(self, host: Host | None) -> None:
        """Let `host` answer the requests of servers and receive their notifications, instead of the callbacks. In a
        session: what belongs to this session. Servers that were told other capabilities than it has are connected
        again, if nobody has used them yet; the others are told when they start the next time."""
        self._caller.live.sessions.answer_with(host, self._caller.session)
        self._restart_outdated()

    def restart_outdated(self) -> None:
        """Restart the unused servers that were not told what the host can answer now. In a session: its children, and
        the shared servers that were not told all of it. A server that is being installed, or only visited, finishes
        first; it is checked again when it is ready. Servers that have waited for a client are started."""
        self._caller.live.begin()
        self._restart_outdated()

    def _restart_outdated(self) -> None:
        live, session = self._caller.live, self._caller.session
        if session is not None:
            greeting = live.sessions.greeting(session, Address.of_session("", session))
            live.own_lists.meet(session, greeting.capabilities)
        restart_outdated(live, session)

    async def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Send any request to `server`, and return the result as the server sent it. Connects the server when
        needed.

        After a lost connection the request is sent again only if it was never sent, or if its method only
        reads. `logging/setLevel` does what `set_log_level` does. Raises `CallError`s, `UnknownServer`, and in a
        session `UsageError` for a request that would change a shared server for others.
        """
        with self._caller.counting_refusals():
            name_of(server, "a server")
            text(method, "A method")
            named_values(params, f"The params of {method}", server)
            _check(timeout, on_progress)
        if method == _SET_LEVEL:
            self.set_log_level(str((params or {}).get("level")), server)
            return {}
        if method in _CHANGES:
            self._check_own(server, method)
        call = Call(method, params, timeout=timeout, replayable=method in _ONLY_LOOK, on_progress=on_progress)
        return await self._caller.ask(server, call)

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
            with self._caller.counting_refusals():
                named_values(params, f"The params of {method}", server)
        if method in _CHANGES:
            self._check_own(server, method)
        call = Call(
            method,
            params,
            tool=tool,
            timeout=timeout,
            replayable=replayable or method in _ONLY_LOOK,
            on_end=on_end,
            on_progress=on_progress,
        )
        if takes_inputs:
            call.takes_inputs = True
        self._caller.submit(server, call)
        return call

    def _check_own(self, server: str, method: str) -> None:
        """Raises `UsageError` when this session shares the server with others."""
        caller = self._caller
        caller.check_server(server)
        if caller.session is not None and caller.live.root.isolation(server) is Isolation.PERSISTENT:
            use = {_SET_LEVEL: "set_log_level(...)"}.get(method, "subscribe(...)")
            text = f'Server "{server}" is shared with others, and {method} would change it for them. Use `{use}`.'
            raise self._caller.refused(UsageError(text, server=server))

    def locate(self, uri: str, server: str | None = None) -> Place:
        """The server and URI to read `uri` from. Raises `UnknownResource`, `AmbiguousTool`, `UnknownServer`."""
        return self._names.locate(uri, server)

    async def find_prompt(self, name: str, server: str | None = None) -> Target:
        """Resolve a prompt's name. If it is unknown, connect the server it may belong to and resolve again.

        Raises `UnknownPrompt`, `AmbiguousTool`, `UnknownServer`, and the error that kept the server from
        connecting.
        """
        return await self._names.find_prompt(name, server)

    async def find_reference(
        self, ref: Mapping[str, Any], server: str | None = None
    ) -> tuple[str, Mapping[str, Any]]:
        """(server, the ref in the server's own terms) for a completion. Raises as `complete` does."""
        return await self._names.find_reference(ref, server)

    # ---- subscriptions, levels, roots -------------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe(self, uri: str, server: str | None = None) -> AsyncGenerator[Updates]:
        """`async with room.subscribe(uri) as updates: async for update in updates: …`

        While this is open, the server is kept connected, and connected again when it is lost. After a new
        connection the resource is reported as changed. On entering, this raises as `read_resource` does, and
        `RemoteError` when the server takes no subscriptions. The iteration ends when the room does.
        """
        async with subscribed(self._caller, self.locate(uri, server)) as updates:
            yield updates

    async def watch_resource(self, place: Place) -> None:
        """Ask a server to report changes of a resource. Counted: it ends after as many calls of
        `unwatch_resource`. For doors, which hear of updates through their host."""
        await subscribe(self._caller, place)

    def unwatch_resource(self, place: Place) -> None:
        """The opposite of `watch_resource`. With the last one the server is told; nobody waits for that."""
        unsubscribe(self._caller, place)

    def is_stateless(self, server: str) -> bool:
        """Whether the server speaks 2026-07-28, as far as is known. Raises `UnknownServer`, `SessionNeeded`."""
        actor = self._caller.actor(server)
        return is_modern(actor) if actor.peer is not None else actor.record.era_hint in MODERN_VERSIONS

    def set_log_level(self, level: str, server: str | None = None) -> None:
        """Set the least level of log messages that all servers (or one) send to `on_log`.

        Live servers are told now, others when they are greeted. The room's level also applies to sessions that
        set none. A session sets it for its own children; with callbacks of its own also for what it hears of
        shared servers, which are told the most talkative level that anybody wants. Raises `UsageError` for a
        level that the protocol does not have, and in a session without callbacks for a server that is not its
        own; `UnknownServer`.
        """
        if level not in LOG_LEVELS:
            raise UsageError(f'"{level}" is no log level. Use one of: {", ".join(LOG_LEVELS)}.')
        self._caller.check_server(server)
        live, session = self._caller.live, self._caller.session
        root, is_heard = live.root, session is None or session in live.sessions.with_hosts
        if not is_heard and server is not None and root.isolation(server) is not Isolation.PER_SESSION:
            text = f'Server "{server}" is shared with others: set its level with `room.set_log_level(...)`.'
            raise UsageError(text)
        root.log_levels.set(level, server, session)

    def roots_changed(self) -> None:
        """Tell every connected server that was told of roots that they have changed. In a session: its own
        children; and shared servers, when nobody else could answer what the roots are."""
        tell_roots_changed(self._caller.live, self._caller.session)


def _check(timeout: object, on_progress: object) -> None:
    seconds(timeout, "timeout")
    function(cast("Callable[..., Any] | None", on_progress), "on_progress")


ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config


class Greenroom(Calls):
    """A room of supervised MCP servers. Make it with `Greenroom.open`, enter it with `async with`."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        super().__init__(caller_of(runtime))
        self.audit = runtime.audit  # the file that `audit` names; None: there is none
        self.config = config
        self._in_process: dict[str, Any] = {}
        self._runtime = runtime
        self._owner = Owner(runtime)

    @classmethod
    def open(
        cls,
        config: ConfigSource,
        *,
        bootstrap: bool | None = None,
        cache_path: str | os.PathLike[str] | None = None,
        connectors: ConnectorFactory | None = None,
        auth: AuthFor | None = None,
        in_process: Mapping[str, Any] | None = None,
        on_sampling: Answer | None = None,
        on_elicitation: Answer | None = None,
        roots: Roots | None = None,
        on_log: OnLog | None = None,
        on_notification: OnNotification | None = None,
        on_approval: OnApproval | None = None,
        capabilities: Mapping[str, Any] | None = None,
        audit: str | os.PathLike[str] | None = None,
    ) -> Greenroom:
        """A room over `config`: a path, a dict of the same shape, or a `Config`. Nothing runs before it is
        entered.

        `bootstrap` False: do not start servers in the background just to learn their tools (default: as
        configured). `cache_path`: the catalogue's file; None: this user's; ":memory:": none. `connectors`
        replaces the way servers are reached, for tests. `auth(definition)` makes the `httpx2.Auth` that logs
        in at an HTTP server (such as the SDK's `OAuthClientProvider`), or returns None. It is called for each
        incarnation. `in_process`: further servers by name, each an `MCPServer` or `Server` of the SDK, a
        `FastMCP`, or a function that makes one. Raises `ConfigError` when the configuration cannot be used at
        all.

        The requests that servers send to their client are answered by `on_sampling` and `on_elicitation`
        (`async (ServerRequest) -> result`, which may raise `RpcRefusal`) and by `roots` (paths, URIs, root
        objects, or an async callable that returns them). Each is declared to servers only if it is given;
        `capabilities` adds to what is declared. `on_log(address, params)` gets log messages.
        `on_notification(address, method, params)` gets every notification except progress.

        `on_approval` (`async (ApprovalRequest) -> Verdict | None`) decides about the calls that somebody has to allow
        (`approve`), before anybody else is asked; None leaves it to them. If it raises, the answer is no. `audit`: a
        file that gets a line for each call; entering the room raises `UsageError` if it cannot be written.
        """
        for name, server in (named_values(in_process, "in_process") or {}).items():
            if server is None:
                raise UsageError(
                    f'in_process has None for "{name}": give a server, or a function that makes one.'
                )
        function(on_approval, "on_approval")
        loaded = with_objects(open_config(config), in_process or {})
        runtime = Runtime(
            loaded,
            open_store(cache_path, loaded.settings),
            bootstrap=loaded.settings.bootstrap if bootstrap is None else bootstrap,
            connectors=maker(connectors, "connectors", "a connector", "open", or_none=False),
            auth=maker(auth, "auth", "an httpx2.Auth", "async_auth_flow", or_none=True),
            client_info={"name": "greenroom", "version": VERSION},
            callbacks=Callbacks(
                on_sampling, on_elicitation, roots, on_log, on_notification, capabilities or {}
            ),
        )
        runtime.sessions.approve_with(on_approval)
        runtime.audit = audit_file(audit)
        room = cls(loaded, runtime)
        room._in_process = dict(in_process or {})
        return room

    # ---- open and close ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Greenroom:
        await self._owner.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._owner.leave()

    async def start(self, task_group: Any = None) -> None:
        """Open the room in `task_group` (a trio nursery or an anyio task group). On asyncio it may be left
        out: the room then has an owner task of its own. End it with `aclose`."""
        await self._owner.start(task_group)

    async def aclose(self, patience: float | None = None) -> None:
        """End the room: calls in flight may take `patience` seconds more (default: the configured drain
        time), every server is stopped, `drain_report` is set. Bounded; idempotent; finishes even when its
        caller is cancelled. In a forked copy it does nothing, because the room belongs to the parent."""
        await self._owner.aclose(seconds(patience, "patience"))

    def expect_clients(self) -> None:
        """Clients will come and go, in sessions, which can answer different things: servers that they share are told
        from the start that everything can be asked, and who cannot answer is answered for. For a door, before the room
        is opened."""
        self._runtime.sessions.for_many = True

    def await_client(self, seconds: float) -> None:
        """One client comes soon and says what it can answer. Servers that need no call to be started are started then,
        or after `seconds`, and not twice because they were told too little. For a door, before the room is opened."""
        self._runtime.client_within = seconds

    @property
    def _live(self) -> Runtime:
        """The machinery. Raises `UsageError` before the room is opened."""
        return self._caller.live

    # ---- what is known ----------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The value of `GREENROOM_ROOM` in the environment of each process of this room."""
        return self._runtime.run_id

    @property
    def drain_report(self) -> DrainReport | None:
        """How the calls of this room ended. While it is open: those so far, and how many are `open`. None before it is
        opened."""
        return self._runtime.report_so_far

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many calls were not accepted so far, by error code."""
        return dict(self._live.context.tally.refusals)

    @property
    def slots_held(self) -> int:
        """How many slots of the pool are held, of `maxConnections`."""
        return self._live.root.admission.starts.slots_held

    @property
    def approvals(self) -> Desk:
        """The calls that wait for a person's yes, for whoever shows them at a terminal."""
        return self._live.root.approvals.desk

    async def settled(self) -> Index:
        """Wait until everything that servers have listed so far is in the index. Returns the index."""
        return await self._live.router.ref.ask(Sync)

    async def ready(self) -> None:
        """Wait until every eager and keep-alive server has connected, or has failed once."""
        await self._live.ready()

    async def catalogued(self) -> None:
        """Wait until each server of which nothing was known has been visited once, or has failed to be."""
        await self._live.catalogued()

    @property
    def is_learning(self) -> bool:
        """Whether there are servers of which nothing is known and which are still to be visited for the first
        time."""
        return self._live.is_learning

    def entry(self, server: str) -> ServerEntry | None:
        """What is known of a server, or None. Raises `UnknownServer`."""
        self._live.root.record(server)
        return self._live.router.entry(server)

    def tools(self, server: str | None = None) -> tuple[Target, ...]:
        """Every callable name (of one server), sorted. Starts nothing."""
        if server is not None:
            self._live.root.record(server)
        return self.index.tools(server)

    def search(
        self, query: str, *, server: str | None = None, limit: int = 12, offset: int = 0
    ) -> SearchPage:
        """Ranked search over names and descriptions: any matching word lists a tool. Starts nothing."""
        return search(self.index, text(query, "A search"), server=server, limit=limit, offset=offset)

    def describe(self, name: str, *, server: str | None = None) -> Target:
        """One tool by name. Starts nothing. Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`."""
        found = self._names.resolve(name, server)
        if isinstance(found, Missing):
            raise self._names.unknown(name)
        return found

    def status(self) -> list[ServerStatus]:
        """A row for each configured server, and one for each further live address."""
        return finish(self.surveying())

    def surveying(self, server: str | None = None) -> Slices[list[ServerStatus]]:
        """The same in slices, because there may be thousands of rows. `server`: only its rows."""
        root, pace, rows = self._live.root, Pace(), list[ServerStatus]()
        now = self._live.context.backend.now
        for number, address in enumerate(addresses(root, server)):
            if number % _A_PIECE == 0 and pace.due():
                yield
            if address.server in root.records:  # it may be gone by now
                counts = self.index.counts(address.server)
                row = status_row(root, address, now(), counts)
                rows.append(self._with_catalogue(row, self.index))
        return rows

    def _with_catalogue(self, row: ServerStatus, index: Index) -> ServerStatus:
        """The row with the faults and problems that the catalogue has for the server, if any."""
        entry = self._live.router.entry(row.server)
        if entry is None:
            return row
        faults, problems = index.faults(row.server), entry.problems
        return attrs.evolve(row, faults=faults, problems=problems) if faults or problems else row

    def events(self, kinds: Iterable[Kind] | None = None) -> Subscription:
        """`async with room.events() as events: async for event in events: …`, from now on, in order. To get
        the very first event, call it before the room is opened, in the loop that will open it."""
        return self._runtime.events.subscribe(kinds_of(kinds))

    def session(
        self,
        name: str,
        *,
        variables: Mapping[str, str] | None = None,
        profile: str | None = None,
        on_sampling: Answer | None = None,
        on_elicitation: Answer | None = None,
        roots: Roots | None = None,
        on_log: OnLog | None = None,
        on_notification: OnNotification | None = None,
        on_approval: OnApproval | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Session:
        """A caller with state of its own: `async with room.session("alice") as s: await s.call(...)`.

        `variables` are what `${session.NAME}` stands for in the entries of servers that are isolated per
        session or per call, for the children of this session and as long as it is open: `{"GITHUB_TOKEN":
        token}`.

        `profile`: the name of a profile of the configuration. What is outside it does not exist for this session.
        Raises `UsageError` for an unknown one.

        `on_approval`: as in `open`, and asked before the room's.

        The other arguments are callbacks, as in `open`. With any of them the session answers for itself: they answer
        what its own children ask, and what a shared server asks while only this session has a call in flight there.
        When several have, the question is refused, because nobody can know which of them it is for. Without any, the
        room's callbacks answer for the session.
        """
        given = (on_sampling, on_elicitation, roots, on_log, on_notification, capabilities)
        host = None if all(one is None for one in given) else Callbacks(*given[:5], capabilities or {})
        function(on_approval, "on_approval")
        view = None if profile is None else self._live.profiles.view(name_of(profile, "a profile"))
        return Session(name, self._live, variables or {}, host, view, on_approval)

    # ---- servers ----------------------------------------------------------------------------------------------------

    async def connect(self, server: str, *, force: bool = False) -> None:
        """Connect a server now, whatever its gate says, and even if it was taken down. One that is connected lists
        again what it has; if it does not, it is started anew, unless calls are open there. `force`: connect it
        again if it is connected. Raises `ConnectFailed`, `UnknownServer`, `ServerDown` (disabled, broken
        definition)."""
        if force and any(actor.is_connected for actor in self._live.root.actors_of(server)):
            await self.restart(server)
        else:
            await self._caller.connect_by_name(server)

    async def drain(self, server: str) -> None:
        """Take a server down: calls in flight finish, new ones are refused, then its process is stopped. It
        stays down until it is connected or restarted by name. Raises `UnknownServer`."""
        root = self._live.root
        closed = [self._when_closed(actor) for actor in root.actors_of(server)]
        root.take_down(server, Ending(Cause.DRAINED))
        for event in closed:
            await event.wait()

    async def restart(self, server: str) -> None:
        """End the present incarnation (calls in flight finish) and connect the next.

        If the present incarnation is still being installed, it is not ended but waited for. It is as good as
        the next one, and killing it would leave a broken cache behind. With a child per session, the children
        of all sessions end, and start again when they are called. Raises as `connect` does.
        """
        root = self._live.root
        for actor in root.actors_of(server):
            live = actor.life.state in (State.CONNECTING, State.CONNECTED, State.DRAINING)
            if live and not root.supervision.visiting.is_first_start(actor):
                actor.stop(Ending(Cause.RESTART))
        await self._caller.connect_by_name(server)

    async def reload(self, config: ConfigSource, *, dry_run: bool = False) -> ReloadPlan:
        """Apply another configuration with the fewest changes. Unchanged servers notice nothing. A changed
        policy applies at once. With another definition the old incarnation drains first. `dry_run`: only
        return the plan. Raises `ConfigError`, and then nothing has changed."""

        def prepare() -> tuple[Config, ReloadPlan, Recalled]:
            loaded = with_objects(open_config(config), self._in_process)
            return loaded, plan_reload(self.config, loaded), live.recall(loaded)

        live = self._live
        async with live.reloading:
            loaded, plan, recalled = await apart(prepare) if live.store.blocks else prepare()
            if not dry_run:
                defined = await self._define_ahead(loaded, plan)
                self.config = loaded
                await all_of(live.applying(loaded, plan, recalled, defined))
                await self._live.router.ref.ask(Sync)
        return plan

    async def _define_ahead(self, config: Config, plan: ReloadPlan) -> frozenset[str]:
        """Define the new servers in slices, because with thousands of them one step would take too long. No
        name leads to them yet. If this is cancelled in between, they are removed again. Returns their names,
        without those servers that were removed before and of which something is still left."""
        root = self._live.root
        new = [name for name in plan.start if name not in root.records]
        try:
            await in_turns(root.defining(config.servers[name] for name in new))
        except BaseException:
            await all_of(root.removing(new))
            raise
        return frozenset(new)

    @property
    def pin_keys(self) -> Mapping[str, PinKey]:
        """Under which keys the catalogue and the pins have the configured servers."""
        return self._live.pins.keys

    async def accept(self, server: str | None = None, tool: str | None = None) -> list[str]:
        """Accept the changed definition of a tool, or of all changed tools of a server; returns their own names.
        Without a server: take over what was accepted elsewhere. Raises `UnknownServer`, `UnknownTool`, `OSError`."""
        return await accept(self._live, server, None if tool is None else name_of(tool, "a tool"))

    def refresh(self, server: str | None = None) -> list[str]:
        """Visit the servers of which nothing is known, or this one, and return their names. If this one is connected,
        it lists again what it has. `catalogued` waits for the visits. Raises `UnknownServer`, `ServerDown` for a
        server that is out of service, and `CredentialNeeded` for one that only a session can start."""
        live = self._live
        if server is not None:
            live.root.bring_back(server)
            live.sessions.check(live.root.record(server).definition, None)
            return live.visit([server])
        entries = {name: live.router.entry(name) for name in live.root.records}
        return live.visit([name for name, entry in entries.items() if entry is None or not entry.known])

    async def reconnect(self, server: str | None = None) -> list[tuple[str, CallError | None]]:
        """Restart one server; or restart all live ones and connect eager and keep-alive ones, in parallel.
        Idle lazy servers are left alone. Returns each server with its error, or None."""
        root = self._live.root
        names = [root.record(server).definition.name] if server is not None else to_reconnect(root)
        outcomes: dict[str, CallError | None] = {}

        async def one(name: str) -> None:
            try:
                await self.restart(name)
            except CallError as error:
                outcomes[name] = error
            else:
                outcomes[name] = None

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
        return [(name, outcomes[name]) for name in names]

    def _when_closed(self, actor: ServerActor) -> anyio.Event:
        event = anyio.Event()
        if actor.life.state in (State.IDLE, State.CLOSED):
            event.set()
        else:
            self._live.root.supervision.on_closed(actor, event.set)
        return event


_A_PIECE = 4  # rows of the status that are made in a tenth of a millisecond


# ---- Sessions: for callers that must not share a server's state with others -----------------------------------------
#
# A session is a name. A server that is isolated per session has one child for each session, started by the
# session's first call and used for all its calls. Persistent servers are shared with everybody. A server that
# is isolated per call has a child per call, as always. State never crosses between sessions, because the
# session is part of the address. When a session ends, its children end, whatever their state: queued calls
# fail, and its refs refuse.
#
# A session may bring callbacks of its own. They answer what its children ask, and what shared servers ask during its
# calls; they hear the logs of both, at the session's own level (`server_messages`). What belongs to the room it cannot
# reach: reloads, drains, the answers for others.

_NOTHING: Final[Mapping[str, str]] = {}


class Session(Calls):
    """One session of a room: `async with room.session("alice") as s: await s.call("memory_read_graph")`."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        variables: Mapping[str, str],
        host: Host | None = None,
        view: ProfileView | None = None,
        on_approval: OnApproval | None = None,
    ) -> None:
        super().__init__(caller_of(runtime, name, view))
        self.name = name
        self._variables = variables  # until it is opened
        self._host = host
        self._on_approval = on_approval

    def __repr__(self) -> str:
        return f"<Session {self.name!r}{' (over)' if self._caller.is_over else ''}>"

    @property
    def view(self) -> ProfileView | None:
        """What its profile shows; None: it has none, and sees everything."""
        return self._caller.view

    def came_by(self, door: str, subject: str | None = None) -> None:
        """A door says for an audit that it is the door of this session, and who is behind it, if it knows."""
        self._caller.door, self._caller.subject = door, subject

    def introduced(self, client: object) -> None:
        """What the client of this session says about itself, for an audit."""
        self._caller.client_said = client

    async def connect(self, server: str) -> None:
        """Connect the child that calls of this session go to. Raises as `Greenroom.connect` does."""
        await self._caller.connect_by_name(server)

    def own_entry(self, server: str) -> ServerEntry | None:
        """What this session's own child has listed; None: it has listed nothing, or there is none."""
        return self._caller.runtime.own_lists.entry(self.name, server)

    def unlisted(self) -> list[str]:
        """The servers whose lists belong to this session, because they are started with values that it gives, and that
        have not been asked yet."""
        if self._caller.is_over:
            return []
        live = self._caller.live
        return [
            name
            for name in live.of_sessions()
            if self.own_entry(name) is None
            and (self.view is None or self.view.shows(name))
            and live.root.records[name].available.is_usable
            and live.root.records[name].definition.bootstrap
            and not live.sessions.missing(live.root.records[name].definition, self.name)
        ]

    async def list_own(self) -> None:
        """Connect those, so that they list what they have. Who cannot be connected is left out."""

        async def connect(server: str) -> None:
            with suppress(CallError, UsageError):  # the latter: the session is over by now
                await self._caller.connect(server)
                actor = self._caller.actor(server)
                if actor.is_connected and is_unused(actor):  # nobody has called it, and perhaps nobody will
                    actor.idling.shorten(VISIT_IDLE)
                    actor.idling.rest(actor.connected_at)

        if self._caller.is_over:
            return
        async with anyio.create_task_group() as tasks:
            for server in self.unlisted():
                tasks.start_soon(connect, server)

    def helper(self, name: str, command: Sequence[str], *, max_line: int) -> Connector:
        """What starts a child of ours that is no server, for a door. See `Connectors.helper`."""
        return self._caller.live.connectors.helper(name, command, max_line)

    async def __aenter__(self) -> Session:
        sessions = self._caller.live.sessions
        sessions.open(self.name, self._variables, self._host, self.view, self._on_approval)
        self._variables, host, self._host = _NOTHING, self._host, None
        if host is not None:
            self.restart_outdated()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session and its own children. Bounded; idempotent; finishes even when it is cancelled."""
        caller = self._caller
        if caller.is_over:
            return
        caller.is_over = True
        with anyio.CancelScope(shield=True):
            await caller.runtime.end_session(self.name)
