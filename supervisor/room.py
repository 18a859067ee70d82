"""`Greenroom` and `Session`, the public door that a program holds.

It adds no mechanism. Requests are made through a `RoomPort`, which doors hold directly. Everything that runs is in the
`Runtime`, in the task of the `Owner`. This module tells what is known of servers, and has the operations on servers by
name.

Only these start a server: a call (of a known tool, or of an unknown name with its prefix), its lifecycle, a
discovery of what it has, and a request by name (`connect`, `restart`).
"""

from __future__ import annotations

import operator
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import anyio
import anyio.lowlevel

from ..actors.call import Call
from ..actors.event_stream import Subscription
from ..actors.host import Host
from ..actors.peer import ConnectorFactory
from ..actors.router import IndexRequest, make_searchable
from ..actors.server import ServerActor
from ..actors.watchers import Order, ProgramWatcher, Watcher
from ..actors.workers import MANY_ITEMS, all_of, apart, in_turns
from ..catalogue.entries import ServerEntry
from ..catalogue.namespace import MissingName, ResourceEntry, Target
from ..catalogue.store import open_store
from ..config.argument_checks import (
    file_of,
    function,
    kinds_of,
    maker,
    name_of,
    named_values,
    number_of,
    seconds,
    text,
    texts,
)
from ..config.files import open_config, with_objects
from ..config.model import Config, Scrub
from ..protocol.errors import CallError, UsageError
from ..protocol.events import Kind
from ..protocol.lifecycle import Cause, Ending, State
from ..protocol.result import Completion, ModelResult, PromptMessages, ResourceContents, ToolResult
from ..protocol.status import DrainReport, ServerStatus
from ..protocol.version import VERSION
from ..safety.approval import OnApproval
from .known_servers import CachedServers
from .port import ONLY_LOOK, SET_LEVEL, Progress, RoomPort, Updates, check_options, tool_result
from .profiles import ProfileView
from .reload import ReloadPlan, plan_reload
from .room_owner import Owner
from .runtime import Runtime
from .satellites import wanted
from .server_messages import Answer, Callbacks, OnLog, OnNotification, Roots

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from ..actors.transports.http_connection import AuthFor
    from ..catalogue.search import SearchPage
    from ..protocol.model_calls import Format, ToolCall
    from ..protocol.model_tools import FittedTool
    from ..protocol.tree import TreeNode
    from ..tape.replay_servers import Replay
    from .call_stream import CallStream, CallTask


class OwnTool(Protocol):
    """A tool for a model that belongs to the program, not to a server."""

    @property
    def name(self) -> str:
        """The name that the model calls."""
        ...

    async def run(self, arguments: Mapping[str, Any], /) -> ToolResult:
        """Answer one call of the model."""
        ...


