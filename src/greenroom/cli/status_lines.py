"""The lines of `greenroom status`: a table of what each server does now, and what stands around it.

Who has failed, or waits for a person, comes first. Each row is one line, in the same columns everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ..catalogue.fingerprints import changed_in_words
from ..protocol.safe_text import one_line, tools_in_words, typed
from ..protocol.status import about, hidden_in_words, scope_in_words, silence_in_words, wait_in_words
from . import tables

_MARKS: Final = {
    "connected": "✓",
    "failed": "✗",
    "lost": "✗",
    "broken": "✗",
    "needs-auth": "⚠",
    "disabled": "⊘",
    "untrusted": "⚠",
}
STATES: Final = {  # what the words below STATE mean
    "connected": "It runs, and calls are sent to it.",
    "cached": "It does not run; its tools are known. A call starts it.",
    "not connected": "It does not run, and its tools are not known yet.",
    "connecting": "It is being started.",
    "installing": "Its command installs the program first.",
    "waiting": "Its start waits for its turn.",
    "draining": "It is being stopped; its calls in flight may finish.",
    "idle": "A session's own process that does not run. A call starts it.",
    "failed": "It did not start, or was lost too often: greenroom explain NAME",
    "lost": "It ended while it ran. A call starts it again.",
    "down": "Stopped on purpose; no call starts it: greenroom reconnect NAME",
    "needs auth": "It wants a login: greenroom auth NAME",
    "broken": "Its entry in the configuration cannot be used.",
    "untrusted": "Its project's file is not trusted yet: greenroom trust",
    "disabled": "It is out of service: greenroom enable NAME",
}
_FIRST: Final = ("failed", "lost", "broken", "needs-auth", "untrusted")
_HEAD: Final = ("server", "state", "tools", "notes")
_WIDE: Final = ("server", "state", "tools", "calls", "queued", "incarnation", "memory", "pid", "notes")
_NOTES: Final = 160  # characters; `--output wide` has all
_FURTHER: Final = 10  # processes of sessions and calls that are shown of one server
Rows = Sequence[tuple[str, ...]]


def table_lines(details: Mapping[str, Any], width: int | None, *, is_wide: bool) -> Iterator[tuple[str, str]]:
    """The head and a line for each row, each with its mark ("": of the head) and at most `width` characters."""
    head = _WIDE if is_wide else _HEAD
    rows = [("", *(title.upper() for title in head)), *_rows(details, head)]
    right: list[bool] = [False, *(title not in ("server", "state", "notes") for title in head)]
    widths = [max(map(tables.columns, column)) for column in zip(*rows, strict=True)]
    for number, (mark, *cells) in enumerate(rows):
        padded = [
            tables.padded(cell, width, is_right)
            for cell, width, is_right in zip((mark, *cells), widths, right, strict=True)
        ]
        line = "  ".join(padded).rstrip()
        yield mark if number else "head", line if width is None else _cut(line, width)


def _cut(line: str, width: int) -> str:
    """The line in at most `width` columns. A command that would lose its end is left out, with its sentence."""
    shown = tables.cut(line, width)
    command = line.rfind("greenroom ", 0, width + len("greenroom "))  # it may be cut in its first word
    end = line.find(";", command)
    if shown == line or command < 0 or 0 <= end < len(shown) - 1:
        return shown
    before = max(line.rfind(mark, 0, command) for mark in ("; ", ". ", "  "))
    return f"{line[:before].rstrip()}…"


def _rows(details: Mapping[str, Any], head: Sequence[str]) -> Rows:
    further: dict[str, list[Mapping[str, Any]]] = {}
    for row in details.get("addresses", ()):
        further.setdefault(row["name"], []).append(row)
    rows: list[tuple[str, ...]] = []
    for server in sorted(details["servers"], key=_is_well):
        own = further.get(server["name"], [])
        rows.append(_row(server, str(server["name"]), head))
        rows += [_row(each, f"  {scope_in_words(each['scope'])}", head) for each in own[:_FURTHER]]
        if len(own) > _FURTHER:
            more = f"  and {len(own) - _FURTHER} more: greenroom status --json"
            rows.append(("", more, *("" for _ in head[1:])))
    return rows


def _is_well(server: Mapping[str, Any]) -> bool:
    return server["status"] not in _FIRST


def _row(row: Mapping[str, Any], name: str, head: Sequence[str]) -> tuple[str, ...]:
    """The mark and a cell for each title: of a server, or of a further address of it."""
    is_address = row.get("scope", "shared") != "shared"
    cells = {
        "server": name if is_address else one_line(name, 40),
        "state": _state(row),
        "tools": "" if is_address or row["status"] in ("disabled", "broken", "untrusted") else _tools(row),
        "calls": str(row["inFlight"]),
        "queued": str(row["queued"]),
        "incarnation": str(row.get("incarnation", 1)),
        "memory": _memory(row["pid"]),
        "pid": str(row["pid"] or ""),
        "notes": one_line(_notes(row, is_wide=True)) if head is _WIDE else one_line(_notes(row), _NOTES),
    }
    mark = "" if is_address else _MARKS.get(row["status"], "○")
    mark = "⚠" if mark == "✓" and _silence(row) else mark
    return (mark, *(cells[title] for title in head))


def _state(row: Mapping[str, Any]) -> str:
    """What it does now, in a word."""
    return str(row["status"]).replace("-", " ")


def _tools(row: Mapping[str, Any]) -> str:
    return str(row["toolCount"]) if row["toolCount"] or row.get("cached", True) else "?"


def _notes(row: Mapping[str, Any], *, is_wide: bool = False) -> str:
    """What else is worth knowing of it."""
    notes: list[str] = []
    if silence := _silence(row):
        notes.append(f"{silence}; to restart it: greenroom reconnect {typed(row['name'])}")
    if not is_wide:
        if row["pid"] is not None:
            notes.append(f"pid {row['pid']}")
        if row["inFlight"] or row["queued"]:
            notes.append(f"{row['inFlight']} in flight, {row['queued']} queued")
    wait = wait_in_words(row["waitingFor"], row.get("waiting"), row["retryIn"], row.get("nextTry"))
    if _state(row) in ("waiting", "installing"):
        wait = wait.partition(" ")[2]  # the first word stands there already
    if not row["waitingFor"] and row["state"] == "connecting" and row.get("waiting") is not None:
        wait = f"for {row['waiting']:.0f} s"
    line = f": {row['lastLine']}" if row["waitingFor"] == "install" and row["lastLine"] else ""
    if wait:  # before the reason, which may be long
        notes.append(wait + line)
    elif row["status"] == "lost":
        notes.append("a call starts it again")
    if row.get("warm"):
        notes.append(f"{row['warm']} warm")
    if row.get("reused"):
        notes.append(f"{row['reused']} reused")
    if row.get("changed"):
        notes.append(changed_in_words(row["name"], row["changed"], row.get("flapping") or ()))
    notes += row.get("problems", ())
    if unset := row.get("unset"):
        notes.append(f"a variable is not set here: {', '.join(unset)}")
    if row.get("quarantined"):
        notes.append(f"quarantined: {row['quarantined']}")
    said = ("down", "broken", "failure") if row["status"] != "disabled" else ()  # its state says all
    own = f'Server "{row["name"]}" '  # stands in the same line
    reasons = [str(row[key]).removeprefix(own) for key in said if row.get(key)]
    reasons = [one for at, one in enumerate(reasons) if not any(one in other for other in reasons[:at])]
    notes += [f"before: {one}" for one in reasons] if row["state"] == "connecting" else reasons
    if hidden := row.get("hidden"):
        notes.append(f"hidden characters in {hidden_in_words(hidden)}")
    if faults := row["faults"]:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        notes.append(f"clients would refuse {faults[0]}{more}")
    *others, last = notes or [""]
    return "; ".join([*(note.removesuffix(".") for note in others), last])


def _silence(row: Mapping[str, Any]) -> str:
    return silence_in_words(row.get("silentFailures") or 0)


def _memory(pid: int | None) -> str:
    """The memory of the server's own process, where the system tells it without a library (Linux)."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) if pid else 0
        return f"{pages * os.sysconf('SC_PAGE_SIZE') / 2**20:.0f} MiB" if pages else ""
    return ""


