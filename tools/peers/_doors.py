"""The client: the same requests at whatever door a peer opens, in the protocol's own words, and no library for them.

A call has one `Outcome`: an answer, an error, or none at all (`lost`: the connection ended or the time was over).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

import attrs
import httpx2

PROTOCOL = "2025-06-18"  # all peers know it
HELLO = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "peers", "version": "1"}}
PATIENCE = 20.0  # seconds for one answer, unless a row says otherwise
_LINE = 64 * 1024 * 1024
Message = dict[str, Any]
IsOver = Callable[[str], bool]  # of an address: whether the process behind it has ended
Naming = Callable[[str, str], str]  # of a server and its tool: what the tool is called at this door


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


class Door(ABC):
    """`open` waits until the peer can be asked. `close` goes away without a word, as a client that died."""

    def __init__(self, naming: Naming) -> None:
        self.named = naming  # what `tools` calls it

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def tools(self) -> set[str]: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def ask(self, server: str, tool: str, arguments: Message) -> str:
        """The text of the answer. Raises `CallRefused` or `PeerGone`. When it is cancelled, it tells the peer, as
        its protocol does."""

    async def call(
        self, server: str, tool: str, arguments: Message | None = None, patience: float = PATIENCE
    ) -> Outcome:
        began = time.monotonic()

        def outcome(kind: str, text: str) -> Outcome:
            return Outcome(kind, text[:300], time.monotonic() - began, len(text))

        try:
            async with asyncio.timeout(patience):
                return outcome("answer", await self.ask(server, tool, arguments or {}))
        except CallRefused as error:
            return outcome("error", str(error))
        except httpx2.ConnectError:
            return outcome("error", "nobody listens")
        except TimeoutError:
            return outcome("lost", f"nothing in {patience:g} s")
        except (PeerGone, OSError, httpx2.HTTPError) as error:
            return outcome("lost", f"{type(error).__name__} {error}".strip())


def _text_of(message: Message) -> str:
    """The text of an answer to `tools/call`. Raises `CallRefused`."""
    result = _result_of(message)
    blocks = cast("Sequence[Message]", result.get("content", ()))
    text = "".join(str(block.get("text", "")) for block in blocks)
    if result.get("isError"):
        raise CallRefused(text)
    return text


def _result_of(message: Message) -> Message:
    if "error" in message:
        raise CallRefused(str(message["error"].get("message", "")))
    return message["result"]


class _Wire(ABC):
    """JSON-RPC over something that carries a message there, and brings others back when it likes. `is_expired`: it has
    to be greeted again."""

    is_expired: bool = False

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._is_over = False

    @abstractmethod
    async def send(self, message: Message) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def request(self, method: str, params: Message) -> Message:
        if self._is_over:
            raise CallRefused("the connection has ended before")
        key = next(self._ids)
        future = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            await self.send({"jsonrpc": "2.0", "id": key, "method": method, "params": params})
            return await future
        except asyncio.CancelledError:
            told = asyncio.create_task(self._tell_cancelled(key))
            await asyncio.wait({told}, timeout=1.0)  # it may be deaf
            told.cancel()
            raise
        finally:
            self._waiting.pop(key, None)

    async def notify(self, method: str, params: Message | None = None) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def _tell_cancelled(self, key: int) -> None:
        with suppress(PeerGone, CallRefused, OSError, httpx2.HTTPError):
            await self.notify("notifications/cancelled", {"requestId": key})

    async def greet(self) -> None:
        _result_of(await self.request("initialize", HELLO))
        await self.notify("notifications/initialized")

    async def tool_names(self) -> set[str]:
        names, cursor = set[str](), None
        while True:
            page = _result_of(await self.request("tools/list", {"cursor": cursor} if cursor else {}))
            names |= {tool["name"] for tool in page["tools"]}
            cursor = page.get("nextCursor")
            if not cursor:
                return names

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
        elif "method" not in message:
            future = self._waiting.get(message.get("id", 0))
            if future is not None and not future.done():
                future.set_result(message)

    def over(self) -> None:
        self._is_over = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(PeerGone("the connection ended"))


W = TypeVar("W", bound=_Wire)


class _WireDoor(Door, Generic[W]):
    """All servers behind one wire."""

    _wire: W

    async def tools(self) -> set[str]:
        return await self._wire.tool_names()

    async def ask(self, server: str, tool: str, arguments: Message) -> str:
        params = {"name": self.named(server, tool), "arguments": arguments}
        return _text_of(await self._wire.request("tools/call", params))

    async def close(self) -> None:
        await self._wire.close()


class StdioDoor(_WireDoor["_Pipes"]):
    """The standard input and output of a peer's process."""

    def __init__(self, process: asyncio.subprocess.Process, naming: Naming) -> None:
        self.process = process
        super().__init__(naming)
        self._wire = _Pipes(process)

    async def open(self) -> None:
        await self._wire.greet()


