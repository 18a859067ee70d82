"""The methods of the control socket: what commands ask a running gateway, and decide there.

Most answers are those of the `mcp` tool, in words for people. Two groups of methods have functions of their own: calls
that wait for a person's yes, and `greenroom refresh`.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from ..actors.workers import aside
from ..protocol.errors import GreenroomError, UsageError
from ..protocol.events import Place
from ..protocol.lifecycle import State
from ..protocol.typed_arguments import typed_arguments
from ..safety.approval import Verdict
from ..supervisor.attachments import AUDIT
from ..supervisor.room import port_of
from .doors import control_server as control
from .doors.control_protocol import number_in, object_in, text_in, texts_in, whole_in
from .exposures.mcp_tool import McpTool, ask
from .exposures.query_modes import CatalogueReader, CatalogueSnapshot
from .exposures.tool_definition import FOR_PEOPLE, Mode, parse_args, parse_request
from .exposures.tool_texts import foreign_arguments, lacking_arguments, waits
from .json_views import room_status_view, room_tools_view, room_tree_view
from .next_steps import Commands
from .result_meta import ALONE, NOTE, details_of

if TYPE_CHECKING:
    from ..actors.last_minutes import LastMinutes
    from ..observe.audit_trail import AuditTrail
    from ..protocol.status import ServerStatus
    from ..supervisor.port import RoomPort
    from ..supervisor.room import Greenroom
    from .doors.control_server import Handler


# ---- Calls that wait for a person's yes, as terminals see and decide them over the control socket -------------------
#
# Whoever may use the control socket is the owner. Clients have no such methods, at no door.
#
# `approvals` takes `watching`: for how many seconds this look counts as watching the desk
# (`safety.approval_desk`). `approve` takes the number of a call and one of the answers of the form.

_PART: Final = 1 << 18  # bytes of a tape that are made and written at once


def approval_methods(room: RoomPort) -> Mapping[str, Handler]:
    """The methods of the control socket for calls that wait for approval."""

    async def approvals(params: Mapping[str, Any]) -> Any:
        said = {"approvals": approvals_view(room, params), "waitingForApproval": len(room.services.approvals)}
        if params.get("number") is not None:
            said["hasEnded"] = room.services.approvals.has_ended(whole_in(params, "number"))
        return said

    async def approve(params: Mapping[str, Any]) -> Any:
        verdict = verdict_in(params)
        request = room.services.approvals.answer(whole_in(params, "number"), verdict).request
        return {"server": request.server, "tool": request.tool, "session": request.session}

    return {"approvals": approvals, "approve": approve}


def verdict_in(params: Mapping[str, Any]) -> Verdict:
    """What a person has decided. Raises `UsageError`."""
    try:
        return Verdict(params.get("verdict"))
    except ValueError:
        raise UsageError(f'"verdict" must be one of {", ".join(each.value for each in Verdict)}.') from None


def held_view(room: RoomPort) -> dict[str, Any]:
    """What holds calls now, as `held`; without anything, nothing."""
    found = [
        {
            "what": one.what,
            "step": one.step,
            "calls": one.calls,
            "servers": list(one.servers[:_NAMED]),
            "by": list(one.by[:_NAMED]),
            "holders": len(one.by),
        }
        for one in room.services.held()
    ]
    return {"held": found} if found else {}


_NAMED: Final = 10  # servers and holders that are named


def approvals_view(room: RoomPort, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The waiting calls; with a number in `params`, only the call of this number. Seconds have one decimal."""
    desk = room.services.approvals
    if params.get("watching") is not None:
        desk.watch(number_in(params, "watching"))
    found = desk.waiting()
    if params.get("number") is not None:
        one = desk.get(whole_in(params, "number"))
        found = [] if one is None else [one]
    now = desk.now()
    return [
        {
            "number": each.number,
            "server": each.request.server,
            "tool": each.request.tool,
            "session": each.request.session,
            "question": each.request.text,
            "waiting": round(now - each.since, 1),
            "left": round(max(0.0, each.until - now), 1),
        }
        for each in found
    ]


# ---- `greenroom refresh` ---------------------------------------------------------------------------------------------
#
# Starts servers of which nothing is known once, so that the command can follow the progress.
#
# That may take minutes, so it is not one long request. `begin` says which servers are asked, and since when.
# `look` says how each of them is doing, and may be called as often as one likes. Neither keeps anything: the
# progress is read off the catalogue and the status. It works in the same way over a gateway's control socket
# and in a room of the command's own.


