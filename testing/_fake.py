"""Fake servers in memory. They behave as real servers do, without a process, and in virtual time.

A `FakeServer` stands for one configured server over all its incarnations. It takes the place of the `Peer`, so
everything above it is real: actors, supervisor, gateway. Its faults come from a `FaultScript`, or from a few attributes
that may be changed while it runs. It counts what happens to it, so tests can check what arrived: `starts`, `live`,
`most_live`, `calls`, `cancelled`, `played`.

Latencies are in seconds of the loop's clock, which may be virtual. Use it with
`Greenroom.open(config, connectors=fake_connectors({"name": server}))`.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ..actors import Connection, Connector, ConnectorFactory, LostReason, PeerHooks
from ..protocol.errors import ConnectFailed
from ._fake_answers import FakeCall
from ._fake_connection import FakeConnection
from ._faults import Fault, FaultScript

if TYPE_CHECKING:
    from ..supervisor import Greenroom

HANG = math.inf  # a latency that never ends

Result = Mapping[str, Any] | str
Handler = Callable[[FakeCall], Result | Awaitable[Result]]


def echo(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The default tool: it returns its arguments."""
    return {"content": [{"type": "text", "text": json.dumps(arguments, sort_keys=True)}]}


def tool(name: str, description: str = "", **extra: Any) -> dict[str, Any]:
    """A tool record with an empty schema."""
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **extra}


@attrs.define(eq=False)
class FakeServer:
    """One server and all its incarnations. See the module for its attributes.

    `handler(call)` answers each call: with a result, or with its text. `call` is the arguments, and has the name of the
    tool as `call.tool`. It may be async: then it may wait, and ask the client (`call.elicit`, `call.sample`). What it
    raises is the cause of the error that the caller gets, and stands in `raised`; an `RpcRefusal` is the server's own.
    """

    tools: list[dict[str, Any]] = attrs.field(factory=lambda: [tool("echo", "Says it back")])
    handler: Handler = echo
    resources: dict[str, str] = attrs.field(factory=dict[str, str])  # text by URI
    prompts: dict[str, str | Callable[[Mapping[str, str]], str]] = attrs.field(
        factory=lambda: dict[str, str | Callable[[Mapping[str, str]], str]]()
    )  # by name: the text, or what makes it of the arguments
    script: FaultScript = attrs.field(factory=FaultScript)
    start_latency: float = 0.0
    greet_latency: float = 0.0
    list_latency: float = 0.0
    call_latency: float = 0.0
    stop_latency: float = 0.0
    wreck_latency: float = 0.0  # after a crash, until the rest of its tree is gone
    refuse_start: str | None = None  # why it cannot be started
    start_error: Exception | None = None  # raised when it is started
    refuse_greeting: str | None = None
    call_error: tuple[int, str] | None = None  # the JSON-RPC error that every call gets
    strict_json: bool = False  # raise for arguments that are no JSON, as a real peer does
    blocked: bool = False  # its pipe is full: no request is sent
    ping_latency: float = 0.0
    deaf: bool = False  # it answers nothing
    # -- what happened --
    played: list[tuple[int, Fault]] = attrs.field(factory=lambda: list[tuple[int, Fault]]())  # (start, fault)
    raised: list[Exception] = attrs.field(factory=list[Exception])  # what its handler raised
    asked: list[tuple[str, Mapping[str, Any]]] = attrs.field(
        factory=lambda: list[tuple[str, Mapping[str, Any]]]()
    )  # what it asked its client: method and params
    pings: int = 0
    starts: int = 0
    live: int = 0
    most_live: int = 0
    calls: list[Mapping[str, Any]] = attrs.field(factory=list[Mapping[str, Any]])
    cancelled: int = 0
    connections: list[FakeConnection] = attrs.field(factory=lambda: list[FakeConnection]())

    def crash(self, text: str = "exited with code 1", exit_code: int | None = 1) -> None:
        """All its connections are lost now."""
        for connection in tuple(self.connections):
            connection.lose(LostReason(text, exit_code))

    def change_resource(self, uri: str, text: str) -> None:
        """The resource reads otherwise from now on; who is subscribed to it is told."""
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
    """A connector factory for these servers only."""

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
    """A room of these servers, with nothing on disk: `async with fake_room({"shop": shop}) as room`.

    `entries`: further keys of their entries in `mcpServers`; `settings`: those of the room; `options`: those of
    `Greenroom.open`. A server is started by its first call, as usual.
    """
    from ..supervisor import Greenroom

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
