"""The texts of the modes that only look: status, list, search, describe, instructions.

Pure: facts in, `Answer` out. Each function builds the text and its `details` side by side, so neither can say
something the other does not. The wording is the contract that existing prompts and tests of agents rely on; numbers
(50 characters of a description, 300 of instructions) are part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...protocol.lifecycle import State
from ...protocol.schema_text import parameters_text
from ._answer import Answer
from ._hints import Hints
from ._unknown import details as unknown_details
from ._unknown import is_unknown, sentence, waits

if TYPE_CHECKING:
    from ...protocol.catalogue import ServerEntry
    from ...protocol.index import Target
    from ...protocol.search import SearchPage
    from .._room import StatusRow

SHORT: Final = 50
PREVIEW: Final = 300


# ---- status --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Line:
    """One server in the overview: the word a program reads, the mark and the note a person reads."""

    word: str
    mark: str
    note: str


def line_of(row: StatusRow) -> Line:
    """How a server shows. Precedence: what cannot change by waiting, then connected, then trouble, then the cache."""
    if row.broken is not None:
        return Line("broken", "✗", f"broken: {row.broken}")
    if row.disabled:
        return Line("disabled", "⊘", "disabled")
    if row.state is State.CONNECTED:
        return Line("connected", "✓", _tools(row.tool_count or 0))
    if row.needs_auth:
        return Line("needs-auth", "⚠", "needs auth")
    if is_unknown(row) and (row.waiting is not None and row.waiting_for != "gate"):
        line = f": {row.last_line}" if row.last_line else ""
        return Line("not-connected", "○", f"not known yet, {waits(row)}{line}")
    if row.failed_ago is not None:
        return Line("failed", "✗", f"failed {round(row.failed_ago)}s ago")
    if row.cached:
        return Line("cached", "○", f"{_tools(row.tool_count or 0)}, cached")
    return Line("not-connected", "○", "not connected")


def status(rows: Sequence[StatusRow], hints: Hints) -> Answer:
    """One line per server in the order of the configuration. `rows`: one per server."""
    lines = [(row, line_of(row)) for row in rows]
    disabled = sum(row.disabled for row in rows)
    connected = sum(line.word == "connected" for _, line in lines)
    total = sum(row.tool_count or 0 for row in rows if not row.disabled)
    head = f"MCP: {connected}/{len(rows) - disabled} servers, {total} tools"
    head += f" ({disabled} disabled)" if disabled else ""
    text = [head, ""] + [f"{line.mark} {row.server} ({line.note})" for row, line in lines]
    text += ["", hints.overview] if rows else ["No servers are configured."]
    return Answer.of(
        "\n".join(text),
        mode="status",
        servers=[_server_details(row, line) for row, line in lines],
        totalTools=total,
        connectedCount=connected,
        disabledCount=disabled,
    )


def _server_details(row: StatusRow, line: Line) -> dict[str, Any]:
    details: dict[str, Any] = {"name": row.server, "status": line.word, "toolCount": row.tool_count or 0}
    if row.failed_ago is not None and line.word == "failed":
        details |= {"failedAgo": round(row.failed_ago), "failure": row.failure}
    if row.broken is not None:
        details["failure"] = row.broken
    return details


def _tools(count: int) -> str:
    return f"{count} tool{'' if count == 1 else 's'}"


# ---- list and instructions -----------------------------------------------------------------------------------------


def server_list(row: StatusRow, tools: Sequence[Target], entry: ServerEntry | None, hints: Hints) -> Answer:
    """The tools of one server, by name."""
    server = row.server
    details: dict[str, Any] = {
        "mode": "list",
        "server": server,
        "tools": [tool.name for tool in tools],
        "count": len(tools),
    }
    connected = row.state is State.CONNECTED
    if tools:
        return Answer.of(_list_text(server, tools, entry, connected, hints), **details)
    if connected:
        return Answer.of(f'Server "{server}" has no tools.', **details)
    if entry is not None and entry.known:
        return Answer.of(f'Server "{server}" has no cached tools (not connected).', **details)
    text = f'Server "{server}" is configured but not connected. {hints.to_connect(server)}'
    if row.waiting is not None:
        line = f" Its last line: {row.last_line}" if row.last_line else ""
        text = f'Server "{server}" is not known yet ({waits(row)}); retry in a moment.{line}'
        details["waitsFor"] = waits(row)
    return Answer.of(text, **details, error="not_connected")


def _list_text(
    server: str, tools: Sequence[Target], entry: ServerEntry | None, connected: bool, hints: Hints
) -> str:
    text = [f"{server} ({_tools(len(tools))}{'' if connected else ' (not connected, cached)'}):", ""]
    text += [short_line(tool) for tool in tools]
    if entry is not None and entry.instructions:
        preview = cut(entry.instructions.strip(), PREVIEW)
        text += ["", "Server instructions:", preview]
        if preview != entry.instructions.strip():
            text.append(f"({hints.instructions.format(server=server)})")
    return "\n".join(text)


def instructions(server: str, entry: ServerEntry | None, hints: Hints) -> Answer:
    """What a server says about itself, in full."""
    details = {"mode": "instructions", "server": server}
    if entry is None:
        text = f'No instructions cached for "{server}". {hints.to_connect(server)}'
        return Answer.of(text, **details, error="not_connected")
    if not entry.instructions:
        return Answer.of(
            f'Server "{server}" does not provide instructions.', **details, error="no_instructions"
        )
    text = f"{server} instructions:\n\n{entry.instructions}"
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
    unknown: Sequence[StatusRow] = (),
    hints: Hints,
) -> Answer:
    """A page of matches: with their parameters (`full`), or one line each."""
    details: dict[str, Any] = {
        "mode": "search",
        "query": query,
        "matches": [
            {"server": match.target.server, "tool": match.target.name, "score": match.score}
            for match in page.matches
        ],
        "count": page.total,
        "hasMore": page.has_more,
        "nextOffset": page.next_offset,
    }
    if connecting:
        details["connectingServers"] = list(connecting)
    if unknown:
        details["unknownServers"] = unknown_details(unknown)
    targets = [match.target for match in page.matches]
    if not page.total:
        return Answer.of(_nothing(query, server, connecting, unknown, hints), **details)
    head = f'Found {_tools(page.total)} matching "{query}":' if query.strip() else f"{_tools(page.total)}:"
    text = [head, "", *(full_lines(targets) if full else map(short_line, targets))]
    if unknown:
        text += ["", f"{sentence(unknown)} {hints.learn}"]
    if page.has_more or offset:
        text += ["", _footer(len(targets), page)]
    text += _still_connecting(connecting)
    return Answer.of("\n".join(text), **details)


def describe(target: Target) -> Answer:
    """One tool, with what it wants."""
    text = [target.name, f"Server: {target.server}"]
    if target.kind == "resource":
        text.append(f"Type: Resource (reads from {target.original})")
    text += ["", target.description or "(no description)", "", *_parameters(target)]
    return Answer.of("\n".join(text), mode="describe", server=target.server, tool=tool_details(target))


def tool_details(target: Target) -> dict[str, Any]:
    """A tool as `details` carry it: what the server said of it, under the name it is called by here."""
    details: dict[str, Any] = {
        "name": target.name,
        "server": target.server,
        "kind": target.kind,
        "original": target.original,
        "description": target.description or "",
    }
    if target.kind == "tool":
        details["inputSchema"] = target.input_schema
    return details


def short_line(target: Target) -> str:
    """`- name - first words of its description`."""
    description = cut(" ".join((target.description or "").split()), SHORT)
    return f"- {target.name} - {description}" if description else f"- {target.name}"


def full_lines(targets: Iterable[Target]) -> Iterable[str]:
    for number, target in enumerate(targets):
        if number:
            yield ""
        yield target.name
        yield f"  {target.description or '(no description)'}"
        if target.kind == "resource":
            yield "  No parameters (resource tool)."
        else:
            yield "  Parameters:"
            yield parameters_text(target.input_schema, "    ")


def cut(text: str, width: int) -> str:
    """`text` if it fits, else its head with `...`: at a space when that does not lose more than two fifths of it."""
    if len(text) <= width:
        return text
    head = text[:width]
    space = head.rfind(" ")
    return (head[:space] if space > width * 0.6 else head) + "..."


def _parameters(target: Target) -> list[str]:
    if target.kind == "resource":
        return ["No parameters required (resource tool)."]
    schema: object = target.input_schema
    if not isinstance(schema, Mapping) or not schema:
        return ["No parameters defined."]
    return ["Parameters:", parameters_text(target.input_schema)]


def _nothing(
    query: str, server: str | None, connecting: Sequence[str], unknown: Sequence[StatusRow], hints: Hints
) -> str:
    where = f' in "{server}"' if server else ""
    text = [f'No tools matching "{query}"{where}', *_still_connecting(connecting)]
    if unknown:
        return f"{' '.join(text)}{'' if connecting else '.'} {sentence(unknown)} {hints.learn}"
    return " ".join(text) if connecting else f"{text[0]}. {hints.see_servers}"


def _footer(shown: int, page: SearchPage) -> str:
    more = f" — offset: {page.next_offset} for more" if page.has_more else ""
    return f"{shown} of {page.total}{more}"


def _still_connecting(connecting: Sequence[str]) -> list[str]:
    return [f'Server "{server}" is still connecting; retry in a moment.' for server in connecting]
