"""How one incarnation of a fake server behaves: it answers what its script leaves alone (`tape.fault_player` plays
that)."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs
import msgspec

from ..actors.backend import current_backend
from ..actors.call import Call
from ..actors.open_requests import mark_sent
from ..actors.peer import (
    Connection,
    Connector,
    ConnectorFactory,
    Exchange,
    LostReason,
    NoProcess,
    Peer,
    PeerHooks,
)
from ..catalogue.skills import EXTENSION, root_of
from ..protocol.errors import ConnectFailed, Reach, RpcRefusal, UsageError
from ..protocol.events import NoteCode
from ..protocol.fault_plan import FaultEntry, FaultPlan
from ..protocol.fault_scripts import Fault, FaultScript
from ..protocol.jsonrpc.terms import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from ..tape.fault_player import Answer, FaultPlayer, pause, tools_named

if TYPE_CHECKING:
    from ..supervisor.room import Greenroom


HandlerAnswer = Mapping[str, Any] | RpcError  # by a handler


def _as_sent(exchange: Exchange) -> Mapping[str, Any]:
    """The params as a server gets them: with the trace that the request belongs to."""
    params = exchange.params or {}
    if exchange.trace is None:
        return params
    return {**params, "_meta": {**(params.get("_meta") or {}), **exchange.trace.fields}}


class FakeCall(dict[str, Any]):
    """The arguments of one call, as a handler gets them, with what the handler may know and do besides."""

    def __init__(
        self, arguments: Mapping[str, Any], tool: str, exchange: Exchange, wire: FakeConnection
    ) -> None:
        super().__init__(arguments)
        self.tool = tool  # the server's own name for it
        self.start: int = wire.start  # which start of its server it is that answers, from 1
        self._exchange = exchange
        self._wire = wire

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` that the caller gave."""
        return _as_sent(self._exchange).get("_meta") or {}

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress, if the caller wants it."""
        said = {"progress": progress, "total": total, "message": message}
        exchange = self._exchange
        if exchange.on_progress is not None and self._wire.is_waiting(exchange):
            told = {key: value for key, value in said.items() if value is not None}
            exchange.owner.exchange_progressed(exchange, told)

    async def elicit(self, message: str, schema: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Ask the person behind the client: `{"action": "accept", "content": …}`, or another action."""
        wanted: Mapping[str, Any] = schema or {"type": "object", "properties": {}}
        return await self.ask("elicitation/create", {"message": message, "requestedSchema": wanted})

    async def sample(self, text: str, **more: Any) -> Mapping[str, Any]:
        """Ask the client's model. `more`: further params, or others."""
        said = {"role": "user", "content": {"type": "text", "text": text}}
        params = {"messages": [said], "maxTokens": 1000, **more}
        return await self.ask("sampling/createMessage", params)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send the client a request, such as `roots/list`, and return its result. Raises `RpcRefusal` if the client
        refuses. A handler that does not catch it ends its call with that error."""
        return await self._wire.ask(method, params or {}, self._exchange)


class FakeAnswers:
    """What stands behind the far end of one connection."""

    def __init__(self, server: FakeServer, start: int, wire: FakeConnection) -> None:
        self._server = server
        self._start = start
        self._wire = wire
        self.plan: FaultPlan = FaultPlan(server.script.entries, start)
        self._tools: Sequence[Mapping[str, Any]] | None = None  # its own, once they have changed

    async def due_for(self, step: str, exchange: Exchange) -> Sequence[FaultEntry]:
        return self.plan.due(step, (exchange.params or {}).get("name"))

    def note_fault(self, fault: FaultEntry) -> None:
        self._server.played.append((self._start, Fault(**fault.said())))

    def change_tools(self, names: Sequence[str]) -> None:
        self._tools = tools_named(names, (*self._server.tools, *(self._tools or ())))

    async def answer_to(self, exchange: Exchange) -> Answer | None:
        try:
            said = await self._answer_to(exchange)
            return said if isinstance(said, RpcError) else json.dumps(said).encode()
        except RpcRefusal as refusal:  # so a handler refuses in its own words
            return RpcError(refusal.rpc_code, str(refusal), refusal.data)
        except Exception as raised:
            self._server.raised.append(raised)
            self._wire.break_off(exchange, raised)
            return None

    async def _answer_to(self, exchange: Exchange) -> HandlerAnswer:
        server, params = self._server, exchange.params or {}
        if exchange.method in server.methods:
            made = server.methods[exchange.method](params)
            return await made if isinstance(made, Awaitable) else made
        match exchange.method:
            case "initialize":
                await pause(server.initialize_latency)
                return self._initialize_result(params)
            case "tools/list":
                listed = (
                    server.tools if self._tools is None else self._tools
                )  # as they were when it was asked
                await pause(server.list_latency)
                return {"tools": listed}
            case "tools/call":
                await pause(server.call_latency)
                error = server.call_error
                return RpcError(*error) if error else await self._handled(exchange, params)
            case "ping":
                await pause(server.ping_latency)
                return {}
            case _:
                return self._about_others(exchange.method, params)

    async def _handled(self, exchange: Exchange, params: Mapping[str, Any]) -> HandlerAnswer:
        """The result that the handler of the test gives for a call. Raises what the handler raises."""
        given: Any = params.get("arguments") or {}
        if isinstance(given, msgspec.Raw):  # a door that only passes them on has not read them
            given = msgspec.json.decode(given)
        call = FakeCall(given, str(params.get("name")), exchange, self._wire)
        made = self._server.handler(call)
        result: Any = await made if isinstance(made, Awaitable) else made
        if isinstance(result, str):
            return {"content": [{"type": "text", "text": result}]}
        if result is None:
            raise TypeError("it returned None in place of a result or a text")
        json.dumps(result)  # what cannot be sent is the handler's error, too
        return result

    def _about_others(self, method: str, params: Mapping[str, Any]) -> HandlerAnswer:
        """The answer to a request about resources, prompts or skills."""
        server, name, uri = self._server, str(params.get("name")), str(params.get("uri"))
        match method:
            case "skills/list" if server.skills:
                return {"skills": [_skill(path, server.skills[path]) for path in server.skills]}
            case "skills/get" if server.skills:
                path = root_of(uri).removeprefix(_SKILLS)
                if path not in server.skills:
                    return RpcError(INVALID_PARAMS, f"No skill is served at {uri}")
                return {"skill": _skill(path, server.skills[path])}
            case "resources/list" if server.resources:
                return {"resources": [{"uri": each, "name": each} for each in server.resources]}
            case "resources/templates/list" if server.resources:
                return {"resourceTemplates": []}
            case "resources/read" if uri in server.resources:
                return {"contents": [{"uri": uri, "text": server.resources[uri]}]}
            case "resources/read" if uri in (texts := _files(server.skills)):
                return {"contents": [{"uri": uri, "text": texts[uri]}]}
            case "resources/read" if server.resources:
                return RpcError(-32002, f"Resource not found: {uri}")
            case "resources/subscribe" | "resources/unsubscribe" if server.resources:
                self._wire.watch(uri, on=method == "resources/subscribe")
                return {}
            case "prompts/list" if server.prompts:
                return {"prompts": [{"name": each} for each in server.prompts]}
            case "prompts/get" if name in server.prompts:
                made = server.prompts[name]
                text = made if isinstance(made, str) else made(params.get("arguments") or {})
                return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
            case "prompts/get" if server.prompts:
                return RpcError(INVALID_PARAMS, f"Unknown prompt: {name}")
            case other:
                return RpcError(METHOD_NOT_FOUND, f"Method not found: {other}")

    def _initialize_result(self, params: Mapping[str, Any]) -> HandlerAnswer:
        if self._server.refuse_initialize is not None:
            return RpcError(-32603, self._server.refuse_initialize)
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {
                "tools": {"listChanged": True},
                **({"resources": {"subscribe": True}} if self._server.resources else {}),
                **({"prompts": {}} if self._server.prompts else {}),
                **({"extensions": {EXTENSION: {}}} if self._server.skills else {}),
                **self._server.capabilities,
            },
            "serverInfo": {"name": "fake", "version": "1"},
        }


# ---- One incarnation of a fake server as the runtime sees it ---------------------------------------------------------
#
# The connection and its peer, in one object.
#
# A request is accepted at once. Whether and when it is answered is decided by `FaultPlayer`, and how by `FakeAnswers`.
# What a real process would do reaches the runtime in the same words: a crash is `on_lost` with an exit code and the
# last lines of stderr, junk is a note, and a hanging server accepts everything and answers nothing.


class FakeConnection(NoProcess):
    """A `Connection` and its `Peer`, and the `Wire` of its far end."""

    may_speak_both = False
    said_instead = ""
    has_ended: bool = False

    def __init__(self, server: FakeServer, start: int, hooks: PeerHooks, tasks: anyio.abc.TaskGroup) -> None:
        self.server = server
        self.start = start
        self.hooks = hooks
        self.last_heard = 0.0
        self.protocol_version: str | None = None
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self.beside: str | None = None
        self._far = FaultPlayer(FakeAnswers(server, start, self), self, tasks)
        self._tasks = tasks
        self._backend = current_backend()
        self._open: set[Exchange] = set()
        self._asked: dict[str, _FakeQuestion] = {}  # what it has asked its client, by id
        self._watched: set[str] = set()

    @property
    def peer(self) -> Peer:
        return self

    # ---- Peer -------------------------------------------------------------------------------------------------------

    def request(self, exchange: Exchange) -> None:
        if self.server.strict_json:
            _check_json(exchange.params)
        self._open.add(exchange)
        if self.server.blocked:
            return
        if exchange.method == "tools/call":
            self.server.calls.append(_as_sent(exchange))
        self.server.pings += exchange.method == "ping"
        mark_sent(exchange)
        self._tasks.start_soon(self._far.answer, exchange)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if exchange in self._open:
            self._open.discard(exchange)
            self.server.cancelled += exchange.method == "tools/call"
            self._far.abandoned(exchange)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        pass

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        asked = self._asked.pop(rpc_id, None)
        if asked is not None:
            asked.answer = error or result or {}
            asked.over.set()

    # ---- Connection -------------------------------------------------------------------------------------------------

    def stderr_tail(self) -> tuple[str, ...]:
        return self._far.stderr_tail()

    async def stop(self, grace: float) -> None:
        with anyio.move_on_after(grace):
            if self.has_ended:
                await pause(self.server.wreck_latency)
            else:
                await self._far.close(self.server.stop_latency)
        self.kill_now()

    def kill_now(self) -> None:
        self.has_ended = True
        self._open.clear()
        if self in self.server.connections:
            self.server.connections.remove(self)
            self.server.live -= 1

    # ---- what tests do to it ----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start it: returns once it is there, after its `start_latency`."""
        await pause(self.server.start_latency)
        self._far.begin()

    def lose(self, reason: LostReason) -> None:
        """The connection is over. Open exchanges are left to their owner."""
        if not self.has_ended:
            self.has_ended = True
            self._open.clear()
            self.hooks.on_lost(reason)

    def progress(self, params: Mapping[str, Any]) -> None:
        """Report progress on every open call."""
        self._hear()
        for exchange in tuple(self._open):
            exchange.owner.exchange_progressed(exchange, params)

    # ---- what its far end does --------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.has_ended

    def is_waiting(self, exchange: Exchange) -> bool:
        return exchange in self._open

    def end(self, exchange: Exchange, answer: Answer) -> None:
        if self.server.deaf or self._far.is_hung:
            return
        self._hear()  # a late answer is a sign of life too
        if exchange not in self._open:
            if not self.has_ended:
                self.hooks.on_late_answer(b"" if isinstance(answer, RpcError) else answer)
            return
        self._open.discard(exchange)
        exchange.reach = Reach.ANSWERED
        if isinstance(answer, RpcError):
            exchange.owner.exchange_ended(exchange, None, answer)
        else:
            exchange.owner.exchange_ended(exchange, answer, None)

    def break_off(self, exchange: Exchange, raised: Exception) -> None:
        """The handler of the test raised, or returned what cannot be sent: the call ends with that, and has it as its
        cause."""
        text = f"The handler of this FakeServer raised {type(raised).__name__}: {raised}"
        self.end(exchange, RpcError(INTERNAL_ERROR, text))
        if isinstance(exchange, Call) and exchange.error is not None:
            exchange.error.__cause__ = raised

    async def ask(self, method: str, params: Mapping[str, Any], during: Exchange) -> Mapping[str, Any]:
        """Send the client a request in the course of a call. Raises the `RpcRefusal` with which the client refuses."""
        self._hear()
        number = f"fake-{self.start}-{len(self.server.asked)}"
        self.server.asked.append((method, params))
        asked = self._asked[number] = _FakeQuestion()
        self.hooks.on_request(number, method, params, during)
        await asked.over.wait()
        if isinstance(asked.answer, RpcError):
            raise RpcRefusal(asked.answer.code, asked.answer.message, asked.answer.data)
        return asked.answer

    def watch(self, uri: str, *, on: bool) -> None:
        (self._watched.add if on else self._watched.discard)(uri)

    def tell_update(self, uri: str) -> None:
        """Report that a resource has changed, if it is subscribed to."""
        if uri in self._watched:
            self.tell("notifications/resources/updated", {"uri": uri})

    def note(self, code: NoteCode, text: str) -> None:
        self._hear()
        self.hooks.on_note(code, text)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        self._hear()
        self.hooks.on_notification(method, params)

    def _hear(self) -> None:
        self.last_heard: float = self._backend.now()