# ---- around the table ------------------------------------------------------------------------------------------------


def held_lines(details: Mapping[str, Any]) -> Iterator[str]:
    """What holds calls now, before anything else."""
    for one in details.get("held", ()):
        whose = ", ".join(map(one_line, one["servers"]))
        yield f"✗ {one['what']} ({whose})."
        if one["holders"]:
            more = one["holders"] - len(one["by"])
            others = f" and {more} more" if more > 0 else ""
            yield f"  Held by {', '.join(map(one_line, one['by']))}{others}."
        yield f"  {one['step']}"
    if details.get("held"):
        yield ""


def overall(details: Mapping[str, Any]) -> Iterator[str]:
    """The lines below the list of servers. A server is connected if it is for anybody: all, a session or a call."""
    servers: list[Mapping[str, Any]] = details["servers"]
    connected = len({row["name"] for row in (*servers, *details.get("addresses", ())) if _is_up(row)})
    in_service = len(servers) - details["disabledCount"]
    known = tools_in_words(details["totalTools"], details.get("totalResources", 0))
    yield f"{connected} of {in_service} connected, {known}"
    if any(server["status"] in ("failed", "lost") for server in servers):
        yield "Why a server failed, and what to do: greenroom explain NAME"
    if waiting := details.get("waitingForApproval"):
        yield calls_wait(waiting)
    if details.get("audit", {}).get("failing"):
        yield f"The audit file {details['audit']['file']} cannot be written: the gateway's log says why."
    yield from around_servers(details)


def _is_up(row: Mapping[str, Any]) -> bool:
    return row["status"] == "connected"


def around_servers(details: Mapping[str, Any]) -> Iterator[str]:
    """The lines about the gateway: its configuration, the background gateway, and its clients."""
    if why := details.get("notReloaded"):
        yield one_line(f"The changed configuration is not used, the old one stays: {why}")
    if "background" in details:
        yield from _attached_lines(details["background"])
    yield from _client_lines(details.get("clients", ()))


def calls_wait(count: int) -> str:
    waits = "1 call waits" if count == 1 else f"{count} calls wait"
    return f"{waits} for approval; to see and decide: greenroom approve"


def _attached_lines(room: Mapping[str, Any]) -> Iterator[str]:
    """The background gateway and its clients."""
    clients: list[Mapping[str, Any]] = room["clients"]
    are = "client is" if len(clients) == 1 else "clients are"
    yield f"background gateway, pid {room['pid']}: {len(clients)} {are} attached"
    for client in clients:
        how = "".join(f", {client[key]}" for key in ("expose", "profile") if client[key])
        at_work = f"{client['inFlight']} in flight, for {client['seconds']:.0f} s"
        yield "  " + one_line(f"{client['name'] or 'a client'}, pid {client['pid']}{how}, {at_work}")


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
        whose = f" ({client['name']})" if client["name"] else ""
        yield "  " + one_line(f"{client['session']}{whose}: {', '.join(said)}")
    if len(clients) > _FURTHER:
        yield f"  and {len(clients) - _FURTHER} more: greenroom status --json"
