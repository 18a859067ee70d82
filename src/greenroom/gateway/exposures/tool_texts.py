"""The texts of the modes that only look: status, list, search, describe, instructions.

Pure: facts in, `McpToolAnswer` out. Each function builds the text and its `details` together, so that both say the
same. The wording is a contract: existing prompts and tests of agents rely on it. Its numbers (50 characters
of a description, 300 of instructions) are part of it. Lists keep to the output guard's bounds (`Bounds`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ...actors.host import ASKED_FOR
from ...catalogue.fingerprints import changed_in_words
from ...catalogue.hidden_characters import hidden_instructions, unhidden_value
from ...catalogue.skills import FILE, files_of, without_front_matter
from ...protocol.content import (
    arguments_may_be_at_fault,
    expected_parameters,
    parameters_text,
    schema_lines,
)
from ...protocol.errors import (
    DISABLED,
    AmbiguousTool,
    ApprovalNeeded,
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    GreenroomError,
    RateLimited,
    Reach,
    RemoteError,
    RepeatedCall,
    ServerLost,
    Unavailable,
    UsageError,
    some_of,
)
from ...protocol.jsonrpc.terms import METHOD_NOT_FOUND
from ...protocol.lifecycle import State
from ...protocol.near_names import meant, nearest
from ...protocol.safe_text import counted, one_line, shortened, tools_in_words, typed, unhidden
from ...protocol.status import about, hidden_in_words, next_try, wait_in_words
from ...protocol.typed_arguments import foreign_in, mistyped_in, parameters_in, required_in
from .tool_definition import FOR_MODELS, Hints, McpToolAnswer

if TYPE_CHECKING:
    from ...catalogue.entries import ServerEntry
    from ...catalogue.namespace import Target
    from ...catalogue.search import SearchPage
    from ...protocol.errors import Problem
    from ...protocol.status import ServerStatus
    from ...supervisor.port import SkillRead
    from .output_files import OutputPage


# ---- The texts of requests that failed: unknown names, and calls that ended with an error ---------------------------
#
# Pure as well. `details.error` is the error's own code (`protocol/errors.py`). Errors that a server
# answered, and broken connections, all have the code `call_failed`, because agents know that one.
# `details.reach` says how far the call got. If the call may have run without our knowing, the message itself
# says so, because a model decides from the text whether to try again.

SHOWN_ID: Final = 40
_LONGEST_NAME: Final = 256  # characters
_TOLD_AS_THEY_ARE: Final = frozenset(
    {
        "server_unavailable",
        "server_not_connected",
        "server_busy",
        "auth_required",
        "connect_failed",
        "approval_denied",
        "approval_required",
        "rate_limited",
        "repeated_call",
    }
)
_A_TYPE: Final = {  # of a parameter, in words
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list, such as [1, 2]",
    "object": 'an object, such as {"a": 1}',
}
# Also the first words of an error of another `mcp` tool behind this one.
_FAILED: Final = "Failed to call tool:"


def _short(name: str) -> str:
    """A name that somebody made up, as it is said again: it can be megabytes."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def unknown_server(mode: str, server: str, known: Sequence[str], hints: Hints) -> McpToolAnswer:
    there = (
        f" Configured: {some_of(known)}.{meant(server, known)}" if known else " No servers are configured."
    )
    text = hints.with_step(f'Server "{server}" not found.', hints.see_servers, there)
    return McpToolAnswer.of(text, mode=mode, server=server, error="server_not_found")


def disabled_server(mode: str, server: str) -> McpToolAnswer:
    text = f'Server "{server}" is disabled. To use it again: greenroom enable {typed(server)}'
    return McpToolAnswer.of(text, mode=mode, server=server, error=DISABLED)


def broken_server(mode: str, server: str, reason: Problem) -> McpToolAnswer:
    text = f'Server "{server}" cannot be used: {reason}'
    return McpToolAnswer.of(text, mode=mode, server=server, error=reason.code)


def unknown_output(output: str) -> McpToolAnswer:
    text = f'There is no output "{output[:SHOWN_ID]}": it was removed, or never kept. Call the tool again.'
    return McpToolAnswer.of(text, mode="output", output=output[:SHOWN_ID], error="output_not_found")


def unreadable_output(output: str, why: str) -> McpToolAnswer:
    text = f'The output "{output[:SHOWN_ID]}" cannot be read ({why}). Call the tool again.'
    return McpToolAnswer.of(text, mode="output", output=output[:SHOWN_ID], error="output_unreadable")


def lacking_arguments(
    target: Target, given: Mapping[str, Any], names: Collection[str], texts: Mapping[str, str]
) -> McpToolAnswer | None:
    """The answer to a call that its tool's schema clearly refuses: an argument is missing, one of the `names`, which a
    person typed, is none of its, or one of the `texts` is of another type. The call is not sent. None: the server
    decides."""
    schema = target.input_schema
    missing = [key for key in required_in(schema) if key not in given]
    foreign = [key for key in foreign_in(schema, given) if key in names]
    mistyped = mistyped_in(schema, texts)
    if not (missing or foreign or mistyped):
        return None
    known = parameters_in(schema)
    wanted = one_line(" and ".join(missing) if len(missing) < 3 else some_of(missing)) or '""'
    said = [f"it requires {wanted}"] if missing else []
    said += [f'it has no "{_short(key)}"' for key in foreign]
    said += [
        f'{_short(key)} must be {_A_TYPE[kind]}, not "{shortened(texts[key], SHOWN_ID)}"'
        for key, kind in mistyped.items()
    ]
    near = "".join(dict.fromkeys(meant(key, known) for key in foreign))
    fits = {key: given[key] for key in given if key not in mistyped}
    step = f"To call it: {call_line(target, _under_known_names(target, fits, foreign), mistyped)}"
    text = f"{target.name} was not called: {', and '.join(said)}.{near}\n{step}"
    if foreign:
        text += "\n--args '{…}' also sends names that the schema does not have."
    details = {"mode": "call", "server": target.server, **subject_of(target), "error": "invalid_args"}
    return McpToolAnswer.of(text, **details, message=text, reach=str(Reach.NOT_SENT))


