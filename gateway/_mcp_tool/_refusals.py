"""The texts of requests that failed: unknown names, and calls that ended with an error.

Pure, like `_texts`. `details.error` is the error's own code (`protocol/errors.py`). Errors that a server
answered, and broken connections, all have the code `call_failed`, because agents know that one.
`details.reach` says how far the call got. If the call may have run without our knowing, the message itself
says so, because a model decides from the text whether to try again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...protocol.errors import (
    DISABLED,
    AmbiguousTool,
    ApprovalNeeded,
    Busy,
    CallError,
    ConnectFailed,
    GreenroomError,
    RemoteError,
    Unavailable,
    some_of,
)
from ...protocol.jsonrpc import METHOD_NOT_FOUND
from ...protocol.near_names import meant
from ...protocol.plain_text import typed
from ...protocol.shown import arguments_may_be_at_fault, expected_parameters
from ._answer import Answer
from ._hints import Hints
from ._unknown import details as unknown_details
from ._unknown import sentence

if TYPE_CHECKING:
    from ...protocol.errors import Problem
    from ...protocol.index import Target
    from ...protocol.status import ServerStatus

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
    }
)
_FAILED: Final = (
    "Failed to call tool:"  # also the first words of an error of another `mcp` tool behind this one
)


def _short(name: str) -> str:
    """A name that somebody made up, as it is said again: it can be megabytes."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def unknown_server(mode: str, server: str, known: Sequence[str], hints: Hints) -> Answer:
    there = (
        f" Configured: {some_of(known)}.{meant(server, known)}" if known else " No servers are configured."
    )
    text = hints.with_step(f'Server "{server}" not found.', hints.see_servers, there)
    return Answer.of(text, mode=mode, server=server, error="server_not_found")


def disabled_server(mode: str, server: str) -> Answer:
    text = f'Server "{server}" is disabled. To use it again: greenroom enable {typed(server)}'
    return Answer.of(text, mode=mode, server=server, error=DISABLED)


def broken_server(mode: str, server: str, reason: Problem) -> Answer:
    text = f'Server "{server}" cannot be used: {reason}'
    return Answer.of(text, mode=mode, server=server, error=reason.code)


def unknown_output(output: str) -> Answer:
    text = f'There is no output "{output[:SHOWN_ID]}": it was removed, or never kept. Call the tool again.'
    return Answer.of(text, mode="output", output=output[:SHOWN_ID], error="output_not_found")


def unreadable_output(output: str, why: str) -> Answer:
    text = f'The output "{output[:SHOWN_ID]}" cannot be read ({why}). Call the tool again.'
    return Answer.of(text, mode="output", output=output[:SHOWN_ID], error="output_unreadable")


def refused_request(mode: str, error: GreenroomError, target: Target | None = None) -> Answer:
    """A request that is invalid in itself. `target`: the tool whose arguments are wrong, if that is why."""
    text = error.message + expected_parameters(target)
    return Answer.of(text, mode=mode, **subject_of(target), error=error.code)


def unknown_tool(
    mode: str,
    tool: str,
    *,
    server: str | None,
    names: Sequence[str],
    suggestions: Sequence[str],
    connected_now: bool = False,
    unknown: Sequence[ServerStatus] = (),
    hints: Hints,
) -> Answer:
    """No tool has this name. `names`: the tools of `server`. `connected_now`: the server was connected to
    make sure."""
    tool = _short(tool)
    details: dict[str, Any] = {"mode": mode, "requestedTool": tool, "error": "tool_not_found"}
    if server is not None:
        details["server"] = server
    step = ""
    if server is not None and connected_now:
        details["error"] = "tool_not_found_after_reconnect"
        text = f'Tool "{tool}" not found on "{server}" after reconnect.'
        text += f' Available tools on "{server}": {some_of(names) or "none"}.'
    else:
        text = f'Tool "{tool}" not found.'
        text += f' Server "{server}" has: {some_of(names)}.' if server and names else ""
        step = "" if server and names else hints.search
    near = f" Did you mean: {', '.join(suggestions)}" if suggestions else ""
    text = hints.with_step(text, step, near) if step else text + near
    if suggestions:
        details["suggestions"] = list(suggestions)
    if unknown:
        details["unknownServers"] = unknown_details(unknown)
        text += hints.between + sentence(unknown, hints)
    return Answer.of(text, **details)