class RoomCalls:
    """What a program may ask of servers, in one scope: the public methods that a room and a session have in common.

    Every request is an ordinary call of the server's actor: it connects, waits, times out and is counted like one. The
    result is the server's own object.
    """

    def __init__(self, port: RoomPort) -> None:
        self._port = port

    # ---- what is known ----------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until `tools` and similar methods include everything that servers have listed so far."""
        await self._port.settled()

    async def catalogued(self) -> None:
        """Wait until every server whose tools are unknown was started once to list them, successfully or not. In a
        session, this includes servers that only the session can start."""
        await self._port.catalogued()

    def entry(self, server: str) -> ServerEntry | None:
        """The lists of a server and what it says about itself; None: unknown. Raises `UnknownServer`."""
        return self._port.catalogue.entry(server)

    def tools(self, server: str | None = None) -> tuple[Target, ...]:
        """Every callable name (of one server), sorted. Starts nothing."""
        self._port.catalogue.check_server(server)
        return self._port.catalogue.index.tools(server)

    def search(
        self, query: str, *, server: str | None = None, limit: int = 12, offset: int = 0
    ) -> SearchPage:
        """Ranked search over names and descriptions: any matching word lists a tool or skill (`target.kind`). Starts
        nothing."""
        query, limit, offset = text(query, "A search"), number_of(limit, "limit"), number_of(offset, "offset")
        from ..catalogue.search import search

        return search(self._port.catalogue.index, query, server=server, limit=limit, offset=offset)

    async def find(
        self, query: str, *, server: str | None = None, limit: int = 12, offset: int = 0
    ) -> SearchPage:
        """Search by words, like `search`, and also by meaning if the setting `semanticSearch` is on."""
        query, limit, offset = text(query, "A search"), number_of(limit, "limit"), number_of(offset, "offset")
        from ..catalogue.search import search

        await make_searchable(self._port.catalogue.index)
        near = await self._port.catalogue.near(query)
        return search(self._port.catalogue.index, query, server=server, limit=limit, offset=offset, near=near)

    def describe(self, name: str, *, server: str | None = None) -> Target:
        """One tool by name. Starts nothing. Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`, and `ServerDown` if
        the name is that of a disabled or broken server."""
        found = self._port.catalogue.resolve(name, server)
        if isinstance(found, MissingName):
            raise self._port.catalogue.unknown_tool(name, server)
        return found

    # ---- tools ------------------------------------------------------------------------------------------------------

    async def typed_arguments(
        self, tool: str, texts: Mapping[str, str], *, server: str | None = None
    ) -> dict[str, Any]:
        """Convert arguments that are texts, such as typed input or the query of a URL, to the types of this tool's
        schema. `"5"` becomes a number if the schema allows a number, and stays a text if it wants a text. If the schema
        does not say, valid JSON is read as JSON. `greenroom call TOOL K=V` does the same.

        If the tool is not known yet, its server is connected first. Raises `UsageError` if a value is not a text, and
        the same errors as `call` if the tool cannot be found."""
        given = named_values(texts, "texts") or {}
        for name, said in given.items():
            text(said, f"The text of {name}")
        target = await self._port.find(tool, server)
        from ..protocol.typed_arguments import typed_arguments

        return typed_arguments(given, target.input_schema)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        on_progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        allowed: bool = False,
    ) -> ToolResult:
        """Call a tool (or read a resource) by its name. Connects its server when needed.

        `timeout`: seconds after the call is sent, instead of the server's timeout. `on_progress(params)` gets
        every progress notification as the server sent it. `meta` is sent as the request's `_meta`. `allowed`: a person
        has approved exactly this call, so nobody is asked (`approve`). Raises a `CallError`, whose `reach` says how far
        the call got; `UnknownTool`, `AmbiguousTool` and `UnknownServer` are among them. Cancelling this cancels the
        call.
        """
        port = self._port
        target = port.catalogue.index_now().get(tool) if server is None and type(tool) is str else None
        try:
            if target is None:
                target, call = await port.start_by_name(
                    tool,
                    arguments,
                    None,
                    server=server,
                    timeout=timeout,
                    on_progress=on_progress,
                    meta=meta,
                    allowed=allowed,
                )
            else:
                call = port.start_call(target, arguments, None, timeout, on_progress, meta, allowed)
        except CallError:
            # Others get a turn after a refusal, so a loop of refused calls cannot starve them.
            await anyio.lowlevel.checkpoint()
            raise
        answer = await call.wait()
        if port.scrubber(target.server, _ALL) is not None:
            return await port.read_result(target, answer, _ALL)
        return tool_result(answer, target)

    async def call_for_model(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        on_progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        allowed: bool = False,
    ) -> ModelResult:
        """Like `call`, but returns the content for a model. A failed call raises nothing: the result tells the model
        why, and what to do. The arguments are those of `call`. Texts are shortened and lose credentials, as in the
        `mcp` tool (`scrub`). Cancelling this cancels the call. Raises `UsageError` in another event loop: a model can
        do nothing about that."""
        self._port.runtime.check_loop()
        try:
            target, running = await self._port.start_by_name(
                tool,
                arguments,
                None,
                server=server,
                timeout=timeout,
                on_progress=on_progress,
                meta=meta,
                allowed=allowed,
            )
            return self._for_model(await self._port.read_result(target, await running.wait(), Scrub.MCP))
        except CallError as error:
            return self._failure_for_model(tool, error)

    def _for_model(self, result: ToolResult) -> ModelResult:
        settings = self._port.access.live.context.settings
        return ModelResult.of(
            result, max_bytes=settings.output_max_bytes, max_lines=settings.output_max_lines
        )

    def _failure_for_model(self, tool: str, error: CallError) -> ModelResult:
        from ..protocol.content import arguments_may_be_at_fault, expected_parameters

        found = self._port.catalogue.index.get(tool) if arguments_may_be_at_fault(error) else None
        return ModelResult.failed(error, error.message + expected_parameters(found, error.message))

    def needs_approval(self, tool: str, *, server: str | None = None) -> bool:
        """Whether a call of this tool would be refused with `ApprovalNeeded` unless it is `allowed`: it needs approval
        (`approve`), but there is nobody to ask, neither `on_approval` nor `on_elicitation`. Use it if your program asks
        a person itself before the call. Starts nothing. Raises the same errors as `describe`."""
        return self._port.leaves_approval(self.describe(tool, server=server))

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

        Leaving the block before the call has ended cancels it. If the call is not accepted, entering the block raises
        the same as `call`; later errors are raised by `result`.
        """

        task = await self.start_task(tool, arguments, server=server, timeout=timeout, meta=meta)
        try:
            yield task.stream
        finally:
            task.cancel()

    async def start_task(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallTask:
        """Start a call, and return its handle as soon as the call is accepted: `task = await room.start_task("build")`,
        then at any time `task.status`, `await task.result()` or `task.cancel()`.

        The call continues even if the task that started it is cancelled. It ends with its result, its timeouts or its
        server, and at the latest with the room or session. If the call is not accepted, this raises the same as `call`;
        later errors are raised by `result`.
        """
        from .call_stream import CallStream, CallTask

        async def read(call: Call) -> ToolResult:
            return await self._port.read_result(target, await call.wait(), _ALL)

        stream = CallStream(read)
        target, call = await self._port.start_by_name(
            tool,
            arguments,
            stream.ended,
            server=server,
            timeout=timeout,
            on_progress=stream.progressed,
            meta=meta,
        )
        return CallTask(call, stream)

    async def run_tool_calls(
        self, calls: Iterable[Any] | None, format: Format, *, also: Iterable[OwnTool] = ()
    ) -> list[dict[str, Any]]:
        """Call the tools that a model has chosen, all at once. Returns the messages that answer the model, in the order
        of `calls`. A failed call raises nothing: its message tells the model why, and what to do.

        `format`: where the calls come from. "openai": the `tool_calls` of a chat completion's message, or the `output`
        of a response; "openai-responses": the same, with images in the answers; "anthropic": the `content` of a
        message; "gemini": the `parts` of a content, or the `function_calls`; "mcp": params of `tools/call`. Entries
        that are no tool calls are skipped. Texts are cut and lose credentials as in the `mcp` tool (`scrub`). `also`:
        further tools, such as a `SearchTool`. If the model got its tools from `tools_for`, use that object's `run`.
        """
        return await ModelTools(self, format, ()).run(calls, also=also)

    def tools_for(
        self, format: Format, *, server: str | None = None, strict: bool = False, defer_loading: bool = False
    ) -> ModelTools:
        """The tools of this room (of one server) for a model without a framework. Pass `definitions` to the model's
        API, and the model's calls to `run`. Starts nothing.

        Names and schemas are adapted to the API, and calls are translated back. `strict` ("openai", "openai-responses",
        "anthropic"): use strict decoding for tools whose schemas allow it. `defer_loading` ("openai-responses",
        "anthropic"): the API's own tool search loads a definition when the model has found it. Raises `UsageError` for
        an unknown format or an option that it does not have, and `UnknownServer`.
        """
        from ..protocol.model_tools import fit_tools

        fitted = fit_tools(self.tools(server), format, strict=strict, defer_loading=defer_loading)
        return ModelTools(self, format, fitted)

    async def call_many(
        self, calls: Iterable[tuple[str, Mapping[str, Any] | None]], *, timeout: float | None = None
    ) -> list[ToolResult | CallError]:
        """Call many tools at once, each given as its name and its arguments. Returns a list in the same order, with
        the result of each call, or the error that `call` would raise. `timeout`: seconds, for each call after it is
        sent."""

        async def one(tool: str, arguments: Mapping[str, Any] | None) -> ToolResult | CallError:
            try:
                return await self.call(tool, arguments, timeout=timeout)
            except CallError as error:
                return error

        return await _at_once([partial(one, tool, arguments) for tool, arguments in calls])

    async def _told_of(self, call: ToolCall, own: OwnTool | None) -> ModelResult:
        """What a model is told of one of its calls: every error, but not a cancellation."""
        if own is None:
            return await self.call_for_model(call.name, call.arguments)
        try:
            return self._for_model(await own.run(call.arguments))
        except CallError as error:
            return self._failure_for_model(call.name, error)

    # ---- resources and prompts --------------------------------------------------------------------------------------

    def resources(self, server: str | None = None) -> tuple[ResourceEntry, ...]:
        """Every resource (of one server), sorted by URI; `record` is the server's own object. Starts nothing."""
        self._port.catalogue.check_server(server)
        return self._port.catalogue.index.resources(server)

    def templates(self, server: str | None = None) -> tuple[ResourceEntry, ...]:
        """Every resource template (of one server), sorted. Starts nothing."""
        self._port.catalogue.check_server(server)
        return self._port.catalogue.index.templates(server)

    def prompts(self, server: str | None = None) -> tuple[Target, ...]:
        """Every prompt (of one server), sorted by name. Starts nothing."""
        self._port.catalogue.check_server(server)
        return self._port.catalogue.index.prompts(server)

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
        port = self._port
        call = Call("resources/read", {"uri": uri}, timeout=timeout, on_progress=on_progress, replayable=True)
        port.begin(call, server)
        with port.until_accepted(call):
            check_options(timeout, on_progress)
            place = port.catalogue.locate(uri, server)
            call.params = {"uri": place.original}
            return ResourceContents(await port.ask(place.server, call))

    def skills(self, server: str | None = None) -> tuple[Target, ...]:
        """Every skill (of one server), sorted by name; `record` is the server's own entry. Starts nothing."""
        self._port.catalogue.check_server(server)
        return self._port.catalogue.index.skills(server)

    async def read_skill(
        self, name: str, file: str | None = None, server: str | None = None
    ) -> ResourceContents:
        """Read a file of a skill by the skill's name; without `file`, its `SKILL.md`. Connects its server when needed.

        The file is checked against the size and the digest that the server lists. Raises `CallError`s (`ProtocolFault`:
        they differ; `ToolChanged`: the skill has changed, and its owner has not accepted that), `UnknownSkill`,
        `AmbiguousTool`, `UnknownServer`.
        """
        found = await self._port.skills.read(name, file, server)
        return ResourceContents(dict(found.result))

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
        port = self._port
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        call = Call("prompts/get", params, timeout=timeout, on_progress=on_progress, replayable=True)
        port.begin(call, server)
        with port.until_accepted(call):
            check_options(timeout, on_progress)
            target = await port.find_prompt(name, server)
            params["name"] = target.original
            if arguments is not None and target.override is not None:
                params["arguments"] = target.override.own(arguments, target.server)
            return PromptMessages(await port.ask(target.server, call))

    async def complete(
        self,
        ref: Mapping[str, Any],
        argument: Mapping[str, str],
        *,
        context: Mapping[str, Any] | None = None,
        server: str | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Complete an argument of a prompt (`{"type": "ref/prompt", "name": …}`, with the name in this room) or of a
        template (`{"type": "ref/resource", "uri": …}`). `argument`: `{"name": …, "value": …}`.

        Raises as `get_prompt` and `read_resource` do, and `UsageError` for another kind of ref.
        """
        port = self._port
        params: dict[str, Any] = {"ref": ref, "argument": argument}
        if context is not None:
            params["context"] = context
        call = Call("completion/complete", params, timeout=timeout, replayable=True)
        port.begin(call, server)
        with port.until_accepted(call):
            check_options(timeout, None)
            owner, params["ref"] = await port.find_reference(ref, server)
            return Completion(await port.ask(owner, call))

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
        if method == SET_LEVEL:
            given = named_values(params, f"The params of {method}", name_of(server, "a server"))
            self.set_log_level(str((given or {}).get("level")), server)
            return {}
        port = self._port
        call = Call(method, params, timeout=timeout, replayable=method in ONLY_LOOK, on_progress=on_progress)
        port.begin(call, server)
        with port.until_accepted(call):
            name_of(server, "a server")
            text(method, "A method")
            named_values(params, f"The params of {method}", server)
            check_options(timeout, on_progress)
            port.check_own(server, method)
            return await port.ask(server, call)

    # ---- subscriptions, levels, roots -------------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe(self, uri: str, server: str | None = None) -> AsyncGenerator[Updates]:
        """`async with room.subscribe(uri) as updates: async for update in updates: …`

        While this is open, the server stays connected, and is connected again after a loss. After a new connection the
        resource is reported as changed. Entering raises the same as `read_resource`, and `RemoteError` if the server
        does not support subscriptions. The iteration ends with the room.
        """
        async with self._port.resources.updates(self._port.catalogue.locate(uri, server)) as updates:
            yield updates

    def set_log_level(self, level: str, server: str | None = None) -> None:
        """Set the lowest level of log messages that all servers (or one) send to `on_log`.

        Running servers are told now, others when they connect. The room's level also applies to sessions without a
        level. A session sets the level for its own children; if it has callbacks, also for its messages from shared
        servers, which get the most detailed level that anybody wants. Raises `UsageError` for a level that the protocol
        does not have, in a session without callbacks for a server that is not its own, and in another event loop;
        `UnknownServer`.
        """
        self._port.set_log_level(level, server)

    def roots_changed(self) -> None:
        """Tell every connected server that knows about roots that they have changed. In a session: its own children,
        and shared servers if nobody else could tell them the roots. Raises `UsageError` in another event loop."""
        self._port.roots_changed()


T = TypeVar("T")


async def _at_once(works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Do all of these at once. Returns what they return, in their order."""
    done: dict[int, T] = {}

    async def run(number: int, work: Callable[[], Awaitable[T]]) -> None:
        done[number] = await work()

    async with anyio.create_task_group() as tasks:
        for number, work in enumerate(works):
            tasks.start_soon(run, number, work)
    return [done[number] for number in range(len(works))]


class ModelTools:
    """Tools of a room or session in the format of a model's API (`tools_for`); it also runs the model's calls."""

    def __init__(self, room: RoomCalls, format: Format, tools: Sequence[FittedTool]) -> None:
        self._room = room
        self._tools = {tool.name: tool for tool in tools}
        self.format: Format = format  # the API whose form the definitions have

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """What the API takes as `tools`; for "gemini" the `functionDeclarations` of one tool. Yours to change."""
        return [deepcopy(tool.definition) for tool in self._tools.values()]

    @property
    def names(self) -> dict[str, str]:
        """The names that the model has, each with the tool's name in this room."""
        return {name: tool.own_name for name, tool in self._tools.items()}

    @property
    def not_strict(self) -> list[str]:
        """The names of tools whose arguments cannot be decoded strictly."""
        return [tool.own_name for tool in self._tools.values() if not tool.is_strict]

    async def run(self, calls: Iterable[Any] | None, *, also: Iterable[OwnTool] = ()) -> list[dict[str, Any]]:
        """Run the model's calls, like `run_tool_calls`, and return the messages that answer it."""
        from ..protocol.model_calls import ToolCallAnswer, read_calls, told_back
        from ..protocol.model_tools import own_call

        own = {tool.name: tool for tool in also}

        async def one(call: ToolCall) -> ToolCallAnswer:
            if call.problem:
                return ToolCallAnswer.failed(call, call.problem)
            answer = await self._room._told_of(own_call(call, self._tools), own.get(call.name))  # pyright: ignore[reportPrivateUsage]
            return ToolCallAnswer(call, answer.blocks, answer.is_error)

        wanted = read_calls(calls, self.format)
        return told_back(await _at_once([partial(one, call) for call in wanted]), self.format)


def port_of(room: RoomCalls) -> RoomPort:
    """The port through which a door uses a room or a session."""
    return room._port  # pyright: ignore[reportPrivateUsage]  # doors are no programs, which have no use for it


ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config


def _with_those_given(config: ConfigSource | None, options: Mapping[str, Any]) -> Config | None:
    """The configuration that a replay's live servers are of; None: there is none."""
    objects = named_values(options.get("in_process"), "in_process") or {}
    if config is None:
        return with_objects(Config(), objects) if objects else None
    return with_objects(open_config(config), objects)


class Greenroom(RoomCalls):
    """Starts, restarts and stops MCP servers, and calls their tools: `async with Greenroom.open(…) as room`."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(RoomPort(runtime))
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
        record: str | os.PathLike[str] | None = None,
        redact: Collection[str] = (),
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        watchers: Iterable[Watcher] = (),
        raw: bool = False,
    ) -> Greenroom:
        """A room over a configuration. Nothing runs before it is entered. Raises `ConfigError` when the configuration
        cannot be used at all.

        * `config`: a path, a dict of the same shape, or a `Config`.
        * `bootstrap`: False: do not start servers in the background just to learn their tools; None: as configured.
        * `cache_path`: the catalogue's file; None: this user's; ":memory:": none.
        * `connectors`: replaces the way servers are reached, for tests.
        * `auth`: `auth(definition)` makes the `httpx2.Auth` that logs in at an HTTP server (such as the SDK's
          `OAuthClientProvider`), or returns None. It is called for each incarnation.
        * `in_process`: further servers by name, each an `MCPServer` or `Server` of the SDK, a `FastMCP`, or a function
          that makes one.
        * `on_sampling`: `async (ServerRequest) -> result` answers servers that ask for a model; it may raise
          `RpcRefusal`. Servers are told that it exists only if you pass it. The same is true for the next two.
        * `on_elicitation`: in the same form, answers servers that ask the user.
        * `roots`: paths, URIs, root objects, or an async callable that returns them: the folders that servers may ask
          for.
        * `on_log`: `on_log(address, params)` gets log messages of servers.
        * `on_notification`: `on_notification(address, method, params)` gets every notification except progress.
        * `on_approval`: `async (ApprovalRequest) -> Verdict | None` decides about calls that need approval
          (`approve`), before anybody else is asked. If it returns None, the others are asked; if it raises, the answer
          is no.
        * `capabilities`: additional capabilities that servers are told.
        * `audit`: a file that gets a line for each call. Entering the room raises `UsageError` if it cannot be
          written.
        * `record`: records a tape of all calls and answers: a new file whose name ends with `.tape`, or a folder for
          tapes.
        * `redact`: names of members of arguments and results whose values are removed from the tape.
        * `tracer_provider`: of OpenTelemetry, gets spans of each call; None: the one of the process, if any.
        * `meter_provider`: of OpenTelemetry, gets durations of each call; None: the one of the process, if any.
        * `watchers`: objects that are told about the moments of all calls (`Watcher`). Known secrets are removed from
          what they see.
        * `raw`: True: watchers see the secrets, too.
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
            bootstrap=bootstrap,
            connectors=maker(connectors, "connectors", "a connector", "open", or_none=False),
            auth=maker(auth, "auth", "an httpx2.Auth", "async_auth_flow", or_none=True),
            client_info={"name": "greenroom", "version": VERSION},
            callbacks=Callbacks(
                on_sampling, on_elicitation, roots, on_log, on_notification, capabilities or {}
            ),
        )
        runtime.sessions.approve_with(on_approval)
        runtime.attachments |= wanted(audit, record, redact, tracer_provider, meter_provider)
        for watcher in watchers:
            runtime.watchers.add(ProgramWatcher(watcher, None if raw else runtime.secrets), Order.PROGRAM)
        room = cls(runtime)
        room._in_process = dict(in_process or {})
        return room

    @classmethod
    def replay(
        cls,
        tape: str | os.PathLike[str],
        *,
        strict: bool = True,
        ignore: Collection[str] = (),
        by_order: bool = False,
        nearest: float | None = None,
        pace: str = "at once",
        faults: Collection[str] = (),
        call_timeout: float | None = None,
        per_session: bool = False,
        live: Collection[str] = (),
        config: ConfigSource | None = None,
        **options: Any,
    ) -> Greenroom:
        """A room whose servers answer from a tape that `record` made: the same tools and answers, and no process is
        started.

        A call gets the answer of the recorded call with the same arguments. Any other call fails with a `RemoteError`
        that names the most similar recorded call (`data["error"]` is `not_on_tape`). `room.tape` says which recorded
        calls were made, and which calls were not on the tape.

        * `tape`: the file.
        * `strict`: each recorded call answers once, in the recorded order. False: as often as it is made.
        * `ignore`: names of members of the arguments that may differ.
        * `by_order`: a call with other arguments gets the answer of the next recorded call of its tool.
        * `nearest`: a call with other arguments gets the answer of the most similar recorded call, if the similarity
          is at least this (0 to 1).
        * `pace`: `at once`, or `recorded`: a call takes as long as it took.
        * `faults`: faults that happen, such as `github call 7: crash after sent`.
        * `call_timeout`: seconds for each call; None: what was configured.
        * `per_session`: each session has the tape to itself, from its beginning.
        * `live`: names of servers of `config` that run for calls that may change something, and for calls that are not
          on the tape. After the first write, a server gets all its calls.
        * `config`: the configuration with the servers of `live`.
        * `options`: the arguments of `open`. `connectors` is used for the servers of `live`.

        Raises `BadTape` when the file is not a tape that can be used, `ConfigError` when its settings cannot,
        `UsageError` for a fault that cannot be played on this tape, and for any other option that means nothing."""
        from ..tape.replay_servers import LiveServers, opened

        loaded, replayed = opened(
            tape,
            strict=strict,
            ignore=ignore,
            by_order=by_order,
            nearest=nearest,
            pace=pace,
            faults=faults,
            call_timeout=call_timeout,
            per_session=per_session,
            live=live,
            servers=_with_those_given(config, options),
        )
        given: dict[str, Any] = {"cache_path": ":memory:", **options}
        if live:
            given.pop("in_process", None)  # they are in there
        reach = maker(given.pop("connectors", None), "connectors", "a connector", "open", or_none=False)
        room = cls.open(loaded, connectors=replayed, **given)
        replayed.names = room._port.catalogue.tool_names
        permits = anyio.CapacityLimiter(loaded.settings.start_permits)
        replayed.live_by(LiveServers(room._port.fleet, permits, reach))
        room._port.services.replays(replayed, replayed.watcher)
        return room

    @property
    def tape(self) -> Replay | None:
        """The tape that this room replays; None: it is no replay."""
        return self._runtime.replay

    @property
    def config(self) -> Config:
        """The configuration in use."""
        return self._runtime.config

    # ---- open and close ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Greenroom:
        await self._owner.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._owner.leave()

    async def start(self, task_group: Any = None) -> None:
        """Open the room in `task_group` (a trio nursery or an anyio task group). On asyncio you may omit it: the room
        then runs in its own task. End it with `aclose`."""
        await self._owner.start(task_group)

    async def aclose(self, patience: float | None = None) -> None:
        """End the room: calls in flight may take `patience` seconds more (default: the configured drain
        time), every server is stopped, `drain_report` is set. Bounded; idempotent; finishes even when its
        caller is cancelled. In a forked copy it does nothing, because the room belongs to the parent. Raises
        `UsageError` in another event loop."""
        await self._owner.aclose(seconds(patience, "patience"))

    @property
    def _live(self) -> Runtime:
        """The runtime of the open room. Raises `UsageError` before the room is opened, and in another event loop."""
        return self._port.access.in_loop

    # ---- what is known ----------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The value of `GREENROOM_ROOM` in the environment of each process of this room."""
        return self._runtime.run_id

    @property
    def drain_report(self) -> DrainReport | None:
        """How the calls of this room ended. While the room is open: those so far, and how many are `open`. None before
        that."""
        return self._runtime.report_so_far

    async def ready(self) -> None:
        """Wait until every eager and keep-alive server has connected, or has failed once."""
        await self._live.ready()

    def status(self) -> list[ServerStatus]:
        """A row for each configured server, and one for each further live address."""
        return self._port.catalogue.status()

    def tree(self) -> TreeNode:
        """The room's servers and sessions now: the state of each, its calls, the waiting time of the oldest, the
        remaining restarts, and the next event that only needs time. `print(room.tree())` shows it."""
        return self._port.services.tree()

    async def recent_tape(self, path: str | os.PathLike[str], *, redact: Collection[str] = ()) -> None:
        """Write a tape of the last ten minutes to this new file, to find out what went wrong. It has the calls and
        their answers (up to 512 KiB of them, each up to 32 KiB), calls that have not ended, and the history and lists
        of the servers. Credentials are removed, and so are the values of members named in `redact`. Only its owner can
        read the file. Raises `UsageError` if it cannot be written."""
        kept = self._port.services.last_minutes()
        file, names = file_of(path, "path"), texts(redact, "redact")

        def write() -> None:
            from ..tape.last_minutes_tape import tape_of, write_tape

            write_tape(file, tape_of(kept, names))

        await apart(write)

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
        """Open a caller with its own state: `async with room.session("alice") as s: await s.call(...)`.

        `variables` are the values of `${session.NAME}` in the entries of servers that are isolated per session or per
        call: `{"GITHUB_TOKEN": token}`. Only the children of this session get them.

        `profile`: the name of a profile in the configuration. Servers and tools outside it do not exist for this
        session. Raises `UsageError` for an unknown profile.

        `on_approval`: as in `open`, and asked before the room's.

        The other arguments are callbacks, as in `open`. If any is given, the session answers for itself: its callbacks
        answer the questions of its own children, and those of a shared server while only this session has a call in
        flight there. If several sessions have one, the request is refused, because nobody can know which session it is
        for. Without callbacks, the room's callbacks answer for the session.
        """
        given = (on_sampling, on_elicitation, roots, on_log, on_notification, capabilities)
        host = None if all(one is None for one in given) else Callbacks(*given[:5], capabilities or {})
        function(on_approval, "on_approval")
        live = self._port.access.live
        view = None if profile is None else live.profiles.view(name_of(profile, "a profile"))
        return Session(name, live, variables or {}, host, view, on_approval)

    # ---- servers ----------------------------------------------------------------------------------------------------

    async def connect(self, server: str, *, force: bool = False) -> None:
        """Connect a server now, even if its circuit breaker is open or the server was taken down. A connected server
        lists its tools again; if it does not answer, it is restarted, unless calls are open there. `force`: connect
        it again if it is connected. Raises `ConnectFailed`, `UnknownServer`, `ServerDown` (disabled, broken
        definition)."""
        if force and any(actor.is_connected for actor in self._live.servers.actors_of(server)):
            await self.restart(server)
        else:
            await self._port.connections.connect_by_name(server)

    async def drain(self, server: str) -> None:
        """Take a server down: calls in flight finish, new ones are refused, then its process is stopped. It
        stays down until it is connected or restarted by name. Raises `UnknownServer`."""
        servers = self._live.servers
        closed = [self._when_closed(actor) for actor in servers.actors_of(server)]
        servers.take_down(server, Ending(Cause.DRAINED))
        for event in closed:
            await event.wait()

    async def restart(self, server: str) -> None:
        """End the current incarnation (calls in flight finish) and connect the next.

        If the server is still being installed, this waits for it instead: a new incarnation would be no better, and
        killing this one would leave a broken cache. If each session has its own child, all of them end, and start again
        when they are called. Raises as `connect` does.
        """
        servers = self._live.servers
        servers.starts.end_warm(servers.record(server).definition.name)
        for actor in servers.actors_of(server):
            live = actor.life.state in (State.CONNECTING, State.CONNECTED, State.DRAINING)
            if live and not servers.discovery.is_first_start(actor):
                actor.stop(Ending(Cause.RESTART))
        await self._port.connections.connect_by_name(server)

    async def reload(self, config: ConfigSource, *, dry_run: bool = False) -> ReloadPlan:
        """Apply another configuration with as few changes as possible. Unchanged servers are not affected. A changed
        policy applies at once. If the definition of a server changes, its old incarnation drains first. `dry_run`: only
        return the plan. Raises `ConfigError`, and then nothing has changed."""

        def prepare() -> tuple[Config, ReloadPlan, CachedServers]:
            loaded = with_objects(open_config(config), self._in_process)
            return loaded, plan_reload(self.config, loaded), live.recall(loaded)

        live = self._live
        async with live.reloading:
            is_long = live.store.blocks or len(self.config.servers) >= MANY_ITEMS
            loaded, plan, recalled = await apart(prepare) if is_long else prepare()
            if not dry_run:
                await live.watchers.will_reconfigure(loaded)
                defined = await self._define_ahead(loaded, plan)  # nothing may wait between this and `apply`
                await all_of(live.apply(loaded, plan, recalled, defined), operator.call)
                await self._live.router.ref.ask(IndexRequest)
        return plan

    async def _define_ahead(self, config: Config, plan: ReloadPlan) -> frozenset[str]:
        """Define the new servers bit by bit, because with thousands of them one step would take too long. No
        name leads to them yet. If this is cancelled in between, they are removed again. Returns their names,
        without those servers that were removed before and of which something is still left."""
        servers = self._live.servers
        new = [name for name in plan.start if name not in servers.records]
        try:
            await in_turns((config.servers[name] for name in new), servers.define)
        except BaseException:
            await all_of(new, servers.remove)
            raise
        return frozenset(new)

    async def accept(self, server: str | None = None, tool: str | None = None) -> list[str]:
        """Accept the changed definition of a tool, or of all changed tools of a server; returns the server's names of
        the tools. Without a server: apply decisions that were made elsewhere, such as by a command. Raises
        `UnknownServer`, `UnknownTool`, `OSError`."""
        return await self._live.accept(server, None if tool is None else name_of(tool, "a tool"))

    def refresh(self, server: str | None = None) -> list[str]:
        """Start the servers whose tools are unknown, or the given one, to read their lists, and return their names.
        Each is started even if its circuit breaker is open, but at most once a second. If the given server is
        connected, it lists its tools again. `catalogued` waits for the result. Raises `UnknownServer`, `ServerDown` for
        a server that is out of service, and `CredentialNeeded` for one that only a session can start."""
        live = self._live
        if server is not None:
            live.servers.bring_back(server)
            live.sessions.check(live.servers.record(server).definition, None)
            return live.discover_by_name(server)
        entries = {name: live.router.entry(name) for name in live.servers.records}
        return live.discover_now(
            [name for name, entry in entries.items() if entry is None or not entry.known]
        )

    async def reconnect(self, server: str | None = None) -> list[tuple[str, CallError | None]]:
        """Restart one server. Without a name, restart all running servers and connect the eager and keep-alive ones, in
        parallel; idle lazy servers stay idle. Returns for each server its error, or None."""
        servers = self._live.servers
        names = [servers.record(server).definition.name] if server is not None else servers.to_reconnect()
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
            self._live.servers.on_closed(actor, event.set)
        return event


