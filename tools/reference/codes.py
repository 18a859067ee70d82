"""The page of error codes, from the classes of `greenroom.errors` and from where else the rooms give a code.

A code is explained here by what to do about it. Whose fault a class is, the head of `protocol/errors.py` says; of a
code without a class of its own it is said here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tools.arrows import ROOMS
from tools.package_tree import folder_of
from tools.public_surface import members

from greenroom import errors
from greenroom.protocol import errors as told

from .markdown import page, table
from .python import fields

INTERNAL: Final = frozenset(
    {"error", "rpc_failed", "link_refused"}
)  # the root; and what nobody outside is told
CONSTANTS: Final = {
    name: value
    for name, value in vars(told).items()
    if name.isupper() and isinstance(value, str) and re.fullmatch(r"[a-z_]+", value)
}
# Code -> what to do. The first word of a code without a class is whose fault it is.
TO_DO: Final[Mapping[str, str]] = {
    "config_error": "Fix the places that it names. `greenroom doctor` lists them, and how to fix each.",
    "call_failed": "Read `reach`: a call that was `sent` may have run. The message of a `RemoteError` is the "
    "server's own.",
    "invalid_request": "Correct the request as the message says. Unchanged, it fails again.",
    "server_not_found": "Use one of the names in the message. `greenroom status` shows all of them.",
    "tool_not_found": "Use a name that the message suggests, or search for one: `greenroom search WORDS`.",
    "prompt_not_found": "Use one of the names in the message.",
    "skill_not_found": "Use one of the names in the message.",
    "resource_not_found": "Use a URI exactly as it is listed, or name its server.",
    "ambiguous_tool": "Use one of the full names in the message, or name the server.",
    "refused": "Nothing to do: your callback raised it, and the server got it as the answer.",
    "server_unavailable": "Call again after `retry_in` seconds. `greenroom explain SERVER` says what failed. When "
    "that is mended, `greenroom refresh SERVER` does not wait.",
    "rate_limited": "Call again after `retry_in` seconds, or raise the limit that `limit` names.",
    "repeated_call": "Go on with the answers so far, or call with other arguments. If the tool is made for polling, "
    "exclude it "
    "in the `loopGuard` of its server's entry.",
    "server_busy": "Call again after `retry_in` seconds, make fewer calls at once, or raise `maxInFlight` or "
    "`maxQueued`.",
    "server_not_connected": "`greenroom explain SERVER` says why the server is down, and `greenroom reconnect "
    "SERVER` restarts it. "
    "If the room is closed, open another one.",
    "auth_required": "Log in: `greenroom auth SERVER`.",
    "session_needed": 'Call inside `room.session(name)`, or give the server `"isolation": "persistent"`.',
    "credential_needed": "Open the session with the variables that the message names. Over HTTP, send their headers.",
    "approval_denied": "Ask the person before you make the call again.",
    "approval_required": "Let a person answer, in the client or with `greenroom approve`.",
    "tool_changed": "Look at the change, and accept it: `greenroom accept SERVER`.",
    "drained": "If the call was not sent, make it again when the server runs again. If it was sent, check first: it "
    "may have run.",
    "cancelled": "If the call was sent, check before you make it again: it may have run, or may be running.",
    "connect_failed": "Read the reason and the end of the server's stderr (`greenroom logs SERVER`), then run "
    "`greenroom doctor`.",
    "timeout": "If the call was sent, check before you make it again. A slow tool should report progress, or needs a "
    "longer "
    "`requestTimeoutMs`.",
    "tool_error": "Read the tool's own message.",
    "input_refused": "Call from a client that can answer, or give the room a callback that answers the server.",
    "protocol_error": "Report it to the author of the server. The message says what was wrong.",
    "bug": "Report it, with the traceback from the log. Other servers are not affected.",
    "server_disabled": "the owner: Enable it again: `greenroom enable SERVER`.",
    "server_untrusted": "the owner: Look at what the project's file would do, and trust it: `greenroom trust`.",
    "not_as_recorded": "you: Make the agent repeat what is on the tape, or name what may differ (`explore --ignore`).",
    "bad_tape": "you: Name a tape that `serve --record` made, with the folder beside it.",
    "unknown_profile": "you: Use a profile that the configuration has, or add it.",
    "unset_variable": "you: Set the variable where Greenroom and its clients are started, or give a default.",
    "no_effect_here": "you: A key of another program has no effect here. The message names Greenroom's key, if there "
    "is one.",
    "invalid_args": "you: Correct the argument that it names.",
    "not_waiting": "nobody, but not now: This call no longer waits for approval. `greenroom approve` lists the calls "
    "that do.",
    "execute_unavailable": "you: Install the extra that runs code: `pip install 'greenroom[execute]'`.",
    "empty_query": "you: Search for at least one word.",
    "query_too_long": "you: Search for fewer words.",
    "invalid_pattern": "you: Correct the pattern, or search for words.",
    "unsafe_pattern": "you: Write the pattern without the part that the message names, or search for words.",
    "no_gateway": "nobody, but not now: Start the gateway that the page belongs to, then load the page again.",
    "changed_meanwhile": "nobody, but not now: Look again: it has changed since it was shown.",
    "room_lost": "Greenroom: Check whether the call has run. The log of the background gateway says why the gateway "
    "ended.",
    "no_room": "nobody, but not now: The message says why the gateway could not be started. Then run `greenroom "
    "doctor`.",
    "still_running": "nobody, but not now: Wait, or end the process that it names.",
    "stdio_failed": "you: Start `greenroom serve` with its standard input and output open.",
    "cannot_edit": "you: Change the file by hand, as the message shows.",
    "file_changed": "nobody, but not now: Run the command again: another program has written the file meanwhile.",
    "nothing_to_undo": "you: Nothing to do: Greenroom has not changed that file.",
}
# Whether the same call may succeed later: by whose fault it is, and where a code differs from the others.
AGAIN_BY_FAULT: Final[Mapping[str, str]] = {
    "you": "no",
    "the owner": "after the owner has agreed",
    "nobody, but not now": "yes",
    "the server": "perhaps: try a few times at most",
    "Greenroom": "no",
}
AGAIN: Final[Mapping[str, str]] = {
    "call_failed": "after a lost server, yes; for a `RemoteError`, read its message",
    "repeated_call": "yes",
    "cancelled": "yes",
    "server_not_connected": "after somebody has restarted it",
    "auth_required": "after a login",
    "approval_denied": "after a person has allowed it",
    "approval_required": "after a person has allowed it",
    "connect_failed": "perhaps: try a few times at most; not if its command or file is missing",
    "tool_error": "read the tool's message",
    "protocol_error": "no",
    "server_disabled": "after the owner has enabled it",
    "not_waiting": "no",
    "no_gateway": "no",
    "room_lost": "yes",
    "file_changed": "yes",
}


def codes(root: Path) -> str:
    classes, faults = _by_code(), _faults()
    found, (_, usage) = given(root) | classes.keys(), _given(root)
    rows: list[tuple[str, str, str, str]] = []
    sections: list[str] = []
    for code in [*TO_DO, *sorted(found - TO_DO.keys() - INTERNAL)]:
        to_do = TO_DO.get(code, "you: Do what the message says.")
        own = classes.get(code, [])
        fault, _, said = to_do.partition(": ") if code not in classes else (_fault(own, faults), "", to_do)
        named = ", ".join(f"`{each.__name__}`" for each in own) or ("`UsageError`" if code in usage else "–")
        rows.append((f"[`{code}`](#{code})", fault, AGAIN.get(code) or AGAIN_BY_FAULT[fault], named))
        sections += [f"## {code}", *_explained(own, said, fault)]
    return page(
        "# Errors",
        "Each error has a code for programs, and a message for people that says what to do next. A program finds the "
        "code "
        "in `error.code`, and a client of the gateway in `_meta` of the result. The "
        "[reach](../lifecycle.md#how-far-a-call-got) of an error says whether it is safe to make the call again; this "
        "table says whether that can help. The classes are in `greenroom.errors`. Each is a "
        "[`GreenroomError`](python/greenroom-error.md); those that end a call are "
        "[`CallError`s](python/call-error.md).",
        table(("code", "whose fault", "can the same call succeed later?", "class"), rows),
        *sections,
    )


def unexplained(root: Path) -> Iterator[str]:
    """What is wrong with the table above."""
    found = given(root) | _by_code().keys()
    for code in sorted(found - TO_DO.keys() - INTERNAL):
        yield f"tools/reference/codes.py: it does not say what to do about `{code}`"
    for code in sorted(TO_DO.keys() - found):
        yield f"tools/reference/codes.py: nothing gives the code `{code}`"


def given(root: Path) -> set[str]:
    """Every code that the rooms give to an error."""
    return {*CONSTANTS.values()}.union(*_given(root))


@functools.cache
def _given(root: Path) -> tuple[set[str], set[str]]:
    """The codes of the classes that the rooms define, and those that they give to a `UsageError`."""
    of_classes, of_usage_errors = set[str](), set[str]()
    for node in _nodes(root):
        match node:
            case ast.ClassDef(bases=[ast.Name(), *_], body=body):
                for each in body:
                    match each:
                        case (
                            ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code)))
                            | ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant(value=str(code)))
                        ):
                            of_classes.add(code)
                        case _:
                            pass
            case ast.Call(func=ast.Name(id="UsageError"), keywords=keywords):
                given = {each.arg: each.value for each in keywords}
                if isinstance(code := given.get("code"), ast.Constant):
                    of_usage_errors.add(str(code.value))
            case _:
                pass
    return of_classes, of_usage_errors


def _nodes(root: Path) -> Iterator[ast.AST]:
    for room in ROOMS:
        for file in folder_of(root, room).rglob("*.py"):
            yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def _by_code() -> dict[str, list[type[errors.GreenroomError]]]:
    found: dict[str, list[type[errors.GreenroomError]]] = {}
    for each in vars(errors).values():
        if inspect.isclass(each) and issubclass(each, errors.GreenroomError) and each.code not in INTERNAL:
            found.setdefault(each.code, []).append(each)
    return found


def _faults() -> dict[str, str]:
    """Class -> whose fault, as the head of the module lists it."""
    found: dict[str, str] = {}
    for fault, names in re.findall(r"^- \*([^*]+)\*([^;.]+)", told.__doc__ or "", re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), fault.strip())
    assert found, "the head of protocol/errors.py lists no families"
    return found


def _fault(classes: list[type[errors.GreenroomError]], faults: Mapping[str, str]) -> str:
    own = [
        next((faults[base.__name__] for base in each.__mro__ if base.__name__ in faults), None)
        for each in classes
    ]
    return next((fault for fault in own if fault), "you")


def _explained(classes: list[type[errors.GreenroomError]], said: str, fault: str) -> Iterator[str]:
    statuses = sorted({each._http_status for each in classes})  # pyright: ignore[reportPrivateUsage]
    status = f" · *HTTP status for a web service:* {', '.join(map(str, statuses))}" if statuses else ""
    yield said
    yield f"*Fault:* {fault}{status}"
    for each in classes:
        assert each.__doc__, f"{each.__name__} says nothing"
        lines = {name: line for name, line in members(each) if "(" not in line and name != "code"}
        yield f"### {each.__name__}"
        yield " ".join(each.__doc__.split())
        if lines:
            yield fields(each, lines)
