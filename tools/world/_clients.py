"""Tries each real client in front of the gateway, at both exposures, and checks what its model would be shown.

The scene is the same for all: a call that works, a search, a call of an unknown tool, a call that fails. A client works
when it shows every text that a model needs, and shows a refusal as an error, if the client can do that. A tape of it is
recorded, and played to the client in the place of the gateway: it must list and show the same.

Then it is given every tool of our own at once, as the doors list it, and makes the calls that our own texts give as
examples. A small server (`own_server.py`) lists these tools and says back what each call brought: no schema and no
argument may be refused on the way by a framework that makes a model of each schema, and all arguments must arrive.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.support.http_door import http_door

from greenroom import Greenroom
from greenroom.gateway.doors.http_request import Rules
from greenroom.gateway.exposures.meta import definitions
from greenroom.gateway.exposures.tool_definition import DEFINITION, FOR_META, FOR_MODELS
from greenroom.gateway.state_handles import STATE

from ._servers import PlainClient, Tools
from ._table import SCENES, ClientRow, RowResult, ScriptedCall, WorldRun
from .installing import ScriptFailed, interpreter, said_by

HERE = Path(__file__).parent
SCRIPTS, MODELS = HERE / "clients", HERE / "models"
PATIENCE = 120.0  # seconds for one client's scene, imports included
CLOCK = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}
_GREENROOM = ("-m", "greenroom")


def play_client(client: ClientRow, run: WorldRun) -> Iterator[RowResult]:
    result = RowResult([client.name, f"`{client.pins}`", client.played])
    home, config = client.installed("clients"), _config(run.folder)
    for exposure, calls in SCENES.items():
        tape = str(run.folder / f"{client.name}-{exposure}.tape")
        served = ("serve", "--expose", exposure, "--config", str(config), "--record", tape)
        try:
            said = _scene(client, home, (*_GREENROOM, *served), calls, run)
            again = _scene(client, home, (*_GREENROOM, "replay", "--expose", exposure, tape), calls, run)
        except ScriptFailed as error:
            result.problems.append(f"{exposure}: {error}")
            continue
        result.problems += [f"{exposure}: {problem}" for problem in _judge(client, said, calls)]
        if again != said:
            shown = zip(said["shown"], again["shown"], strict=False)
            differ = next(((was, now) for was, now in shown if was != now), (said["listed"], again["listed"]))
            result.problems.append(f"{exposure}: with its tape otherwise: {str(differ)[:300]}")
    try:
        result.problems += [f"our own tools: {problem}" for problem in _own(client, home, run)]
    except ScriptFailed as error:
        result.problems.append(f"our own tools: {error}")
    yield result


def _scene(
    client: ClientRow, home: Path, command: Sequence[str], calls: Iterable[ScriptedCall], run: WorldRun
) -> Mapping[str, Any]:
    """What the client's script prints; its server is Python with these arguments. Raises `ScriptFailed`."""
    asked = [{"tool": call.tool, "arguments": call.arguments} for call in calls]
    wish = {"command": sys.executable, "arguments": list(command), "calls": asked}
    script = SCRIPTS / client.script
    if client.index == "npm":  # its imports are found beside it
        local = home / script.name
        local.write_bytes(script.read_bytes())
        script = local
    words = (*interpreter(home, client.index), script, json.dumps(wish))
    env = {"PYTHONPATH": f"{SCRIPTS}{os.pathsep}{MODELS}", "XDG_CACHE_HOME": str(run.folder / "cache")}
    return said_by(words, PATIENCE, run.folder, **env)


def _judge(client: ClientRow, said: Mapping[str, Any], calls: Sequence[ScriptedCall]) -> Iterator[str]:
    if set(said["listed"]) != {call.tool for call in calls}:
        yield f"lists {said['listed']}"
    if len(said["shown"]) != len(calls):
        yield f"{len(said['shown'])} of {len(calls)} calls were answered"
    for call, shown in zip(calls, said["shown"], strict=False):
        what = f"{call.tool} {json.dumps(call.arguments)}"
        if call.answer not in shown["text"]:
            yield f"{what} shows {shown['text'][:120]!r}"
        if client.refusals == "flag" and shown["is_error"] is not call.is_refusal:
            yield f"{what}: is it an error? {shown['is_error']}"


