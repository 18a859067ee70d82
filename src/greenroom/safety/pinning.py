"""The pinned definitions of a room's servers (`catalogue.fingerprints`): compared when a server lists what it has.

What is known here is what the store said at boot and what servers have listed since. A comparison is a look-up for each
tool, in the step in which the lists arrive, so that a call which waited for the server is refused before it is sent. As
long as a tool of a server is in quarantine, each call to that server is looked at; calls to others never are.

What is new is written by the catalogue writer, with the server's entry. What the store then says counts, for another
room may have known better, or the owner may have accepted a tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from ..actors.call import Call
from ..actors.server import ServerActor
from ..catalogue.entries import NOT_PINNED, Failures, Raw, ServerEntry
from ..catalogue.fingerprints import (
    PinKey,
    agree,
    original_of,
    pinned_records,
    prints_of,
    shown_of,
    tool_changed,
)
from ..catalogue.store import CatalogueStore
from ..protocol.errors import ToolChanged
from ..protocol.safe_text import unhidden
from .pins_file import PinStore, ServerPins, pin_store


class Pins:
    """The pins of the configured servers. The catalogue writer uses it as the store of both files."""

    def __init__(self, catalogue: CatalogueStore) -> None:
        self.store: PinStore = pin_store(catalogue)
        self.stored: Mapping[str, ServerPins] = {}  # what the store said last, until it is heeded
        self.keys: Mapping[str, PinKey] = {}
        self.blocks: bool = catalogue.blocks
        self._catalogue = catalogue
        self._hashes_now: Callable[[Iterable[str]], Mapping[str, str]] | None = None
        self._pins: dict[str, ServerPins] = {}

    # ---- what is known ----------------------------------------------------------------------------------------------

    def take(
        self,
        keys: Mapping[str, PinKey],
        stored: Mapping[str, ServerPins],
        hashes_now: Callable[[Iterable[str]], Mapping[str, str]] | None = None,
    ) -> None:
        """Use these servers, with their keys, from now on. `stored`: what the store says of them."""
        same = {name for name, key in keys.items() if self.keys.get(name) == key}
        self._pins = {name: self._pins[name] for name in same if name in self._pins}
        self.keys = keys
        self._hashes_now = hashes_now
        self._adopt(stored)

    def marked(self, entry: ServerEntry) -> ServerEntry:
        """The entry with the state of its pins; the same object if it has that already."""
        pins = self._pins.get(entry.server)
        pinned = NOT_PINNED if pins is None else pins.pinned
        return entry if entry.pinned == pinned else replace(entry, pinned=pinned, prints=None)

    def learned(
        self, entry: ServerEntry, prints: Mapping[str, str], before: ServerEntry | None = None
    ) -> ServerEntry:
        """The entry of a server that has just listed its tools, compared with its pins. `before`: what was known of it
        until now."""
        if entry.server not in self.keys:  # it is not configured any more
            return entry
        pins = self._pins.setdefault(entry.server, ServerPins(entry.fetched_at))
        pins.seen = entry.fetched_at
        # While a tool is quarantined the store is asked each time: the owner may have accepted it elsewhere.
        is_news = pins.learn(prints, entry.fetched_at) or bool(pins.changed)
        if before is not None and pins.changed.keys() - pins.was.keys():
            pins.keep(_first_shown(before, pins))
        seen = {tool: print_ for tool, print_ in prints.items() if print_}
        news = {**pins.tools, **pins.changed, **seen} if is_news else None
        return replace(entry, pinned=pins.pinned, prints=news)

    def _adopt(self, stored: Mapping[str, ServerPins]) -> None:
        for server, pins in stored.items():
            known = self._pins.get(server)
            # Mostly they are the same, and then there is nothing to learn: this is done in the loop.
            if known is not None and (known.tools, known.changed) != (pins.tools, pins.changed):
                pins.learn({**known.tools, **known.changed}, known.seen)
                pins.keep(known.was)
            if server in self.keys:
                self._pins[server] = pins

    # ---- what is written --------------------------------------------------------------------------------------------

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        """Write the entries and failures, and the news of their pins. May run in a thread."""
        entries = self._as_they_are_now(entries)
        problem = self._catalogue.save(entries, failures)
        stored, warning = self._save_pins(entries)
        self.stored = {**self.stored, **stored}
        return " ".join(words for words in (problem, warning) if words is not None) or None

    def _as_they_are_now(self, entries: Mapping[str, ServerEntry]) -> Mapping[str, ServerEntry]:
        """The entries with the present hashes of their definitions. A hash changes when a file appears in the working
        directory. What the server listed may be true only there, or the server may have made the file itself."""
        if self._hashes_now is None or not self._catalogue.blocks:
            return entries
        now = self._hashes_now(entries)
        moved = {name: key for name, key in now.items() if entries[name].definition_hash != key}
        if not moved:
            return entries
        self.keys = {
            name: replace(key, key=moved[name]) if name in moved else key for name, key in self.keys.items()
        }
        return {
            name: replace(entry, definition_hash=moved.get(name, entry.definition_hash))
            for name, entry in entries.items()
        }

    def _save_pins(self, entries: Mapping[str, ServerEntry]) -> tuple[Mapping[str, ServerPins], str | None]:
        keys = self.keys
        wanted = {
            name: keys[name] for name, one in entries.items() if one.prints is not None and name in keys
        }
        if not wanted:
            return {}, None

        def learn(server: str, pins: ServerPins | None) -> ServerPins:
            entry = entries[server]
            pins = pins or ServerPins(entry.fetched_at)
            pins.seen = entry.fetched_at
            pins.learn(entry.prints or {}, entry.fetched_at)
            pins.keep(entry.pinned.was)
            return pins

        return self.store.change(wanted, learn)

    def accept(
        self, server: str, tools: Iterable[str] | None, shown: ServerEntry | Mapping[str, str] | None
    ) -> list[str]:
        """Accept the present definitions of these tools (None: of all), if they are those that were `shown`: an entry,
        or fingerprints. Returns the tools that had changed. May run in a thread. Raises `OSError` when it cannot be
        written."""
        taken: list[str] = []

        def change(_: str, pins: ServerPins | None) -> ServerPins | None:
            if pins is not None:
                prints = shown if isinstance(shown, Mapping) else prints_of(shown, pins.changed)
                taken.extend(pins.accept(tools, prints))
            return pins

        stored, warning = self.store.change({server: self.keys[server]}, change)
        if warning is not None:
            raise OSError(warning)
        self.stored = {**self.stored, **stored}
        return taken

    def look(self) -> None:
        """Read what the store says now. May run in a thread."""
        stored, _ = self.store.load(self.keys)
        self.stored = {**self.stored, **stored}

    def heeded(self) -> Mapping[str, ServerPins]:
        """Take over what the store said last, and return the servers that this concerns."""
        stored, self.stored = self.stored, {}
        self._adopt(stored)
        return stored


def _first_shown(entry: ServerEntry, pins: ServerPins) -> dict[str, Raw]:
    """What a person is shown of those changed tools that this entry has as they were first shown."""
    records, prints = pinned_records(entry), prints_of(entry, pins.changed)
    return {
        pin: shown_of(pin, records[pin])
        for pin, print_ in prints.items()
        if pin in pins.tools and agree(pins.tools[pin], print_)
    }


def in_quarantine(actor: ServerActor, call: Call) -> ToolChanged | None:
    """The refusal of a call that would use something in quarantine."""
    quarantine, params = actor.record.quarantined, call.params
    if not quarantine or params is None:
        return None
    pin = quarantine.pin_of(call.method, params)
    if pin is None:
        return None
    said = call.tool or unhidden(original_of(pin))
    return tool_changed(said, actor.address.server, pin, quarantine.changed[pin])
