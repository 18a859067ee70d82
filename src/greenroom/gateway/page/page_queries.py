"""What the page asks for when somebody looks closer: one server, the tools, one tool, one call, the timeline, the tree,
what has changed.

Each is what a command prints as JSON, made by the same function: `explain`, `logs`, `config`, `tools`, `search`,
`describe`, `accept --show`. The timeline is the page's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ...actors.transports.stderr_log import last_lines
from ...actors.workers import apart, aside, aside_if_many
from ...catalogue.fingerprints import kind_of, original_of, pinned_records, prints_of, shown_of
from ...catalogue.search import MAX_QUERY, search
from ...config.masking import redacted_server
from ...protocol.errors import UsageError
from ...protocol.event_records import record_of
from ...protocol.safe_text import without_stderr
from ...protocol.tree import facts, shown_below, state_in_words
from ..explain import explained
from ..exposures.query_modes import CatalogueReader, CatalogueSnapshot
from ..exposures.tool_definition import FOR_PEOPLE, parse_request
from ..json_views import server_view
from .timeline import RoomNow, lanes_of

if TYPE_CHECKING:
    from ...catalogue.index import Index
    from ...protocol.tree import TreeNode
    from ...supervisor.port import RoomPort
    from ..next_steps import Commands

_NODES: Final = 50  # sessions and calls of one server
_LINES: Final = 200  # of stderr
_PAGE: Final = 50  # tools that are listed, unless the page asks for more
_MOST: Final = 500
_SECONDS: Final = 600.0  # of a timeline
_LONGEST: Final = 3_600.0
Params = Mapping[str, Any]


async def server(port: RoomPort, commands: Commands, params: Params, acts: bool) -> dict[str, Any]:
    """Why a server is as it is; for an owner also what it wrote to stderr last, and its entry without secrets. Raises
    `UsageError`."""
    config, name = port.catalogue.config, _text(params, "name")
    if name not in config.servers and name not in config.broken:
        port.catalogue.check_server(name)
    view = server_view(port, name)
    view = view if acts else without_stderr(view)
    said = {"explain": explained(commands.filled_in(view), config, name, commands, runs=True)}
    if not acts:
        return {**said, "stderr": None, "entry": None, "files": []}
    log, definition = port.services.stderr_log_of(name), config.servers.get(name)
    return {
        **said,
        "stderr": [] if log is None else await apart(partial(last_lines, log, _LINES)),
        "entry": None if definition is None else redacted_server(definition),
        "files": [] if definition is None else sorted({*map(str, definition.sources.values())}),
    }


async def tools(port: RoomPort, params: Params) -> dict[str, Any]:
    """A page of what the servers have: with `query` the tools and skills that match, best first; without one all of it,
    also prompts and resources. Raises `UsageError`."""
    index, name, query = (
        port.catalogue.index,
        params.get("server") or None,
        str(params.get("query") or "")[:MAX_QUERY],
    )
    offset, limit = _whole(params, "offset", 0, 0), _whole(params, "limit", _PAGE, 1, _MOST)
    port.catalogue.check_server(name)
    if query.strip():
        near = await port.catalogue.near(query)
        find = partial(search, index, query, server=name, limit=limit, offset=offset, near=near)
        page = await aside_if_many(index.size, find)
        return {"tools": [_listed(match.target) for match in page.matches], "total": page.total}
    total, found = await aside_if_many(index.size, partial(_everything, index, name, offset, limit))
    return {"tools": found, "total": total}


async def tree(port: RoomPort) -> dict[str, Any]:
    """The room as `greenroom tree` prints it, a row for each node, parents first."""
    return {"nodes": list(_tree_rows(await port.services.surveyed_tree(), 0))}


def _tree_rows(node: TreeNode, level: int) -> Iterator[dict[str, Any]]:
    children, left = shown_below(node, _NODES)
    said = ", ".join(facts(node))
    yield {
        "level": level,
        "kind": node.kind,
        "name": node.name,
        "state": state_in_words(node.state),
        "said": said,
    }
    for child in children:
        yield from _tree_rows(child, level + 1)
    if left:
        yield {"level": level + 1, "kind": "more", "name": "", "state": "", "said": f"and {left} more"}


def _everything(
    index: Index, server: str | None, offset: int, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    parts: list[Iterable[Any]] = [index.findable(server), index.prompts(server)]
    places = (*index.resources(server), *index.templates(server))
    total = sum(len(tuple(part)) for part in parts) + len(places)
    everything = (*(map(_listed, part) for part in parts), map(_placed, places))
    return total, list(islice((each for part in everything for each in part), offset, offset + limit))


def _listed(target: Any) -> dict[str, Any]:
    return {
        "name": target.name,
        "server": target.server,
        "own": target.original,
        "kind": target.kind,
        "description": target.description or "",
        "changed": target.changed is not None,
    }


def _placed(place: Any) -> dict[str, Any]:
    said: Mapping[str, Any] = place.record
    return {
        "name": place.uri,
        "server": place.server,
        "own": place.original,
        "kind": "resource",
        "description": str(said.get("description") or said.get("name") or ""),
        "changed": False,
    }


async def tool(port: RoomPort, params: Params) -> dict[str, Any]:
    """A tool or a skill with its definition, as `describe` has it. Raises `UsageError`."""
    asked = {"describe": _text(params, "name")}
    if params.get("server"):
        asked["server"] = str(params["server"])
    reader = CatalogueReader(await CatalogueSnapshot.of(port), hints=FOR_PEOPLE)
    answer = await aside_if_many(port.catalogue.index.size, partial(reader.answer, parse_request(asked)))
    details = answer.details
    if "error" in details:
        raise UsageError(answer.text, code=str(details["error"]))
    return {**details, **({"needsApproval": _is_held(port, details["tool"])} if "tool" in details else {})}


def _is_held(port: RoomPort, said: Mapping[str, Any]) -> bool:
    target = port.catalogue.index.get(said["name"])
    return target is not None and port.leaves_approval(target)


async def timeline(port: RoomPort, params: Params) -> dict[str, Any]:
    """The timeline of the last minutes: its lanes."""
    try:
        seconds = float(params.get("seconds") or _SECONDS)
    except ValueError:
        raise UsageError('"seconds" must be a number.') from None
    seconds = max(1.0, min(seconds, _LONGEST))
    rows = await port.catalogue.surveyed()
    recent, now = port.services.recent(seconds), port.services.now()
    room = RoomNow(now - seconds, now, rows)
    return {"lanes": await aside(lambda: lanes_of(map(record_of, recent()), room))}


async def call(port: RoomPort, params: Params, acts: bool) -> dict[str, Any]:
    """One call of the last minutes; with what was said in it, for an owner. Raises `UsageError`."""
    from ...tape.last_minutes_tape import call_of
    from ...tape.story import whole_call_as_json
    from ...tape.tape_lines import value_in

    number = _whole(params, "number", 0, 0)
    line = await apart(partial(call_of, port.services.last_minutes(), number))
    if line is None:
        raise UsageError("This call is not among the last minutes any more.")
    said = whole_call_as_json(line, value_in(bytes(line.result)) if line.result else None)
    if acts:
        return said
    return {**said, "params": None, "result": None, "progress": [], "asked": [], "isShort": True}


def changed(port: RoomPort, servers: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The definitions of these servers that are not as they were first shown: what differs, how they are now, and
    how they were, if that is known. `digest`: what an owner accepts, if that can be shown."""
    for name in servers:
        entry = port.catalogue.entry(name)
        if entry is None or not entry.pinned.changed:
            continue
        records, prints = pinned_records(entry), prints_of(entry, entry.pinned.changed)
        for pin, parts in entry.pinned.changed.items():
            kind, record = kind_of(pin), records.get(pin)
            yield {
                "server": name,
                "kind": kind,
                "name": original_of(pin),
                "parts": list(parts),
                "is": None if record is None else shown_of(pin, record),
                "was": entry.pinned.was.get(pin),
                "digest": prints.get(pin),
                "flapping": pin in entry.pinned.flapping,
            }


def _text(params: Params, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f'"{name}" is missing.')
    return value


def _whole(params: Params, name: str, usual: int, least: int, most: int = 1 << 31) -> int:
    said = str(params.get(name) or usual)
    if not said.isascii() or not said.isdigit():
        raise UsageError(f'"{name}" must be a whole number.')
    return max(least, min(most, int(said[:9])))
