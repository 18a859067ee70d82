"""The one client of all peers: the same requests at whatever door a peer opens, in the protocol's own words.

It is no library's client, because each of these mends faults, and a row has to see them as they are: that of the SDK
connects again and asks for what it has missed, refuses an event over 1 MiB, and ends the peer's processes as it closes.
Only what carries the bytes comes from a library.

A call has one `Outcome`: an answer, an error, or none at all (`lost`: the connection ended or the time was over).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import attrs
import httpx2

PROTOCOL = "2025-06-18"  # all peers know it
HELLO = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "peers", "version": "1"}}
PATIENCE = 20.0  # seconds for one answer, unless a row says otherwise
Message = dict[str, Any]
HasEnded = Callable[[], bool]  # whether the process behind an address has ended


class PeerGone(Exception):
    """The other end has closed the connection."""


class CallRefused(Exception):
    """The other end answered with an error, or could not be asked; the message says which."""


@attrs.frozen
class Outcome:
    kind: str  # "answer", "error", "lost"
    text: str
    seconds: float
    size: int = 0  # characters of an answer

    def __str__(self) -> str:
        return f"{self.kind}: {self.text[:80]}" if self.text else self.kind


class Connection(ABC):
    """To a peer's door, for one server or for all."""

    @abstractmethod
    async def open(self) -> None:
        """Wait until the peer can be asked. Raises `PeerGone` if it has ended."""

    @abstractmethod
    async def tools(self) -> list[str]: ...

    @abstractmethod
    async def ask(self, tool: str, arguments: Message) -> str:
        """The text of the answer. Raises `CallRefused` or `PeerGone`. When it is cancelled, it tells the peer, as
        its protocol does."""

    @abstractmethod
    async def close(self) -> None:
        """Go away without a word, as a client that died."""


class Client:
    """`connections`: of each server. `named`: what a server's tool is called there."""

    def __init__(self, connections: Mapping[str, Connection], named: Callable[[str, str], str]) -> None:
        self.named = named
        self._of = connections
        self._all = list(dict.fromkeys(connections.values()))

    async def open(self) -> None:
        """Wait until a server can be asked, so that a bad one keeps nobody from the others."""
        ends = await asyncio.gather(*(each.open() for each in self._all), return_exceptions=True)
        if all(ends):
            raise next(filter(None, ends))

    async def tools(self) -> set[str]:
        """Those of whoever lists them."""
        lists = await asyncio.gather(*(each.tools() for each in self._all), return_exceptions=True)
        return {name for names in lists if not isinstance(names, BaseException) for name in names}

    async def call(self, server: str, tool: str, arguments: Message, patience: float = PATIENCE) -> Outcome:
        began = time.monotonic()

        def outcome(kind: str, text: str) -> Outcome:
            return Outcome(kind, text[:300], time.monotonic() - began, len(text))

        try:
            async with asyncio.timeout(patience):
                return outcome("answer", await self._of[server].ask(self.named(server, tool), arguments))
        except CallRefused as error:
            return outcome("error", str(error))
        except httpx2.ConnectError:
            return outcome("error", "nobody listens")
        except TimeoutError:
            return outcome("lost", f"nothing in {patience:g} s")
        except (PeerGone, OSError, httpx2.HTTPError) as error:
            return outcome("lost", str(error) or type(error).__name__)

    async def close(self) -> None:
        for each in self._all:
            await each.close()


class JsonRpc(Connection):
    """Over something that carries a message there, and brings others back when it likes. The peer is greeted when it is
    first asked."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._greeting: asyncio.Task[None] | None = None
        self._is_expired = False  # it has to be greeted again
        self._is_over = False

    @abstractmethod
    async def send(self, message: Message) -> None: ...

    async def tools(self) -> list[str]:
        await self.greeted()
        names, cursor = list[str](), None
        while True:
            page = await self.request("tools/list", {"cursor": cursor} if cursor else {})
            names += [tool["name"] for tool in page["tools"]]
            if not (cursor := page.get("nextCursor")):
                return names

    async def ask(self, tool: str, arguments: Message) -> str:
        await self.greeted()
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        text = "".join(str(block.get("text", "")) for block in result.get("content", ()))
        if result.get("isError"):
            raise CallRefused(text)
        return text

    async def greeted(self) -> None:
        """A greeting that failed is tried again."""
        before = self._greeting
        if before is None or self._is_expired or (before.done() and before.exception()):
            self._greeting = asyncio.create_task(self.greet())
        await asyncio.shield(cast("asyncio.Task[None]", self._greeting))

    async def greet(self) -> None:
        await self.request("initialize", HELLO)
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def request(self, method: str, params: Message) -> Message:
        if self._is_over:
            raise CallRefused("the connection has ended before")
        key = next(self._ids)
        future = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            await self.send({"jsonrpc": "2.0", "id": key, "method": method, "params": params})
            answer = await future
        except asyncio.CancelledError:
            if not self._is_over:
                telling = asyncio.create_task(self._tell_cancelled(key))
                await asyncio.wait({telling}, timeout=1.0)  # it may be deaf
                telling.cancel()
            raise
        finally:
            self._waiting.pop(key, None)
        if "error" in answer:
            raise CallRefused(str(answer["error"].get("message", "")))
        return answer["result"]

    async def _tell_cancelled(self, key: int) -> None:
        with suppress(PeerGone, CallRefused, OSError, httpx2.HTTPError):
            params = {"requestId": key}
            await self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def take(self, data: bytes | str) -> None:
        """One message from the other end. It may ask for a ping, and nothing else."""
        try:
            message: Any = json.loads(data)
        except ValueError:
            return  # a banner
        if not isinstance(message, dict):
            return
        message = cast("Message", message)
        if "method" in message and "id" in message:
            refused = {"error": {"code": -32601, "message": "not here"}}
            answer: Message = {"result": {}} if message["method"] == "ping" else refused
            await self.send({"jsonrpc": "2.0", "id": message["id"], **answer})
        elif "method" not in message and self.waits_for(key := message.get("id", 0)):
            self._waiting[key].set_result(message)

    def waits_for(self, key: int) -> bool:
        return key in self._waiting and not self._waiting[key].done()

    def over(self) -> None:
        self._is_over = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(PeerGone("the connection ended"))
                future.exception()  # its request may have ended otherwise, and then nobody looks

    async def close(self) -> None:
        self.over()
        if self._greeting is not None:
            self._greeting.cancel()


class Pipes(JsonRpc):
    """The standard input and output of a peer's process. `has_all`: it is greeted at once, with all its servers."""

    def __init__(self, process: asyncio.subprocess.Process, *, has_all: bool) -> None:
        super().__init__()
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._has_all = has_all
        self._reading = asyncio.create_task(self._read())

    async def open(self) -> None:
        if self._has_all:
            await self.greeted()

    async def send(self, message: Message) -> None:
        if self._stdin.is_closing():
            raise CallRefused("its stdin is closed")
        self._stdin.write(json.dumps(message).encode() + b"\n")
        await self._stdin.drain()

    async def _read(self) -> None:
        with suppress(OSError, PeerGone, ValueError):
            while line := await self._stdout.readline():
                await self.take(line)
        self.over()

    async def close(self) -> None:
        await super().close()
        self._stdin.close()
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        cast("Any", self._stdout)._transport.close()