def _under_known_names(
    target: Target, given: Mapping[str, Any], foreign: Collection[str]
) -> Mapping[str, Any]:
    """What was given, each of the `foreign` names replaced by the one that was probably meant, or left out."""
    free = [key for key in parameters_in(target.input_schema) if key not in given]
    meant_by = {key: nearest(key, free) if key in foreign else key for key in given}
    return {name: given[key] for key, name in meant_by.items() if name is not None}


def foreign_arguments(target: Target, given: Mapping[str, Any]) -> str:
    """What a person is told who gave arguments that the tool's schema does not name. "": the schema names all."""
    foreign = foreign_in(target.input_schema, given)
    if not foreign:
        return ""
    known = [*parameters_in(target.input_schema)]
    names = ", ".join(f'"{_short(key)}"' for key in foreign)
    near = "".join(dict.fromkeys(meant(key, known) for key in foreign))
    return f"{target.name} was given {names}, which its schema does not name.{near}"


def refused_request(
    mode: str, error: GreenroomError, target: Target | None = None, hints: Hints = FOR_MODELS
) -> McpToolAnswer:
    """A request that is invalid in itself. `target`: the tool whose arguments are wrong, if that is why."""
    text = error.message + expected_parameters(target, for_people=hints.for_people)
    return McpToolAnswer.of(text, mode=mode, **subject_of(target), error=error.code)


def unknown_tool(
    mode: str,
    tool: str,
    *,
    server: str | None,
    names: Sequence[str],
    suggestions: Sequence[Target],
    are_full_names: bool = False,
    connected_now: bool = False,
    unknown: Sequence[ServerStatus] = (),
    args: Mapping[str, Any] = {},  # never written to
    hints: Hints,
) -> McpToolAnswer:
    """No tool has this name. `names`: the tools of `server`. `are_full_names`: servers have tools of this
    name, which are the suggestions. `connected_now`: the server was connected to make sure. `args`: what the tool was
    called with, for the commands that a person is shown."""
    tool = _short(tool)
    details: dict[str, Any] = {"mode": mode, "requestedTool": tool, "error": "tool_not_found"}
    if suggestions:
        details["suggestions"] = [one.name for one in suggestions]
    if unknown:
        details["unknownServers"] = unknown_details(unknown)
    if server is not None:
        details["server"] = server
    step = ""
    if server is not None and connected_now:
        details["error"] = "tool_not_found_after_reconnect"
        text = f'Tool "{tool}" not found on "{server}", which was asked for its list just now.'
        if not hints.for_people:
            text += f' Available tools on "{server}": {some_of(names) or "none"}.'
    elif are_full_names:
        text = f'No tool is called "{tool}" alone.'
    else:
        text = f'Tool "{tool}" not found.'
        text += f' Server "{server}" has: {some_of(names)}.' if server and names else ""
        step = "" if server and names else hints.search
    if hints.for_people and suggestions:
        is_described = mode == "describe"
        lines = [
            f"greenroom describe {typed(one.name)}" if is_described else _proposed_call(one, args)
            for one in suggestions
        ]
        said = [text, *_proposed(lines, are_full_names=are_full_names)]
        return McpToolAnswer.of("\n".join(said), **details)
    if hints.for_people and connected_now:
        step = f"To see its tools: greenroom tools {typed(server or '')}"
    near = f" Did you mean: {', '.join(one.name for one in suggestions)}" if suggestions else ""
    text = hints.with_step(text, step, near)
    if unknown:
        text += hints.between + unknown_sentence(unknown, hints)
    return McpToolAnswer.of(text, **details)


def _proposed_call(target: Target, args: Mapping[str, Any]) -> str:
    """The command that calls this tool with what another name was called with."""
    return call_line(target, _under_known_names(target, args, foreign_in(target.input_schema, args)))


def _proposed(commands: Sequence[str], *, are_full_names: bool) -> list[str]:
    """Commands, each on a line of its own. A tool is called by its full name, because a server that is asked later may
    have one of the same name."""
    if len(commands) == 1:
        return [f"{'By its full name' if are_full_names else 'Did you mean'}: {commands[0]}"]
    return ["By their full names:" if are_full_names else "Did you mean one of these?", *commands]


def excluded_tool(mode: str, tool: str, server: str, key: str, file: str) -> McpToolAnswer:
    """A tool that its server has, and that the configuration excludes by this key."""
    where = f'"{key}" of the server "{server}"' + (f" in {file}" if file else "")
    is_named = key == "excludeTools"
    text = f'Tool "{tool}" is excluded: it is {"" if is_named else "not "}in {where}.'
    text += f"\nTo use it, {'take it out of' if is_named else 'add it to'} that list."
    return McpToolAnswer.of(text, mode=mode, requestedTool=tool, server=server, error="tool_not_found")


def server_as_tool(mode: str, server: str) -> McpToolAnswer:
    """A server was named where a tool is wanted."""
    text = f'"{server}" is a server, and not a tool.\nTo see its tools: greenroom tools {typed(server)}'
    return McpToolAnswer.of(text, mode=mode, requestedTool=server, error="tool_not_found")


def not_known_yet(mode: str, tool: str, owners: Sequence[ServerStatus], hints: Hints) -> McpToolAnswer:
    """A tool whose server was never asked, so nobody knows whether the tool exists."""
    servers = " and ".join(f'"{row.server}"' for row in owners)
    text = f'Nothing is known of {servers} yet, nor whether it has "{tool}".'
    text += hints.between + unknown_sentence(owners, hints)
    return McpToolAnswer.of(
        text,
        mode=mode,
        requestedTool=tool,
        server=owners[0].server,
        error="not_known_yet",
        unknownServers=unknown_details(owners),
    )


