"""Every tool of our own, as the doors list it, and the calls that our own texts give as examples.

The definitions come from running gateways. A small server (`own_server.py`) lists them to a client and says back what
each call brought. So a framework that makes a model of each schema has to take all of them, and our examples with them.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from greenroom.gateway.exposures.meta import definitions
from greenroom.gateway.exposures.tool_definition import DEFINITION, FOR_META, FOR_MODELS

from ._raw import RawClient, RequestFailed

SERVER = Path(__file__).parent / "own_server.py"
STATE = "greenroom_state"
_VERSION = "2026-07-28"
_WITHIN = 60.0  # seconds until the HTTP door listens
_CALL = re.compile(r"\b(mcp\w*)\((\{.*?\})\)(?!\})")
_KEY = re.compile(r"([{,] *)(\w+):")
_VALUES = {"string": "x", "number": 1}
# What stands for a value in our texts.
_FILLED = {"{...}": "{}", "…": "x", "...": "x"}
_NAMES = {
    "server": "clock",
    "typed": "clock",
    "tool": "clock_now",
    "output": "0f3a",
    "skill": "skill://a/SKILL.md",
}


async def own_tools(config: Path, env: Mapping[str, str], folder: Path) -> list[Mapping[str, Any]]:
    """The tools of every exposure, and those of the HTTP door with state handles, each name once. Raises
    `RequestFailed`."""
    found: dict[str, Mapping[str, Any]] = {}
    for expose in ("proxy", "meta"):
        command = (sys.executable, "-m", "greenroom", "serve", "--expose", expose, "--config", str(config))
        async with RawClient(command, env, folder) as gateway:
            await gateway.initialize()
            found |= {tool["name"]: tool for tool in await gateway.list_all("tools/list", "tools")}
            await gateway.leave()
    stateful = _with_handles(config, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    serve = (sys.executable, "-m", "greenroom", "serve", "--expose", "direct", "--http", address)
    async with RawClient((*serve, "--config", str(stateful)), env, folder) as gateway:
        try:
            listed = await asyncio.to_thread(_listed, f"http://{address}/mcp")
        except urllib.error.URLError as error:
            raise RequestFailed(f"the HTTP door: {error}; {gateway.said[-300:]}") from None
        found |= {tool["name"]: tool for tool in listed}
    return list(found.values())


def examples(tools: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The calls of these tools that our texts tell a model to make, and one of each tool that takes a handle, with it
    and without."""
    named = {tool["name"]: tool for tool in tools}
    calls = [call for text in _texts() for call in _calls_in(text) if call[0] in named]
    for name, tool in named.items():
        if name.startswith("mcp"):
            continue
        properties: Mapping[str, Any] = tool["inputSchema"]["properties"]
        # A parameter of the server's own is its own affair, so each is given.
        given = {key: _VALUES[said["type"]] for key, said in properties.items() if key != STATE}
        calls += [(name, given)] + ([(name, {**given, STATE: "handle"})] if STATE in properties else [])
    return [call for at, call in enumerate(calls) if call not in calls[:at]]


def _texts() -> Iterator[str]:
    for hints in (FOR_MODELS, FOR_META):
        for text in msgspec.structs.astuple(hints):
            if isinstance(text, str):
                yield text.format(**_NAMES, offset=12) if "{{" in text else text
    for tool in (DEFINITION, *definitions()):
        yield tool["description"]
    # What the answer to nested params says, and one of each kind of value that a definition declares.
    yield 'mcp({ tool: "name", args: {...} }) mcp({ tool: "clock_now", args: { utc_offset: 1 }, background: true })'
    yield 'mcp({ search: "...", regex: false, includeSchemas: true, limit: 5, offset: 12, server: "clock" })'
    yield 'mcp_execute({ code: "1" }) mcp_provision({ intent: "x", context: "y", autoProvision: false })'


def _calls_in(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The calls that are written in a text, as a model reads them."""
    for name, written in _CALL.findall(text):
        for short, long in _FILLED.items():
            written = written.replace(short, long)
        yield name, json.loads(_KEY.sub(r'\1"\2":', written))


def _with_handles(config: Path, folder: Path) -> Path:
    """The same configuration with state that is kept apart, and handles for it."""
    said = json.loads(config.read_text(encoding="utf-8"))
    for entry in said["mcpServers"].values():
        entry["isolation"] = "per_session"
    said["settings"] = {"http": {"stateHandles": True}}
    path = folder / "handles.json"
    path.write_text(json.dumps(said), encoding="utf-8")
    return path


def _listed(url: str) -> list[Mapping[str, Any]]:
    about = "io.modelcontextprotocol/"
    said = {
        f"{about}protocolVersion": _VERSION,
        f"{about}clientInfo": {"name": "world", "version": "1"},
        f"{about}clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": said}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": _VERSION,
        "Mcp-Method": "tools/list",
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    until = time.monotonic() + _WITHIN
    while True:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
                return json.load(answer)["result"]["tools"]
        except urllib.error.URLError:  # it does not listen yet
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
