"""Which calls a person has to allow, what the person is shown, and what an answer means.

The key `approve` of a server (or of the settings) is a word or a list of tools. The words go by what a tool says of
itself, its hints. A missing hint means what the protocol says it means: the tool changes things, may destroy some, and
reaches outside. So a tool without hints is asked about under every word but `off`. Hints are the server's own words;
whoever does not trust the server uses a list, or `all`.

A call is asked about if it calls a tool, or reads a resource under a tool's name. A resource that is read by its URI
changes nothing, and the words that go by hints never ask about a resource.

A person is shown the tool, the server and the arguments, on a few lines: cut at a bound, without secrets, and with
invisible characters as escapes. Whether the question comes from a server or from Greenroom is told by its beginning: a
server's begins with its name in brackets.

An allowance is for one tool with exactly these arguments, as `grant` names them.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from ..catalogue.names import spellings
from ..catalogue.namespace import Target
from ..config.model import Approve, selector
from ..protocol.json_values import object_or_empty
from ..protocol.jsonrpc.incoming import decode_result
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import seen_in_json, unhidden

Rule = Approve | tuple[str, ...]
SHOWN: Final = 2_000  # characters of the arguments
_LOOKED_AT: Final = 16_000  # characters of them that secrets are looked for in
_NAME: Final = 128
# An escape, or two that are the halves of one character: some clients write all letters that are not ASCII like this.
_ESCAPE: Final = lazy_pattern(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\."
)


class Verdict(enum.Enum):
    """What a person, or the program that embeds the room, says about one call."""

    ONCE = "once"  # this call
    SESSION = "session"  # this call, and each with the same tool and arguments in the same session
    DENY = "deny"  # the call is refused


class ApprovalRequest(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One call that somebody has to allow."""

    server: str  # the server that has the tool
    tool: str  # the tool's name in this room
    original: str  # the server's own name for it
    session: str | None  # the session that makes the call; None: the room itself
    hints: Mapping[str, Any]  # the tool's `annotations`, as the server wrote them
    text: str  # the question that a person is shown
    raw: bytes  # the arguments as JSON

    def __repr__(self) -> str:
        """Without the arguments, which may hold secrets."""
        return f"<ApprovalRequest {self.tool} of {self.server}, for {self.session or 'the room'}>"

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments, complete, as they would be sent: secrets are not hidden here."""
        return decode_result(self.raw)


def asks_about(rule: Rule, server: str, original: str, target: Target | None) -> bool:
    """Whether this rule asks a person about a call of this tool. `target`: what is known of the tool."""
    if isinstance(rule, tuple):
        names = {original} if target is None else {original, target.own_name, *target.other_names}
        written = {spelling for name in names for spelling in spellings(server, name)}
        return any(map(selector(rule), written if target is None else {*written, target.name}))
    if rule is Approve.OFF or rule is Approve.ALL:
        return rule is Approve.ALL
    if target is not None and target.kind == "resource":
        return False
    hints = hints_of(target)
    if rule is Approve.OPEN_WORLD:
        return hints.get("openWorldHint") is not False
    if hints.get("readOnlyHint") is True:
        return False
    return rule is Approve.WRITES or hints.get("destructiveHint") is not False


def hints_of(target: Target | None) -> Mapping[str, Any]:
    said = None if target is None or target.kind != "tool" else target.record.get("annotations")
    return object_or_empty(said)


def grant(server: str, original: str, raw: bytes) -> bytes:
    """The key under which an allowance is remembered: the tool, and its arguments as they are written."""
    digest = hashlib.sha256(f"{len(server)} {server}{len(original)} {original}".encode(errors="replace"))
    digest.update(raw)
    return digest.digest()


def question(server: str, tool: str, raw: bytes, hide: Callable[[str], str]) -> str:
    """The text that a person is shown. `hide` removes the secrets of the server from a text."""
    most = 4 * _LOOKED_AT
    head = _ESCAPE.sub(_letter, raw[:most].decode(errors="replace"))
    cut = head[:_LOOKED_AT] + ("…" if len(head) > _LOOKED_AT or len(raw) > most else "")
    said = _seen(hide(cut))
    if len(said) > SHOWN or cut.endswith("…"):
        said = f"{said[:SHOWN]}… (cut: the arguments have {len(raw):,} bytes, and not all of them are shown)"
    where = f'tool "{_short(hide(tool))}" of the server "{_short(server)}"'
    return f"Greenroom asks before it calls the {where}.\nArguments: {said}\nAllow this call?"


def _letter(escape: re.Match[str]) -> str:
    """The letter that an escape of JSON stands for, if a person sees it and it means nothing else in JSON."""
    if len(escape[0]) == 2:
        return escape[0]
    first, *second = (int(code, 16) for code in escape[0].split("\\u")[1:])
    letter = chr(0x10000 + ((first - 0xD800) << 10) + (second[0] - 0xDC00) if second else first)
    return letter if letter.isprintable() and letter not in '"\\' else escape[0]


def _short(name: str) -> str:
    seen = _seen(name)
    return seen if len(seen) <= _NAME else f"{seen[:_NAME]}…"


def _seen(text: str) -> str:
    """The text as a person sees it: on one line, and with escapes for characters that cannot be seen."""
    return unhidden(seen_in_json(text.replace("\n", " ").replace("\r", " ")))


def form(text: str) -> dict[str, Any]:
    """The params of the `elicitation/create` that asks a person. There is no default: nothing fills it in unseen."""
    answers = {
        "type": "string",
        "title": "Allow this call?",
        "description": "once; for this session (the same tool with the same arguments); or deny",
        "enum": [verdict.value for verdict in Verdict],
    }
    return {
        "message": text,
        "requestedSchema": {"type": "object", "properties": {"allow": answers}, "required": ["allow"]},
    }


def verdict_of(answer: Mapping[str, Any]) -> Verdict | None:
    """The verdict in the answer to that form. None: the form was dismissed. Whatever is not plainly a yes is a no."""
    action, content = answer.get("action"), answer.get("content")
    if action == "cancel":
        return None
    said = object_or_empty(content).get("allow")
    yes = [verdict for verdict in (Verdict.ONCE, Verdict.SESSION) if said == verdict.value]
    return yes[0] if yes and action == "accept" else Verdict.DENY


OnApproval = Callable[[ApprovalRequest], Awaitable[Verdict | None]]