class _Pipes(_Wire):
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self._process = process
        self._reading = asyncio.create_task(self._read())

    async def send(self, message: Message) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            raise CallRefused("its stdin is closed")
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(OSError, PeerGone, ValueError):
            while line := await self._process.stdout.readline():
                await self.take(line)
        self.over()

    async def close(self) -> None:
        """Both pipes, as when a client has died."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        stdout: Any = self._process.stdout
        stdout._transport.close()


class _EachDoor(Door, Generic[W]):
    """A wire for each server, or one for all. Each is greeted when it is first used, so that a bad one keeps nobody
    from the others."""

    def __init__(self, wires: Mapping[str, W], naming: Naming) -> None:
        super().__init__(naming)
        self._wires = wires
        self._opening: dict[W, asyncio.Task[None]] = {}

    async def _greeted(self, wire: W) -> None:
        opening = self._opening.get(wire)
        if opening is None or wire.is_expired or (opening.done() and opening.exception()):
            opening = self._opening[wire] = asyncio.create_task(wire.greet())
        await asyncio.shield(opening)

    async def tools(self) -> set[str]:
        async def of(wire: W) -> set[str]:
            await self._greeted(wire)
            return await wire.tool_names()

        lists = await asyncio.gather(*(of(wire) for wire in self._wires.values()), return_exceptions=True)
        by_address = "/" in self.named("", "")
        found: set[str] = set()
        for server, names in zip(self._wires, lists, strict=True):
            if not isinstance(names, BaseException):
                found |= {f"{server}/{name}" for name in names} if by_address else names
        return found

    async def ask(self, server: str, tool: str, arguments: Message) -> str:
        wire = self._wires[server]
        await self._greeted(wire)
        params = {"name": self.named(server, tool).rpartition("/")[2], "arguments": arguments}
        return _text_of(await wire.request("tools/call", params))

    async def close(self) -> None:
        for opening in self._opening.values():
            opening.cancel()
        for wire in dict.fromkeys(self._wires.values()):
            await wire.close()


class StdioEachDoor(_EachDoor["_Pipes"]):
    """The standard inputs and outputs of a peer's processes, of which each has one server."""

    def __init__(self, processes: Mapping[str, asyncio.subprocess.Process], naming: Naming) -> None:
        super().__init__({server: _Pipes(process) for server, process in processes.items()}, naming)

    async def open(self) -> None:
        """There is nothing to wait for."""


class HttpDoor(_EachDoor["_Posts"]):
    """Streamable HTTP at one address for all servers, or at one for each."""

    def __init__(self, addresses: Mapping[str, str], naming: Naming, is_over: IsOver) -> None:
        self._is_over = is_over
        self._posts = {address: _Posts(address) for address in dict.fromkeys(addresses.values())}
        super().__init__({server: self._posts[address] for server, address in addresses.items()}, naming)

    async def open(self) -> None:
        waits = (_until_it_listens(address, self._is_over) for address in self._posts)
        ends = await asyncio.gather(*waits, return_exceptions=True)
        if all(ends):
            raise next(filter(None, ends))