# ---- our own tools ---------------------------------------------------------------------------------------------------
# The calls that are written in our texts, and what stands there for a value.
_CALL = re.compile(r"\b(mcp\w*)\((\{.*?\})\)(?!\})")
_KEY = re.compile(r"([{,] *)(\w+):")
_CAME = re.compile(r"came ([0-9a-f]+)")
_VALUES = {"string": "x", "number": 1}
_FILLED = {"{...}": "{}", "…": "x", "...": "x"}
_NAMES = {
    "server": "clock",
    "typed": "clock",
    "tool": "clock_now",
    "output": "0f3a",
    "skill": "skill://a/SKILL.md",
}


def _own(client: ClientRow, home: Path, run: WorldRun) -> Iterator[str]:
    """What is refused, or lost, of our own tools and of the calls that we give as examples."""
    own = _own_tools(run.folder)
    listed = run.folder / "own_tools.json"
    listed.write_text(json.dumps([*own.values()]), encoding="utf-8")
    calls = _examples(own)
    said = _scene(client, home, (str(HERE / "own_server.py"), str(listed)), calls, run)
    if missing := own.keys() - set(said["listed"]):
        yield f"does not list {', '.join(sorted(missing))}"
    if len(said["shown"]) != len(calls):
        yield f"{len(said['shown'])} of {len(calls)} calls were answered"
    for call, shown in zip(calls, said["shown"], strict=False):
        found = _CAME.search(shown["text"])
        came: Any = json.loads(bytes.fromhex(found[1])) if found else ["", {}]
        tool, arguments = came[0], {name: each for name, each in came[1].items() if each is not None}
        if (tool, arguments) != (call.tool, call.arguments):
            yield f"{call.tool} {json.dumps(call.arguments)}: {came if found else shown['text'][:200]!r}"


@functools.cache
def _own_tools(folder: Path) -> Tools:
    """The tools of every exposure, and those of the HTTP door with state handles, each name once. Raises
    `RequestFailed`."""
    found: dict[str, Mapping[str, Any]] = {}
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    for expose in ("proxy", "meta"):
        serve = ("serve", "--expose", expose, "--config", str(_config(folder)))
        with PlainClient((sys.executable, *_GREENROOM, *serve), env, folder) as gateway:
            gateway.initialize()
            found |= gateway.tools()
            gateway.leave()
    return {**found, **asyncio.run(_with_handles())}


async def _with_handles() -> Tools:
    """Tools whose state is kept apart, with handles for it."""
    config: Any = {"mcpServers": {"clock": {**CLOCK, "isolation": "per_session"}}}
    async with Greenroom.open(config, cache_path=":memory:") as room:
        await room.catalogued()
        async with http_door(room, rules=Rules(state_handles=True)) as door:
            listed = (await door.stateless("tools/list")).json()["result"]["tools"]
    return {tool["name"]: tool for tool in listed}


def _config(folder: Path) -> Path:
    path = folder / "clients.json"
    path.write_text(json.dumps({"mcpServers": {"clock": CLOCK}}), encoding="utf-8")
    return path


def _examples(tools: Tools) -> list[ScriptedCall]:
    """The calls of these tools that our texts tell a model to make, and one of each tool that takes a handle, with it
    and without."""
    calls = [
        ScriptedCall(name, given) for text in _texts() for name, given in _calls_in(text) if name in tools
    ]
    for name, tool in tools.items():
        if name.startswith("mcp"):
            continue
        properties: Mapping[str, Any] = tool["inputSchema"]["properties"]
        # A parameter of the server's own is its own affair, so each is given.
        given = {key: _VALUES[said["type"]] for key, said in properties.items() if key != STATE}
        calls += [ScriptedCall(name, given)] + (
            [ScriptedCall(name, {**given, STATE: "handle"})] if STATE in properties else []
        )
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
