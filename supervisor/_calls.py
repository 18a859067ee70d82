"""The requests to servers in one scope: the public methods that a room and a session have in common.

These methods make a `Call` of the request and hand it to the `Caller` of the room or session, which knows the scope.
Names are looked up in `_names`; subscriptions are in `_updates`. Every request is an ordinary call of the server's
actor: it connects, waits, times out and is counted like one. The result is the server's own object.

A room and a session each hold a `Caller` for their own scope. This class, from which both inherit, has the public
methods that make requests through it. Rejected: an object for these methods too, held by both. Then both would have to
repeat all twenty public methods only to pass them on. In return, nothing may be here that only a room has.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import anyio.lowlevel
import msgspec

from ..actors import Call, Host
from ..protocol.address import Address
from ..protocol.audit import Asked
from ..protocol.config import Isolation, Scrub
from ..protocol.errors import CallError, UsageError
from ..protocol.index import Index, Place, Target
from ..protocol.jsonrpc import MODERN_VERSIONS, read_value
from ..protocol.large_json import LARGE
from ..protocol.result import Completion, PromptMessages, ResourceContents, ToolResult
from ._caller import Caller
from ._decoding import scrubbed_in_turns, tool_result, tool_result_in_turns
from ._given import function, name_of, named_values, seconds, text
from ._log_levels import LOG_LEVELS
from ._names import Names
from ._told import restart_outdated, tell_roots_changed
from ._updates import Updates, is_modern, subscribe, subscribed, unsubscribe

if TYPE_CHECKING:  # imported when first used: most rooms need none of it
    from ..protocol.chat import Format, Told, ToolCall
    from ._call_stream import CallStream

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

        from ._call_stream import CallStream

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
        from ..protocol.chat import read_calls, told_back

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
        from ..protocol.chat import Told
        from ..protocol.shown import arguments_may_be_at_fault, expected_parameters

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
