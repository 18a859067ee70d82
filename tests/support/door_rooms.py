"""Two rooms for tests of the doors, with the same servers: one that is real, and one whose calls the test ends.

`KnownRoom` is a real room of servers in memory. It is what a test takes whose matter is what a door says.

`FakeRoom` stands in place of a room and its port: its configuration, index and search are real, and the test plays the
servers. It is for what a real room with servers in memory cannot be brought to from outside, or only by waiting: a row
of the status with any state, a call that ends at the moment, and with the error, that the test chooses, what a door
does between two turns of the loop, and a door that is used without any loop, by hundreds of examples of a search. It
has only what those tests need; whose matter is what the room does takes a real one.
`FakeRoom.calls` holds every accepted call. The test ends each with `end` or `fail`, or sets `answer` to have calls
ended at once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import anyio
import msgspec

from greenroom import Greenroom
from greenroom.actors.call import Call
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.namespace import Target
from greenroom.config.model import Config, Scrub, ServerDefinition, Settings
from greenroom.gateway.exposures.mcp_tool import McpTool, ask
from greenroom.protocol.errors import CallError, Problem, UnknownTool
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors

from .rooms import teach_lists

CREATE_ISSUE = {
    "name": "create_issue",
    "description": "Create a new issue in a repository",
    "inputSchema": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["title"],
    },
}
LIST_ISSUES = {
    "name": "list_issues",
    "description": "List issues in a repository",
    "inputSchema": {"type": "object", "properties": {}},
}
NOW = {"name": "now", "description": "The time", "inputSchema": {"type": "object", "properties": {}}}
README = {"name": "Read Me", "uri": "file:///readme", "description": "What it is"}


_AnyCall: Any = Call  # for type checkers: it stands where a call does, and a test ends it in its own way


class FakeCall(_AnyCall):
    """A call that the test ends."""

    protocol_version: str | None = None
    met_a_start = False

    def __init__(
        self, target: Target, arguments: Any, on_end: Callable[[FakeCall], None], on_progress: Any
    ) -> None:
        super().__init__("tools/call", arguments, on_progress=on_progress)
        self.target = target
        self.arguments = arguments
        self._on_end = on_end

    def end(self, result: Mapping[str, Any] | bytes) -> None:
        self.result = result if isinstance(result, bytes) else json.dumps(result).encode()
        self._on_end(self)

    def fail(self, error: CallError) -> None:
        self.error = error
        self._on_end(self)

    def cancel(self, reason: str = "") -> None:
        self.cancelled = True


def _config(**settings: Any) -> Config:
    names = ("github", "clock", "fresh", "off")
    servers = {name: ServerDefinition(name, command="x", disabled=name == "off") for name in names}
    broken = {"bad": Problem("mcp.json: mcpServers.bad", 'needs "command" or "url"')}
    return Config(servers=servers, settings=Settings(**settings), broken=broken)


def _entries() -> dict[str, ServerEntry | None]:
    github = ServerEntry(
        "github",
        "h",
        tools=(CREATE_ISSUE, LIST_ISSUES),
        resources=(README,),
        instructions="Be kind to maintainers.",
    )
    return {"github": github, "clock": ServerEntry("clock", "h", tools=(NOW,)), "fresh": None}


class KnownRoom:
    """A real room of the servers `github` (known, issues and a resource), `clock` (known), `fresh` (unknown), `off`
    and `bad`. It is opened anew for each request. Each call of a tool is answered with `answer`."""

    def __init__(self, **settings: Any) -> None:
        self.config = _config(**settings)
        self.entries = _entries()
        self.answer: Mapping[str, Any] = {"content": []}
        self.called: list[str] = []  # the tools, by their servers' own names

    def learn(self, server: str, *tools: Mapping[str, Any]) -> None:
        """Let these be the tools that are known of `server`."""
        self.entries[server] = ServerEntry(server, "h", tools=tools)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Greenroom]:
        known = {name: entry.tools or () for name, entry in self.entries.items() if entry is not None}
        servers = {
            name: FakeServer(tools=[dict(each) for each in known.get(name, ())], handler=self._answered)
            for name in self.config.servers
        }
        room = Greenroom.open(
            self.config, cache_path=":memory:", connectors=fake_connectors(servers), bootstrap=False
        )
        async with room:
            await teach_lists(room, *filter(None, self.entries.values()))
            yield room

    def _answered(self, call: Any) -> Mapping[str, Any]:
        self.called.append(call.tool)
        return self.answer

    def result_of(self, arguments: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """What the `mcp` tool answers. `options` are the tool's."""

        async def main() -> dict[str, Any]:
            async with self.open() as room:
                return dict(await ask(McpTool(port_of(room), **options), arguments))

        return anyio.run(main)


