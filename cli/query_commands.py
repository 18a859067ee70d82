"""The commands that only look: `status`, `tools`, `search`, `describe`. They start nothing.

On a terminal the first three print tables (`tables`); the plain text is the same for every window.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..catalogue.fingerprints import changed_in_words
from ..gateway.result_meta import details_of
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted, one_line
from ..protocol.status import about, hidden_in_words, wait_in_words
from . import tables, wrapping
from .common import (
    Source,
    common_options,
    config_option,
    left_out,
    none_in_service,
    not_read,
    open_source,
    read_config,
    say,
    show,
    show_json,
    show_result,
    text_of,
)
from .completion import complete_servers, complete_tools

if TYPE_CHECKING:
    from . import json_shapes as shapes


_MARKS = {
    "connected": "✓",
    "failed": "✗",
    "broken": "✗",
    "needs-auth": "⚠",
    "disabled": "⊘",
    "untrusted": "⚠",
}
_FURTHER = 10  # processes of sessions and calls that are shown of one server


@click.command("status")
@common_options
def status_command(config_path: Path | None, pid: int | None, as_json: bool) -> None:
    """Show the configured servers and their states."""
    config = read_config(config_path)
    source = open_source(config_path, pid, config)
    details = source.status()
    if details["servers"] and not as_json and wrapping.on_terminal():
        _print_status(details)
    else:
        if not details["servers"] and pid is None:
            none = [*none_in_service(config)] or ["No servers are configured."]
            lines = [*none, *not_read(config), *_around_servers(details)]
        else:
            lines = [*_status_lines(details)]
        show("\n".join(lines), {**details, **source.origin}, as_json)


@click.command("tools")
@click.argument("server", required=False, shell_complete=complete_servers)
@click.option("--server", "named", help="Only tools of this server.", shell_complete=complete_servers)
@common_options
def tools_command(
    server: str | None, named: str | None, config_path: Path | None, pid: int | None, as_json: bool
) -> int:
    """List the tools of all servers, or of SERVER."""
    if server is not None and named not in (None, server):
        raise UsageError(f'Two servers are named: "{server}" and "{named}". Name one.')
    server = server or named
    config = read_config(config_path)
    source = open_source(config_path, pid, config)
    details = source.tools(server)
    if server is None and pid is None and (unused := [*left_out(config)]):
        details["message"] = "\n".join([*filter(None, [details.get("message")]), *unused])
    if "error" in details and not as_json:
        say(details["message"])
    elif details.get("tools") and not as_json and wrapping.on_terminal():
        _print_tools(details)
    else:
        show("\n".join(_tool_lines(details)), {**details, **source.origin}, as_json)
    return int("error" in details)


@click.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option("--regex", is_flag=True, help="WORDS is a pattern.")
@click.option("--server", help="Only tools of this server.", shell_complete=complete_servers)
@click.option("--limit", type=click.IntRange(1), default=12, show_default=True, help="Show at most so many.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip the first so many.")
@click.option("--schemas", is_flag=True, help="Show each tool's parameters.")
@common_options
def search_command(
    words: tuple[str, ...],
    regex: bool,
    server: str | None,
    limit: int,
    offset: int,
    schemas: bool,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Find tools by WORDS, the best match first."""
    source = open_source(config_path, pid)
    request: dict[str, Any] = {"search": " ".join(words), "regex": regex, "includeSchemas": schemas}
    request |= {"limit": limit, "offset": offset}
    if server is not None:
        request["server"] = server
    result = source.look(request)
    details = details_of(result)
    if details.get("matches") and not (schemas or as_json) and wrapping.on_terminal():
        _print_matches(source, text_of(result), details["matches"])
        return 0
    return 0 if show_result(result, source.origin, as_json) else 1


