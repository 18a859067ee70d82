"""`greenroom` alone: where one stands, and the next step. It starts nothing, and reads what `status` reads."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..gateway.doors import control_client as control
from ..gateway.doors.control_protocol import name_of
from ..protocol.errors import GreenroomError
from ..protocol.safe_text import counted, one_line, printable
from .common import FromGateway, commands_typed, elsewhere_in_words, from_cache, load, not_read, say

if TYPE_CHECKING:
    from ..config.model import Config


_KNOWN = ("connected", "cached")
_NAMED = 5
_WORDS = {  # of a server's status -> in the line of servers; the others are known
    "not-connected": "not asked yet",
    "failed": "failed",
    "broken": "broken",
    "needs-auth": "waiting for a login",
    "untrusted": "not trusted",
    "disabled": "disabled",
}


def show_overview(path: str | None) -> None:
    """Print the overview on stdout, of the file at `path` or of those that are found."""
    config = load(None if path is None else Path(path))
    gateways = _gateways(config)
    try:
        details = _status(config, gateways)
    finally:
        for gateway in gateways:
            gateway.connection.close()
    lines = _lines(config, details, gateways, is_named=path is not None)
    click.echo(printable("\n".join(lines)))


def _gateways(config: Config) -> list[control.Gateway]:
    """Those of this configuration, the newest first."""
    try:
        return control.find_gateways(name_of(config), say)
    except GreenroomError as error:
        say(error.message)
        return []


def _status(config: Config, gateways: Sequence[control.Gateway]) -> dict[str, Any]:
    """The servers' status, from the newest gateway that answers, or else from the cache."""
    for gateway in gateways:
        with suppress(GreenroomError):
            return FromGateway(gateway).status()
    return from_cache(config).status()


def _lines(
    config: Config, details: Mapping[str, Any], gateways: Sequence[control.Gateway], *, is_named: bool
) -> Iterator[str]:
    servers: Sequence[Mapping[str, Any]] = details["servers"]
    if is_named:
        yield one_line(f"Configuration: {', '.join(config.files)} (named by --config)")
        yield from _warnings(config)
    else:
        yield from _configuration(config)
    yield f"Servers: {_servers(servers, details['totalTools'])}"
    yield from _running(config, gateways)
    yield ""
    yield from _next(config, servers, is_served=bool(gateways))
    yield "All commands: greenroom --help"


def _configuration(config: Config) -> Iterator[str]:
    from ..config.files import find_files, own_file, project_files, working_directory

    around: dict[str, Any] = {"home": Path.home(), "environ": os.environ}
    cwd = working_directory(None)
    unread = not_read(config)
    if not config.files:
        yield "Configuration: no file was found."
        yield from unread
        return
    of_project = project_files(config, cwd=cwd, **around)
    ours = {os.fspath(path) for path in find_files(cwd=cwd, **around)}
    yield "Configuration:"
    for file in config.files:
        whose = "this project's" if file in of_project else "yours" if file in ours else "imported"
        whose = "yours" if file == os.fspath(own_file(**around)) else whose
        state = ", not trusted" if file in config.untrusted else ""
        state = ", cannot be read" if file in config.unread else state
        yield f"  {one_line(file)} ({whose}{state})"
    yield from _warnings(config)
    yield from unread


def _warnings(config: Config) -> Iterator[str]:
    if config.problems:
        yield f"  {counted(len(config.problems), 'warning')} about it: {commands_typed().about('doctor')}"


def _servers(servers: Sequence[Mapping[str, Any]], tools: int) -> str:
    counts = Counter(server["status"] for server in servers)
    known = sum(counts[word] for word in _KNOWN)
    said = [f"{known} known ({counted(tools, 'tool')})"] if known else []
    said += [f"{counts[word]} {words}" for word, words in _WORDS.items() if counts[word]]
    return ", ".join(said) or "none"


def _running(config: Config, gateways: Sequence[control.Gateway]) -> Iterator[str]:
    pids = ", ".join(str(gateway.pid) for gateway in gateways[:_NAMED])
    more = f" and {len(gateways) - _NAMED} more" if len(gateways) > _NAMED else ""
    yield f"Gateways of this configuration: {f'pid {pids}{more}' if gateways else 'none runs'}"
    for one in control.find_elsewhere(name_of(config)):
        yield f"  {elsewhere_in_words(one, 'status')}"


def _next(config: Config, servers: Sequence[Mapping[str, Any]], *, is_served: bool) -> Iterator[str]:
    """The next step. If there are several, the one without which the others would not help."""
    first: dict[str, str] = {}  # of each status, the first server
    for server in servers:
        first.setdefault(server["status"], server["name"])
    changed = next((server["name"] for server in servers if server.get("changed")), None)
    about = commands_typed().about
    if config.unread:
        yield f"Next, see why {one_line(config.unread[0])} cannot be read: {about('doctor')}"
    elif config.untrusted:
        yield f"Next, see what this project's file would do, and decide: {about('trust')}"
    elif not servers:
        yield f"Next, add a server: {about('add')} NAME -- COMMAND"
        yield "Or see Greenroom work with servers that it brings along: greenroom demo"
    elif (bad := first.get("broken") or first.get("failed")) is not None:
        yield f"Next, see why {one_line(bad)} does not work: {about('explain', bad)}"
    elif "needs-auth" in first:
        yield f"Next, log in: {about('auth', first['needs-auth'])}"
    elif "not-connected" in first:
        yield f"Next, ask the servers what they have: {about('refresh')}"
    elif changed is not None:
        yield f"Next, see what has changed at {one_line(changed)}, and decide: {about('accept', changed)}"
    elif first.keys() == {"disabled"}:
        yield f"Next, bring a server back into service: {about('enable', first['disabled'])}"
    elif is_served:
        yield f"Next, watch the servers: {about('top')}"
    else:
        yield f"Next, find a tool: {about('search')} WORDS"
        yield f"Or let your MCP clients use it: {about('init')}"
