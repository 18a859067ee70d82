"""What commands and other programs see of a room: plain JSON, one function for a running room and for the cache alone.

The shapes are those of the `mcp` tool's `details`, with more said of each server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.status import json_of
from ._mcp_tool import FOR_PEOPLE, CatalogueReader, Mode
from ._mcp_tool._texts import tool_details
from ._mcp_tool._unknown import details as unknown_details
from ._mcp_tool._unknown import sentence

if TYPE_CHECKING:
    from ._room import Catalogue


def status_view(reader: CatalogueReader, catalogue: Catalogue) -> dict[str, Any]:
    """Every server in the order of the configuration; further addresses of a server follow under `addresses`."""
    details = dict(reader.status().details)
    rows = {row.server: row for row in reader.rows()}
    details["servers"] = [{**json_of(rows[server["name"]]), **server} for server in details["servers"]]
    others = [row for row in catalogue.status() if row.scope != "shared"]
    if others:
        details["addresses"] = [json_of(row) for row in others]
    return details


def tools_view(reader: CatalogueReader, catalogue: Catalogue, server: str | None) -> dict[str, Any]:
    """Every tool by name, or those of `server`; when it cannot be asked for, the `mcp` tool's refusal."""
    refusal = reader.refusal(Mode.LIST, server)
    if refusal is not None:
        return {**refusal.details, "mode": "tools", "message": refusal.text}
    tools = [tool_details(target) for target in catalogue.index.tools(server)]
    view: dict[str, Any] = {"mode": "tools", "server": server, "tools": tools, "count": len(tools)}
    unknown = reader.unknown(server)
    if unknown:
        view["unknownServers"] = unknown_details(unknown)
        view["message"] = f"{sentence(unknown)} {FOR_PEOPLE.learn}"
        if server is not None:
            view["error"] = "not_known_yet"
    return view