@click.command("describe")
@click.argument("tool", shell_complete=complete_tools)
@click.option(
    "--server",
    help="The tool's server, when several servers have a tool of that name.",
    shell_complete=complete_servers,
)
@common_options
def describe_command(
    tool: str, server: str | None, config_path: Path | None, pid: int | None, as_json: bool
) -> int:
    """Show TOOL and its parameters."""
    source = open_source(config_path, pid)
    request = {"describe": tool} | ({"server": server} if server is not None else {})
    return 0 if show_result(source.look(request), source.origin, as_json) else 1


def _status_lines(details: Mapping[str, Any]) -> Iterator[str]:
    servers: list[Mapping[str, Any]] = details["servers"]
    if not servers:
        yield "No servers are configured."
        yield from _around_servers(details)
        return
    names = [one_line(server["name"]) for server in servers]  # a file that is not trusted may have made them
    width = max(map(len, names))
    further = _further(details)
    for name, server in zip(names, servers, strict=True):
        yield f"{_mark(server)} {name:<{width}}  {_state(server):<24}  {_notes(server)}".rstrip()
        yield from _further_lines(further.get(server["name"], ()))
    yield ""
    yield from _overall(details)


def _overall(details: Mapping[str, Any]) -> Iterator[str]:
    """The lines below the list of servers."""
    servers: list[Mapping[str, Any]] = details["servers"]
    yield f"{connected_in_words(details)}, {counted(details['totalTools'], 'tool')}"
    if any(server["status"] == "failed" for server in servers):
        yield "Why a server failed, and what to do: greenroom explain NAME"
    if waiting := details.get("waitingForApproval"):
        yield calls_wait(waiting)
    if details.get("audit", {}).get("failing"):
        yield f"The audit file {details['audit']['file']} cannot be written: the gateway's log says why."
    yield from _around_servers(details)


def connected_in_words(details: Mapping[str, Any]) -> str:
    """How many servers are connected, some only for a session or a call, of those in service."""
    servers, further = details["servers"], _further(details)
    connected = sum(
        _is_connected(one) or any(map(_is_connected, further.get(one["name"], ()))) for one in servers
    )
    return f"{connected} of {len(servers) - details['disabledCount']} connected"


def _around_servers(details: Mapping[str, Any]) -> Iterator[str]:
    """The lines about the gateway: its configuration, the background room, and its clients."""
    if why := details.get("notReloaded"):
        yield one_line(f"The changed configuration is not used, the old one stays: {why}")
    if "background" in details:
        yield from _attached_lines(details["background"])
    yield from _client_lines(details.get("clients", ()))


def _print_status(details: Mapping[str, Any]) -> None:
    further = _further(details)
    rows: list[tuple[str, ...]] = []
    for server in details["servers"]:
        count = str(server["toolCount"]) if server["status"] in ("connected", "cached") else ""
        state = server["status"].replace("-", " ")
        rows.append((_mark(server), server["name"], state, count, _notes(server)))
        own = further.get(server["name"], ())
        rows += [("", each["scope"], each["state"], "", _notes(each)) for each in own[:_FURTHER]]
        if len(own) > _FURTHER:
            rows.append(("", "", "", "", _more_of(own)))
    screen = tables.console()
    screen.print(tables.table(("server", "state", "tools", "notes"), rows, right=("tools",)))
    screen.print(soft_wrap=True)
    screen.print(tables.prose("\n".join(_overall(details)), screen.width), soft_wrap=True)


def _mark(server: Mapping[str, Any]) -> str:
    return _MARKS.get(server["status"], "○")


def _more_of(rows: Sequence[object]) -> str:
    return f"and {len(rows) - _FURTHER} more: greenroom status --json"


