"""The commands that only look: `status`, `tools`, `search`, `describe`. They start nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ...protocol.pinning import changed_in_words
from ...protocol.plain_text import one_line
from ...protocol.status import about
from ._common import common_options, open_source, say, show, show_result
from ._complete import complete_servers

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
    source = open_source(config_path, pid)
    details = source.status()
    show("\n".join(_status_lines(details)), {**details, **source.origin}, as_json)


@click.command("tools")
@click.argument("server", required=False, shell_complete=complete_servers)
@common_options
def tools_command(server: str | None, config_path: Path | None, pid: int | None, as_json: bool) -> int:
    """List the tools of all servers, or of SERVER."""
    source = open_source(config_path, pid)
    details = source.tools(server)
    if "error" in details and not as_json:
        say(details["message"])
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
    return 0 if show_result(source.look(request), source.origin, as_json) else 1


@click.command("describe")
@click.argument("tool")
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
        return
    width = max(len(server["name"]) for server in servers)
    further = _further(details)
    for server in servers:
        mark = _MARKS.get(server["status"], "○")
        yield f"{mark} {server['name']:<{width}}  {_state(server):<24}  {_notes(server)}".rstrip()
        yield from _further_lines(further.get(server["name"], ()))
    yield ""
    enabled = len(servers) - details["disabledCount"]
    connected = sum(
        _is_connected(one) or any(map(_is_connected, further.get(one["name"], ()))) for one in servers
    )
    yield f"{connected} of {enabled} connected, {details['totalTools']} tools"
    if any(server["status"] == "failed" for server in servers):
        yield "Why a server failed, and what to do: greenroom explain NAME"
    if waiting := details.get("waitingForApproval"):
        yield calls_wait(waiting)
    if details.get("audit", {}).get("failing"):
        yield f"The audit file {details['audit']['file']} cannot be written: the gateway's log says why."
    if "background" in details:
        yield from _attached_lines(details["background"])
    yield from _client_lines(details.get("clients", ()))


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
        yield f"    and {len(rows) - _FURTHER} more: greenroom status --json"


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
        yield f"  and {len(clients) - _FURTHER} more: greenroom status --json"


def _state(server: Mapping[str, Any]) -> str:
    count = server["toolCount"]
    tools = f"{count} tool{'' if count == 1 else 's'}"
    if server["status"] == "connected":
        return f"connected, {tools}"
    return f"cached, {tools}" if server["status"] == "cached" else server["status"].replace("-", " ")


def _notes(server: Mapping[str, Any]) -> str:
    """The rest of what is worth knowing about a server."""
    notes: list[str] = []
    if server["state"] not in ("idle", "connected", "closed"):
        notes.append(server["state"])
    if server["pid"] is not None:
        notes.append(f"pid {server['pid']}")
    if server["inFlight"] or server["queued"]:
        notes.append(f"{server['inFlight']} in flight, {server['queued']} queued")
    took = f" for {server['waiting']:.0f} s" if server.get("waiting") is not None else ""
    if server["waitingFor"] == "install":
        notes.append(f"installing{took}" + (f": {server['lastLine']}" if server["lastLine"] else ""))
    elif server["waitingFor"]:
        notes.append(f"waiting for {server['waitingFor']}{took}")
    if server.get("changed"):
        notes.append(changed_in_words(server["name"], server["changed"], server.get("flapping") or ()))
    notes += server.get("problems", ())
    if server.get("quarantined"):
        notes.append(f"quarantined: {server['quarantined']}")
    notes += [str(server[key]) for key in ("down", "failure") if server.get(key)]
    if hidden := server.get("hidden"):
        notes.append(f"hidden characters in {hidden[0]}{_and_more(hidden)}")
    if server["faults"]:
        notes.append(f"clients would refuse {server['faults'][0]}{_and_more(server['faults'])}")
    if server["retryIn"] is not None:
        notes.append(f"retry in {server['retryIn']:.0f}s")
    return one_line("; ".join(notes))


def _and_more(faults: Sequence[str]) -> str:
    return f", and {len(faults) - 1} more" if len(faults) > 1 else ""


def _tool_lines(details: Mapping[str, Any]) -> Iterator[str]:
    for tool in details.get("tools", ()):
        yield tool["name"]
    yield f"Total: {details.get('count', 0)} tools"
    if "message" in details:
        yield details["message"]
