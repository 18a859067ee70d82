"""A door for a library: JSON-RPC lines in, the library's calls out. It adds nothing and retries nothing.

Each request is a task of its own. A cancelled one is cancelled, and the library tells its server or does not. SIGTERM
and the end of stdin leave the library's context, as a program that ends well does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

Message = dict[str, Any]


class Library(NamedTuple):
    tools: Callable[[], Awaitable[list[str]]]
    call: Callable[[str, str, Message], Awaitable[Any]]  # server, tool, arguments; returns a `CallToolResult`


def servers() -> Mapping[str, Message]:
    """The configured servers."""
    return configuration()["mcpServers"]


def configuration() -> Message:
    with open(sys.argv[1], encoding="utf-8") as file:
        return json.load(file)


def serve(opened: AbstractAsyncContextManager[Library]) -> None:
    asyncio.run(_Door().serve(opened))
    os._exit(0)


class _Door:
    def __init__(self) -> None:
        self._tasks: dict[object, asyncio.Task[None]] = {}

    async def serve(self, opened: AbstractAsyncContextManager[Library]) -> None:
        loop = asyncio.get_running_loop()
        stdin = asyncio.StreamReader(limit=64 * 1024 * 1024)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin.buffer)
        main = asyncio.current_task()
        assert main is not None
        loop.add_signal_handler(signal.SIGTERM, main.cancel)
        try:
            async with opened as library:
                await self._take_all(stdin, library)
        except asyncio.CancelledError:
            return
        except Exception as error:  # it could not be opened: each request is told why
            await self._take_all(stdin, _broken(error))

    async def _take_all(self, stdin: asyncio.StreamReader, library: Library) -> None:
        while line := await stdin.readline():
            message = json.loads(line)
            if message.get("method") == "notifications/cancelled":
                task = self._tasks.get(message["params"]["requestId"])
                if task is not None:
                    task.cancel()
            elif "method" in message and "id" in message:
                self._tasks[message["id"]] = asyncio.create_task(self._answer(message, library))

    async def _answer(self, message: Message, library: Library) -> None:
        answer: Message = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            answer["result"] = await _result(message["method"], message.get("params") or {}, library)
        except Exception as error:
            answer["error"] = {"code": -32000, "message": f"{type(error).__name__}: {error}"}
        finally:
            self._tasks.pop(message["id"], None)
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]


async def _result(method: str, params: Message, library: Library) -> Message:
    if method == "initialize":
        info = {"name": "library", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {
            "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in await library.tools()]
        }
    server, _, tool = params["name"].partition("_")
    result = await library.call(server, tool, params["arguments"])
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def _broken(error: Exception) -> Library:
    async def fail(*_: object) -> Any:
        raise error

    return Library(fail, fail)