def other_tool(name: str, hints: Hints) -> McpToolAnswer:
    """The answer to a client that called a server's tool by its name, and not through the `mcp` tool."""
    name = _short(name)
    text = f"Unknown tool: {name}. Use {hints.to_call(name)} to call a server's tool."
    return McpToolAnswer.of(text, mode="call", requestedTool=name, error="tool_not_found")


def promoted(target: Target, names: Sequence[str]) -> McpToolAnswer:
    """A tool that is listed from now on. (Not a refusal, but it says how to go on like one.)"""
    text = f'"{target.name}" is now a tool of its own for this session. If you do not see it, call it as before: '
    return McpToolAnswer.of(
        f'{text}mcp({{ tool: "{target.name}" }}).', mode="promote", tool=target.name, promoted=list(names)
    )


def not_promoted(target: Target) -> McpToolAnswer:
    """A tool that cannot be listed, or a client that would not hear of it."""
    text = f'"{target.name}" cannot be listed for this client. Call it as mcp({{ tool: "{target.name}" }}).'
    return McpToolAnswer.of(text, mode="promote", **subject_of(target), error="not_promoted")


# ---- calls in the background (no refusals either, but for the last two) --------------------------------------------


def in_background(tool: str, task: str) -> McpToolAnswer:
    """A call goes on as a task."""
    text = f'"{tool}" runs in the background. For its result: mcp({{ output: "{task}" }})'
    return McpToolAnswer.of(text, mode="call", requestedTool=tool, task=task)


def task_told(task: str, status: str, message: str) -> McpToolAnswer:
    """A task that has no result, or none yet."""
    said = f": {message}" if message else ""
    if status == "failed":
        return McpToolAnswer.of(
            f"The task failed{said}", mode="task", task=task, status=status, error="task_failed"
        )
    if status == "cancelled":
        return McpToolAnswer.of(f"The task was cancelled{said}", mode="task", task=task, status=status)
    text = f'The task still runs{said}. To look again: mcp({{ output: "{task}" }})'
    return McpToolAnswer.of(text, mode="task", task=task, status=status)


def unknown_task(task: str) -> McpToolAnswer:
    text = "There is no such task. Its result may have been dropped when its time to live was over."
    return McpToolAnswer.of(text, mode="task", task=task, error="task_not_found")


def not_in_background(tool: str, why: str) -> McpToolAnswer:
    return McpToolAnswer.of(why, mode="call", requestedTool=tool, error="busy")


def no_tasks() -> McpToolAnswer:
    """Here nobody keeps a result."""
    text = "Nothing runs in the background here. Call the tool without `background`."
    return McpToolAnswer.of(text, mode="call", error="no_tasks")


def ambiguous_tool(mode: str, tool: str, candidates: Sequence[str]) -> McpToolAnswer:
    error = AmbiguousTool(tool, candidates)
    return McpToolAnswer.of(
        error.message, mode=mode, requestedTool=tool, error=error.code, candidates=list(candidates)
    )


def failed_connect(server: str, error: CallError) -> McpToolAnswer:
    """An explicit connect that failed."""
    code = error.code if error.code in _TOLD_AS_THEY_ARE else "connect_failed"
    details = {"mode": "connect", "server": server, "error": code}
    if isinstance(error, ConnectFailed) or error.code in _TOLD_AS_THEY_ARE:
        return McpToolAnswer.of(error.message, **details)
    return McpToolAnswer.of(f'Failed to connect to "{server}": {error.message}', **details)


def failed_call(error: CallError, target: Target | None, hints: Hints = FOR_MODELS) -> McpToolAnswer:
    """A call that was refused, or was accepted and has no result."""
    details = _call_details(error, target)
    if isinstance(error, Unavailable):
        return McpToolAnswer.of(hints.with_step(error.message, hints.to_try_now(error.server)), **details)
    if isinstance(error, ConnectFailed) and hints.for_people:
        return McpToolAnswer.of(
            hints.with_step(error.message, hints.to_mend(error.server, error.kind)), **details
        )
    if error.code in _TOLD_AS_THEY_ARE:
        return McpToolAnswer.of(error.message, **details)
    said = error.message if target is None else target.in_caller_names(error.message)
    if isinstance(error, RemoteError) and error.rpc_code == METHOD_NOT_FOUND and not said.startswith(_FAILED):
        asked = next((method for method in ASKED_FOR if method in said), None)
        what = (
            "does not have this" if asked is None else f"made a request that could not be answered, {asked}"
        )
        said = f'server "{error.server}" {what} (it answered: {said})'
    failed = f"{target.name} failed:" if hints.for_people and target is not None else _FAILED
    message = said if said.startswith(_FAILED) else f"{failed} {said}"
    if hints.for_people and isinstance(error, CallTimeout | ServerLost):
        step = f"To see why, and what happens next: greenroom explain {typed(error.server)}"
        return McpToolAnswer.of(hints.with_step(message, step), **details)
    if arguments_may_be_at_fault(error):
        message += expected_parameters(target, message, for_people=hints.for_people)
    return McpToolAnswer.of(message, **details)


def _call_details(error: CallError, target: Target | None) -> dict[str, Any]:
    details: dict[str, Any] = {"mode": "call", "server": error.server, **subject_of(target)}
    details |= {"error": error.code, "message": error.message, "reach": str(error.reach)}
    if isinstance(error, Unavailable):
        details |= {"failedAgo": round(error.failed_ago), "retryIn": round(error.retry_in, 1)}
    if isinstance(error, ApprovalNeeded):
        details |= {"reason": error.reason, "question": error.question}
    if isinstance(error, RateLimited | RepeatedCall):
        details |= {"limit": error.limit, "retryIn": round(error.retry_in, 1)}
    if isinstance(error, Busy):
        details |= {"inFlight": error.in_flight, "queued": error.queued, "retryIn": error.retry_in}
    return details


