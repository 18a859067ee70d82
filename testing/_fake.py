"""Fake servers, in memory: what a real one does to its peer, without a process, in virtual time.

A `FakeServer` stands for one configured server over all its incarnations. It speaks at the level of the `Peer` seam,
so everything above it (actors, supervisor, gateway) is the real thing. What it does wrong is a `FaultScript`, or a few
plain attributes that may be changed while it runs; what happened to it is counted, so tests can assert on the far end:
`starts`, `live`, `most_live`, `calls`, `cancelled`, `played`.

Latencies are seconds of the loop's clock: virtual under a virtual clock. Use it with
`Greenroom.open(config, connectors=fake_connectors({"name": server}))`.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs

from ..actors import Connection, Connector, ConnectorFactory, LostReason, PeerHooks
from ..protocol.errors import ConnectFailed
from ._fake_connection import FakeConnection
from ._faults import Fault, FaultScript

HANG = math.inf  # a latency that never ends

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def echo(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The default tool: says back what it was given."""
    return {"content": [{"type": "text", "text": json.dumps(arguments, sort_keys=True)}]}


def tool(name: str, description: str = "", **extra: Any) -> dict[str, Any]:
    """A tool record with an empty schema."""
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **extra}


@attrs.define(eq=False)
class FakeServer:
    """One server and all its incarnations. See the module for its attributes."""

    tools: list[dict[str, Any]] = attrs.field(factory=lambda: [tool("echo", "Says it back")])
    handler: Handler = echo
    script: FaultScript = attrs.field(factory=FaultScript)
    start_latency: float = 0.0
    greet_latency: float = 0.0
    list_latency: float = 0.0
    call_latency: float = 0.0
    stop_latency: float = 0.0
    wreck_latency: float = 0.0  # after a crash, until the rest of its tree is gone
    refuse_start: str | None = None  # why it cannot be started
    start_error: Exception | None = None  # raised, as it is, when it is started
    refuse_greeting: str | None = None
    call_error: tuple[int, str] | None = None  # the JSON-RPC error every call gets
    strict_json: bool = False  # encode arguments, as a real peer does: what is no JSON raises
    blocked: bool = False  # its pipe is full: requests are accepted by nobody
    ping_latency: float = 0.0
    deaf: bool = False  # it answers nothing at all
    # -- what happened --
    played: list[tuple[int, Fault]] = attrs.field(factory=lambda: list[tuple[int, Fault]]())  # in which start
    pings: int = 0
    starts: int = 0
    live: int = 0
    most_live: int = 0
    calls: list[Mapping[str, Any]] = attrs.field(factory=list[Mapping[str, Any]])
    cancelled: int = 0
    connections: list[FakeConnection] = attrs.field(factory=lambda: list[FakeConnection]())

    def crash(self, text: str = "exited with code 1", exit_code: int | None = 1) -> None:
        """Every live connection is lost, now."""
        for connection in tuple(self.connections):
            connection.lose(LostReason(text, exit_code))

    def announce_tools(self, *, only: FakeConnection | None = None) -> None:
        """Say that the list of tools has changed, to all connections or to one."""
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
    """A connector factory that reaches these servers and no other."""

    def connect(definition: Any, address: Any, incarnation: int) -> Connector:
        return FakeConnector(servers[address.server], address.server)

    return connect