def _further(details: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The processes that sessions and calls have of their own, by the name of their server."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in details.get("addresses", ()):
        found.setdefault(row["name"], []).append(row)
    return found


def _further_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows[:_FURTHER]:
        notes = _notes(row)
        yield "    " + one_line(f"{row['scope']}: {row['state']}{f', {notes}' if notes else ''}")
    if len(rows) > _FURTHER:
        yield f"    {_more_of(rows)}"


def _is_connected(row: Mapping[str, Any]) -> bool:
    return row.get("status", row["state"]) == "connected"


def calls_wait(count: int) -> str:
    waits = "1 call waits" if count == 1 else f"{count} calls wait"
    return f"{waits} for approval; to see them, and decide: greenroom top"


def _attached_lines(room: Mapping[str, Any]) -> Iterator[str]:
    """The background room and its clients."""
    clients: list[Mapping[str, Any]] = room["clients"]
    are = "client is" if len(clients) == 1 else "clients are"
    yield f"background room, pid {room['pid']}: {len(clients)} {are} attached"
    for client in clients:
        how = "".join(f", {client[key]}" for key in ("expose", "profile") if client[key])
        at_work = f"{client['inFlight']} in flight, for {client['seconds']:.0f} s"
        yield "  " + one_line(f"pid {client['pid']}{how}, {at_work}")


def _client_lines(clients: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The clients over HTTP, and why each session is still there."""
    if clients:
        yield f"{len(clients)} {'client has a session' if len(clients) == 1 else 'clients have sessions'} over HTTP"
    for client in clients[:_FURTHER]:
        said = [f"last message {about(client['silentSeconds'])} ago"]
        if client["listening"]:
            said.append("an event stream is open")
        if client["inFlight"]:
            said.append(f"stays while requests are open ({client['inFlight']})")
        else:
            said.append(f"ends in {about(client['endsInSeconds'])} without another (http.sessionIdle)")
        yield "  " + one_line(f"{client['session']}: {', '.join(said)}")
    if len(clients) > _FURTHER:
        yield f"  {_more_of(clients)}"


def _state(server: Mapping[str, Any]) -> str:
    tools = counted(server["toolCount"], "tool")
    if server["status"] == "connected":
        return f"connected, {tools}"
    return f"cached, {tools}" if server["status"] == "cached" else server["status"].replace("-", " ")


def _notes(server: Mapping[str, Any]) -> str:
    """The remaining notes about a server."""
    notes: list[str] = []
    if server["state"] not in ("idle", "connected", "closed"):
        notes.append(server["state"])
    if server["pid"] is not None:
        notes.append(f"pid {server['pid']}")
    if server["inFlight"] or server["queued"]:
        notes.append(f"{server['inFlight']} in flight, {server['queued']} queued")
    wait = wait_in_words(server["waitingFor"], server.get("waiting"), server["retryIn"])
    line = f": {server['lastLine']}" if server["waitingFor"] == "install" and server["lastLine"] else ""
    notes += [wait + line] if wait else []
    if server.get("changed"):
        notes.append(changed_in_words(server["name"], server["changed"], server.get("flapping") or ()))
    notes += server.get("problems", ())
    if server.get("quarantined"):
        notes.append(f"quarantined: {server['quarantined']}")
    notes += [str(server[key]) for key in ("down", "failure") if server.get(key)]
    if hidden := server.get("hidden"):
        notes.append(f"hidden characters in {hidden_in_words(hidden)}")
    if server["faults"]:
        notes.append(f"clients would refuse {server['faults'][0]}{_and_more(server['faults'])}")
    return one_line("; ".join(notes))


def _and_more(faults: Sequence[str]) -> str:
    return f", and {len(faults) - 1} more" if len(faults) > 1 else ""


def _tool_lines(details: Mapping[str, Any]) -> Iterator[str]:
    for tool in details.get("tools", ()):
        yield _named(tool)
    yield from _total(details)


def _total(details: Mapping[str, Any]) -> Iterator[str]:
    skills = sum(tool.get("kind") == "skill" for tool in details.get("tools", ()))
    yield f"Total: {counted(details.get('count', 0) - skills, 'tool')}" + (
        f", {counted(skills, 'skill')}" if skills else ""
    )
    if "message" in details:
        yield details["message"]


def _named(tool: Mapping[str, Any]) -> str:
    return f"{tool['name']} (skill)" if tool.get("kind") == "skill" else tool["name"]


def _print_tools(details: Mapping[str, Any]) -> None:
    """The tools below their servers, each with one line of its description."""

    def server_of(tool: Mapping[str, Any]) -> str:
        return str(tool["server"])

    by_server = groupby(sorted(details["tools"], key=server_of), key=server_of)  # they stay sorted by name
    groups = [
        (server, [(_named(tool), tool["description"]) for tool in tools]) for server, tools in by_server
    ]
    screen = tables.console()
    screen.print(tables.name_and_words(("tool", "what it does"), groups, screen.width))
    screen.print(tables.prose("\n".join(("", *_total(details))), screen.width), soft_wrap=True)


def _print_matches(source: Source, text: str, matches: Sequence[Mapping[str, Any]]) -> None:
    """`text` with a table in place of its list, the second of its paragraphs."""
    entries: list[tuple[str, str]] = []
    for match in matches:
        name = match.get("tool") or match["skill"]
        said = details_of(source.look({"describe": name, "server": match["server"]}))
        tool: Mapping[str, Any] = said.get("tool") or said.get("skill") or {}
        entries.append((_named(tool) if tool else name, tool.get("description", "")))
    head, _, rest = text.partition("\n\n")
    tail = rest.partition("\n\n")[2]
    screen = tables.console()
    screen.print(tables.prose(f"{head}\n", screen.width), soft_wrap=True)
    screen.print(tables.name_and_words(("tool", "what it does"), [("", entries)], screen.width))
    if tail:
        screen.print(tables.prose(f"\n{tail}", screen.width), soft_wrap=True)


# --------------------------------------------------------------------------------------------------------------
#
#
# `greenroom outputs`: the files of long output. It asks no gateway: all gateways of a user share the directory.


@click.command("outputs")
@click.option("--clear", is_flag=True, help="Remove all of them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def outputs_command(clear: bool, as_json: bool) -> None:
    """List the files that keep what did not fit an answer: long text, binary content, structured content.

    They are removed by age and by size (`outputGuard.keepHours`, `outputGuard.keepBytes`).
    """
    from ..gateway.exposures.output_files import Spill

    spill = Spill()
    if clear:
        try:
            count = spill.clear()
        except OSError as error:
            raise UsageError(f"{spill.directory} cannot be cleared: {error.strerror or error}") from None
        what = "1 file was" if count == 1 else f"{count} files were"
        cleared: shapes.Cleared = {"removed": count}
        show(f"{what} removed.", cleared, as_json)
        return
    files, now = spill.kept(), time.time()
    rows: list[shapes.Output] = [
        {"id": file.id, "path": str(file.path), "bytes": file.size, "ageSeconds": max(0.0, now - file.stamp)}
        for file in files
    ]
    total = sum(file.size for file in files)
    details: shapes.Outputs = {"directory": str(spill.directory), "outputs": rows, "bytes": total}
    if not rows and not as_json:
        say(f"there are none in {spill.directory}.")
        return
    lines = [
        f"{row['bytes']:>12,} bytes  {_age(row['ageSeconds']):>6}  {one_line(row['path'])}" for row in rows
    ]
    show("\n".join([*lines, "", f"{len(rows)} in all, {total:,} bytes"]), details, as_json)


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# --------------------------------------------------------------------------------------------------------------
#
#
# `greenroom config`: the effective configuration, the source of each part, and the schema of a file.


@click.command("config")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the configuration instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (always the case here).")
@config_option
def config_command(schema: bool, as_json: bool, config_path: Path | None) -> None:
    """Show the effective configuration with its sources. Secrets are redacted."""
    from ..config.masking import redacted
    from ..config.schema import config_schema

    del as_json  # a configuration is JSON; the flag is there because every command has it
    if schema:
        show_json(config_schema())
        return
    show_json(redacted(read_config(config_path, always=True, most=None)))
