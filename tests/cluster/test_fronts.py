"""What a front does for its callers, and what comes through it: a directory, hosts and a front in one process, real
HTTP between them, a real server behind."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import run

from greenroom.cluster.directory import LocalDirectory
from greenroom.cluster.front import ClusterRoom
from greenroom.cluster.host import ClusterHost, HostAbout
from greenroom.errors import ApprovalDenied, CallError, ServerDown
from greenroom.testing.servers import whole

TOKEN = "0123456789abcdef-cluster"
WITHIN = 20.0
SERVER: dict[str, Any] = {"command": sys.executable, "args": ["-S", whole.__file__, "--name", "one"]}


@asynccontextmanager
async def front(config: dict[str, Any], *hosts: str, **options: Any) -> AsyncGenerator[ClusterRoom]:
    """A front of a cluster with these hosts."""
    directory = LocalDirectory()
    async with anyio.create_task_group() as tasks:
        for name in hosts or ("a",):
            host = ClusterHost(HostAbout(name), directory, token=TOKEN, cache_path=":memory:")
            tasks.start_soon(host.run)
        room = ClusterRoom.open(
            config, directory=directory, token=TOKEN, cache_path=":memory:", bootstrap=False, **options
        )
        async with room:
            with anyio.fail_after(WITHIN):
                yield room
        tasks.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.sleep(0.02)


def test_what_a_server_asks_and_says_reaches_the_callers_of_a_front() -> None:
    said: list[Any] = []
    asked: list[Any] = []

    async def sample(request: Any) -> Any:
        asked.append(request.method)
        return {"role": "assistant", "model": "m", "content": {"type": "text", "text": "sampled"}}

    async def body() -> None:
        async with front(
            {"mcpServers": {"one": SERVER}},
            on_sampling=sample,
            roots=["file:///work"],
            on_log=lambda address, params: said.append((address.server, params["data"])),
        ) as room:
            messages = {"messages": [], "maxTokens": 5}
            wanted = {"method": "sampling/createMessage", "params": messages}
            assert "sampled" in (await room.call("one_ask", wanted)).text
            assert asked == ["sampling/createMessage"]
            assert "file:///work" in (await room.call("one_ask", {"method": "roots/list"})).text
            room.set_log_level("warning")
            while "warning" not in (await room.call("one_log", {"level": "error", "text": "it"})).text:
                await anyio.sleep(0.02)  # the host has not told the server yet
            await until(lambda: ("one", {"text": "it"}) in said)

    run("asyncio", body)


def test_a_list_that_changes_changes_at_the_front() -> None:
    async def body() -> None:
        async with front({"mcpServers": {"one": SERVER}}) as room:
            await room.call("one_grow", {})
            await until(lambda: any("grown" in tool.name for tool in room.tools()))

    run("asyncio", body)


def test_a_call_that_is_cancelled_is_cancelled_at_its_server() -> None:
    async def body() -> None:
        async with front({"mcpServers": {"one": SERVER}}) as room:
            await room.call("one_echo", {})
            with anyio.move_on_after(0.5):
                await room.call("one_sleep", {"seconds": 60})
            while "notifications/cancelled" not in (await room.call("one_heard", {})).text:
                await anyio.sleep(0.05)

    run("asyncio", body)


def test_the_front_approves_renames_hides_and_writes_down_once(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    asked: list[str] = []

    async def approve(request: Any) -> bool:
        asked.append(request.tool)
        return False

    server = {
        **SERVER,
        "approve": ["steps"],
        "excludeTools": ["grow"],
        "toolOverrides": {"echo": {"rename": "say"}},
    }

    async def body() -> None:
        async with front({"mcpServers": {"one": server}}, on_approval=approve, audit=audit) as room:
            assert '"it"' in (await room.call("one_say", {"text": "it"})).text
            with pytest.raises(ApprovalDenied):
                await room.call("one_steps", {})
            with pytest.raises(CallError):
                await room.call("one_grow", {})
            assert len(asked) == 1

    run("asyncio", body)
    lines = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    assert sum("say" in str(line.get("tool")) for line in lines) == 1


def test_to_restart_and_to_drain_reach_the_host() -> None:
    async def body() -> None:
        async with front({"mcpServers": {"one": {**SERVER, "isolation": "persistent"}}}, "a", "b") as room:
            await room.call("one_grow", {})
            await until(lambda: any("grown" in tool.name for tool in room.tools()))
            await room.restart("one")
            await until(lambda: not any("grown" in tool.name for tool in room.tools()))
            await room.drain("one")
            with pytest.raises(ServerDown, match="was drained"):
                await room.call("one_echo", {})
            await room.connect("one")
            assert '"it"' in (await room.call("one_echo", {"text": "it"})).text

    run("asyncio", body)


def test_a_server_that_cannot_start_says_why_at_the_front() -> None:
    async def body() -> None:
        gone = {"command": "/nowhere/to-be-found", "args": []}
        async with front({"mcpServers": {"gone": gone}}) as room:
            with pytest.raises(CallError, match="to-be-found"):
                await room.call("echo", {}, server="gone")

    run("asyncio", body)
