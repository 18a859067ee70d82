"""Fake servers, in memory: what a real one does to its peer, without a process, in virtual time.

A `FakeServer` stands for one configured server over all its incarnations. It speaks at the level of the `Peer` seam,
so everything above it (actors, supervisor, gateway) is the real thing. Its behaviour is a few plain attributes that may
be changed while it runs; what happened to it is counted, so tests can assert on the far end: `starts`, `live`,
`most_live`, `calls`, `cancelled`.

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

from ..actors import (
    Connection,
    Connector,
    ConnectorFactory,
    Exchange,
    LostReason,
    Peer,
    PeerHooks,
    RpcError,
    current_rim,
)
from ..protocol.errors import ConnectFailed, Reach, UsageError

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
    tools: list[dict[str, Any]] = attrs.field(factory=lambda: [tool("echo", "Says it back")])
    handler: Handler = echo
    start_latency: float = 0.0
    greet_latency: float = 0.0
    list_latency: float = 0.0
    call_latency: float = 0.0
    stop_latency: float = 0.0
    refuse_start: str | None = None  # why it cannot be started
    start_error: Exception | None = None  # raised, as it is, when it is started
    refuse_greeting: str | None = None
    call_error: tuple[int, str] | None = None  # the JSON-RPC error every call gets
    strict_json: bool = False  # encode arguments, as a real peer does: what is no JSON raises
    blocked: bool = False  # its pipe is full: requests are accepted by nobody
    ping_latency: float = 0.0
    deaf: bool = False  # it answers nothing at all
    # -- what happened --
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


class FakeConnection:
    """One incarnation's end of it: a `Connection` and its `Peer` in one."""

    def __init__(self, server: FakeServer, hooks: PeerHooks, tasks: anyio.abc.TaskGroup) -> None:
        self.server = server
        self.hooks = hooks
        self.pid: int | None = None
        self.last_heard = 0.0
        self.protocol_version: str | None = None
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self._tasks = tasks
        self._rim = current_rim()
        self._open: set[Exchange] = set()
        self._over = False

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
            self.server.calls.append(exchange.params or {})
        exchange.reach = Reach.SENT
        exchange.sent()
        self._tasks.start_soon(self._answer, exchange)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if exchange in self._open:
            self._open.discard(exchange)
            self.server.cancelled += exchange.method == "tools/call"

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        pass

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        pass

    # ---- Connection -------------------------------------------------------------------------------------------------

    def stderr_tail(self) -> tuple[str, ...]:
        return ()

    async def stop(self, grace: float) -> None:
        if self.server.stop_latency:
            await anyio.sleep(min(self.server.stop_latency, grace))
        self.kill_now()

    def kill_now(self) -> None:
        self._over = True
        self._open.clear()
        if self in self.server.connections:
            self.server.connections.remove(self)
            self.server.live -= 1

    # ---- its far end ------------------------------------------------------------------------------------------------

    def lose(self, reason: LostReason) -> None:
        """The connection is over; open exchanges are left to their owner."""
        if not self._over:
            self._over = True
            self._open.clear()
            self.hooks.on_lost(reason)

    def progress(self, params: Mapping[str, Any]) -> None:
        """Report progress on every open call."""
        self.last_heard = self._rim.now()
        for exchange in tuple(self._open):
            exchange.progress(params)

    async def _answer(self, exchange: Exchange) -> None:
        result: Mapping[str, Any] | RpcError
        match exchange.method:
            case "initialize":
                await self.pause(self.server.greet_latency)
                result = self._greeting(exchange)
            case "tools/list":
                listed = self.server.tools  # as they are when it is asked
                await self.pause(self.server.list_latency)
                result = {"tools": listed}
            case "tools/call":
                params = exchange.params or {}
                await self.pause(self.server.call_latency)
                error = self.server.call_error
                result = RpcError(*error) if error else self.server.handler(params.get("arguments") or {})
            case "ping":
                self.server.pings += 1
                await self.pause(self.server.ping_latency)
                result = {}
            case other:
                result = RpcError(-32601, f"Method not found: {other}")
        self._end(exchange, result)

    def _greeting(self, exchange: Exchange) -> Mapping[str, Any] | RpcError:
        if self.server.refuse_greeting is not None:
            return RpcError(-32603, self.server.refuse_greeting)
        return {
            "protocolVersion": (exchange.params or {})["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "fake", "version": "1"},
        }

    async def pause(self, seconds: float) -> None:
        if seconds == HANG:
            await anyio.sleep_forever()
        elif seconds:
            await anyio.sleep(seconds)

    def _end(self, exchange: Exchange, result: Mapping[str, Any] | RpcError) -> None:
        if self.server.deaf:
            return
        self.last_heard = self._rim.now()  # a late answer is a sign of life too
        if exchange not in self._open:
            return
        self._open.discard(exchange)
        exchange.reach = Reach.ANSWERED
        if isinstance(result, RpcError):
            exchange.end(None, result)
        else:
            exchange.end(json.dumps(result).encode(), None)


def _check_json(params: object) -> None:
    """As a real peer does. Raises `UsageError`."""
    try:
        json.dumps(params)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"This cannot be sent as JSON: {error}") from None


@attrs.frozen
class FakeConnector:
    server: FakeServer
    name: str

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
        server = self.server
        server.starts += 1
        if server.refuse_start is not None:
            raise ConnectFailed(
                f'Failed to connect to "{self.name}": {server.refuse_start}', server=self.name
            )
        if server.start_error is not None:
            raise server.start_error
        server.live += 1
        server.most_live = max(server.most_live, server.live)
        async with anyio.create_task_group() as tasks:
            connection = FakeConnection(server, hooks, tasks)
            server.connections.append(connection)
            try:
                await connection.pause(server.start_latency)
                yield connection
            finally:
                connection.kill_now()
                tasks.cancel_scope.cancel()


def fake_connectors(servers: Mapping[str, FakeServer]) -> ConnectorFactory:
    """A connector factory that reaches these servers and no other."""

    def connect(definition: Any, address: Any, incarnation: int) -> Connector:
        return FakeConnector(servers[address.server], address.server)

    return connect
