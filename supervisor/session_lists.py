"""What the children of each session listed, where that is another thing than what the room knows.

What a server lists may depend on its client: on what that can be asked, and on whose credentials the server was started
with. So a session sees what its own children listed. Until they have, it sees what a child of a client that can be
asked the same has listed, in this room or before; and else what the room knows.

What a server with `${session.…}` in its entry lists belongs to the session alone. Nobody else sees it, it is not
written, and it is not pinned: a change would be the next user. What any child lists after it was called is not shown to
others either, because a login may have changed that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ..actors.router import same_content
from ..catalogue.entries import ServerEntry
from ..catalogue.index import Index

KnownEntries = Mapping[str, ServerEntry]


def told(capabilities: Mapping[str, Any]) -> str:
    """The capabilities that a server was told of its client, as a part of a key; empty if none."""
    if not capabilities:
        return ""
    return hashlib.sha256(json.dumps(capabilities, sort_keys=True).encode()).hexdigest()[:16]


class _SessionLists(msgspec.Struct, eq=False):
    told: str = ""
    entries: dict[str, ServerEntry] = msgspec.field(default_factory=dict[str, ServerEntry])
    base: Index | None = None  # of which, at that time, the next was made
    made_at: int = -1
    seen: Index | None = None


class OwnLists:
    """The lists of sessions' own children. `shares(server, entry)`: whether sessions share this server, and the room
    has this entry from the server itself."""

    def __init__(self, shares: Callable[[str, ServerEntry | None], bool]) -> None:
        self._shares = shares
        self._sessions: dict[str, _SessionLists] = {}
        self._by_told: dict[str, dict[str, ServerEntry]] = {}  # by what was told, then by server
        self._changes = 0
        self.is_empty: bool = True  # all sessions see what the room knows; each call asks

    def recall(self, entries: Iterable[ServerEntry]) -> None:
        """Take the lists of earlier runs, for each set of capabilities that a server was told."""
        self._by_told = {}
        for entry in entries:
            self._by_told.setdefault(entry.told, {})[entry.server] = entry
            self.is_empty: bool = False
        self._changes += 1

    def mark(self, marked: Callable[[ServerEntry], ServerEntry]) -> list[tuple[str, str]]:
        """The pins have changed; `marked(entry)` is an entry with the new state. Returns the sessions and servers whose
        tools look different now."""
        self._changes += 1
        for entries in self._by_told.values():
            entries.update({server: marked(entry) for server, entry in entries.items()})
        news: list[tuple[str, str]] = []
        for session, own in self._sessions.items():
            changed = {
                server: new for server, entry in own.entries.items() if (new := marked(entry)) is not entry
            }
            own.entries.update(changed)
            news += [(session, server) for server in changed]
        return news

    def meet(self, session: str, capabilities: Mapping[str, Any]) -> None:
        """The client of this session has declared its capabilities."""
        self._sessions.setdefault(session, _SessionLists()).told = told(capabilities)
        self._changes += 1

    def learn(self, session: str, entry: ServerEntry, *, for_others: bool) -> bool:
        """A child of this session has listed what it has. `for_others`: any client with the same capabilities would get
        these lists. Returns whether they are news for this session."""
        own = self._sessions.setdefault(session, _SessionLists())
        before = own.entries.get(entry.server)
        own.entries[entry.server] = entry
        self.is_empty = False
        if for_others:
            self._by_told.setdefault(entry.told, {})[entry.server] = entry
        self._changes += 1
        return before is None or before.pinned != entry.pinned or not same_content(before, entry)

    def entry(self, session: str | None, server: str) -> ServerEntry | None:
        """What this session's own child has listed."""
        own = self._sessions.get(session) if session is not None else None
        return own.entries.get(server) if own is not None else None

    def of_any(self, server: str) -> ServerEntry | None:
        """What the child of some session has listed, for want of anything that the room knows."""
        found = (own.entries[server] for own in self._sessions.values() if server in own.entries)
        return next(found, None)

    def forget(self, session: str) -> None:
        self._sessions.pop(session, None)

    def index(self, session: str, base: Index) -> Index:
        """The index as this session sees it. `base`: the index of the room, or of the session's profile."""
        own = self._sessions.get(session)
        if own is None:
            return base
        if own.base is not base or own.made_at != self._changes:
            others = self._others(own, base)
            if not others:
                own.seen = base
            elif own.base is not base or own.seen is None or not _shows(own.seen, others):
                own.seen = base.replaced(others, previous=own.seen)
            own.base, own.made_at = base, self._changes
        return own.seen or base

    def _others(self, own: _SessionLists, base: Index) -> KnownEntries:
        """The entries that this session sees in place of those that the room has."""
        alike = self._by_told.get(own.told, {})
        wanted = {
            **{name: each for name, each in alike.items() if not self._shares(name, base.entry(name))},
            **own.entries,
        }
        return {name: each for name, each in wanted.items() if _differs(base.entry(name), each)}


def _differs(known: ServerEntry | None, entry: ServerEntry) -> bool:
    return known is not entry and (
        known is None or known.pinned != entry.pinned or not same_content(known, entry)
    )


def _shows(index: Index, entries: KnownEntries) -> bool:
    return all(index.entry(name) is entry for name, entry in entries.items())
