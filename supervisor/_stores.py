"""Stores of the catalogue and of pinned definitions: files of this user, or memory that ends with its room."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import attrs

from ..actors import CatalogueFile, Loaded, SearchFile, Store
from ..protocol.catalogue import Failures, LastFailure, ServerEntry
from ..protocol.pinning import PinKey, ServerPins, found_in, kept_as
from ..protocol.search_forms import key_of
from .catalogue_keys import pins_file


class CatalogueStore(Store, Protocol):
    """A store that can also be read, at boot."""

    def load(self, wanted: Mapping[str, str]) -> Loaded:
        """What is fresh of the servers in `wanted` (name to definition hash)."""
        ...


@attrs.define
class MemoryStore:
    entries: dict[str, ServerEntry] = attrs.field(factory=dict[str, ServerEntry])
    blocks: bool = False
    failures: dict[tuple[str, str], LastFailure | None] = attrs.field(
        factory=dict[tuple[str, str], "LastFailure | None"]
    )

    def load(self, wanted: Mapping[str, str]) -> Loaded:
        entries = {name: e for name, e in self.entries.items() if wanted.get(name) == e.definition_hash}
        failures = {name: found for name in wanted if (found := self.failures.get((name, wanted[name])))}
        return Loaded(entries, failures=failures)

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        self.entries.update(entries)
        self.failures.update(failures)
        return None


@attrs.define
class FileStore:
    file: CatalogueFile
    blocks: bool = True

    @property
    def searched(self) -> SearchFile:
        """What search has made of the tools in it."""
        return SearchFile(self.file.path, max_age=self.file.max_age)

    def load(self, wanted: Mapping[str, str]) -> Loaded:
        loaded = self.file.load(wanted, time.time())
        return attrs.evolve(loaded, searched=self.searched.load(map(key_of, loaded.entries.values())))

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        return self.file.save(entries.values(), time.time(), failures)


Change = Callable[[str, ServerPins | None], ServerPins | None]


class PinStore(Protocol):
    """Where pins are kept. See `PinsFile`."""

    def load(self, wanted: Mapping[str, PinKey]) -> tuple[dict[str, ServerPins], str | None]: ...

    def change(
        self, wanted: Mapping[str, PinKey], change: Change
    ) -> tuple[dict[str, ServerPins], str | None]: ...


@attrs.define
class MemoryPins:
    kept: dict[str, ServerPins] = attrs.field(factory=dict[str, ServerPins])

    def load(self, wanted: Mapping[str, PinKey]) -> tuple[dict[str, ServerPins], str | None]:
        return {name: pins.copy() for name, pins in found_in(self.kept, wanted).items()}, None

    def change(
        self, wanted: Mapping[str, PinKey], change: Change
    ) -> tuple[dict[str, ServerPins], str | None]:
        found, _ = self.load(wanted)
        for name, key in wanted.items():
            after = change(name, found.get(name))
            if after is not None:
                self.kept[kept_as(name, key.key)] = attrs.evolve(after, origin=key.origin)
        return self.load(wanted)


def pin_store(store: CatalogueStore) -> PinStore:
    return pins_file(store.file.path) if isinstance(store, FileStore) else MemoryPins()


def own_folder(store: CatalogueStore) -> Path | None:
    """The folder where a room with this store may keep files; None: it is to leave none behind."""
    return store.file.path.parent if isinstance(store, FileStore) else None