class _Posts(_Wire):
    """A session of Streamable HTTP. Its answers come with the requests."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._client = _client()
        self._session: str | None = None

    async def send(self, message: Message) -> None:
        head = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self._session is not None:
            head |= {"mcp-session-id": self._session, "mcp-protocol-version": PROTOCOL}
        content = json.dumps(message).encode()
        async with self._client.stream("POST", self._address, content=content, headers=head) as response:
            self._session = response.headers.get("mcp-session-id", self._session)
            self.is_expired = response.status_code == 404  # the protocol's word for: begin a new session
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                async for _, data in _events(response):
                    await self.take(data)
                    if message.get("id") is not None and self._is_answered(message["id"]):
                        return
            else:
                await self.take(await response.aread())
            if "method" in message and "id" in message and not self._is_answered(message["id"]):
                if response.is_error:
                    raise CallRefused(f"HTTP {response.status_code}: {await _said(response)}")
                raise PeerGone("the response ended without an answer")

    async def greet(self) -> None:
        self._session, self.is_expired = None, False
        await super().greet()

    def _is_answered(self, key: int) -> bool:
        future = self._waiting.get(key)
        return future is None or future.done()

    async def close(self) -> None:
        await self._client.aclose()


class SseDoor(_WireDoor["_Stream"]):
    """HTTP with server-sent events, as MCP had it until 2025-03-26."""

    def __init__(self, address: str, naming: Naming, is_over: IsOver) -> None:
        super().__init__(naming)
        self._address = address
        self._is_over = is_over
        self._wire = _Stream(address)

    async def open(self) -> None:
        """It may listen before it can be asked."""
        await _until_it_listens(self._address, self._is_over)
        while not await self._wire.connected():
            await self._wire.close()
            await asyncio.sleep(0.05)
            self._wire = _Stream(self._address)
        await self._wire.greet()


class _Stream(_Wire):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._client = _client()
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[None] | None = None

    async def connected(self) -> bool:
        self._reading = asyncio.create_task(self._read())
        await asyncio.wait({self._endpoint})
        return self._endpoint.exception() is None

    async def send(self, message: Message) -> None:
        response = await self._client.post(await self._endpoint, json=message)
        if response.is_error:
            raise CallRefused(f"HTTP {response.status_code}: {response.text[:200]}")

    async def _read(self) -> None:
        with suppress(OSError, PeerGone, httpx2.HTTPError):
            async with self._client.stream("GET", self._address) as response:
                async for event, data in _events(response):
                    if event == "endpoint":
                        self._endpoint.set_result(str(httpx2.URL(self._address).join(data)))
                    else:
                        await self.take(data)
        if not self._endpoint.done():
            self._endpoint.set_exception(PeerGone("no endpoint was named"))
        self.over()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        await self._client.aclose()


class RestDoor(Door):
    """A POST for each tool, `/<server>/<tool>`. It has no message for a cancellation: the connection is closed."""

    def __init__(self, address: str, servers: Sequence[str], naming: Naming, is_over: IsOver) -> None:
        super().__init__(naming)
        self._is_over = is_over
        self._address = address
        self._servers = servers
        self._client = _client()

    async def open(self) -> None:
        await _until_it_listens(self._address, self._is_over)

    async def tools(self) -> set[str]:
        found: set[str] = set()
        for server in self._servers:
            response = await self._client.get(f"{self._address}/{server}/openapi.json")
            if not response.is_error:
                found |= {f"{server}{path}" for path in response.json()["paths"]}
        return found

    async def ask(self, server: str, tool: str, arguments: Message) -> str:
        response = await self._client.post(f"{self._address}/{server}/{tool}", json=arguments)
        if response.is_error:
            raise CallRefused(f"HTTP {response.status_code}: {response.text[:200]}")
        return str(response.json())

    async def close(self) -> None:
        await self._client.aclose()


def _client() -> httpx2.AsyncClient:
    """The rows bound the time, not this."""
    return httpx2.AsyncClient(timeout=None, trust_env=False)


async def _until_it_listens(address: str, is_over: IsOver) -> None:
    url = httpx2.URL(address)
    while not is_over(address):
        with suppress(OSError):
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.close()
            return
        await asyncio.sleep(0.02)
    raise PeerGone("it has ended")


async def _events(response: httpx2.Response) -> AsyncIterator[tuple[str, str]]:
    """The server-sent events of a response: each its kind and its data."""
    kind, data = "message", list[str]()
    rest = bytearray()
    async for chunk in response.aiter_bytes():
        searched = len(rest)
        rest += chunk
        while (end := rest.find(b"\n", searched)) >= 0:
            line = rest[:end].rstrip(b"\r").decode()
            del rest[: end + 1]
            searched = 0
            if not line and data:
                yield kind, "\n".join(data)
                kind, data = "message", []
            elif line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))


async def _said(response: httpx2.Response) -> str:
    with suppress(httpx2.HTTPError):
        return (await response.aread()).decode(errors="replace")[:200]
    return ""
