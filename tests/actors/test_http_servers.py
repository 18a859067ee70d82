"""Servers of the SDK's, under uvicorn on asyncio and hypercorn on trio, in each of their modes: all a client sees."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import run
from tests.support.http_rooms import room_at
from tests.support.http_servers import sdk_server
from tests.support.loops import on_one_loop
from tests.support.patience import PATIENCE
from tests.support.real_servers import real_server
from tests.support.stdio import until

from greenroom.protocol.errors import CallTimeout
from greenroom.supervisor.room import Greenroom

MODERN = "2026-07-28"
KINDS = {"http": MODERN, "json": MODERN, "stateless": MODERN, "legacy": "2025-11-25", "sse": "2025-11-25"}


# Each mode on both of our loops, and by both hosts: a host sees of our loop nothing but its bytes.
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("host", "backend"), [("uvicorn", "asyncio"), ("hypercorn", "trio")])
def test_every_mode_of_the_sdk_s_servers(host: str, kind: str, backend: str) -> None:
    async def body(url: str) -> None:
        async with room_at(url, {"maxLineBytes": 64 << 20}) as room:
            entry = room.entry("raw")
            assert entry is not None
            assert entry.protocol_version == KINDS[kind]
            assert entry.server_info["name"] == "stage"
            assert (await room.call("add", {"a": 2, "b": 40})).text == "42"
            assert (await room.call("get_programme")).text == "tonight: Hamlet"
            await progress(room, kind)
            await many_at_once(room)
            if kind != "sse":  # its server bounds what it takes in memory, not what it sends
                assert len((await room.call("big", {"size": 3 << 20})).text) == 3 << 20

    with sdk_server(host, kind) as url:
        run(backend, body, url)


async def progress(room: Greenroom, kind: str) -> None:
    steps: list[Any] = []
    result = await room.call("steps", {"count": 3}, on_progress=steps.append)
    assert result.text == "done"
    # A JSON body has no room for progress: the server drops it.
    assert [step["progress"] for step in steps] == ([] if kind == "json" else [1, 2, 3])


async def many_at_once(room: Greenroom) -> None:
    texts: list[str] = []

    async def one(number: int) -> None:
        texts.append((await room.call("add", {"a": number, "b": 1})).text)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(one, number)
    assert sorted(map(int, texts)) == list(range(1, 21))


@pytest.mark.parametrize("kind", ["http", "legacy", "sse"])
def test_t21_a_timeout_and_a_cancelled_call_reach_the_server(kind: str, backend: str) -> None:
    async def body(url: str) -> None:
        async with room_at(url) as room:
            with pytest.raises(CallTimeout):
                await room.call("wait", {"seconds": 120, "name": "late"}, timeout=2.0)
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(room.call, "wait", {"seconds": 120, "name": "left"})
                    while "left" not in (await room.call("has_begun")).text:
                        await anyio.sleep(0.01)
                    tasks.cancel_scope.cancel()
                seen: set[str] = set()
                while seen != {"late", "left"}:
                    seen = set((await room.call("was_cancelled")).text.split(","))

    with sdk_server("uvicorn", kind) as url:
        run(backend, body, url)


@pytest.mark.parametrize("kind", ["http", "legacy", "sse"])
def test_t24_a_change_of_the_tools_is_heard(kind: str, backend: str) -> None:
    async def body(url: str) -> None:
        async with room_at(url) as room:
            await room.call("grow")
            assert await until(lambda: "newcomer" in [target.name for target in room.tools()])
            assert (await room.call("newcomer")).text == "new"

    with sdk_server("uvicorn", kind) as url:
        run(backend, body, url)


@on_one_loop
def test_t19_a_long_answer_is_read_in_linear_time(backend: str) -> None:
    async def body(url: str) -> None:
        async with room_at(url) as room:
            with anyio.fail_after(PATIENCE):
                assert len((await room.call("big", {"size": 12 << 20})).text) == 12 << 20

    with sdk_server("uvicorn", "http") as url:
        run(backend, body, url)


# ---- a server nobody here wrote -------------------------------------------------------------------------------------


@contextmanager
def everything(mode: str, folder: Path) -> Generator[str]:
    """server-everything over HTTP: the URL of its endpoint."""
    entry = real_server("everything", folder).entry
    port = _port_for_long()
    node = shutil.which("node") or "node"
    process = subprocess.Popen(
        [node, entry["args"][0], mode],
        env={**os.environ, "PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/{'sse' if mode == 'sse' else 'mcp'}"
    finally:
        process.kill()
        process.wait()


def _port_for_long() -> int:
    """One that nobody takes while node starts: below those that the kernel gives, and of this worker's own."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port is taken")


async def listening(url: str) -> None:
    host, _, port = url.split("/")[2].partition(":")

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    assert await until(answers)


@pytest.mark.parametrize("mode", ["streamableHttp", "sse"])
@on_one_loop
def test_server_everything_answers_as_it_answers_the_sdk(mode: str, backend: str, tmp_path: Path) -> None:
    async def body(url: str) -> None:
        await listening(url)
        async with room_at(url) as room:
            listed = {target.original: target.record for target in room.tools() if target.kind == "tool"}
            ours = await room.call("get-sum", {"a": 2, "b": 40})
        theirs, result = await _ask_the_sdk(url)
        assert {tool.name: tool.model_dump(by_alias=True, exclude_none=True) for tool in theirs} == {
            name: {key: value for key, value in record.items() if value is not None} | _meta_of(record)
            for name, record in listed.items()
        }
        assert ours.content == [
            block.model_dump(by_alias=True, exclude_none=True) for block in result.content
        ]

    with everything(mode, tmp_path) as url:
        run(backend, body, url)


def _meta_of(record: Any) -> dict[str, Any]:
    return {"_meta": record["_meta"]} if "_meta" in record else {}


async def _ask_the_sdk(url: str) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mcp import Client
        from mcp.client.sse import sse_client

        async with Client(sse_client(url) if url.endswith("sse") else url) as client:
            tools = (await client.list_tools()).tools
            return tools, await client.call_tool("get-sum", {"a": 2, "b": 40})
