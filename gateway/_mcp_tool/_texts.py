"""The texts of the modes that only look: status, list, search, describe, instructions.

Pure: facts in, `Answer` out. Each function builds the text and its `details` together, so that both say the
same. The wording is a contract: existing prompts and tests of agents rely on it. Its numbers (50 characters
of a description, 300 of instructions) are part of it. Lists keep to the output guard's bounds (`_pages`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ...protocol.lifecycle import State
from ...protocol.pinning import changed_in_words
from ...protocol.plain_text import counted, unhidden
from ...protocol.schema_text import parameters_text
from ...protocol.slices import Pace, Slices
from ...protocol.status import about, hidden_in_words
from ...protocol.unhiding import hidden_instructions, unhidden_value
from ._answer import Answer
from ._hints import Hints
from ._pages import Bounds
from ._unknown import details as unknown_details
from ._unknown import is_unknown, sentence, waits

if TYPE_CHECKING:
    from ...protocol.catalogue import ServerEntry
    from ...protocol.index import Target
    from ...protocol.search import SearchPage
    from ...protocol.status import ServerStatus
    from ._spill import Page

SHORT: Final = 50
PREVIEW: Final = 300
MOST_PROBLEMS: Final = 5
SHOWN_QUERY: Final = 200
UNBOUNDED: Final = Bounds()
_SEEN: Final = 200  # rows that are read in a tenth of a millisecond
_A_PIECE: Final = 40  # lines of an overview that are made in a tenth of a millisecond


# ---- status --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Line:
    """One server in the overview: a word for programs, and a mark and a note for people."""

    word: str
    mark: str
    note: str


def line_of(row: ServerStatus) -> Line:
    """The line for a server. What waiting cannot change comes first, then connected, then trouble, then the
    cache."""
    if row.untrusted:
        return Line("untrusted", "⚠", f"not trusted: {row.broken}")
    if row.broken is not None:
        return Line("broken", "✗", f"broken: {row.broken}")
    if row.disabled:
        return Line("disabled", "⊘", "disabled")
    if row.state is State.CONNECTED:
        return Line("connected", "✓", _counted(row))
    if row.needs_auth:
        return Line("needs-auth", "⚠", "needs auth")
    if is_unknown(row) and (row.waiting is not None and row.waiting_for != "gate"):
        line = f": {row.last_line}" if row.last_line else ""
        return Line("not-connected", "○", f"not known yet, {waits(row)}{line}")
    if row.failed_ago is not None:
        quarantined = "" if row.quarantined is None else ", quarantined"
        return Line("failed", "✗", f"failed {_ago(row.failed_ago)}{quarantined}")
    if row.cached:
        return Line("cached", "○", f"{_counted(row)}, cached")
    return Line("not-connected", "○", "not connected")


def _ago(seconds: float) -> str:
    return f"{round(seconds)}s ago" if seconds < 120 else f"{about(seconds)} ago"


def status(
    rows: Sequence[ServerStatus],
    hints: Hints,
    *,
    limit: int | None = None,
    offset: int = 0,
    bounds: Bounds = UNBOUNDED,
) -> Slices[Answer]:
    """A line for each server in the order of the configuration. `rows`: one per server. `limit`, `offset`:
    the page."""
    pace = Pace()
    disabled = sum(row.disabled for row in rows)
    if pace.due(len(rows) // _SEEN):
        yield
    connected = sum(row.state is State.CONNECTED and line_of(row).word == "connected" for row in rows)
    if pace.due(len(rows) // _SEEN):
        yield
    total = sum(row.tool_count or 0 for row in rows if not row.disabled)
    if pace.due(len(rows) // _SEEN):
        yield
    head = f"MCP: {connected}/{counted(len(rows) - disabled, 'server')}, {counted(total, 'tool')}"
    head += f" ({disabled} disabled)" if disabled else ""
    wanted: list[tuple[ServerStatus, Line]] = []
    for number, row in enumerate(rows[offset:] if limit is None else rows[offset : offset + limit]):
        wanted.append((row, line_of(row)))
        if number % _A_PIECE == 0 and pace.due():
            yield
    shown = bounds.fitting([f"{line.mark} {row.server} ({line.note})" for row, line in wanted])
    page = _Page(offset, len(shown), len(rows))
    text = [head, "", *shown, *page.footer(hints)]
    text += ["", hints.overview] if rows else ["No servers are configured."]
    return Answer.of(
        "\n".join(text),
        mode="status",
        servers=[_server_details(row, line) for row, line in wanted[: len(shown)]],
        totalTools=total,
        connectedCount=connected,
        disabledCount=disabled,
        **page.details(),
    )


@attrs.frozen
class _Page:
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


def _server_details(row: ServerStatus, line: Line) -> dict[str, Any]:
    details: dict[str, Any] = {"name": row.server, "status": line.word, "toolCount": row.tool_count or 0}
    if row.failed_ago is not None and line.word == "failed":
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
        (counted(row.tool_count or 0, "tool"), *changed, *hidden, *map(_brief, row.problems[:MOST_PROBLEMS]))
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
) -> Answer:
    """A page of the tools of one server, sorted by name."""
    server = row.server
    shown = bounds.fitting([short_line(tool) for tool in tools[offset : offset + limit]])
    page = _Page(offset, len(shown), len(tools))
    details: dict[str, Any] = {
        "mode": "list",
        "server": server,
        "tools": [tool.name for tool in tools[offset : offset + len(shown)]],
        "count": len(tools),
        **page.details(),
    }
    if row.problems:
        details["problems"] = list(row.problems)
    connected = row.state is State.CONNECTED
    if tools:
        head = f"{server} ({counted(len(tools), 'tool')}{'' if connected else ' (not connected, cached)'}):"
        text = [head, "", *shown, *page.footer(hints), *_incomplete(row), *_preview(server, entry, hints)]
        return Answer.of("\n".join(text), **details)
    if connected:
        return Answer.of(f'Server "{server}" has no tools.', **details)
    if entry is not None and entry.known:
        return Answer.of(f'Server "{server}" has no cached tools (not connected).', **details)
    text = hints.with_step(f'Server "{server}" is configured but not connected.', hints.to_connect(server))
    if row.failure is not None or row.needs_auth:
        text = f'Server "{server}" is configured but not connected. {sentence([row], hints)}'
    if row.waiting is not None:
        line = f" Its last line: {row.last_line}" if row.last_line else ""
        text = f'Server "{server}" is not known yet ({waits(row)}); retry in a moment.{line}'
        details["waitsFor"] = waits(row)
    return Answer.of(text, **details, error="not_connected")


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


def instructions(server: str, entry: ServerEntry | None, hints: Hints) -> Answer:
    """What a server says about itself, in full."""
    details = {"mode": "instructions", "server": server}
    if entry is None:
        text = hints.with_step(f'No instructions cached for "{server}".', hints.to_connect(server))
        return Answer.of(text, **details, error="not_connected")
    if not entry.instructions:
        return Answer.of(
            f'Server "{server}" does not provide instructions.', **details, error="no_instructions"
        )
    hidden = _hidden_from(entry)
    text = "\n\n".join([f"{server} instructions:", *hidden, entry.instructions])
    if hidden:
        details["hidden"] = hidden_instructions(entry.instructions)
    return Answer.of(text, **details, instructions=entry.instructions)


# ---- search and describe -------------------------------------------------------------------------------------------


def search(
    query: str,
    page: SearchPage,
    *,
    server: str | None,
    full: bool,
    offset: int,
    connecting: Sequence[str] = (),
    unknown: Sequence[ServerStatus] = (),
    hints: Hints,
    bounds: Bounds = UNBOUNDED,
) -> Answer:
    """A page of matches, each in one line, or with its parameters (`full`)."""
    query = cut(query, SHOWN_QUERY)
    between = "\n\n" if full else "\n"
    shown = bounds.fitting(
        [(full_entry if full else short_line)(match.target) for match in page.matches], between
    )
    seen = _Page(offset, len(shown), page.total)
    details: dict[str, Any] = {
        "mode": "search",
        "query": query,
        "matches": [
            {"server": match.target.server, "tool": match.target.name, "score": match.score}
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
        return Answer.of(_nothing(query, server, connecting, unknown, hints), **details)
    head = (
        f'Found {counted(page.total, "tool")} matching "{query}":'
        if query.strip()
        else f"{counted(page.total, 'tool')}:"
    )
    untold = ["", f"{sentence(unknown, hints)}"] if unknown else []
    text = [head, "", between.join(shown), *untold, *seen.footer(hints), *_still_connecting(connecting)]
    return Answer.of("\n".join(text), **details)


def describe(target: Target) -> Answer:
    """One tool with its parameters."""
    text = [target.name, f"Server: {target.server}"]
    if target.kind == "resource":
        text.append(f"Type: Resource (reads from {target.original})")
    if target.hidden:
        text.append(f"Hidden characters, which are not shown: {target.hidden}")
    text += ["", target.description or "(no description)", "", *_parameters(target), *_declared(target)]
    return Answer.of("\n".join(text), mode="describe", server=target.server, tool=tool_details(target))


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
    if target.changed is not None:
        details["changed"] = list(target.changed)
    if target.hidden:
        details["hidden"] = target.hidden
    return unhidden_value(details)


def short_line(target: Target) -> str:
    """`- name - the first words of its description`."""
    words = " ".join((target.description or "").split())
    description = words if target.changed is not None else cut(words, SHORT)
    return f"- {target.name} - {description}" if description else f"- {target.name}"


def full_entry(target: Target) -> str:
    """A tool with its parameters, as search shows it."""
    text = [target.name, f"  {target.description or '(no description)'}"]
    if target.kind == "resource":
        text.append("  No parameters (resource tool).")
    else:
        text += ["  Parameters:", parameters_text(target.input_schema, "    ")]
    return "\n".join(text)


def cut(text: str, width: int) -> str:
    """`text` if it fits, else its head with `...`. It is cut at a space, unless that loses more than two
    fifths of the head."""
    if len(text) <= width:
        return text
    head = text[:width]
    space = head.rfind(" ")
    return (head[:space] if space > width * 0.6 else head) + "..."


def _parameters(target: Target) -> list[str]:
    if target.kind == "resource":
        return ["No parameters required (resource tool)."]
    if not target.input_schema:
        return ["No parameters defined."]
    return ["Parameters:", parameters_text(target.input_schema)]


def _declared(target: Target) -> list[str]:
    """What else a tool declares: its annotations as the server wrote them, and the schema of its result."""
    text: list[str] = []
    hints: object = target.record.get("annotations")
    if target.kind == "tool" and isinstance(hints, Mapping) and hints:
        said = cast("Mapping[str, Any]", hints)
        text += ["", "Annotations: " + ", ".join(f"{key}: {_json(value)}" for key, value in said.items())]
    schema: object = target.record.get("outputSchema")
    if target.kind == "tool" and isinstance(schema, Mapping) and schema:
        text += ["", "Returns:", parameters_text(cast("Mapping[str, Any]", schema))]
    return text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _nothing(
    query: str, server: str | None, connecting: Sequence[str], unknown: Sequence[ServerStatus], hints: Hints
) -> str:
    where = f' in "{server}"' if server else ""
    text = [f'No tools matching "{query}"{where}', *_still_connecting(connecting)]
    if unknown:
        return f"{' '.join(text)}{'' if connecting else '.'} {sentence(unknown, hints)}"
    return " ".join(text) if connecting else hints.with_step(f"{text[0]}.", hints.see_servers)


def _still_connecting(connecting: Sequence[str]) -> list[str]:
    return [f'Server "{server}" is still connecting; retry in a moment.' for server in connecting]


# ---- kept output ----------------------------------------------------------------------------------------------------


def output_page(output: str, page: Page, hints: Hints) -> Answer:
    """A part of a long text, and how to get the next. The part is the server's and stays as it is."""
    where = f"bytes {page.start:,} to {page.end:,} of {page.size:,}"
    more = page.end < page.size
    step = f"Next part: {hints.next_page(output, page.end)}." if more else "This is the end."
    details = {"mode": "output", "output": output, "start": page.start, "end": page.end, "size": page.size}
    return Answer(({"type": "text", "text": f"{page.text}\n\n[{where}. {step}]"},), details)