_AnyRoom: Any = object  # for type checkers: it stands where a room or its port does


class FakeRoom(_AnyRoom):
    """Servers `github` (known, issues and a resource), `clock` (known), `fresh` (unknown), `off`, `bad`."""

    audit = None
    tracing = None

    @property
    def _port(self) -> FakeRoom:
        """It is its own port, and each part of it."""
        return self

    catalogue = connections = services = resources = skills = _port

    def __init__(self, **settings: Any) -> None:
        self.config = _config(**settings)
        self.entries = _entries()
        self.rows: dict[str, dict[str, Any]] = {"clock": {"state": State.CONNECTED}}
        self.calls: list[FakeCall] = []
        self.connected: list[str] = []
        self.answer: Mapping[str, Any] | None = None
        self.refuse: Exception | None = None
        self.on_connect: Callable[[str], None] = lambda _server: None
        self.fresh_tools: tuple[Mapping[str, Any], ...] = ()
        self.closed_by: str | None = None
        self.reindex()

    def reindex(self) -> None:
        self.index = Index.build(self.config.servers, self.entries, self.config.settings)

    def learn(self, server: str, *tools: Mapping[str, Any]) -> None:
        self.entries[server] = ServerEntry(server, "h", tools=tools)
        self.reindex()

    def entry(self, server: str) -> ServerEntry | None:
        return self.entries.get(server)

    def scrubber(self, server: str, door: Scrub, /) -> None:
        """Nothing is scrubbed."""

    def refusal_by_prefix(self, name: str, server: str | None, /) -> None:
        """No name is refused for its prefix."""

    async def surveyed(self) -> list[ServerStatus]:
        return self.status()

    def status(self, server: str | None = None) -> list[ServerStatus]:
        servers = self.config.servers.items()
        return [self._row(name, definition) for name, definition in servers if server in (None, name)]

    def _row(self, name: str, definition: ServerDefinition) -> ServerStatus:
        known = self.entries.get(name) is not None
        row = ServerStatus(
            name,
            tool_count=len(self.index.tools(name)) if known else None,
            disabled=definition.disabled,
        )
        return msgspec.structs.replace(row, **self.rows.get(name, {}))

    def start_call(
        self,
        target: Target,
        arguments: Any,
        on_end: Callable[[Any], None],
        timeout: float | None = None,
        on_progress: Any = None,
        meta: Any = None,
        allowed: bool = False,
        begun: Call | None = None,
    ) -> FakeCall:
        if self.refuse is not None:
            raise self.refuse
        call = FakeCall(target, arguments, on_end, on_progress)
        self.calls.append(call)
        if self.answer is not None:
            call.end(self.answer)
        return call

    def index_now(self) -> Index:
        return self.index

    async def find(self, tool: str, server: str | None = None) -> Target:
        await self.connect(server or "fresh")
        found = self.index.resolve(tool, server)
        if not isinstance(found, Target):
            raise UnknownTool(tool, connected=[server or "fresh"])
        return found

    @asynccontextmanager
    async def found(self, call: Call, arguments: Any, server: str | None = None) -> AsyncGenerator[Target]:
        yield await self.find(call.tool or "", server)

    def begin(self, call: Call, server: str | None) -> None:
        pass

    def until_accepted(self, call: Call) -> AbstractContextManager[None]:
        return nullcontext()

    def turn_away(self, call: Call, error: CallError, server: str | None = None) -> CallError:
        return error

    async def connect(self, server: str, *, force: bool = False) -> None:
        await anyio.lowlevel.checkpoint()
        if self.refuse is not None:
            raise self.refuse
        self.connected.append(server)
        self.on_connect(server)

    async def connect_by_name(self, server: str) -> None:
        await self.connect(server)

    def answer_with(self, host: Any) -> None:
        self.host = host

    def client_came(self) -> None:
        pass

    def set_log_level(self, level: str, server: str | None = None) -> None:
        pass

    def roots_changed(self) -> None:
        pass

    is_learning = False
    finds_by_meaning = False


class Hiding:
    """A scrubber that takes the word `secret` out of results."""

    def scrub(self, raw: bytes) -> bytes:
        return raw.replace(b"secret", b"***")
