"""Tries each real client in front of the gateway, at both exposures, and checks what its model would be shown.

The scene is the same for all: a call that works, a search, a call of an unknown tool, a call that fails. A client works
when it shows every text that a model needs, and shows a refusal as an error, if the client can do that. A tape of it is
recorded, and played to the client in the place of the gateway: it must list and show the same.

Then it is given every tool of our own at once, and makes the calls of our own examples (`_own_tools`): no schema and no
argument may be refused on the way, and all arguments must arrive.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ._install import InstallFailed, install, interpreter
from ._own_tools import SERVER, examples, own_tools
from ._raw import RequestFailed
from ._table import Client

SCRIPTS = Path(__file__).parent / "clients"
PATIENCE = 120.0  # seconds for one client's scene, imports included
_GREENROOM = ("-m", "greenroom")
_CAME = re.compile(r"came ([0-9a-f]+)")


@attrs.frozen
class Line:
    """One call of the scene. What is shown must contain `needs`."""

    tool: str
    arguments: Mapping[str, Any]
    needs: str
    is_refusal: bool = False


SCENES: Mapping[str, tuple[tuple[str, ...], tuple[Line, ...]]] = {
    "proxy": (
        ("mcp",),
        (
            Line("mcp", {"tool": "clock_now", "args": {"utc_offset": 1}}, "+01:00"),
            Line("mcp", {"search": "weekday"}, "Current time and weekday"),
            Line("mcp", {"tool": "clock_nothing"}, "clock_nothing", is_refusal=True),
            Line(
                "mcp",
                {"tool": "clock_between", "args": {"start": "x", "end": "y"}},
                "moments",
                is_refusal=True,
            ),
        ),
    ),
    "direct": (
        ("clock_between", "clock_now"),
        (
            Line("clock_now", {"utc_offset": 1}, "+01:00"),
            Line("clock_between", {"start": "x", "end": "y"}, "moments", is_refusal=True),
        ),
    ),
}


@attrs.define
class ClientRow:
    name: str
    pins: str
    played: str
    problems: list[str] = attrs.field(factory=list[str])


async def play_clients(clients: Sequence[Client], folder: Path) -> list[ClientRow]:
    """Try one after the other: each starts its own interpreter, and there are only two cores."""
    config = folder / "clients.json"
    clock = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}
    config.write_text(json.dumps({"mcpServers": {"clock": clock}}), encoding="utf-8")
    if not clients:
        return []
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    try:
        own = await own_tools(config, env, folder)
    except (RequestFailed, OSError) as error:
        return [ClientRow("all", "", "", [f"our own tools are not listed: {error}"])]
    return [await _play(client, config, own, folder) for client in clients]


async def _play(client: Client, config: Path, own: Sequence[Mapping[str, Any]], folder: Path) -> ClientRow:
    row = ClientRow(client.name, " ".join(client.pins), client.played)
    try:
        home = install("clients", client.name, client.index, client.pins)
    except InstallFailed as error:
        row.problems.append(f"not installed: {error}")
        return row
    for exposure, (names, lines) in SCENES.items():
        tape = folder / f"{client.name}-{exposure}.tape"
        served = ("serve", "--expose", exposure, "--config", str(config), "--record", str(tape))
        replayed = ("replay", "--expose", exposure, str(tape))
        try:
            said = await _scene(client, home, (*_GREENROOM, *served), lines, folder)
            again = await _scene(client, home, (*_GREENROOM, *replayed), lines, folder)
        except ValueError as error:
            row.problems.append(f"{exposure}: {error}")
            continue
        row.problems += [f"{exposure}: {problem}" for problem in _judge(client, said, names, lines)]
        if again != said:
            shown = zip(said["shown"], again["shown"], strict=False)
            differ = next(((was, now) for was, now in shown if was != now), (said["listed"], again["listed"]))
            row.problems.append(f"{exposure}: with its tape otherwise: {str(differ)[:300]}")
    row.problems += [f"our own tools: {problem}" for problem in await _own(client, home, own, folder)]
    return row


async def _own(client: Client, home: Path, own: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
    """What is refused, or lost, of our own tools and of the calls that we give as examples."""
    listed = folder / "own_tools.json"
    listed.write_text(json.dumps(own), encoding="utf-8")
    calls = [Line(tool, arguments, "") for tool, arguments in examples(own)]
    try:
        said = await _scene(client, home, (str(SERVER), str(listed)), calls, folder)
    except ValueError as error:
        return [str(error)]
    missing = {tool["name"] for tool in own} - set(said["listed"])
    problems = [f"does not list {', '.join(sorted(missing))}"] if missing else []
    if len(said["shown"]) != len(calls):
        problems.append(f"{len(said['shown'])} of {len(calls)} calls were answered")
    for line, shown in zip(calls, said["shown"], strict=False):
        given, found = [line.tool, dict(line.arguments)], _CAME.search(shown["text"])
        came = json.loads(bytes.fromhex(found[1])) if found else None
        if came is None or given != [
            came[0],
            {name: each for name, each in came[1].items() if each is not None},
        ]:
            problems.append(f"{line.tool} {json.dumps(line.arguments)}: {came or shown['text'][:200]!r}")
    return problems


async def _scene(
    client: Client, home: Path, command: Sequence[str], lines: Sequence[Line], folder: Path
) -> Mapping[str, Any]:
    """What the client's script prints; its server is Python with these arguments. Raises `ValueError` when it cannot be
    read."""
    calls = [{"tool": line.tool, "arguments": line.arguments} for line in lines]
    wish = {"command": sys.executable, "arguments": list(command), "calls": calls}
    script = SCRIPTS / client.script
    if client.index == "npm":  # its imports are found beside it
        local = home / script.name
        local.write_bytes(script.read_bytes())
        script = local
    env = {**os.environ, "PYTHONPATH": str(SCRIPTS), "XDG_CACHE_HOME": str(folder / "cache")}
    process = await asyncio.create_subprocess_exec(
        *interpreter(home, client.index),
        str(script),
        json.dumps(wish),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        cwd=folder,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ValueError(f"not done within {PATIENCE:g} s") from None
    last = out.decode(errors="replace").strip().rpartition("\n")[2]
    try:
        return json.loads(last)
    except ValueError:
        raise ValueError(f"its script failed: {errors.decode(errors='replace').strip()[-300:]}") from None


def _judge(client: Client, said: Mapping[str, Any], names: Sequence[str], lines: Sequence[Line]) -> list[str]:
    problems: list[str] = []
    if sorted(said["listed"]) != sorted(names):
        problems.append(f"lists {said['listed']}")
    for line, shown in zip(lines, said["shown"], strict=True):
        if line.needs not in shown["text"]:
            problems.append(f"{line.tool} {json.dumps(line.arguments)} shows {shown['text'][:120]!r}")
        if client.refusals == "flag" and shown["is_error"] is not line.is_refusal:
            problems.append(f"{line.tool} {json.dumps(line.arguments)}: is it an error? {shown['is_error']}")
    return problems
