"""What a page is told while it looks: everything once, and then what changes.

A watch keeps what it has told and compares. It hears the room's events, which say whose rows may be different now, and
looks at these rows four times a second at most. Some things have no event (the last line that an installing server
wrote, an answer that is late): so servers on their way to a connection are looked at each time, and all of them each
few seconds.

Seconds that only go on (`retryIn`, `nextTry`, `waiting`) are no news: the page counts them from the `at` of the message
that brought them.

A reader pulls. One that is slow is told less often, and then everything that has changed meanwhile; of events it is
told how many it has missed. So it costs the room no more than a fast one. While nobody watches there is no watch:
nothing hears, counts or compares.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...actors.workers import aside, aside_if_many
from ...catalogue.hidden_characters import unhidden_value
from ...protocol import jsonrpc as rpc
from ...protocol.event_records import record_of
from ...protocol.events import (
    CallAccepted,
    CallEnded,
    CallEvent,
    CallSent,
    CatalogueChanged,
    Event,
    Kind,
    Lagged,
)
from ...protocol.json_values import is_array, is_object
from ..event_log import TOLD
from ..exposures.query_modes import CatalogueSnapshot
from ..json_views import status_view

if TYPE_CHECKING:
    from .room_page import RoomPage

Frame = tuple[str, Any]  # the name of a message, and what it says; without a name it is a sign of life
TICK: Final = 0.25  # seconds between two looks
ALIVE: Final = 5.0  # seconds of silence after which there is a sign of life; a page that misses two says so
_ALL: Final = 5.0  # seconds between two looks at all rows
_SLOWLY: Final = 1.0  # seconds between two looks at what may be a thousand, and has no events
_RECENT: Final = 900.0  # seconds back that a new page is told of, as many as its strips show
_FIRST: Final = 2_000  # events of these
_KEPT: Final = 1_000  # events that wait for a reader
_CALLS: Final = 500  # open ones that are told
_MANY: Final = 100  # servers from which on all are looked at: that is done in turns
_PIECE: Final = 100  # events in a message
_LONG: Final = 10  # times as long as going over an item of the catalogue
DESK: Final = 5.0  # seconds for which a look of an owner's page counts as watching the desk
_HEARD: Final = frozenset(Kind) - {Kind.STEP}
_GO_ON: Final = frozenset(
    {"at", "failedAgo", "waiting", "retryIn", "nextTry", "silentSeconds", "endsInSeconds", "seconds", "left"}
)


class PageFeed:
    """One page that looks. `acts`: its person may answer calls that wait for approval, so a call may wait for it."""

    def __init__(self, page: RoomPage, *, acts: bool) -> None:
        self._page = page
        self._port = page.port
        self._acts = acts
        self._rows: dict[str, dict[str, Any]] = {}  # as they were told
        self._told: dict[str, Any] = {}  # sections, likewise
        self._calls: dict[int, dict[str, Any]] = {}  # open ones
        self._heard_first: list[CallEvent] | None = []  # until it is known what was open before
        self._dirty: set[str] = set()
        self._restless: Collection[str] = ()  # servers whose rows change without events
        self._is_all_dirty = False
        self._events: deque[Event | Lagged] = deque(maxlen=_KEPT)
        self._missed = 0

    async def frames(self) -> AsyncGenerator[Frame]:
        """What the page is told. Ends with the gateway."""
        hearing = self._port.services.listen(self._hear, _HEARD)
        try:
            before = await aside(self._port.services.recent(_RECENT))  # it needs no loop, and may be long
            self._calls = self._open_of(before)
            told = [event for event in before if _is_told(event)]
            since = self._port.services.now() - _RECENT if len(told) <= _FIRST else told[-_FIRST].at
            yield "snapshot", {**await self._snapshot(), "countedSince": round(since, 6)}
            for records in _pieces(told[-_FIRST:]):
                yield "events", records
            last = now = anyio.current_time()
            all_at, slowly_at = now + _ALL, now + _SLOWLY
            while not self._page.is_over:
                await anyio.sleep(TICK)
                now = anyio.current_time()
                if missed := self._missed:
                    self._missed, last = 0, now
                    yield "lagged", {"missed": missed}
                for records in _pieces(self._taken()):
                    last = now
                    yield "events", records
                is_all, is_slow = self._is_all_dirty or now >= all_at, now >= slowly_at
                all_at = now + _ALL if is_all else all_at
                slowly_at = now + _SLOWLY if is_slow else slowly_at
                change = await self._change(is_all, is_slow)
                if change:
                    last = now
                    yield "change", {**self._times(), **change}
                if now - last >= ALIVE:
                    last = now
                    yield "", None
        finally:
            hearing.close()

    # ---- what is heard ---------------------------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        """In the step that has made the event: note what it means, no more."""
        address = event.address
        if address is not None:
            self._dirty.add(address.server)
        elif isinstance(event, CatalogueChanged):
            self._is_all_dirty = True
        if isinstance(event, CallEvent):
            if self._heard_first is None:
                _follow(self._calls, event)
            else:
                self._heard_first.append(event)
        if _is_told(event):
            self._missed += len(self._events) == _KEPT
            self._events.append(event)

    def _open_of(self, before: Iterable[Event]) -> dict[int, dict[str, Any]]:
        """The open calls: those of `before`, and what was heard since."""
        calls: dict[int, dict[str, Any]] = {}
        for event in (*before, *(self._heard_first or ())):
            if isinstance(event, CallEvent):
                _follow(calls, event)
        self._heard_first = None
        return calls

    def _taken(self) -> list[Event | Lagged]:
        taken = [*self._events]
        self._events.clear()
        return taken

    # ---- what is told ----------------------------------------------------------------------------------------------

    async def _snapshot(self) -> dict[str, Any]:
        self._watch_desk()
        rows = await self._changed_rows(is_all=True)
        self._told = {**self._page.quick(self._acts), "calls": self._open_calls(), **await self._slow()}
        return {**self._times(), "servers": rows.get("changed", []), **self._told}

    async def _change(self, is_all: bool, is_slow: bool) -> dict[str, Any]:
        """What is different from what was told."""
        self._watch_desk()
        sections = {**self._page.quick(self._acts), "calls": self._open_calls()}
        if is_slow:
            sections |= await self._slow()
        news = {name: value for name, value in sections.items() if not _is_same(self._told.get(name), value)}
        self._told |= news
        servers = await self._changed_rows(is_all)
        return {**({"servers": servers} if servers else {}), **news}

    async def _changed_rows(self, is_all: bool) -> dict[str, Any]:
        """The rows that are different now, and the servers that are gone. Empty: none."""
        names = {*self._dirty, *self._restless}
        self._dirty.clear()
        if not is_all and not names:
            return {}
        is_all = is_all or len(names) > _MANY
        port = self._port
        if is_all:
            self._is_all_dirty = False
            names, known = None, await CatalogueSnapshot.of(port)
        else:
            known = CatalogueSnapshot.of_some(port, names)
        changed, gone, restless = await aside_if_many(len(known.rows), partial(self._compared, known, names))
        self._restless = restless
        self._rows.update((row["name"], row) for row in changed)
        for name in gone:
            del self._rows[name]
        return {"changed": changed, "gone": gone} if changed or gone else {}

    def _compared(
        self, known: CatalogueSnapshot, names: Collection[str] | None
    ) -> tuple[list[dict[str, Any]], list[str], Collection[str]]:
        """The rows of these servers (None: of all) that are not as they were told, those that are gone, and those that
        are to be looked at again soon. May run in a thread."""
        view = status_view(known)
        rows = _rows_in(self._page.commands.filled_in(view))
        if names is not None:
            rows = [row for row in rows if row["name"] in names]
        there = {row["name"] for row in rows}
        gone = [name for name in (self._rows if names is None else names) if name not in there]
        changed = [row for row in rows if not _is_same(self._rows.get(row["name"]), row)]
        return changed, [name for name in gone if name in self._rows], {*filter(None, map(_restless, rows))}

    async def _slow(self) -> dict[str, Any]:
        changed = [name for name, row in self._rows.items() if row.get("changed")]
        return await self._page.slow(changed, self._acts)

    def _open_calls(self) -> list[dict[str, Any]]:
        """The calls that are open for longest. They are made anew when they change."""
        return list(islice(self._calls.values(), _CALLS))

    def _watch_desk(self) -> None:
        if self._acts:
            self._port.services.approvals.watch(DESK)

    def _times(self) -> dict[str, float]:
        """The time of the room's clock, which is that of events, and of the wall clock."""
        return {"at": round(self._port.services.now(), 6), "wall": round(time.time(), 3)}