def subject_of(target: Target | None, *, read: bool = True) -> Mapping[str, str]:
    """What was called, under the key that it has in `details`. `read`: False if it was only found."""
    if target is None:
        return {}
    if target.kind == "skill":
        return {"skill": target.name}
    if not read:
        return {"tool": target.name}
    return {"resourceUri": target.original} if target.kind == "resource" else {"tool": target.name}


# ---- How much of a long list one answer holds ------------------------------------------------------------------------
#
# At most the requested entries, within the output guard's bounds.
#
# A client requests the rest with `offset`, so a list is not cut in the middle and no file is needed. An entry
# that is too long for any page is cut: a list is for finding things, and `describe` shows all of one.

_AROUND: Final = 1_024  # bytes kept free for the text above and below a list
_LINES_AROUND: Final = 16
_CUT: Final = "… (cut here; describe it for the rest)"


class Bounds(msgspec.Struct, frozen=True):
    """The output guard's bounds for one answer: bytes of UTF-8, and lines. 0: no bound."""

    max_bytes: int = 0
    max_lines: int = 0

    def fitting(self, entries: Sequence[str], between: str = "\n") -> list[str]:
        """The first entries, as many as fit one answer when joined by `between`. If not even one fits, the
        first entry, cut."""
        size, lines, breaks = self._bytes, self._lines, between.count("\n")
        kept: list[str] = []
        for entry in entries:
            size -= _size(entry) + len(between)
            lines -= entry.count("\n") + max(1, breaks)
            if size < 0 or lines < 0:
                break
            kept.append(entry)
        return kept or [self._cut(entry) for entry in entries[:1]]

    def _cut(self, entry: str) -> str:
        lines = entry.split("\n", self._lines)[: self._lines]
        size = max(0, self._bytes - len(_CUT.encode()))
        return "\n".join(lines).encode(errors="replace")[:size].decode(errors="ignore") + _CUT

    @property
    def _bytes(self) -> int:
        return max(1, self.max_bytes - _AROUND) if self.max_bytes else 1 << 40

    @property
    def _lines(self) -> int:
        return max(1, self.max_lines - _LINES_AROUND) if self.max_lines else 1 << 40


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


SHORT: Final = 50
_WITH_PARAMETERS: Final = 3  # matches of a search that are shown with their parameters
_ROOM: Final = 1_900  # characters for these, of which
_SAID: Final = 160  # of a description, where there is not room for all
_PARAMETER: Final = 90  # of the line of a parameter there
_AROUND_PARAMETERS: Final = 90  # of the lines above and below them
PREVIEW: Final = 300
MOST_PROBLEMS: Final = 5
SHOWN_QUERY: Final = 200
UNBOUNDED: Final = Bounds()


# ---- status --------------------------------------------------------------------------------------------------------
class ServerLine(msgspec.Struct, frozen=True):
    """One server in the overview: a word for programs, and a mark and a note for people."""

    word: str
    mark: str
    note: str


def line_of(row: ServerStatus) -> ServerLine:
    """The line for a server. What waiting cannot change comes first, then connected, then trouble, then the
    cache."""
    if row.untrusted:
        return ServerLine("untrusted", "⚠", f"not trusted: {row.broken}")
    if row.broken is not None:
        return ServerLine("broken", "✗", f"broken: {row.broken}")
    if row.disabled:
        return ServerLine("disabled", "⊘", "disabled")
    if row.state is State.CONNECTED:
        return ServerLine("connected", "✓", _counted(row))
    if row.needs_auth:
        return ServerLine("needs-auth", "⚠", "needs auth")
    if row.down is not None and row.word == "down":
        return ServerLine("down", "○", f"down: {row.down}")
    if is_unknown(row) and (row.waiting is not None and row.waiting_for != "breaker"):
        line = f": {row.last_line}" if row.last_line else ""
        return ServerLine("not-connected", "○", f"not known yet, {waits(row)}{line}")
    if row.failed_ago is not None:
        quarantined = "" if row.quarantined is None else ", quarantined"
        if row.word == "lost":
            return ServerLine("lost", "✗", f"lost {_ago(row.failed_ago)}; a call starts it again")
        return ServerLine("failed", "✗", f"failed {_ago(row.failed_ago)}{quarantined}")
    if row.cached:
        return ServerLine("cached", "○", f"{_counted(row)}, cached")
    return ServerLine("not-connected", "○", "not connected")


def _ago(seconds: float) -> str:
    return f"{round(seconds)} s ago" if seconds < 120 else f"{about(seconds)} ago"


def status(
    rows: Sequence[ServerStatus],
    hints: Hints,
    *,
    limit: int | None = None,
    offset: int = 0,
    bounds: Bounds = UNBOUNDED,
) -> McpToolAnswer:
    """A line for each server in the order of the configuration. `rows`: one per server. `limit`, `offset`:
    the page."""
    disabled = sum(row.disabled for row in rows)
    connected = sum(row.state is State.CONNECTED and line_of(row).word == "connected" for row in rows)
    total = sum(row.tool_count or 0 for row in rows if not row.disabled)
    resources = sum(row.resource_count for row in rows if not row.disabled)
    servers = counted(len(rows) - disabled, "server")
    head = f"MCP: {connected}/{servers}, {tools_in_words(total, resources)}"
    head += f" ({disabled} disabled)" if disabled else ""
    wanted = [(row, line_of(row)) for row in islice(rows, offset, None if limit is None else offset + limit)]
    shown = bounds.fitting([f"{line.mark} {row.server} ({line.note})" for row, line in wanted])
    page = _ListedPart(offset, len(shown), len(rows))
    text = [head, "", *shown, *page.footer(hints)]
    text += ["", hints.overview] if rows else ["No servers are configured."]
    return McpToolAnswer.of(
        "\n".join(text),
        mode="status",
        servers=[_server_details(row, line) for row, line in wanted[: len(shown)]],
        totalTools=total,
        **({"totalResources": resources} if resources else {}),
        connectedCount=connected,
        disabledCount=disabled,
        **page.details(),
    )