class _FakeQuestion:
    """A request to the client, and its answer once it is `over`."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.answer: Mapping[str, Any] | RpcError = {}


def _check_json(params: object) -> None:
    """Check that the params can be sent as JSON, as a real peer does. Raises `UsageError`."""
    try:
        json.dumps(params)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"This cannot be sent as JSON: {error}") from None


# ---- Fake servers in memory ------------------------------------------------------------------------------------------
#
# They behave as real servers do, without a process, and in virtual time.
#
# A `FakeServer` stands for one configured server over all its incarnations. It takes the place of the `Peer`, so
# everything above it is real: actors, supervisor, gateway. Its faults come from a `FaultScript`, or from a few
# attributes that may be changed while it runs. It counts what happens to it, so tests can check what arrived: `starts`,
# `live`, `most_live`, `calls`, `cancelled`, `played`.
#
# Latencies are in seconds of the loop's clock, which may be virtual. Use it with `Greenroom.open(config,
# connectors=fake_connectors({"name": server}))`.

HANG = math.inf  # a latency that never ends
Result = Mapping[str, Any] | str
Handler = Callable[[FakeCall], Result | Awaitable[Result]]


_SKILLS: Final = "skill://"


def _files(skills: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The text of each file of these skills, by its URI."""
    return {f"{_SKILLS}{path}/{name}": text for path in skills for name, text in skills[path].items()}


