"""A catalogue without a room, from the configuration and the catalogue on disk. It starts nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from ..catalogue.index import Index
from ..catalogue.meaning_model import model_folder
from ..catalogue.namespace import Target
from ..catalogue.search import MAX_QUERY
from ..catalogue.search_cache import SearchCache, key_of
from ..catalogue.search_file import SearchFile
from ..catalogue.store import CatalogueFile, catalogue_keys, default_cache_path, pin_keys
from ..config.references import session_variables
from ..protocol.status import ServerStatus
from ..safety.pins_file import pins_file

if TYPE_CHECKING:
    from ..catalogue.entries import LastFailure, ServerEntry
    from ..catalogue.fingerprints import PinKey
    from ..config.model import Config


_NONE: Final[Mapping[str, LastFailure]] = MappingProxyType({})
_PATIENCE: Final = 0.1  # seconds that a command waits to write what its search has made


class OfflineCatalogue:
    """A `Catalogue` of what is on disk. Made by `open_catalogue`."""

    def __init__(
        self,
        config: Config,
        entries: Mapping[str, ServerEntry | None],
        *,
        warning: str | None = None,
        failures: Mapping[str, LastFailure] = _NONE,
        forms: SearchCache | None = None,
    ) -> None:
        self.config = config
        self.warning = warning  # what was wrong with the catalogue's file, if anything
        self.index: Index = Index.build(config.servers, entries, config.settings, forms=forms)
        self._entries = entries
        self._failures = failures

    def entry(self, server: str) -> ServerEntry | None:
        return self._entries.get(server)

    def call_line(self, tool: str, server: str | None = None) -> str | None:
        """The command that calls this tool, with the arguments that it requires. None: it is not known."""
        from .exposures.tool_texts import call_line

        found = self.index.resolve(tool, server)
        return call_line(found) if isinstance(found, Target) else None

    def near(self, query: str) -> tuple[bytes, ...]:
        """The keys of what is near to `query` in meaning, the nearest first, if the vectors are kept. Computes here,
        and raises `Unusable`."""
        settings = self.config.settings
        if settings.semantic_search is False or not query.strip():
            return ()
        model_folder(settings.semantic_search)
        from ..catalogue.tool_vectors import opened

        known = self.index.findable()
        meanings = opened(settings.semantic_search, default_cache_path(), settings.cache_max_age)
        meanings.learn(0, [target.meaning for target in known])
        return tuple(known[number].meaning_key for number in meanings.nearest(query[:MAX_QUERY], len(known)))

    def status(self, server: str | None = None) -> list[ServerStatus]:
        return [self._row(name) for name in self.config.servers if server in (None, name)]

    def _row(self, name: str) -> ServerStatus:
        definition, entry = self.config.servers[name], self._entries.get(name)
        known = entry is not None and entry.known
        counts, last = self.index.counts(name), self._failures.get(name)
        failed = last if last is not None and not last.needs_login else None
        return ServerStatus(
            name,
            lifecycle=definition.lifecycle.value,
            tool_count=counts.tools if known and counts is not None else None,
            resource_count=counts.resources if known and counts is not None else 0,
            changed=counts.changed if counts is not None else (),
            flapping=counts.flapping if counts is not None else (),
            hidden=counts.hidden if counts is not None else (),
            problems=entry.problems if entry is not None else (),
            failure=failed.why if failed is not None else None,
            failure_kind=failed.kind if failed is not None else None,
            failed_ago=time.time() - failed.at if failed is not None else None,
            failed_starts=failed.starts if failed is not None else 0,
            needs_auth=last is not None and last.needs_login,
            disabled=definition.disabled,
            session_variables=tuple(sorted(session_variables(definition))),
            faults=self.index.faults(name),
        )


def open_catalogue(config: Config, keys: Mapping[str, PinKey] | None = None) -> OfflineCatalogue:
    """The catalogue of `config`: for each definition the entry on disk, with the state of its pinned definitions."""
    keys, path = pin_keys(config) if keys is None else keys, default_cache_path()
    wanted = {name: one.key for name, one in keys.items()}
    loaded = CatalogueFile(path, max_age=config.settings.cache_max_age).load(wanted, time.time())
    pins, warning = pins_file(path).load(keys)
    entries = {
        name: replace(entry, pinned=pins[name].pinned) if name in pins else entry
        for name, entry in loaded.entries.items()
    }
    searched = SearchFile(path, max_age=config.settings.cache_max_age, lock_timeout=_PATIENCE)
    return OfflineCatalogue(
        config,
        {**dict.fromkeys(wanted), **entries},
        warning=loaded.warning or warning,
        failures=loaded.failures,
        forms=SearchCache(
            searched.load(map(key_of, loaded.entries.values())), lambda news: searched.save(news, time.time())
        ),
    )


def forget_failure(config: Config, server: str) -> None:
    """Forget the server's last failure, because its reason has been removed."""
    path, key = default_cache_path(), catalogue_keys(config, [server]).get(server, "")
    if server in CatalogueFile(path).load({server: key}, time.time()).failures:
        CatalogueFile(path).save([], time.time(), {(server, key): None})
