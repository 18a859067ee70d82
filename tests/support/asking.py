"""Servers in memory that ask their client: nothing is stubbed above the peer.

`AskingServer` speaks either era, or both: then each connection the one of its first request, as with the SDKs. What a
tool of it does is a coroutine of the test, which is given the `Asking` of its call: it may ask the client, notify it,
and wait for events of the test.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import attrs
import msgspec

from greenroom.actors.open_requests import mark_sent
from greenroom.actors.peer import Agreement, Exchange, PeerHooks
from greenroom.protocol.errors import Reach
from greenroom.protocol.jsonrpc.terms import MODERN_VERSIONS, RpcError
from greenroom.testing.fake_servers import tool

current_call: ContextVar[Any] = ContextVar("current_call", default=None)  # that a tool works on
Act = Callable[["Asking", Mapping[str, Any]], Awaitable[Any]]


class Refused(Exception):
    """The client refused a request, with this code and text."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.code = error.code


@attrs.define(eq=False)
class AskingServer:
    """One server. `acts`: what its tools do, by name: `async (asking, arguments) -> text or a whole result`."""

    acts: dict[str, Act] = attrs.field(factory=dict[str, Act])
    schemas: dict[str, Any] = attrs.field(factory=dict[str, Any])  # of the arguments of its tools
    modern: bool = False
    both: bool = False
    capabilities: dict[str, Any] = attrs.field(
        factory=lambda: {"tools": {"listChanged": True}, "logging": {}, "resources": {"subscribe": True}}
    )
    resources: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])
    prompts: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])
    # -- what happened --
    starts: int = 0
    initialized_with: list[Mapping[str, Any]] = attrs.field(
        factory=list[Mapping[str, Any]]
    )  # client capabilities
    requests: list[tuple[str, Any]] = attrs.field(factory=list[tuple[str, Any]])  # but tools/call
    notified: list[str] = attrs.field(factory=list[str])
    live: list[Asking] = attrs.field(factory=lambda: list[Asking]())

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Notify over every live connection."""
        for connection in tuple(self.live):
            connection.tell(method, params)

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[Any]:
        self.starts += 1
        async with anyio.create_task_group() as tasks:
            connection = Asking(self, hooks, tasks)
            self.live.append(connection)
            try:
                yield connection
            finally:
                self.live.remove(connection)
                tasks.cancel_scope.cancel()


def asking_connectors(servers: Mapping[str, AskingServer]) -> Any:
    """The `connectors` of a room over these servers."""
    return lambda definition, _address, _incarnation: servers[definition.name]


class Asking:
    """One connection to such a server: the `Connection`, its `Peer`, and the far end."""

    pid = None
    last_line = ""
    last_heard: float = 0.0
    may_speak_both = False
    said_instead = ""
    agreed: Agreement | None = None

    def __init__(self, server: AskingServer, hooks: PeerHooks, tasks: anyio.abc.TaskGroup) -> None:
        self.server = server
        self.hooks = hooks
        self.protocol_version: str | None = None
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self.beside: str | None = None
        self._tasks = tasks
        self._open: dict[Exchange, anyio.CancelScope] = {}
        self._requests: dict[str, Any] = {}
        self._number = 0
        self.opened_by = ""  # the method of its first request

    # ---- what a tool does -------------------------------------------------------------------------------------------

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Ask the client. Raises `Refused`."""
        self._number += 1
        rpc_id, answered = f"q{self._number}", anyio.Event()
        self._requests[rpc_id] = answered
        self.hooks.on_request(rpc_id, method, params)
        await answered.wait()
        result, error = self._requests.pop(rpc_id)
        if error is not None:
            raise Refused(error)
        return result

    @property
    def is_modern(self) -> bool:
        return self.opened_by != "initialize" if self.server.both else self.server.modern

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.hooks.on_notification(method, params)

    def progress(self, message: str) -> None:
        """Report progress of the call that this is asked in."""
        call = current_call.get()
        if call in self._open:
            call.owner.exchange_progressed(call, {"progress": 1, "message": message})

    def _listed(self, name: str) -> dict[str, Any]:
        schema = self.server.schemas.get(name)
        return tool(name) if schema is None else tool(name, inputSchema=schema)

    # ---- Peer -------------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> Asking:
        return self

    def request(self, exchange: Exchange) -> None:
        mark_sent(exchange)
        self._open[exchange] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, exchange)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if exchange in self._open:
            self._open.pop(exchange).cancel()

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.server.notified.append(method)

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        answered, self._requests[rpc_id] = self._requests[rpc_id], (result, error)
        answered.set()

    # ---- Connection -------------------------------------------------------------------------------------------------

    def signs(self) -> object:
        return None

    def stderr_tail(self) -> tuple[str, ...]:
        return ()

    async def stop(self, grace: float) -> None:
        self.kill_now()

    def kill_now(self) -> None:
        for scope in self._open.values():
            scope.cancel()
        self._open.clear()

    # ---- answers ----------------------------------------------------------------------------------------------------

    async def _answer(self, exchange: Exchange) -> None:
        current_call.set(exchange)
        params: dict[str, Any] = json.loads(msgspec.json.encode(exchange.params or {}))
        with self._open[exchange]:
            answer = await self._answer_to(exchange, params)
            if self._open.pop(exchange, None) is not None:
                exchange.reach = Reach.ANSWERED
                self.last_heard = anyio.current_time()
                if isinstance(answer, RpcError):
                    exchange.owner.exchange_ended(exchange, None, answer)
                else:
                    exchange.owner.exchange_ended(exchange, json.dumps(answer).encode(), None)

    async def _answer_to(self, exchange: Exchange, params: dict[str, Any]) -> Any:
        server, method = self.server, exchange.method
        self.opened_by = self.opened_by or method
        if (exchange.version or self.protocol_version) in MODERN_VERSIONS and not self.is_modern:
            return RpcError(-32600, "this connection serves the handshake era")
        if method == "tools/call":
            return await self._call(params)
        server.requests.append((method, params))
        said = {"name": "asking", "version": "1"}
        match method:
            case "server/discover" if self.is_modern:
                server.initialized_with.append(self.client_capabilities)
                return {"supportedVersions": list(MODERN_VERSIONS), "capabilities": server.capabilities}
            case "initialize" if not self.is_modern:
                server.initialized_with.append(params["capabilities"])
                version = params["protocolVersion"]
                return {"protocolVersion": version, "capabilities": server.capabilities, "serverInfo": said}
            case "tools/list":
                return {"tools": [self._listed(name) for name in server.acts]}
            case "resources/list":
                return {"resources": server.resources}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": "contents"}]}
            case "prompts/list":
                return {"prompts": server.prompts}
            case "prompts/get":
                return {"messages": []}
            case "completion/complete":
                return {"completion": {"values": []}}
            case "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
                return {}
            case _:
                if method == "subscriptions/listen" and self.is_modern:
                    await anyio.sleep_forever()
                return RpcError(-32601, f"Method not found: {method}")

    async def _call(self, params: dict[str, Any]) -> Any:
        self.params = params
        try:
            said = await self.server.acts[params["name"]](self, params.get("arguments") or {})
        except Refused as refusal:
            return {"content": [{"type": "text", "text": f"{refusal.code}: {refusal}"}], "isError": True}
        if isinstance(said, dict) and ("content" in said or "resultType" in said):
            return said
        return {"content": [{"type": "text", "text": json.dumps(said)}]}
