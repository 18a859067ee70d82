"""`greenroom refresh`: starts servers of which nothing is known once, so that the command can follow the
progress.

That may take minutes, so it is not one long request. `begin` says which servers are asked, and since when.
`look` says how each of them is doing, and may be called as often as one likes. Neither keeps anything: the
progress is read off the catalogue and the status. It works in the same way over a gateway's control socket
and in a room of the command's own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..protocol.slices import Slices
from ._mcp_tool._unknown import waits

if TYPE_CHECKING:
    from ..protocol.status import ServerStatus
    from ._mcp_tool import CatalogueReader
    from ._room import RefreshedRoom, Room


def begin(room: RefreshedRoom, server: str | None) -> dict[str, Any]:
    """Begin to ask the servers. Returns their `names`, and `since`, the time by the wall clock.

    Raises `UnknownServer`, `ServerDown` (the server is out of service)."""
    since = time.time()
    return {"names": room.refresh(server), "since": since}


def look(room: Room, reader: CatalogueReader, asked: Mapping[str, Any]) -> Slices[list[dict[str, Any]]]:
    """How each server that was asked is doing: `state` is `known`, `failed` or `waiting`."""
    names: Sequence[str] = asked["names"]
    rows = {row.server: row for row in (yield from reader.rows())}
    return [
        {"server": name, "name": name, **_doing(room, name, rows.get(name), asked["since"])} for name in names
    ]


def _doing(room: Room, name: str, row: ServerStatus | None, since: float) -> dict[str, Any]:
    entry = room.entry(name) if row is not None else None
    if row is None:
        return {"state": "failed", "failure": "it is not configured any more"}
    if entry is not None and entry.fetched_at >= since:
        return {"state": "known", "tools": row.tool_count or 0}
    failed_now = row.failed_ago is not None and time.time() - row.failed_ago >= since
    if row.down is not None or failed_now:
        return {"state": "failed", "failure": row.down or row.failure, "retryIn": row.retry_in}
    return {"state": "waiting", "waitsFor": waits(row), "lastLine": row.last_line}