class _ListedPart(msgspec.Struct, frozen=True):
    """Which of `total` entries an answer shows."""

    offset: int
    shown: int
    total: int

    @property
    def next_offset(self) -> int | None:
        end = self.offset + self.shown
        return end if end < self.total else None

    def footer(self, hints: Hints) -> list[str]:
        """The lines below a list that say how to get the rest; none when everything is shown."""
        if self.shown == self.total:
            return []
        more = "" if self.next_offset is None else f" — {hints.for_more(self.next_offset)}"
        return ["", f"{self.shown} of {self.total}{more}"]

    def details(self) -> dict[str, Any]:
        if self.shown == self.total:
            return {}
        return {"hasMore": self.next_offset is not None, "nextOffset": self.next_offset}


def _server_details(row: ServerStatus, line: ServerLine) -> dict[str, Any]:
    details: dict[str, Any] = {"name": row.server, "status": line.word, "toolCount": row.tool_count or 0}
    if row.resource_count:
        details["resourceCount"] = row.resource_count
    if row.failed_ago is not None and line.word in ("failed", "lost"):
        details |= {"failedAgo": round(row.failed_ago), "failure": row.failure}
    if row.broken is not None:
        details["failure"] = row.broken
    if row.problems:
        details["problems"] = list(row.problems)
    if row.changed:
        details["changed"] = list(row.changed)
    if row.hidden:
        details["hidden"] = list(row.hidden)
    return details


def _counted(row: ServerStatus) -> str:
    """How many tools the server has, those that have changed, and why its lists are incomplete."""
    changed = (changed_in_words(row.server, row.changed, row.flapping),) if row.changed else ()
    hidden = (f"hidden characters in {hidden_in_words(row.hidden)}",) if row.hidden else ()
    return "; ".join(
        (
            tools_in_words(row.tool_count or 0, row.resource_count),
            *changed,
            *hidden,
            *map(_brief, row.problems[:MOST_PROBLEMS]),
        )
    )


def _brief(problem: str) -> str:
    return cut(" ".join(problem.split()), PREVIEW)


def _incomplete(row: ServerStatus) -> list[str]:
    problems = [f"Incomplete: {_brief(problem)}" for problem in row.problems[:MOST_PROBLEMS]]
    changed = [f"Tools: {changed_in_words(row.server, row.changed, row.flapping)}"] if row.changed else []
    return ["", *changed, *problems] if changed or problems else []


# ---- list and instructions -----------------------------------------------------------------------------------------
def server_list(
    row: ServerStatus,
    tools: Sequence[Target],
    entry: ServerEntry | None,
    hints: Hints,
    *,
    limit: int,
    offset: int = 0,
    bounds: Bounds = UNBOUNDED,
) -> McpToolAnswer:
    """A page of the tools of one server, sorted by name, and behind them its skills."""
    server = row.server
    shown = bounds.fitting([short_line(tool) for tool in tools[offset : offset + limit]])
    page = _ListedPart(offset, len(shown), len(tools))
    told = tools[offset : offset + len(shown)]
    details: dict[str, Any] = {
        "mode": "list",
        "server": server,
        "tools": [tool.name for tool in told if tool.kind != "skill"],
        "count": len(tools),
        **page.details(),
    }
    if skills := [tool.name for tool in told if tool.kind == "skill"]:
        details["skills"] = skills
    if row.problems:
        details["problems"] = list(row.problems)
    connected = row.state is State.CONNECTED
    if tools:
        head = f"{server} ({counted_targets(tools)}{'' if connected else ' (not connected, cached)'}):"
        text = [head, "", *shown, *page.footer(hints), *_incomplete(row), *_preview(server, entry, hints)]
        return McpToolAnswer.of("\n".join(text), **details)
    if connected:
        return McpToolAnswer.of(f'Server "{server}" has no tools.', **details)
    if entry is not None and entry.known:
        return McpToolAnswer.of(f'Server "{server}" has no cached tools (not connected).', **details)
    text = hints.with_step(f'Server "{server}" is configured but not connected.', hints.to_connect(server))
    if row.failure is not None or row.needs_auth:
        text = f'Server "{server}" is configured but not connected. {unknown_sentence([row], hints)}'
    if row.waiting is not None:
        line = f" Its last line: {row.last_line}" if row.last_line else ""
        text = f'Server "{server}" is not known yet ({waits(row)}{_why(row)}); retry in a moment.{line}'
        details["waitsFor"] = waits(row)
    return McpToolAnswer.of(text, **details, error="not_connected")


def _preview(server: str, entry: ServerEntry | None, hints: Hints) -> list[str]:
    if entry is None or not entry.instructions:
        return []
    whole = unhidden(entry.instructions).strip()
    preview = cut(whole, PREVIEW)
    more = [] if preview == whole else [f"({hints.instructions.format(server=server)})"]
    return ["", "Server instructions:", preview, *more, *_hidden_from(entry)]


def _hidden_from(entry: ServerEntry) -> list[str]:
    found = hidden_instructions(entry.instructions)
    return [f"Hidden characters, which are not shown: {found}"] if found else []


def instructions(server: str, entry: ServerEntry | None, hints: Hints) -> McpToolAnswer:
    """What a server says about itself, in full."""
    details = {"mode": "instructions", "server": server}
    if entry is None:
        text = hints.with_step(f'No instructions cached for "{server}".', hints.to_connect(server))
        return McpToolAnswer.of(text, **details, error="not_connected")
    if not entry.instructions:
        return McpToolAnswer.of(
            f'Server "{server}" does not provide instructions.', **details, error="no_instructions"
        )
    hidden = _hidden_from(entry)
    text = "\n\n".join([f"{server} instructions:", *hidden, entry.instructions])
    if hidden:
        details["hidden"] = hidden_instructions(entry.instructions)
    return McpToolAnswer.of(text, **details, instructions=entry.instructions)


