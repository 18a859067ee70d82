"""What commands and other programs see of a room, as plain JSON. The same functions serve a running room and
the cache alone.

The shapes are those of the `mcp` tool's `details`, with more about each server.

A view of thousands of servers or tools takes longer than one turn of the loop may. So the view of a running room is
made of a snapshot, in a thread if it is long.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..protocol.status import ServerStatus, json_of, word_with
from .exposures.query_modes import CatalogueReader, CatalogueSnapshot
from .exposures.tool_definition import FOR_PEOPLE, Mode
from .exposures.tool_texts import status, tool_details, unknown_details, unknown_sentence

if TYPE_CHECKING:
    from ..protocol.tree import TreeNode
    from ..supervisor.port import Catalogue, RoomPort


async def room_status_view(room: RoomPort) -> dict[str, Any]:
    """`status_view` of a running room."""
    from ..actors.workers import aside_if_many  # a command that reads the cache has no loop

    known = await CatalogueSnapshot.of(room)
    return await aside_if_many(len(known.rows), partial(status_view, known))


def server_view(room: RoomPort, server: str) -> dict[str, Any]:
    """`room_status_view` of one server alone."""
    view = status_view(CatalogueSnapshot.of_some(room, (server,)))
    return {**view, "servers": [row for row in view["servers"] if row["name"] == server]}


async def room_tools_view(room: RoomPort, server: str | None) -> dict[str, Any]:
    """`tools_view` of a running room."""
    from ..actors.workers import aside_if_many

    known = await CatalogueSnapshot.of(room)
    return await aside_if_many(known.index.size, partial(tools_view, known, server))


async def room_tree_view(room: RoomPort) -> dict[str, Any]:
    """A running room as `tree`."""
    from ..actors.workers import aside_if_many

    tree = await room.services.surveyed_tree()
    return await aside_if_many(len(room.catalogue.config.servers), partial(_tree_view, tree))


def offline_tree_view(catalogue: Catalogue) -> dict[str, Any]:
    """The servers of a room that does not run."""
    from ..protocol.tree import tree_of_rows

    return _tree_view(tree_of_rows(CatalogueReader(catalogue, hints=FOR_PEOPLE).rows()))


def _tree_view(tree: TreeNode) -> dict[str, Any]:
    return {"tree": msgspec.to_builtins(tree)}


def status_view(catalogue: Catalogue) -> dict[str, Any]:
    """Every server in the order of the configuration, then those that were removed and have not ended; further
    addresses of a server follow under `addresses`."""
    rows = [_at_present(row) for row in CatalogueReader(catalogue, hints=FOR_PEOPLE).rows()]
    there, named = catalogue.status(), {row.server for row in rows}
    others = [row for row in there if row.scope != "shared"]
    removed = [row for row in there if row.scope == "shared" and row.server not in named]
    doing: dict[str, list[str]] = {}  # of each server, the words of its further addresses
    for row in others:
        doing.setdefault(row.server, []).append(row.word)
    details = dict(status(rows, FOR_PEOPLE).details)
    details["servers"] = [
        {**json_of(row), **server, "status": word_with(row.word, doing.get(row.server, ()))}
        for row, server in zip(rows, details["servers"], strict=True)
    ]
    details["servers"] += [{**json_of(row), "toolCount": row.tool_count or 0} for row in removed]
    if others:
        details["addresses"] = [json_of(row) for row in others]
    return details


def _at_present(row: ServerStatus) -> ServerStatus:
    """The row without what is of no interest as long as the server is disabled: how it failed, and its next try."""
    if not row.disabled:
        return row
    tries = {
        "failed_starts": 0,
        **dict.fromkeys(("failure", "failure_kind", "failed_ago", "retry_in", "next_try", "quarantined")),
    }
    return msgspec.structs.replace(row, waiting_for=None, waiting=None, **tries)


def tools_view(catalogue: Catalogue, server: str | None) -> dict[str, Any]:
    """Every tool, sorted by name, and behind them every skill; or those of `server`. If `server` cannot be listed: the
    `mcp` tool's refusal."""
    reader = CatalogueReader(catalogue, hints=FOR_PEOPLE)
    refusal = reader.refusal(Mode.LIST, server)
    if refusal is not None:
        return {**refusal.details, "mode": "tools", "message": refusal.text}
    tools = [tool_details(target) for target in catalogue.index.findable(server)]
    view: dict[str, Any] = {"mode": "tools", "server": server, "tools": tools, "count": len(tools)}
    unknown = reader.unknown(server)
    if unknown:
        view["unknownServers"] = unknown_details(unknown)
        view["message"] = unknown_sentence(unknown, FOR_PEOPLE)
        if server is not None:
            view["error"] = "not_known_yet"
    return view