_ALL: Final = Scrub.ALL  # naming an enum member costs ten times as much as a constant on 3.11
_NOTHING: Final[Mapping[str, str]] = {}


class Session(RoomCalls):
    """A session of a room, for callers that must not share a server's state with others: `async with
    room.session("alice") as s: await s.call("memory_read_graph")`."""

    # A session is a name. A server that is isolated per session has one child for each session, started by the
    # session's first call and used for all its calls. Persistent servers are shared with everybody. A server that is
    # isolated per call has a child per call, as always. State never crosses between sessions, because the session is
    # part of the address. When a session ends, its children end, whatever their state: queued calls fail, and its refs
    # refuse.
    #
    # A session may bring callbacks of its own. They answer what its children ask, and what shared servers ask during
    # its calls; they hear the logs of both, at the session's own level (`server_messages`). What belongs to the room it
    # cannot reach: reloads, drains, the answers for others.

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        variables: Mapping[str, str],
        host: Host | None = None,
        view: ProfileView | None = None,
        on_approval: OnApproval | None = None,
    ) -> None:
        super().__init__(RoomPort(runtime, name, view))
        self.name = name  # the one that it was opened with
        self._variables = variables  # until it is opened
        self._host = host
        self._on_approval = on_approval

    def __repr__(self) -> str:
        return f"<Session {self.name!r}{' (over)' if self._port.access.is_over else ''}>"

    async def connect(self, server: str) -> None:
        """Connect the session's own child of a server. Raises the same errors as `Greenroom.connect`."""
        await self._port.connections.connect_by_name(server)

    async def __aenter__(self) -> Session:
        sessions = self._port.access.in_loop.sessions
        sessions.open(self.name, self._variables, self._host, self._port.view, self._on_approval)
        self._variables, host, self._host = _NOTHING, self._host, None
        if host is not None:
            self._port.client_came()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session and its own children. Bounded; idempotent; finishes even when it is cancelled."""
        port = self._port
        if port.access.is_over:
            return
        _ = port.access.in_loop
        port.access.is_over = True
        with anyio.CancelScope(shield=True):
            await port.runtime.end_session(self.name)