# ---- search and describe -------------------------------------------------------------------------------------------
def search(
    query: str,
    page: SearchPage,
    *,
    server: str | None,
    full: bool | None,
    offset: int,
    connecting: Sequence[str] = (),
    unknown: Sequence[ServerStatus] = (),
    fits_well: bool = False,
    hints: Hints,
    bounds: Bounds = UNBOUNDED,
) -> McpToolAnswer:
    """A page of matches: each with its parameters (`full`), each in one line (False), or (None) the first three with
    their parameters, as far as there is room, and the others in one line. `fits_well`: the best match has what the
    query says, so a person is not told of servers that may have more."""
    query = cut(query, SHOWN_QUERY)
    targets = [match.target for match in page.matches]
    between = "\n\n" if full else "\n"
    if full is None:
        entries = [f"{entry}\n" for entry in _brief_entries(targets[:_WITH_PARAMETERS], hints)]
        entries += map(short_line, targets[_WITH_PARAMETERS:])
    else:
        entries = [full_entry(target, hints) if full else short_line(target) for target in targets]
    shown = bounds.fitting(entries, between)
    seen = _ListedPart(offset, len(shown), page.total)
    details: dict[str, Any] = {
        "mode": "search",
        "query": query,
        "matches": [
            {"server": match.target.server, **subject_of(match.target, read=False), "score": match.score}
            for match in page.matches[: len(shown)]
        ],
        "count": page.total,
        "hasMore": seen.next_offset is not None,
        "nextOffset": seen.next_offset,
    }
    if connecting:
        details["connectingServers"] = list(connecting)
    if unknown:
        details["unknownServers"] = unknown_details(unknown)
    if not page.total:
        return McpToolAnswer.of(_nothing(query, server, connecting, unknown, hints), **details)
    has_skills = any(match.target.kind == "skill" for match in page.matches)
    if has_skills:
        count = "1 skill" if page.total == 1 else f"{page.total:,} tools and skills"
    else:
        count = counted(page.total, "tool")
    head = f'Found {count} matching "{query}":' if query.strip() else f"{count}:"
    untold = [] if hints.for_people and fits_well else [*filter(None, [unknown_sentence(unknown, hints)])]
    if hints.for_people and not full:
        untold.insert(0, f"To see one, and how it is called: {hints.to_describe(typed(targets[0].name))}")
    untold = ["", *untold] if untold else []
    text = [
        head,
        "",
        between.join(shown).rstrip("\n"),
        *untold,
        *seen.footer(hints),
        *([] if hints.for_people and fits_well else _still_connecting(connecting, hints)),
    ]
    return McpToolAnswer.of("\n".join(text), **details)


def describe(target: Target, hints: Hints = FOR_MODELS) -> McpToolAnswer:
    """One tool with its parameters; for a person, also how it is called."""
    text = [target.name, f"Server: {target.server}"]
    if target.kind == "resource":
        text.append(f"Type: Resource (reads from {target.original})")
    if target.hidden:
        text.append(f"Hidden characters, which are not shown: {target.hidden}")
    if target.faults:
        text.append(f"Clients would refuse, and is corrected here: {some_of(target.faults)}")
    text += [
        "",
        target.description or "(no description)",
    ]
    if target.changed is None:  # else nothing is shown that its server says of it now
        text += ["", *_parameters(target, hints), *_declared(target, hints)]
    if hints.for_people and target.changed is None:
        text += ["", f"To call it: {call_line(target)}"]
    return McpToolAnswer.of("\n".join(text), mode="describe", server=target.server, tool=tool_details(target))


def call_line(target: Target, given: Mapping[str, Any] | None = None, more: Collection[str] = ()) -> str:
    """The command that calls a tool with these arguments, and with `…` for each of `more` and each that it requires. A
    name that cannot be typed as K=V has its place in `--args`, and so have those that are too many."""
    said = given or {}
    words = [
        typed(f"{key}={value if isinstance(value, str) else _json(value)}") for key, value in said.items()
    ]
    left = [key for key in dict.fromkeys((*more, *required_in(target.input_schema))) if key not in said]
    plain = [key for key in left[:_MOST_IN_A_LINE] if key in more or _is_typed(key)]
    words += [f"{typed(f'{key}=')}…" for key in plain]
    words += ["--args '{…}'"] if len(plain) < len(left) else []
    return " ".join(("greenroom call", typed(target.name), *words))


_MOST_IN_A_LINE: Final = 20  # arguments of a command that is proposed


def _is_typed(name: str) -> bool:
    """Whether an argument of this name can be typed as K=V. A server may have made it up to be something else."""
    is_key = "=" not in name and not name.endswith(":") and not name.lstrip().startswith(("-", "{"))
    return is_key and 0 < len(name) <= _LONGEST_NAME


def tool_details(target: Target) -> dict[str, Any]:
    """A tool as it is in `details`: the server's record of it, with the name that it is called by here."""
    details: dict[str, Any] = {
        "name": target.name,
        "server": target.server,
        "kind": target.kind,
        "original": target.original,
        "description": target.description or "",
    }
    if target.kind == "tool":
        details["inputSchema"] = target.input_schema
        details |= {
            key: target.record[key]
            for key in ("title", "annotations", "outputSchema")
            if key in target.record
        }
    if target.kind == "skill" and target.changed is None:
        files = files_of(target.record)
        details["files"] = None if files is None else [file.path for file in files]
    if target.changed is not None:
        details["changed"] = list(target.changed)
    if target.hidden:
        details["hidden"] = target.hidden
    if target.faults:
        details["faults"] = list(target.faults)
    return unhidden_value(details)


