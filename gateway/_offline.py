"""A library without a room: what the configuration and the catalogue on disk know. Starts nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from ..actors._catalogue_file import CatalogueFile, default_cache_path
from ..protocol.config_parse import definition_hash
from ..protocol.index import Index
from ..protocol.lifecycle import State

if TYPE_CHECKING:
    from ..protocol.catalogue import ServerEntry
    from ..protocol.config import Config


@attrs.frozen
class OfflineRow:
    """A server as far as it can be known without asking it."""

    server: str
    lifecycle: str
    tool_count: int | None = None
    cached: bool = False
    disabled: bool = False
    broken: str | None = None
    scope: str = "shared"
    state: State = State.IDLE
    incarnation: int = 0
    in_flight: int = 0
    queued: int = 0
    waiting_for: str | None = None
    failed_ago: float | None = None
    failure: str | None = None
    retry_in: float | None = None
    needs_auth: bool = False
    down: str | None = None
    pid: int | None = None
    connecting: bool = False


class OfflineLibrary:
    """See `Library`. Use `open_library`."""

    def __init__(
        self, config: Config, entries: Mapping[str, ServerEntry | None], *, warning: str | None = None
    ) -> None:
        self.config = config
        self.warning = warning  # what was wrong with the catalogue's file, if anything
        self.index = Index.build(config.servers, entries, config.settings)
        self._entries = entries

    def entry(self, server: str) -> ServerEntry | None:
        return self._entries.get(server)

    def status(self) -> list[OfflineRow]:
        rows = [self._row(name) for name in self.config.servers]
        rows += [
            OfflineRow(name, "lazy", broken=str(problem))
            for name, problem in self.config.broken.items()
            if name not in self.config.servers
        ]
        return rows

    def _row(self, name: str) -> OfflineRow:
        definition, entry = self.config.servers[name], self._entries.get(name)
        known = entry is not None and entry.known
        problem = self.config.broken.get(name)
        return OfflineRow(
            name,
            definition.lifecycle.value,
            tool_count=len(self.index.tools(name)) if known else None,
            cached=known,
            disabled=definition.disabled,
            broken=None if problem is None else str(problem),
        )


def open_library(config: Config) -> OfflineLibrary:
    """The library of `config`, with what the catalogue on disk holds for its definitions."""
    wanted = {name: definition_hash(definition, os.environ) for name, definition in config.servers.items()}
    cache = CatalogueFile(default_cache_path(), max_age=config.settings.cache_max_age)
    loaded = cache.load(wanted, time.time())
    return OfflineLibrary(config, {**dict.fromkeys(wanted), **loaded.entries}, warning=loaded.warning)
