"""Pinned definitions: a tool is what it was when it was first shown, until its owner says otherwise.

A model does what a tool's definition tells it. A server that has been approved can change that text later, and nobody
would see it. So the first definition of each tool is remembered as a hash. A tool whose definition has changed is
quarantined: it is shown under its name with `notice` in place of what the server says, and it cannot be called, until
its owner accepts the new definition. A definition that comes back is the old tool again. What a server no longer lists
is not forgotten, so a tool that goes and comes back changed is found as well.

The hash covers the title, the description, both schemas and the annotations. The order of members does not matter.

Beside the hash stands since when a tool is known. `names` uses that: of two tools that want one name, the older keeps
it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from .catalogue import Pinned, Raw
from .errors import ToolChanged
from .plain_text import unhidden

PARTS: Final = ("description", "input schema", "output schema", "annotations")
_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode
_MOST: Final = 20_000  # tools of one server that are remembered
_NAMED: Final = 3  # changed tools of one server that are named in a line
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_SHORT: Final = (
    4  # hex digits that tell which part has changed; the hash before them tells that something has
)


def fingerprint(record: Raw) -> str:
    """The hash of a tool's definition (SHA-256, hex), and a few digits more for each of its `PARTS`."""
    said = [record.get("title"), record.get("description")]
    parts = [said if any(said) else None, *map(record.get, ("inputSchema", "outputSchema", "annotations"))]
    hashes = [hashlib.sha256(_normal(part or None)) for part in parts]
    whole = hashlib.sha256(b"".join(each.digest() for each in hashes))
    return whole.hexdigest() + "".join(each.hexdigest()[:_SHORT] for each in hashes)


def _normal(value: Any) -> bytes:
    return _encode(value).encode()


def changes(old: str, new: str) -> tuple[str, ...]:
    """Which of the `PARTS` differ between two fingerprints."""
    begin = hashlib.sha256().digest_size * 2
    spans = [slice(begin + n * _SHORT, begin + (n + 1) * _SHORT) for n in range(len(PARTS))]
    return tuple(part for part, span in zip(PARTS, spans, strict=True) if old[span] != new[span])


@attrs.define
class ServerPins:
    """What is remembered of one server. `since`: when it was first known. All times are of the wall clock."""

    since: float
    seen: float = 0.0  # when it last listed its tools
    tools: dict[str, str] = attrs.field(
        factory=dict[str, str]
    )  # by the server's own names; "": no hash was taken
    later: dict[str, float] = attrs.field(factory=dict[str, float])  # tools that are known for less long
    changed: dict[str, str] = attrs.field(
        factory=dict[str, str]
    )  # the last definition of tools that have changed

    def copy(self) -> ServerPins:
        return ServerPins(self.since, self.seen, dict(self.tools), dict(self.later), dict(self.changed))

    def learn(self, prints: Mapping[str, str], since: float) -> bool:
        """Compare what the server lists with what is remembered; remember what is new. `since`: when this room, or
        the server in it, was first there. True: something is to be written."""
        is_news = False
        for tool, print_ in prints.items():
            known = self.tools.get(tool)
            if known is None and len(self.tools) < _MOST:
                if since > self.since:
                    self.later[tool] = since
                self.tools[tool], is_news = print_, True
            elif not print_:
                continue
            elif known == "":
                self.tools[tool], is_news = print_, True
            elif known == print_:
                is_news = self.changed.pop(tool, None) is not None or is_news
            elif self.changed.get(tool) != print_:
                self.changed[tool], is_news = print_, True
        return is_news

    def accept(self, tools: Iterable[str] | None = None, shown: Mapping[str, str] | None = None) -> list[str]:
        """Take the present definitions of changed tools (None: of all) for the right ones, if they still are those
        that were `shown`. Returns these tools."""
        now = self.changed if shown is None else {tool: shown.get(tool) for tool in self.changed}
        taken = [
            tool
            for tool in (self.changed if tools is None else tools)
            if tool in self.changed and self.changed[tool] == now[tool]
        ]
        for tool in taken:
            self.tools[tool] = self.changed.pop(tool)
        return taken

    @property
    def pinned(self) -> Pinned:
        return Pinned(
            self.since,
            dict(self.later),
            {tool: changes(self.tools.get(tool, ""), new) for tool, new in self.changed.items()},
        )


# ---- in words ------------------------------------------------------------------------------------------------------


def notice(server: str, tool: str, parts: Sequence[str]) -> str:
    """What stands in place of the description of a tool that is quarantined."""
    return (
        f"Not callable: {changed_parts(parts)} changed since its owner last saw it. {next_step(server, tool)}"
    )


def changed_parts(parts: Sequence[str]) -> str:
    """The parts that have changed, before the word `changed`."""
    *others, last = parts or ("definition",)
    return f"its {', '.join(others)} and {last} have" if others else f"its {last} has"


def next_step(server: str, tool: str = "") -> str:
    """How the owner of a changed tool looks at it, and allows it."""
    return f"To see and allow it, the owner runs: {command(server, tool)}"


def tool_changed(tool: str, server: str, original: str, parts: Sequence[str]) -> ToolChanged:
    """The refusal of a call to a tool of which these parts have changed. `original`: the server's own name for it."""
    text = f'Tool "{tool}" was not called: {changed_parts(parts)} changed since its owner last saw it.'
    return ToolChanged(f"{text} {next_step(server, original)}", server=server, tool=tool)


def command(server: str, tool: str = "") -> str:
    """The command that accepts a tool, or all tools of a server. A name that cannot be typed is left out."""
    said = [server if _PLAIN.fullmatch(server) else json.dumps(server)]
    if _PLAIN.fullmatch(tool):
        said.append(tool)
    return f"greenroom accept {' '.join(said)}"


def changed_in_words(server: str, changed: Sequence[str]) -> str:
    """The changed tools of a server, in a few words, and the command that accepts them."""
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    return f"{len(changed)} changed: {unhidden(', '.join(changed[:_NAMED]))}{more} ({command(server)})"