def describe_skill(skill: Target, hints: Hints) -> McpToolAnswer:
    """One skill with its files."""
    text = [f"{skill.name} (skill)", f"Server: {skill.server}"]
    if skill.hidden:
        text.append(f"Hidden characters, which are not shown: {skill.hidden}")
    text += ["", skill.description]
    if skill.changed is None:
        text += ["", _files_of(skill), f"To read it: {hints.to_read(skill.name)}"]
    return McpToolAnswer.of("\n".join(text), mode="describe", server=skill.server, skill=tool_details(skill))


def _files_of(skill: Target) -> str:
    files = files_of(skill.record)
    return (
        "Files: made for each reader" if files is None else f"Files: {', '.join(file.path for file in files)}"
    )


def skill(read: SkillRead, hints: Hints) -> tuple[str, dict[str, Any]]:
    """The text of a file of a skill, and its details. What a model obeys says who wrote it."""
    target, text = read.skill, read.text or ""
    hidden = hidden_instructions(text)
    head = [f'Skill "{target.name}", as server "{target.server}" wrote it: {read.path}']
    if hidden:
        head.append(f"Hidden characters, which are not shown: {hidden}")
    if read.path == FILE:
        text = without_front_matter(text)
        more = [file.path for file in files_of(target.record) or () if file.path != FILE]
        if more:
            example = hints.to_read(f"{target.name}/{more[0]}")
            head.append(f"Further files, to be read with {example}: {some_of(more)}")
    details = {"mode": "skill", "server": target.server, "skill": target.name, "file": read.path}
    return "\n\n".join(["\n".join(head), unhidden(text)]), details | ({"hidden": hidden} if hidden else {})


def failed_skill(error: GreenroomError, hints: Hints) -> McpToolAnswer:
    """A skill that was not read."""
    if isinstance(error, CallError) and not isinstance(error, UsageError):
        details = {**_call_details(error, None), "mode": "skill"}
        step = hints.to_try_now(error.server) if isinstance(error, Unavailable) else ""
        return McpToolAnswer.of(hints.with_step(error.message, step) if step else error.message, **details)
    return refused_request("skill", error)


def counted_targets(targets: Sequence[Target]) -> str:
    """`3 tools`, `3 tools, 1 skill`."""
    skills = sum(target.kind == "skill" for target in targets)
    tools = counted(len(targets) - skills, "tool")
    return f"{tools}, {counted(skills, 'skill')}" if skills else tools


def short_line(target: Target) -> str:
    """`- name - the first words of its description`."""
    name = f"{target.name} (skill)" if target.kind == "skill" else target.name
    words = " ".join((target.description or "").split())
    description = words if target.changed is not None else cut(words, SHORT)
    return f"- {name} - {description}" if description else f"- {name}"


def full_entry(target: Target, hints: Hints = FOR_MODELS) -> str:
    """A tool with its parameters, as search shows it."""
    if target.kind == "skill":
        return f"{target.name} (skill)\n  {target.description}\n  {hints.to_read(target.name)}"
    text = [target.name, f"  {target.description or '(no description)'}"]
    if target.changed is not None:
        return "\n".join(text)
    if target.kind == "resource":
        text.append("  No parameters (resource tool).")
    else:
        text += ["  Parameters:", parameters_text(target.input_schema, "    ", for_people=hints.for_people)]
    return "\n".join(text)