def _follow(calls: dict[int, dict[str, Any]], event: CallEvent) -> None:
    """Keep the open calls."""
    if isinstance(event, CallEnded):
        calls.pop(event.call, None)
    elif isinstance(event, CallAccepted | CallSent):
        calls[event.call] = {
            "id": event.call,
            "server": event.server,
            "scope": event.scope,
            "tool": event.tool,
            "method": event.method,
            "session": event.client,
            "state": "sent" if isinstance(event, CallSent) else "queued",
            "since": round(event.at, 6),
        }


def _is_told(event: Event) -> bool:
    return event.kind in TOLD or isinstance(event, CallEnded)


def _pieces(events: Sequence[Event | Lagged]) -> Iterable[list[dict[str, Any]]]:
    rest = iter(events)
    while piece := list(islice(rest, _PIECE)):
        yield [record_of(event) for event in piece]


def _rows_in(view: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a status, each with its further addresses."""
    further: dict[str, list[Any]] = {}
    for row in view.get("addresses", ()):
        further.setdefault(row["name"], []).append(row)
    return [{**row, "addresses": further.get(row["name"], [])} for row in view["servers"]]


def _restless(row: Mapping[str, Any]) -> str | None:
    """The name of a server whose row changes without events: it is on its way to a connection, or from one."""
    is_so = any(
        each["state"] in ("connecting", "draining") or each.get("waitingFor") is not None
        for each in (row, *row["addresses"])
    )
    return row["name"] if is_so else None


def _is_same(told: Any, now: Any) -> bool:
    """Whether nothing but the time has changed."""
    if told == now:
        return True
    if is_object(told) and is_object(now):
        return told.keys() == now.keys() and all(
            (told[key] is None) == (value is None) if key in _GO_ON else _is_same(told[key], value)
            for key, value in now.items()
        )
    if is_array(told) and is_array(now):
        return len(told) == len(now) and all(map(_is_same, told, now))
    return False


async def as_sse(frame: Frame, shown: Callable[[Any], Any] = lambda said: said) -> bytes:
    """A frame as a server-sent event. A long one is made in a thread. `shown`: what of it whoever watches may see."""
    name, said = frame
    rows: Any = said.get("servers", ()) if is_object(said) else said or ()
    return await aside_if_many(_LONG * len(rows), lambda: _sse(name, shown(said)))


def _sse(name: str, said: Any) -> bytes:
    if not name:
        return b": \n\n"
    return b"event: %b\ndata: %b\n\n" % (name.encode(), rpc.encode(unhidden_value(said)))
