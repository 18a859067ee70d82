"""What operators ask the door: `/health`, `/health/any`, `/health/all`, `/ready`, `/status`, `/map`, `/metrics`,
`/events`.

| path | answer |
|---|---|
| `/health` | 200 while the process lives |
| `/ready` | 200, and 503 from the moment it is asked to end |
| `/health/any` | 200 when a server can be used, or none is configured; else 503 |
| `/health/all` | 200 when all can be used; else 503 |
| `/status` | what `greenroom status --json` prints, with version, seconds since the start, and sessions |
| `/map` | every tool, resource and prompt with its server, its own name and its schema |
| `/metrics` | numbers for Prometheus, if the settings turn them on |
| `/events` | the room's events as server-sent events; `Last-Event-ID` is a sequence number |

A lazy server that has not been started can be used: its first call starts it. The first two need no token. A caller
that is bound to a profile gets none of the others, because they show what is outside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from ...actors import in_turns
from ...protocol import jsonrpc as rpc
from ...protocol.slices import Pace, Slices
from ...protocol.unhiding import unhidden_value
from .._commands import PLAIN, Commands
from .._mcp_tool import FOR_PEOPLE, CatalogueReader
from .._mcp_tool._texts import tool_details
from .._views import status_view
from ._app import HttpDoor, Page
from ._caller import Caller
from ._feed import Feed
from ._health import USABLE, word_of
from ._metrics import Metrics
from ._refusals import Refusal, no_such_path
from ._request import Request

if TYPE_CHECKING:
    from ...supervisor import Greenroom


class Operations:
    """The pages about `room`. `door` is the door they are shown at, once there is one. `commands`: those that their
    readers are told of."""

    def __init__(
        self,
        room: Greenroom,
        version: str,
        feed: Feed,
        metrics: Metrics | None = None,
        commands: Commands = PLAIN,
    ) -> None:
        self.door: HttpDoor | None = None
        self._room = room
        self._reader = CatalogueReader(room, hints=FOR_PEOPLE)
        self._version = version
        self._feed = feed
        self._metrics = metrics
        self._commands = commands
        self._started = anyio.current_time()

    def open_pages(self) -> Mapping[bytes, Page]:
        """Those that need no token."""
        return {b"/health": self._health, b"/ready": self._ready}

    def pages(self) -> Mapping[bytes, Page]:
        shown: dict[bytes, Callable[[Request], Awaitable[None]]] = {
            b"/health/any": self._any,
            b"/health/all": self._all,
            b"/status": self._status,
            b"/map": self._map,
            b"/metrics": self._numbers,
            b"/events": self._feed.show,
        }
        return {path: _for_everything(show) for path, show in shown.items()}

    async def _health(self, request: Request, _caller: Caller) -> None:
        await _answer(request, True, {"status": "healthy"})

    async def _ready(self, request: Request, _caller: Caller) -> None:
        is_ready = self.door is not None and not self.door.is_ending
        await _answer(request, is_ready, {"status": "ready" if is_ready else "not_ready"})

    async def _any(self, request: Request) -> None:
        words = await self._words()
        alive = [name for name, word in words.items() if word in USABLE]
        dead = [name for name in words if name not in alive]
        is_well = bool(alive) or not words
        said = {"status": _health_word(is_well), "alive_servers": alive, "dead_servers": dead}
        await _answer(request, is_well, said)

    async def _all(self, request: Request) -> None:
        words = await self._words()
        is_well = all(word in USABLE for word in words.values())
        await _answer(request, is_well, {"status": _health_word(is_well), "servers": words})

    async def _words(self) -> dict[str, str]:
        """The state of each server that is not disabled."""
        rows = await in_turns(self._reader.rows())
        return {row.server: word_of(row) for row in rows if not row.disabled}

    async def _status(self, request: Request) -> None:
        said = await in_turns(status_view(self._reader, self._room))
        about = {
            "version": self._version,
            "uptimeSeconds": round(anyio.current_time() - self._started, 1),
            "sessions": self._sessions,
            "clients": self.door.sessions.view() if self.door is not None else [],
            "waitingForApproval": len(self._room.approvals),
        }
        await _answer(request, True, {**about, **self._commands.filled_in(said)})

    @property
    def _sessions(self) -> int:
        return len(self.door.sessions) if self.door is not None else 0

    async def _numbers(self, request: Request) -> None:
        if self._metrics is None:
            raise Refusal(404, 'Metrics are off. Turn them on in the settings: "http": {"metrics": true}.')
        accept = request.text(b"accept") or ""
        text, media_type = await self._metrics.text(self._room, self._sessions, accept)
        await request.answer(200, text, ((b"content-type", media_type.encode()),))

    async def _map(self, request: Request) -> None:
        await _answer(request, True, await in_turns(self._mapping()))

    def _mapping(self) -> Slices[dict[str, Any]]:
        index, pace = self._room.index, Pace()
        yield from index.preparing_names()
        yield from index.preparing_lists()
        shown: dict[str, list[Mapping[str, Any]]] = {
            "tools": [],
            "prompts": [],
            "resources": [],
            "templates": [],
        }
        for target in index.tools():
            shown["tools"].append(self._commands.filled_in(tool_details(target)))
            if pace.due():
                yield
        for target in index.prompts():
            shown["prompts"].append({**tool_details(target), "arguments": target.record.get("arguments", [])})
        for kind, places in (("resources", index.resources()), ("templates", index.templates())):
            for place in places:
                about = {
                    key: place.record[key]
                    for key in ("name", "description", "mimeType")
                    if key in place.record
                }
                shown[kind].append(
                    {"uri": place.uri, "server": place.server, "original": place.original, **about}
                )
                if pace.due():
                    yield
        counts: dict[str, Any] = {}
        for name in index.servers:
            count = index.counts(name)
            if count is not None:
                said = {"tools": count.tools, "resources": count.resources, "prompts": count.prompts}
                counts[name] = said
        return {**shown, "counts": counts, "unknownServers": list(index.unknown_servers)}


def _health_word(is_well: bool) -> str:
    return "healthy" if is_well else "unhealthy"


def _for_everything(show: Callable[[Request], Awaitable[None]]) -> Page:
    """A page that shows everything, and so does not exist for a caller that is bound to a profile."""

    async def page(request: Request, caller: Caller) -> None:
        if caller.profile is not None:
            raise no_such_path()
        await show(request)

    return page


async def _answer(request: Request, is_well: bool, said: Mapping[str, Any]) -> None:
    await request.answer(200 if is_well else 503, rpc.encode(unhidden_value(said)) + b"\n")
