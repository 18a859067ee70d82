"""What commands and other programs see of a room, as plain JSON. The same functions serve a running room and
the cache alone.

The shapes are those of the `mcp` tool's `details`, with more about each server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.cooperative import Pace, Slices
from ..protocol.status import json_of
from .exposures.query_modes import CatalogueReader
from .exposures.tool_definition import FOR_PEOPLE, Mode
from .exposures.tool_texts import status, tool_details, unknown_details, unknown_sentence

if TYPE_CHECKING:
    from ..supervisor.room_port import Catalogue


def status_view(reader: CatalogueReader, catalogue: Catalogue) -> Slices[dict[str, Any]]:
    """Every server in the order of the configuration; further addresses of a server follow under `addresses`."""
    rows = yield from reader.rows()
    details = dict((yield from status(rows, FOR_PEOPLE)).details)
    servers, pace = list[dict[str, Any]](), Pace()
    for number, (row, server) in enumerate(zip(rows, details["servers"], strict=True)):
        servers.append({**json_of(row), **server})
        if number % 40 == 0 and pace.due():
            yield
    details["servers"] = servers
    others = [row for row in (yield from catalogue.surveying()) if row.scope != "shared"]
    if others:
        details["addresses"] = [json_of(row) for row in others]
    return details


def tools_view(reader: CatalogueReader, catalogue: Catalogue, server: str | None) -> Slices[dict[str, Any]]:
    """Every tool, sorted by name, or those of `server`. If `server` cannot be listed: the `mcp` tool's
    refusal."""
    refusal = reader.refusal(Mode.LIST, server)
    if refusal is not None:
        return {**refusal.details, "mode": "tools", "message": refusal.text}
    tools, pace = list[dict[str, Any]](), Pace()
    yield from catalogue.index.preparing_names()
    for number, target in enumerate(catalogue.index.tools(server)):
        tools.append(tool_details(target))
        if number % 40 == 0 and pace.due():
            yield
    view: dict[str, Any] = {"mode": "tools", "server": server, "tools": tools, "count": len(tools)}
    unknown = yield from reader.unknown(server)
    if unknown:
        view["unknownServers"] = unknown_details(unknown)
        view["message"] = unknown_sentence(unknown, FOR_PEOPLE)
        if server is not None:
            view["error"] = "not_known_yet"
    return view
