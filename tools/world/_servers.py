"""Tries each real server without the gateway and through it.

Its lists and answers are compared field by field: `direct` may change a tool's name, and say of one that runs only as a
task that it can be called without one too, because the gateway awaits its task. Nothing else. All servers are in one
configuration, with an empty cache, so the first list is a first start of all of them at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ._install import ROOT, InstallFailed, install, program
from ._raw import RawClient, RequestFailed
from ._table import Server

FIRST_LIST = 300.0  # seconds for all servers to have been discovered
MARK = "GREENROOM_WORLD_RUN"
_ALWAYS = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")


@attrs.define
class ServerRow:
    """The result for one server. Without `problems` it works, and nothing differs."""

    name: str
    pin: str
    tools: int = 0
    called: bool = False
    problems: list[str] = attrs.field(factory=list[str])


@attrs.define
class ServerResults:
    rows: list[ServerRow]
    known_after: float = 0.0  # seconds from an empty cache to the last server's tools
    exit_code: int | None = None
    exit_seconds: float = 0.0
    left: int = 0  # processes that were still there after the end


@attrs.frozen
class _Alone:
    """The lists and answers of a server without the gateway."""

    command: list[str]
    env: Mapping[str, str]
    home: Path
    tools: Mapping[str, Mapping[str, Any]]
    result: Mapping[str, Any] | None


async def play_servers(servers: Sequence[Server], folder: Path) -> ServerResults:
    """All of them, first each alone, then all behind one gateway."""
    gathered = ServerResults([ServerRow(server.name, server.pin) for server in servers])
    alone: dict[str, _Alone] = {}
    mark = uuid.uuid4().hex
    for server, row in zip(servers, gathered.rows, strict=True):
        try:
            alone[server.name] = await _play_alone(server, folder, mark)
            row.tools = len(alone[server.name].tools)
        except (InstallFailed, RequestFailed, FileNotFoundError) as error:
            row.problems.append(f"cannot be run alone: {error}")
    playable = {server.name: server for server in servers if server.name in alone}
    await _play_behind(playable, alone, gathered, folder, mark)
    gathered.left = await _left_after_a_moment(mark)
    return gathered


async def _play_alone(server: Server, folder: Path, mark: str) -> _Alone:
    home = folder / server.name
    home.mkdir(parents=True, exist_ok=True)
    command = program(
        install("servers", server.name, server.index, server.pin.split()), server.index, server.program
    )
    command += [part.replace("{home}", str(home)) for part in server.args]
    own = {key: value.replace("{home}", str(home)) for key, value in server.env.items()}
    env = {key: os.environ[key] for key in _ALWAYS if key in os.environ} | own | {MARK: mark}
    async with RawClient(command, env, home) as client:
        initialized = await client.initialize()
        has_tools = "tools" in initialized["capabilities"]
        listed = await client.list_all("tools/list", "tools") if has_tools else []
        result = None
        if server.tool is not None:
            result = await client.ask("tools/call", _call(server, server.tool, home))
    return _Alone(command, own | {MARK: mark}, home, {tool["name"]: tool for tool in listed}, result)


def _call(server: Server, name: str, home: Path) -> Mapping[str, Any]:
    arguments = json.loads(json.dumps(dict(server.arguments)).replace("{home}", str(home)))
    return {"name": name, "arguments": arguments}


async def _play_behind(
    servers: Mapping[str, Server],
    alone: Mapping[str, _Alone],
    gathered: ServerResults,
    folder: Path,
    mark: str,
) -> None:
    config = folder / "mcp.json"
    entries = {
        name: {"command": it.command[0], "args": it.command[1:], "env": dict(it.env), "cwd": str(it.home)}
        for name, it in alone.items()
    }
    settings = {"idleTimeout": 0, "maxConnections": 50}
    config.write_text(json.dumps({"mcpServers": entries, "settings": settings}), encoding="utf-8")
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), MARK: mark}
    command = [sys.executable, "-m", "greenroom", "serve", "--expose", "direct", "--config", str(config)]
    rows = {row.name: row for row in gathered.rows}
    async with RawClient(command, env, ROOT) as gateway:
        began = time.monotonic()
        await gateway.initialize()
        behind = await _all_known(gateway, servers, alone, began + FIRST_LIST)
        gathered.known_after = time.monotonic() - began
        for name, server in servers.items():
            row = rows[name]
            row.problems += _differences(name, alone[name].tools, behind)
            if server.tool is not None:
                row.problems += await _compare_call(gateway, server, server.tool, alone[name])
                row.called = True
        try:
            gathered.exit_code, gathered.exit_seconds = await gateway.leave()
        except RequestFailed as error:
            gathered.rows[0].problems.append(f"the gateway's end: {error}")


async def _all_known(
    gateway: RawClient, servers: Mapping[str, Server], alone: Mapping[str, _Alone], until: float
) -> Mapping[str, Mapping[str, Any]]:
    """The gateway's list, once it has every server that has tools, or when the time is up."""
    while True:
        behind = {tool["name"]: tool for tool in await gateway.list_all("tools/list", "tools")}
        missing = [name for name in servers if alone[name].tools and not _of(name, behind)]
        if not missing or time.monotonic() > until:
            return behind
        await asyncio.sleep(0.2)


def _of(server: str, behind: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The server's own tools, by the names that it gave them."""
    prefix = server.replace("-", "_") + "_"
    own = {name: tool for name, tool in behind.items() if name.replace("-", "_").startswith(prefix)}
    return {
        name[len(prefix) :]: tool for name, tool in own.items() if not name[len(prefix) :].startswith("get_")
    }


def _as_shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    needs_task = tool.get("execution") == {"taskSupport": "required"}
    return {**tool, "execution": {"taskSupport": "optional"}} if needs_task else dict(tool)


def _differences(
    server: str, alone: Mapping[str, Mapping[str, Any]], behind: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    problems: list[str] = []
    prefix = f"{server}_"
    for name, tool in alone.items():
        shown = behind.get(prefix + name) or behind.get(prefix.replace("-", "_") + name)
        if shown is None:
            problems.append(f"{name} is not listed")
            continue
        expected = _as_shown(tool)
        if {**shown, "name": name} != expected:
            fields = [key for key in {*shown, *tool} if key != "name" and shown.get(key) != expected.get(key)]
            problems.append(f"{name} differs in {', '.join(sorted(fields))}")
    return problems


async def _compare_call(gateway: RawClient, server: Server, tool: str, alone: _Alone) -> list[str]:
    try:
        result = await gateway.ask("tools/call", _call(server, f"{server.name}_{tool}", alone.home))
    except RequestFailed as error:
        return [f"{tool}: {error}"]
    text = " ".join(str(block.get("text", "")) for block in result.get("content", ()))
    problems: list[str] = []
    if server.answer not in text:
        problems.append(f"{tool} answered {text[:80]!r}")
    if alone.result is not None and set(result) - {"_meta"} != set(alone.result) - {"_meta"}:
        problems.append(f"{tool}: other fields than alone: {sorted(result)}")
    return problems


async def _left_after_a_moment(mark: str) -> int:
    """What was killed may take its time to go, on a busy machine."""
    for _ in range(200):
        if not _still_there(mark):
            break
        await asyncio.sleep(0.1)
    return _still_there(mark)


def _still_there(mark: str) -> int:
    """Processes that carry this run's mark."""
    wanted = f"{MARK}={mark}".encode()
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            count += (
                wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid()
            )
        except OSError:
            continue
    return count