def begin(room: Greenroom, servers: Sequence[str], *, every: bool = False) -> dict[str, Any]:
    """Begin to discover these servers; without names those that are unknown, or `every` one that is in service. Returns
    their `names`, and `since`, the time by the wall clock.

    Raises `UnknownServer`, `ServerDown` (a named server is out of service).
    """
    since = time.time()
    if every:
        servers = [row.server for row in room.status() if row.scope == "shared" and _can_start(row)]
    names = [name for server in servers for name in room.refresh(server)] if servers else room.refresh()
    return {"names": list(dict.fromkeys(names)), "since": since}


def _can_start(row: ServerStatus) -> bool:
    return not (row.disabled or row.broken or row.needs_auth or row.down or row.session_variables)


async def look(room: RoomPort, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How each server that was asked is doing: `state` is `known`, `failed` or `waiting`."""
    names: Sequence[str] = asked["names"]
    rows = {row.server: row for row in CatalogueReader(await CatalogueSnapshot.of(room)).rows()}
    return [
        {"server": name, "name": name, **_doing(room, name, rows.get(name), asked["since"])} for name in names
    ]


def _doing(room: RoomPort, name: str, row: ServerStatus | None, since: float) -> dict[str, Any]:
    # What was learned last: lists that are the same again make no new index, and no snapshot has them.
    entry = room.catalogue.entry(name) if row is not None else None
    if row is None:
        return {"state": "failed", "failure": "it is not configured any more"}
    if entry is not None and entry.fetched_at >= since:
        return {"state": "known", "tools": row.tool_count or 0, "resources": row.resource_count}
    failed_now = row.failed_ago is not None and time.time() - row.failed_ago >= since
    if row.down is not None or failed_now:
        return {"state": "failed", "failure": row.down or row.failure, "retryIn": row.retry_in}
    doing = {
        "state": "waiting",
        "waitsFor": _tried(row),
        "waitingFor": row.waiting_for,
        "lastLine": row.last_line,
    }
    return doing if row.retry_in is None else {**doing, "retryIn": row.retry_in}


def _tried(row: ServerStatus) -> str:
    """What a server waits for that is tried now, whatever came of the tries before."""
    is_up = row.state in (State.CONNECTING, State.CONNECTED)
    if row.failed_ago is not None and row.waiting_for in (None, Place.BREAKER.value) and not is_up:
        return "trying it again"
    return waits(msgspec.structs.replace(row, failed_ago=None, retry_in=None))


async def ask_typed(
    tool: McpTool,
    room: RoomPort,
    asked: Mapping[str, Any],
    texts: Mapping[str, Any],
    names: Sequence[str] = (),
) -> Mapping[str, Any]:
    """The result of a request to the `mcp` tool. `texts`: arguments of a call that are read by the tool's schema, for
    which its server is asked first if nothing is known of it. `names`: those of the other arguments that were typed one
    by one, and not as an object. A call that the schema clearly refuses is not sent."""
    try:
        request = parse_request(asked)
    except UsageError:
        return await ask(tool, asked)  # says what is wrong with it
    is_known = room.catalogue.index.get(request.subject) is not None
    if request.mode is not Mode.CALL or not (texts or names or is_known):
        return await ask(tool, asked)
    given = parse_args(asked.get("args")) or {}
    try:
        target = await room.find(request.subject, request.server)
    except GreenroomError as error:
        request = msgspec.structs.replace(request, args={**given, **texts})
        return (await tool.why_refused(error, request)).as_result()
    args = {**given, **typed_arguments(texts, target.input_schema)}
    refusal = lacking_arguments(target, args, {*texts, *names}, texts) if target.kind == "tool" else None
    if refusal is not None:
        return refusal.as_result()
    result = await ask(tool, {**asked, "args": args})
    note = foreign_arguments(target, args) if target.kind == "tool" else ""
    return {**result, "_meta": {**result["_meta"], NOTE: note}} if note else result


def commands(room: Greenroom, version: str, config: str | None = None) -> Mapping[str, control.Handler]:
    """The methods of the control socket. The answers are those of the `mcp` tool, in words for people. `config`: the
    file that was named when the gateway was started. `vitals` is for leak checks: it tells what the process holds that
    cannot be seen from outside."""
    port = port_of(room)
    numbers = itertools.count(1)

    async def hello(_params: Mapping[str, Any]) -> Any:
        from ..config.files import working_directory

        folder = os.fspath(working_directory("/"))
        return {"pid": os.getpid(), "version": version, "folder": folder, "config": config}

    async def status(_params: Mapping[str, Any]) -> Any:
        said = await room_status_view(port)
        return {
            **said,
            "waitingForApproval": len(port.services.approvals),
            **held_view(port),
            **audit_view(port),
        }

    async def tree(_params: Mapping[str, Any]) -> Any:
        return await room_tree_view(port)

    async def explain(params: Mapping[str, Any]) -> Any:
        from .explain import RECENT, explained, past_of

        view = await room_status_view(port)
        pid = None if params.get("pid") is None else whole_in(params, "pid")
        typed = Commands(text_in(params, "config"), pid)
        server = text_in(params, "server") or ""
        tree = await port.services.surveyed_tree()
        node = next((one for one in tree.children[0].children if one.name == server), None)
        events, now = await aside(port.services.recent(RECENT)), port.services.now()
        past = past_of(server, events, now, None if node is None else node.next)
        return explained(view, room.config, server, typed, runs=True, past=past)

    async def keys(_params: Mapping[str, Any]) -> Any:
        return {name: [one.key, one.origin] for name, one in port.services.pin_keys.items()}

    async def tools(params: Mapping[str, Any]) -> Any:
        return await room_tools_view(port, text_in(params, "server"))

    async def mcp(params: Mapping[str, Any]) -> Any:
        # A command has a session of its own, and its children per session end with it. Whoever may use the control
        # socket is the owner, so a command that was told "yes" or "no" may say so. `asks`: it can be told.
        on_approval = allowing if params.get("allowed") is True else None
        if params.get("refused") is True:
            on_approval = _refusing
        name, asks = f"command-{next(numbers)}", params.get("asks") is True
        async with room.session(name, on_approval=on_approval) as session:
            own = port_of(session)
            own.came_by("command line")
            with port.services.approvals.asked_elsewhere(name, will_be_told=asks and on_approval is None):
                asked, texts = object_in(params, "arguments"), object_in(params, "texts")
                names = texts_in({"names": [], **params}, "names")
                result = await ask_typed(McpTool(own, hints=FOR_PEOPLE), own, asked, texts, names)
        details = details_of(result)
        is_answered = details["mode"] == "call" and details.get("error") in (None, "tool_error")
        if is_answered and port.catalogue.is_per_session(details["server"]):
            return {**result, "_meta": {**result["_meta"], ALONE: True}}
        return result

    async def reconnect(params: Mapping[str, Any]) -> Any:
        ended = await room.reconnect(text_in(params, "server"))
        return {
            "servers": [
                {"server": name, "name": name, "error": str(error) if error else None}
                for name, error in ended
            ]
        }

    async def refresh(params: Mapping[str, Any]) -> Any:
        return begin(room, texts_in(params, "servers"), every=bool(params.get("every")))

    async def refreshed(params: Mapping[str, Any]) -> Any:
        asked = {"names": texts_in(params, "names"), "since": number_in(params, "since")}
        return await look(port, asked)

    async def tape(params: Mapping[str, Any]) -> Any:
        kept = port.services.last_minutes(number_in(params, "seconds"))
        return tape_parts(kept, texts_in(params, "redact"))

    async def vitals(_params: Mapping[str, Any]) -> Any:
        return {
            "pid": os.getpid(),
            "tasks": len(anyio.get_running_tasks()),
            "threads": threading.active_count(),
        }

    return {
        "hello": hello,
        "status": status,
        "tree": tree,
        "explain": explain,
        "keys": keys,
        "tools": tools,
        "mcp": mcp,
        "reconnect": reconnect,
        "refresh": refresh,
        "refreshed": refreshed,
        **approval_methods(port),
        "tape": tape,
        "vitals": vitals,
    }


async def tape_parts(kept: LastMinutes, redact: Sequence[str]) -> AsyncGenerator[str]:
    """A tape of the last minutes in parts, which are made one after another."""
    from ..tape.last_minutes_tape import tape_of

    lines = tape_of(kept, redact)

    def part() -> str:
        made: list[bytes] = []
        while sum(map(len, made)) < _PART and (line := next(lines, None)) is not None:
            made.append(line)
        return b"".join(made).decode(errors="replace")

    while text := await aside(part):
        yield text


def audit_view(room: RoomPort) -> dict[str, Any]:
    """The audit file, if there is one."""
    trail: AuditTrail | None = room.services.attachment(AUDIT)
    if trail is None:
        return {}
    file = trail.file
    return {"audit": {"file": str(file.path), "failing": file.failing, "missed": file.missed}}


async def allowing(_request: object) -> Verdict:
    """For a command whose user has allowed its one call."""
    return Verdict.ONCE


async def _refusing(_request: object) -> Verdict:
    """For a command whose user has refused its one call."""
    return Verdict.DENY