def _brief_entries(targets: Sequence[Target], hints: Hints) -> Iterator[str]:
    """Tools with their parameters, together within `_ROOM`: what one does not need, the next may."""
    left = _ROOM
    for number, target in enumerate(targets):
        entry = _brief_entry(target, hints, left // (len(targets) - number))
        left = max(0, left - len(entry))
        yield entry


def _brief_entry(target: Target, hints: Hints, room: int) -> str:
    """A tool with as many of its parameters as there is room for, the required ones first, each in one line."""
    whole = full_entry(target, hints)
    if len(whole) <= room or target.changed is not None:
        return whole
    description = cut(" ".join((target.description or "(no description)").split()), _SAID)
    if target.kind == "skill":
        return f"{target.name} (skill)\n  {description}\n  {hints.to_read(target.name)}"
    head = f"{target.name}\n  {description}"
    if target.kind == "resource":
        return f"{head}\n  No parameters (resource tool)."
    lines = schema_lines(target.input_schema)
    own = [number for number, line in enumerate(lines) if not line.depth]
    own.sort(key=lambda number: not lines[number].is_required)
    kept: dict[int, str] = {}
    left = room - len(head) - _AROUND_PARAMETERS
    is_cut = False
    for number in own:
        line = f"    {lines[number].text(for_people=hints.for_people)}"
        short = cut(line, _PARAMETER)
        if len(short) >= left and kept:
            break
        kept[number] = short
        is_cut |= short != line
        left -= len(short) + 1
    said = [kept[number] for number in sorted(kept)]
    if len(kept) < len(lines) or is_cut:
        said.append(f"    (more: {hints.to_describe(target.name)})")
    return "\n".join([head, "  Parameters:", *said])


def cut(text: str, width: int) -> str:
    """`text` if it fits, else its head with `...`. It is cut at a space, unless that loses more than two
    fifths of the head."""
    if len(text) <= width:
        return text
    head = text[:width]
    space = head.rfind(" ")
    return (head[:space] if space > width * 0.6 else head).rstrip(".") + "..."


def _parameters(target: Target, hints: Hints) -> list[str]:
    if target.kind == "resource":
        return ["No parameters required (resource tool)."]
    if not target.input_schema:
        return ["No parameters defined."]
    return ["Parameters:", parameters_text(target.input_schema, for_people=hints.for_people)]


def _declared(target: Target, hints: Hints) -> list[str]:
    """What else a tool declares: its annotations as the server wrote them, and the schema of its result."""
    text: list[str] = []
    annotations: object = target.record.get("annotations")
    if target.kind == "tool" and isinstance(annotations, Mapping) and annotations:
        said = cast("Mapping[str, Any]", annotations)
        text += ["", "Annotations: " + ", ".join(f"{key}: {_json(value)}" for key, value in said.items())]
    schema: object = target.record.get("outputSchema")
    if target.kind == "tool" and isinstance(schema, Mapping) and schema:
        returned = cast("Mapping[str, Any]", schema)
        text += ["", "Returns:", parameters_text(returned, for_people=hints.for_people)]
    return text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _nothing(
    query: str, server: str | None, connecting: Sequence[str], unknown: Sequence[ServerStatus], hints: Hints
) -> str:
    where = f' in "{server}"' if server else ""
    text = " ".join([f'No tools matching "{query}"{where}.', *_still_connecting(connecting, hints)])
    if unknown:
        return f"{text}{hints.between}{unknown_sentence(unknown, hints)}"
    return text if connecting else hints.with_step(text, hints.nothing_found or hints.see_servers)


def _still_connecting(connecting: Sequence[str], hints: Hints) -> list[str]:
    if hints.for_people and len(connecting) > 1:
        return [f"{len(connecting)} servers are still connecting; retry in a moment."]
    return [f'Server "{server}" is still connecting; retry in a moment.' for server in connecting]


# ---- kept output ----------------------------------------------------------------------------------------------------
def output_page(output: str, page: OutputPage, hints: Hints) -> McpToolAnswer:
    """A part of a long text, and how to get the next. The part is the server's and stays as it is."""
    where = f"bytes {page.start:,} to {page.end:,} of {page.size:,}"
    more = page.end < page.size
    step = f"Next part: {hints.next_page(output, page.end)}." if more else "This is the end."
    details = {"mode": "output", "output": output, "start": page.start, "end": page.end, "size": page.size}
    return McpToolAnswer(({"type": "text", "text": f"{page.text}\n\n[{where}. {step}]"},), details)


# ---- The texts about servers of which nothing is known yet -----------------------------------------------------------
#
# Every look at the catalogue names them, and what they wait for.
#
# Pure. A server that was never asked may have what was searched for, so "not found" would be a guess.

_SHORT: Final = 160  # characters of a failure in a sentence
_MOST: Final = 20  # servers named in one sentence
_MOST_DETAILED: Final = 500
_NOT_ASKED: Final = "not asked yet"


def is_unknown(row: ServerStatus) -> bool:
    """Whether the server's tools are unknown, although the server could be asked."""
    return row.tool_count is None and not row.disabled and row.broken is None


def waits(row: ServerStatus) -> str:
    """What the server waits for, and since when: `installing for 12 s`."""
    if row.waiting_for == "install":
        return wait_in_words(row.waiting_for, row.waiting, None)
    if row.state is State.CONNECTING:
        return "connecting" if row.waiting is None else f"connecting for {row.waiting:.0f} s"
    if row.needs_auth:
        return "needs a login"
    if row.failed_ago is not None:
        again = f", {next_try(row.retry_in)}" if row.waiting_for and row.retry_in else ""
        return f"failed {about(row.failed_ago)} ago{again}"
    if row.waiting_for is not None:
        return wait_in_words(row.waiting_for, row.waiting, row.retry_in)
    if row.down is not None:
        return "down"
    if row.session_variables:
        return f"asked when a session gives it {', '.join(row.session_variables)}"
    return "connected, and its lists are read" if row.state is State.CONNECTED else _NOT_ASKED


def unknown_sentence(rows: Sequence[ServerStatus], hints: Hints) -> str:
    """`Not known yet: context7 (installing for 12 s), time (not asked yet).`, and what to do; for a person one line, if
    nothing is wrong with a server or there are several. Empty for no rows."""
    if not rows:
        return ""
    fresh = [row for row in rows if _was_never_asked(row)]
    if hints.for_people and (fresh or len(rows) > 1):
        one = typed(rows[0].server) if len(rows) == 1 else ""
        what = f"The tools of {one or f'{len(rows)} servers'} are not known yet"
        if fresh:
            return f"{what}. To read them: greenroom refresh {one}".rstrip()
        is_read = all(
            row.failed_ago is None and not row.needs_auth and (row.waiting_for or row.connecting)
            for row in rows
        )
        return f"{what}: they are being read now." if is_read else f"{what}: greenroom status"
    named = [f"{row.server} ({waits(row)}{_why(row)})" for row in rows[:_MOST]]
    if len(rows) > _MOST:
        named.append(f"and {len(rows) - _MOST} more")
    return hints.between.join((f"Not known yet: {', '.join(named)}.", *_steps(rows, hints)))


def _was_never_asked(row: ServerStatus) -> bool:
    return waits(row) == _NOT_ASKED


def _why(row: ServerStatus) -> str:
    """Why the server failed, shortly."""
    if row.failed_ago is None or not row.failure or row.needs_auth:
        return ""
    return f": {shortened(' '.join(row.failure.split()), _SHORT).removesuffix('.')}"


def _steps(rows: Sequence[ServerStatus], hints: Hints) -> list[str]:
    """What to do about these servers: to ask those that nobody has asked is another thing than to mend one."""
    shut = next((row for row in rows if row.needs_auth), None)
    failed = next((row for row in rows if row.failed_ago is not None and not row.needs_auth), None)
    steps = [] if shut is None else [hints.to_log_in(shut.server)]
    steps += [] if failed is None else [hints.to_mend(failed.server, failed.failure_kind)]
    asked = any(not row.needs_auth and row.failed_ago is None for row in rows)
    return [*steps, hints.learn] if asked and hints.learn else steps


def unknown_details(rows: Iterable[ServerStatus]) -> list[dict[str, Any]]:
    """These servers, for programs. Only the first 500 of thousands are named, because more would not fit
    beside an answer."""
    return [
        {"server": row.server, "name": row.server, "waitsFor": waits(row)}
        | ({"lastLine": row.last_line} if row.last_line else {})
        | ({"failure": row.failure} if row.failure else {})
        for row in islice(rows, _MOST_DETAILED)
    ]
