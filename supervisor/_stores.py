"""Catalogue stores: this user's file, or a memory that goes with its room."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from ..actors import Store
from ..protocol.catalogue import ServerEntry


class CatalogueStore(Store, Protocol):
    """A store that can also be read, at boot."""

    def load(self, wanted: Mapping[str, str]) -> tuple[dict[str, ServerEntry], list[str]]:
        """Entries of the servers in `wanted` (name to definition hash) that are fresh, and warnings in words."""
        ...


@attrs.define
class MemoryStore:
    entries: dict[str, ServerEntry] = attrs.field(factory=dict[str, ServerEntry])
    blocks: bool = False

    def load(self, wanted: Mapping[str, str]) -> tuple[dict[str, ServerEntry], list[str]]:
        return {name: e for name, e in self.entries.items() if wanted.get(name) == e.definition_hash}, []

    def save(self, entries: Mapping[str, ServerEntry]) -> None:
        self.entries.update(entries)


@attrs.define
class FileStore:
    file: Any
    blocks: bool = True

    def load(self, wanted: Mapping[str, str]) -> tuple[dict[str, ServerEntry], list[str]]:
        return self.file.load(wanted, time.time())

    def save(self, entries: Mapping[str, ServerEntry]) -> None:
        self.file.save(list(entries.values()), time.time())
