"""The HTTP door in the test's own process: a room of servers in memory, real sockets."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import httpx2

from greenroom import Greenroom
from greenroom.gateway.conversations import Conversations
from greenroom.gateway.doors.http_app import HttpDoor
from greenroom.gateway.doors.http_auth import Access
from greenroom.gateway.doors.http_request import Rules
from greenroom.gateway.doors.http_server import HttpServer, bound

HELLO: Mapping[str, Any] = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "t", "version": "1"}}
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
# For clients that use no TLS. To read the certificates of the system takes each client 20 ms.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


@attrs.define(eq=False)
class Opened:
    """A door that is open. `http` speaks to it."""

    door: HttpDoor
    server: HttpServer
    port: int
    http: httpx2.AsyncClient
    notes: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def post(self, message: Any, path: str = "/mcp", **headers: str) -> httpx2.Response:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        content = message if isinstance(message, bytes) else json.dumps(message)
        return await self.http.post(path, content=content, headers={**ACCEPT, **said})

    async def session(self, path: str = "/mcp", *, capabilities: Any = None, **headers: str) -> Person:
        hello = {**HELLO, "capabilities": capabilities or {}}
        answer = await self.post(request("initialize", 0, hello), path, **headers)
        assert answer.status_code == 200, answer.text
        person = Person(self, path, {**headers, "mcp_session_id": answer.headers["mcp-session-id"]})
        await person.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return person

    async def stateless(
        self, method: str, params: Any = None, key: Any = 1, **headers: str
    ) -> httpx2.Response:
        said = {**(params or {}), "_meta": {**META, **(params or {}).get("_meta", {})}}
        named = said.get("name") or said.get("uri")
        routing = {"mcp_protocol_version": MODERN, "mcp_method": method}
        if named:
            routing["mcp_name"] = str(named)
        all_headers: Any = {**routing, **headers}
        return await self.post(request(method, key, said), **all_headers)


@attrs.define(eq=False)
class Person:
    """A client of the handshake era."""

    opened: Opened
    path: str
    headers: dict[str, str]

    async def post(self, message: Any, **headers: str) -> httpx2.Response:
        return await self.opened.post(message, self.path, **{**self.headers, **headers})

    async def ask(self, method: str, params: Any = None, key: Any = 1) -> Any:
        answer = await self.post(request(method, key, params))
        assert answer.status_code == 200, answer.text
        return next(message for message in messages(answer) if message.get("id") == key)

    async def call(self, name: str, key: Any = 1, **arguments: Any) -> Any:
        return await self.ask("tools/call", {"name": name, "arguments": arguments}, key)

    def real_headers(self, **more: str) -> dict[str, str]:
        return {name.replace("_", "-"): value for name, value in {**self.headers, **more}.items()}


def request(method: str, key: Any = 1, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params or {}}


def messages(answer: httpx2.Response) -> list[Any]:
    """The messages of a whole answer, JSON or event stream."""
    if answer.headers["content-type"] == "application/json":
        return [answer.json()]
    return [event for _, event in events_in(answer.text)]


def events_in(text: str) -> list[tuple[str, Any]]:
    """Id and message of each event that has one."""
    found = re.findall(r"^(?:id: (\S+)\n)?event: message\ndata: (.*)$", text, re.M)
    return [(name, json.loads(data)) for name, data in found]


@asynccontextmanager
async def http_door(
    room: Greenroom,
    *,
    access: Access | Callable[[int], Access] | None = None,
    rules: Rules | None = None,
    expose: str = "direct",
    **more: Any,
) -> AsyncGenerator[Opened]:
    """A door over `room`, on a free port of 127.0.0.1. `access` may be made from that port. asyncio only."""
    notes: list[str] = []
    rules = rules or Rules()
    conversations = Conversations(room, expose=expose, version="9.9", note=notes.append)
    with bound("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        who = access(port) if callable(access) else access or Access("127.0.0.1")
        door = HttpDoor(conversations, who, rules, note=notes.append, **more)
        server = HttpServer(door, listener, rules)
        async with anyio.create_task_group() as tasks:
            await tasks.start(conversations.watch)
            await tasks.start(door.run)
            if who.oauth is not None:
                tasks.start_soon(who.oauth.keep)
            async with anyio.create_task_group() as serving:
                await serving.start(server.run)
                async with httpx2.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=NO_CERTIFICATES
                ) as http:
                    try:
                        yield Opened(door, server, port, http, notes)
                    finally:
                        door.sessions.end_all()
                        await http.aclose()
                        server.close()
            tasks.cancel_scope.cancel()
    assert not notes, notes