class StreamableHttp(JsonRpc):
    """A session of Streamable HTTP. Its answers come with the requests."""

    def __init__(self, address: str, has_ended: HasEnded) -> None:
        super().__init__()
        self._address, self._has_ended = address, has_ended
        self._http = _http()
        self._session: str | None = None

    async def open(self) -> None:
        await _until_it_listens(self._address, self._has_ended)

    async def greet(self) -> None:
        self._session, self._is_expired = None, False
        await super().greet()

    async def send(self, message: Message) -> None:
        head = {"accept": "application/json, text/event-stream"}
        if self._session is not None:
            head |= {"mcp-session-id": self._session, "mcp-protocol-version": PROTOCOL}
        async with self._http.stream("POST", self._address, json=message, headers=head) as response:
            self._session = response.headers.get("mcp-session-id", self._session)
            self._is_expired = response.status_code == 404  # the protocol's word for: begin a new session
            key = message["id"] if "method" in message and "id" in message else None
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                async for event in httpx2.EventSource(response, max_event_size=None):
                    await self.take(event.data)
                    if key is not None and not self.waits_for(key):
                        return
            else:
                await self.take(await response.aread())
                if key is not None and self.waits_for(key):
                    _check(response)
            if key is not None and self.waits_for(key):
                raise PeerGone("the response ended without an answer")

    async def close(self) -> None:
        await super().close()
        await self._http.aclose()


class EventStream(JsonRpc):
    """HTTP with server-sent events, as MCP had it until 2025-03-26."""

    def __init__(self, address: str, has_ended: HasEnded) -> None:
        super().__init__()
        self._address, self._has_ended = address, has_ended
        self._http = _http()
        self._endpoint: asyncio.Future[str] = asyncio.Future()
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """It may listen before it can be asked."""
        await _until_it_listens(self._address, self._has_ended)
        while True:
            self._reading = asyncio.create_task(self._read())
            await asyncio.wait({self._endpoint, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if self._endpoint.done():
                break
            await asyncio.sleep(0.05)
        await self.greeted()

    async def send(self, message: Message) -> None:
        response = await self._http.post(await self._endpoint, json=message)
        _check(response)

    async def _read(self) -> None:
        with suppress(OSError, PeerGone, httpx2.HTTPError):
            async with self._http.stream("GET", self._address) as response:
                async for event in httpx2.EventSource(response, max_event_size=None):
                    if event.event == "endpoint":
                        self._endpoint.set_result(str(httpx2.URL(self._address).join(event.data)))
                    else:
                        await self.take(event.data)
        if self._endpoint.done():
            self.over()

    async def close(self) -> None:
        await super().close()
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        await self._http.aclose()


class Rest(Connection):
    """A POST for each tool. It has no message for a cancellation: the connection is closed."""

    def __init__(self, address: str, has_ended: HasEnded) -> None:
        self._address, self._has_ended = address, has_ended
        self._http = _http()

    async def open(self) -> None:
        await _until_it_listens(self._address, self._has_ended)

    async def tools(self) -> list[str]:
        response = await self._http.get(f"{self._address}/openapi.json")
        _check(response)
        return [path.removeprefix("/") for path in response.json()["paths"]]

    async def ask(self, tool: str, arguments: Message) -> str:
        response = await self._http.post(f"{self._address}/{tool}", json=arguments)
        _check(response)
        return str(response.json())

    async def close(self) -> None:
        await self._http.aclose()


def _http() -> httpx2.AsyncClient:
    """The rows bound the time, not this."""
    return httpx2.AsyncClient(timeout=None, trust_env=False)


def _check(response: httpx2.Response) -> None:
    """Raises `CallRefused` for the status of an error. The body has been read."""
    if response.is_error:
        raise CallRefused(f"HTTP {response.status_code}: {response.text[:200]}")


async def _until_it_listens(address: str, has_ended: HasEnded) -> None:
    url = httpx2.URL(address)
    while not has_ended():
        with suppress(OSError):
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.close()
            return
        await asyncio.sleep(0.02)
    raise PeerGone("it has ended")
