"""The rollouts of B24 with verifiers' own launcher and client, in the environment of verifiers; and what a connection
that drops after its call has run comes to: for its client, the SDK's, and a room, against the same toolset.

python -m benchmarks._peers.verifiers_rollouts (together COUNT | in_turn COUNT | death | drop)
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.mcp import serve

from benchmarks._peers.counter import times_noted
from benchmarks._peers.verifiers_counter import Counter, CounterConfig
from benchmarks._rollouts import Ask, Begin, play, told

DEADLY = 10


@asynccontextmanager
async def launched(_: int, log: str = "", deadly: int = 0) -> AsyncGenerator[Begin]:
    """A process for each rollout, started and called as verifiers does it."""

    @asynccontextmanager
    async def begin() -> AsyncGenerator[Ask]:
        async with serve(Counter(CounterConfig(log=log, deadly=deadly))) as url, called(url) as ask:
            yield ask

    yield begin


@asynccontextmanager
async def called(url: str) -> AsyncGenerator[Ask]:
    """As its harness calls it."""
    async with AsyncExitStack() as stack:
        _, dispatch, servers = await connect_mcp({"mcpServers": {"": {"url": url}}}, stack)

        async def ask() -> str:
            return str(await call_mcp(servers, dispatch, "add", {}))

        yield ask


@asynccontextmanager
async def by_sdk(url: str) -> AsyncGenerator[Ask]:
    from mcp import Client

    async with Client(url) as client:

        async def ask() -> str:
            return (await client.call_tool("add", {})).content[0].text  # type: ignore[union-attr]

        yield ask


@asynccontextmanager
async def by_room(url: str) -> AsyncGenerator[Ask]:
    from greenroom import Greenroom

    config = {"mcpServers": {"count": {"url": url}}}
    async with Greenroom.open(config, bootstrap=False, cache_path=":memory:") as room:

        async def ask() -> str:
            return (await room.call("count_add", {})).text

        yield ask


@asynccontextmanager
async def dropping(url: str) -> AsyncGenerator[str]:
    """The address of what passes on to this, and closes the connection of the Nth call in place of its answer."""
    parts, calls = urlsplit(url), 0

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Any) -> None:
        try:
            while data := await reader.read(65_536):
                if look(data):
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        is_doomed = False
        there, to_there = await asyncio.open_connection(parts.hostname, parts.port)

        def asked(data: bytes) -> bool:
            nonlocal calls, is_doomed
            if b'"tools/call"' in data:
                calls += 1
                is_doomed = calls == DEADLY
            return False

        def answered(_: bytes) -> bool:
            return is_doomed

        await asyncio.gather(pump(reader, to_there, asked), pump(there, writer, answered))

    server = await asyncio.start_server(passed_on, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}{parts.path}"
    finally:
        server.close()


async def died() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder, "log"))
        heard = await told(partial(launched, log=log, deadly=DEADLY))
        return {"heard": heard, "ran": times_noted(log)}


async def dropped() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, client in (("Greenroom", by_room), ("SDK", by_sdk), ("verifiers", called)):
        with tempfile.TemporaryDirectory() as folder:
            log = str(Path(folder, "log"))

            @asynccontextmanager
            async def side(_: int, client: Any = client, log: str = log) -> AsyncGenerator[Begin]:
                async with serve(Counter(CounterConfig(log=log, deadly=-1))) as url, dropping(url) as through:
                    yield partial(client, through)

            heard = await told(side)
            found[name] = {"heard": heard, "ran": times_noted(log)}
    return found


async def main(what: str, count: int) -> dict[str, Any]:
    if what == "death":
        return await died()
    if what == "drop":
        return await dropped()
    return attrs.asdict(await play(launched, count, in_turn=what == "in_turn"))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))))