def not_known_yet(mode: str, tool: str, owners: Sequence[ServerStatus], hints: Hints) -> Answer:
    """A tool whose server was never asked, so nobody knows whether the tool exists."""
    servers = " and ".join(f'"{row.server}"' for row in owners)
    text = f'Nothing is known of {servers} yet, nor whether it has "{tool}". {sentence(owners, hints)}'
    return Answer.of(
        text,
        mode=mode,
        requestedTool=tool,
        server=owners[0].server,
        error="not_known_yet",
        unknownServers=unknown_details(owners),
    )


def other_tool(name: str, hints: Hints) -> Answer:
    """The client called a server's tool directly, and not through ours."""
    name = _short(name)
    text = f"Unknown tool: {name}. Use {hints.to_call(name)} to call a server's tool."
    return Answer.of(text, mode="call", requestedTool=name, error="tool_not_found")


def promoted(target: Target, names: Sequence[str]) -> Answer:
    """A tool that is listed from now on. (Not a refusal, but it says how to go on like one.)"""
    text = f'"{target.name}" is now a tool of its own for this session. If you do not see it, call it as before: '
    return Answer.of(
        f'{text}mcp({{ tool: "{target.name}" }}).', mode="promote", tool=target.name, promoted=list(names)
    )


def not_promoted(target: Target) -> Answer:
    """A tool that cannot be listed, or a client that would not hear of it."""
    text = f'"{target.name}" cannot be listed for this client. Call it as mcp({{ tool: "{target.name}" }}).'
    return Answer.of(text, mode="promote", **subject_of(target), error="not_promoted")


def ambiguous_tool(mode: str, tool: str, candidates: Sequence[str]) -> Answer:
    error = AmbiguousTool(tool, candidates)
    return Answer.of(
        error.message, mode=mode, requestedTool=tool, error=error.code, candidates=list(candidates)
    )


def failed_connect(server: str, error: CallError) -> Answer:
    """An explicit connect that failed."""
    code = error.code if error.code in _TOLD_AS_THEY_ARE else "connect_failed"
    details = {"mode": "connect", "server": server, "error": code}
    if isinstance(error, ConnectFailed) or error.code in _TOLD_AS_THEY_ARE:
        return Answer.of(error.message, **details)
    return Answer.of(f'Failed to connect to "{server}": {error.message}', **details)


def failed_call(error: CallError, target: Target | None) -> Answer:
    """A call that was refused, or was accepted and has no result."""
    details = _call_details(error, target)
    if error.code in _TOLD_AS_THEY_ARE:
        return Answer.of(error.message, **details)
    said = error.message if target is None else target.in_caller_names(error.message)
    if isinstance(error, RemoteError) and error.rpc_code == METHOD_NOT_FOUND and not said.startswith(_FAILED):
        said = f'server "{error.server}" does not have this (it answered: {said})'
    message = said if said.startswith(_FAILED) else f"{_FAILED} {said}"
    expected = expected_parameters(target, message) if arguments_may_be_at_fault(error) else ""
    return Answer.of(message + expected, **details)


def _call_details(error: CallError, target: Target | None) -> dict[str, Any]:
    details: dict[str, Any] = {"mode": "call", "server": error.server, **subject_of(target)}
    details |= {"error": error.code, "message": error.message, "reach": str(error.reach)}
    if isinstance(error, Unavailable):
        details |= {"failedAgo": round(error.failed_ago), "retryIn": round(error.retry_in, 1)}
    if isinstance(error, ApprovalNeeded):
        details |= {"reason": error.reason, "question": error.question}
    if isinstance(error, Busy):
        details |= {"inFlight": error.in_flight, "queued": error.queued, "retryIn": error.retry_after}
    return details


def subject_of(target: Target | None) -> Mapping[str, str]:
    """What was called, under the key that it has in `details`."""
    if target is None:
        return {}
    return {"resourceUri": target.original} if target.kind == "resource" else {"tool": target.name}
