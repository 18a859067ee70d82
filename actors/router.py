"""The router: owns the catalogue's index and publishes it.

The index is immutable and replaced whole. So resolving a name is a dict look-up in the task that needs it, with no
hop. What servers list arrives as messages. A batch of them costs one new index. A large one is made in a thread, so
that five thousand tools delay nobody. An entry that is older (by revision) than the present one is dropped, so a slow
answer never overwrites a newer one. An entry with the same content is kept but not announced. What clients would
refuse of a new entry is noted, item by item. An `IndexRequest` is answered once everything sent before it is in the
published index: that is how a caller that has just connected a server resolves its tool again. Until then the index is
behind, and who lists is told to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from ..catalogue.entries import ServerEntry, definitions_of
from ..catalogue.index import Index
from ..catalogue.search_cache import SearchCache
from ..catalogue.skills import weight_of
from ..config.model import ServerDefinition, Settings
from ..protocol.address import Address
from ..protocol.events import CatalogueChanged, Note, NoteCode
from .backend import Backend
from .event_stream import EventStream
from .mailbox import CoreActor, Ref, Reply
from .workers import CATALOGUE, aside, aside_if_many

_NOTED: Final = 10  # faults of one server noted at a time


_MANY_SEARCHED: Final = 500  # names; a first search among fewer takes ten milliseconds or two


def is_quick(index: Index) -> bool:
    """Whether a search of `index` takes no longer than one turn of the loop may."""
    return index.is_searchable or index.size < _MANY_SEARCHED


async def make_searchable(index: Index) -> None:
    """Make all that a search of `index` needs, in a thread if it takes long."""
    await aside(index.prepare, CATALOGUE) if not is_quick(index) else index.prepare()


async def make_resolvable(index: Index) -> None:
    """Make what a name needs that is not exposed in exactly that spelling, in a thread if it takes long."""
    if not index.has_names:
        await aside_if_many(index.size, index.prepare_names)


async def make_countable(index: Index) -> None:
    """Make what a status says of each server, in a thread if it takes long."""
    if not index.has_counts:
        await aside_if_many(index.size, index.prepare_counts)


class LearnedEntry(msgspec.Struct, frozen=True, eq=False):
    """A server has listed what it has."""

    entry: ServerEntry


class DefinedServers(msgspec.Struct, frozen=True, eq=False):
    """The configured servers have changed. Entries that no longer fit their definition become unknown."""

    servers: Mapping[str, ServerDefinition]
    entries: Mapping[str, ServerEntry]
    settings: Settings


class IndexRequest(msgspec.Struct, frozen=True, eq=False):
    """Somebody wants the index once all that was told before is in it."""

    reply: Reply[Index]


RouterMessage = LearnedEntry | DefinedServers | IndexRequest


class Router:
    def __init__(
        self,
        backend: Backend,
        events: EventStream,
        servers: Mapping[str, ServerDefinition],
        entries: Mapping[str, ServerEntry],
        settings: Settings,
        on_change: Callable[[ServerEntry], None],
        forms: SearchCache | None = None,
    ) -> None:
        self.core: CoreActor[RouterMessage] = CoreActor("router", backend, self)
        self.ref: Ref[RouterMessage] = self.core.ref
        self._events = events
        self._on_change = on_change
        self._servers = dict(servers)
        self._entries: dict[str, ServerEntry | None] = {name: entries.get(name) for name in servers}
        self._settings = settings
        self._forms = forms
        self._waiting: list[Reply[Index]] = []
        self._is_stale = False
        self._before: dict[
            str, ServerEntry | None
        ] = {}  # of servers that have changed, what was known before
        self.index = Index.build(self._servers, self._entries, settings, forms=forms)

    def entry(self, server: str) -> ServerEntry | None:
        """What is known of a server now, whether published or about to be."""
        return self._entries.get(server)

    @property
    def is_behind(self) -> bool:
        """Whether something that it was told is not in the published index yet."""
        is_pending = bool(self.core.mailbox.system) or bool(self._before) or self._is_stale
        return is_pending and self.core.closed is None

    def step(self, message: RouterMessage) -> None:
        match message:
            case LearnedEntry(entry):
                self._learn(entry)
            case DefinedServers(servers, entries, settings):
                self._servers = dict(servers)
                known = self._entries
                self._entries = {name: _newer(entries.get(name), known.get(name)) for name in servers}
                self._settings = settings
                self._is_stale = True
                self._events.emit(CatalogueChanged)  # of no server: any may be shown otherwise now
                self._before = {name: before for name, before in self._before.items() if name in servers}
            case IndexRequest(reply):
                self._waiting.append(reply)

    async def after_batch(self) -> None:
        changed = [server for server, before in self._before.items() if await self._is_news(server, before)]
        if changed or self._is_stale:
            known = [self._entries.get(server) for server in changed]
            make = partial(self._make, changed)
            size = self.index.size + sum(map(_items_of, known))
            self.index: Index = await aside_if_many(size, make)
            self._is_stale = False
            for server in changed:
                self._note_faults(server)
                self._note_hidden(server)
        self._before = {}
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            reply.send(self.index)

    def _make(self, changed: Iterable[str]) -> Index:
        """The index of everything known now, with all that is needed as soon as it is published."""
        index = Index.build(
            self._servers, self._entries, self._settings, previous=self.index, forms=self._forms
        )
        index.prepare_lists()
        for server in changed:
            index.faults(server)
        return index

    async def _is_news(self, server: str, before: ServerEntry | None) -> bool:
        """Compare the entry with what was known; if it differs, announce it."""
        entry = self._entries.get(server)
        if entry is None:
            return False
        if before is not None:
            compare = partial(same_content, before, entry)
            if await aside_if_many(_items_of(entry), compare):
                return False
        self._events.emit(CatalogueChanged, Address(server))
        return True

    def close(self, error: Exception) -> None:
        for reply in self._waiting:
            reply.fail(error)

    def _learn(self, entry: ServerEntry) -> None:
        if entry.server not in self._servers:
            return
        known = self._entries.get(entry.server)
        if known is not None and entry.revision < known.revision:
            return
        self._before.setdefault(entry.server, known)
        self._entries[entry.server] = entry
        self._on_change(entry)

    def _note_faults(self, server: str) -> None:
        faults = self.index.faults(server)
        for fault in faults[:_NOTED]:
            self._note_refusal(server, str(fault))
        if len(faults) > _NOTED:
            self._note_refusal(server, f"{len(faults) - _NOTED} more; its status names them")

    def _note_hidden(self, server: str) -> None:
        counts = self.index.counts(server)
        hidden = counts.hidden if counts is not None else ()
        more = [f"{len(hidden) - _NOTED} more; its status names them"] if len(hidden) > _NOTED else []
        for each in (*hidden[:_NOTED], *more):
            words = f"hidden characters, which nobody is shown: {each}"
            self._events.emit(Note, Address(server), code=NoteCode.HIDDEN_CHARACTERS, words=words)

    def _note_refusal(self, server: str, what: str) -> None:
        words = f"clients would refuse {what}"
        self._events.emit(Note, Address(server), code=NoteCode.REFUSED_BY_CLIENTS, words=words)


def _newer(told: ServerEntry | None, known: ServerEntry | None) -> ServerEntry | None:
    """The newer of two entries: the one that a reload has, and the one that is known. The server may have listed
    something while the reload read the cache."""
    if told is None or known is None or told.definition_hash != known.definition_hash:
        return told
    return known if known.revision > told.revision else told


def same_content(one: ServerEntry, other: ServerEntry) -> bool:
    """Whether two entries look the same to readers of the catalogue."""
    if one.pinned != other.pinned:
        return False
    if one.instructions != other.instructions or one.problems != other.problems:
        return False
    for these, those in (
        (one.tools, other.tools),
        (one.resources, other.resources),
        (one.templates, other.templates),
        (one.prompts, other.prompts),
        (one.skills, other.skills),
    ):
        if these is None or those is None or len(these) != len(those):
            if these is not those:
                return False
            continue
        if any(this != that for this, that in zip(these, those, strict=True)):
            return False
    return True


def _items_of(entry: ServerEntry | None) -> int:
    if entry is None:
        return 0
    lists = (entry.tools, entry.resources, entry.templates, entry.prompts)
    return sum(len(each or ()) for each in lists) + definitions_of(entry.tools) + weight_of(entry.skills)