def _skill(path: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """The entry of a skill with these files."""
    head = texts["SKILL.md"].split("---")[1].strip().splitlines()
    files = [
        {
            "uri": f"{_SKILLS}{path}/{name}",
            "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
            "size": len(text.encode()),
        }
        for name, text in texts.items()
    ]
    front_matter = {key: value.strip() for key, _, value in (line.partition(":") for line in head)}
    return {"uri": f"{_SKILLS}{path}/SKILL.md", "frontmatter": front_matter, "resources": files}


def echo(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The default tool: it returns its arguments."""
    return {"content": [{"type": "text", "text": json.dumps(arguments, sort_keys=True)}]}


def tool(name: str, description: str = "", **extra: Any) -> dict[str, Any]:
    """The definition of a tool, for a `FakeServer`, with an empty input schema. `extra`: more fields."""
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **extra}


def _check_tools(_server: object, _field: object, tools: Sequence[object]) -> None:
    for each in tools:
        if isinstance(each, str):
            raise UsageError(f"The tools of a FakeServer are made by `tool`: tools=[tool({each!r})].")


def _check_script(_server: object, _field: object, script: object) -> None:
    if not isinstance(script, FaultScript):
        given = type(script).__name__
        raise UsageError(f"script must be a FaultScript, like FaultScript.of(Fault(…)), got {given}.")


def _check_servers(servers: Mapping[str, object]) -> None:
    for name, server in servers.items():
        if not isinstance(server, FakeServer):
            raise UsageError(f'Server "{name}" must be a FakeServer, like FakeServer(tools=[…]).')


@attrs.define(eq=False)
class FakeServer:
    """One server and all its incarnations. Its latencies are seconds; what happened can be read as it goes.

    `handler(call)` answers each call: with a result, or with its text. `call` is the arguments, and has the name of the
    tool as `call.tool`. It may be async: then it may wait, and ask the client (`call.elicit`, `call.sample`). What it
    raises is the cause of the error that the caller gets, and stands in `raised`; an `RpcRefusal` is the server's own.
    """

    tools: list[dict[str, Any]] = attrs.field(
        factory=lambda: [tool("echo", "Says it back")], validator=_check_tools
    )  # as it lists them
    handler: Handler = echo  # answers each call
    resources: dict[str, str] = attrs.field(factory=dict[str, str])  # text by URI
    prompts: dict[str, str | Callable[[Mapping[str, str]], str]] = attrs.field(
        factory=lambda: dict[str, str | Callable[[Mapping[str, str]], str]]()
    )  # by name: the text, or what makes it of the arguments
    # How it answers any other method, such as those of an extension, and what it says that it can do beside.
    methods: dict[str, Callable[[Mapping[str, Any]], HandlerAnswer | Awaitable[HandlerAnswer]]] = attrs.field(
        factory=lambda: dict[str, Callable[[Mapping[str, Any]], HandlerAnswer | Awaitable[HandlerAnswer]]]()
    )  # by name: what answers any other method
    capabilities: dict[str, Any] = attrs.field(factory=dict[str, Any])  # declared besides its lists
    script: FaultScript = attrs.field(
        factory=FaultScript, validator=_check_script
    )  # what goes wrong, and when
    start_latency: float = 0.0  # seconds until its process runs
    initialize_latency: float = 0.0  # seconds until it answers the handshake
    list_latency: float = 0.0  # seconds before each list
    call_latency: float = 0.0  # seconds before each answer to a call
    stop_latency: float = 0.0  # seconds from being stopped until it is gone
    wreck_latency: float = 0.0  # seconds from a crash until the rest of its tree is gone
    refuse_start: str | None = None  # why it cannot be started
    start_error: Exception | None = None  # raised when it is started
    refuse_initialize: str | None = None  # why it refuses the handshake
    call_error: tuple[int, str] | None = None  # the JSON-RPC error that every call gets
    strict_json: bool = False  # raise for arguments that are no JSON, as a real peer does
    blocked: bool = False  # its pipe is full: no request is sent
    ping_latency: float = 0.0  # seconds before each answer to a ping
    deaf: bool = False  # it answers nothing
    skills: dict[str, dict[str, str]] = attrs.field(
        factory=dict[str, dict[str, str]]
    )  # by path: the text of each file; `SKILL.md` begins with lines between two `---`, each `key: text`
    # -- what happened --
    played: list[tuple[int, Fault]] = attrs.field(factory=lambda: list[tuple[int, Fault]]())  # (start, fault)
    raised: list[Exception] = attrs.field(factory=list[Exception])  # what its handler raised
    asked: list[tuple[str, Mapping[str, Any]]] = attrs.field(
        factory=lambda: list[tuple[str, Mapping[str, Any]]]()
    )  # what it asked its client: method and params
    pings: int = 0  # that it got
    starts: int = 0  # how often it was started, in vain or not
    live: int = 0  # that run now
    most_live: int = 0  # that ran at a time
    calls: list[Mapping[str, Any]] = attrs.field(factory=list[Mapping[str, Any]])  # the params of each
    cancelled: int = 0  # calls that it was told to cancel
    connections: list[FakeConnection] = attrs.field(
        factory=lambda: list[FakeConnection]()
    )  # those that are open

    def crash(self, text: str = "exited with code 1", exit_code: int | None = 1) -> None:
        """Lose all its connections now."""
        for connection in tuple(self.connections):
            connection.lose(LostReason(text, exit_code))

    def change_resource(self, uri: str, text: str) -> None:
        """Give the resource another text, and tell its subscribers."""
        self.resources[uri] = text
        for connection in tuple(self.connections):
            connection.tell_update(uri)

    def announce_tools(self, *, only: FakeConnection | None = None) -> None:
        """Notify all connections, or one, that the list of tools has changed."""
        for connection in (only,) if only is not None else tuple(self.connections):
            connection.hooks.on_notification("notifications/tools/list_changed", None)


@attrs.frozen
class FakeConnector:
    server: FakeServer
    name: str

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
        server = self.server
        server.starts += 1
        if server.refuse_start is not None:
            raise ConnectFailed(server.refuse_start, server=self.name)
        if server.start_error is not None:
            raise server.start_error
        server.live += 1
        server.most_live = max(server.most_live, server.live)
        async with anyio.create_task_group() as tasks:
            connection = FakeConnection(server, server.starts, hooks, tasks)
            server.connections.append(connection)
            try:
                await connection.begin()
                yield connection
            finally:
                connection.kill_now()
                tasks.cancel_scope.cancel()


def fake_connectors(servers: Mapping[str, FakeServer]) -> ConnectorFactory:
    """The connector factory of these fake servers (`Greenroom.open(connectors=…)`). Other servers cannot be reached."""
    _check_servers(servers)

    def connect(definition: Any, address: Any, incarnation: int) -> Connector:
        return FakeConnector(servers[address.server], address.server)

    return connect


def fake_room(
    servers: Mapping[str, FakeServer],
    *,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Greenroom:
    """A room with these fake servers, and nothing on disk: `async with fake_room({"shop": shop}) as room`.

    `entries`: more keys for the servers' entries in `mcpServers`. `settings`: the settings of the room. `options`: the
    arguments of `Greenroom.open`. A server starts at its first call, as usual."""
    from ..supervisor.room import Greenroom

    config = {
        "mcpServers": {name: {"command": "a fake", **(entries or {}).get(name, {})} for name in servers},
        "settings": dict(settings or {}),
    }
    given: dict[str, Any] = {
        "cache_path": ":memory:",
        "bootstrap": False,
        "connectors": fake_connectors(servers),
        **options,
    }
    return Greenroom.open(config, **given)


# ---- The executable fake server, for tests ---------------------------------------------------------------------------
#
# Its configuration entry, and what it has written to its log.
#
# A `ScriptedServer` has the same counts as a `FakeServer`: `starts`, `calls`, `cancelled`, `pings`, `played`. They are
# read from the log file, to which all its starts write.


@attrs.frozen
class ScriptedServer:
    """A process that plays `script`. `log`: a file for this server only. It is made when the server first starts."""

    script: FaultScript
    log: Path = attrs.field(converter=Path)

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry for `mcpServers`."""
        options = ["--script", self.script.to_json(), "--log", os.fspath(self.log)]
        return {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.scripted", *options]}

    @property
    def events(self) -> list[dict[str, Any]]:
        """All complete lines of the log, in order."""
        if not self.log.exists():
            return []
        lines = self.log.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    @property
    def pids(self) -> list[int]:
        """The pid of each start, in order."""
        return [event["pid"] for event in self._told("started")]

    @property
    def starts(self) -> int:
        """How often it was started."""
        return len(self.pids)

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The parameters of each `tools/call` that arrived."""
        return self._heard("tools/call")

    @property
    def cancelled(self) -> int:
        """How many calls it was told to cancel."""
        return len(self._heard("notifications/cancelled"))

    @property
    def pings(self) -> int:
        """How many pings it got."""
        return len(self._heard("ping"))

    @property
    def played(self) -> list[tuple[int, Fault]]:
        """Each fault that was played: (number of the start, fault)."""
        return [(event["number"], Fault(**event["fault"])) for event in self._told("fault")]

    @property
    def endings(self) -> list[str]:
        """How its starts ended. A start that was killed could not write that."""
        return [event["how"] for event in self._told("stopped")]

    def _told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def _heard(self, method: str) -> list[Mapping[str, Any]]:
        return [event["params"] for event in self._told("heard") if event["method"] == method]
