"""Opens what a room needs: its configuration, given in any form, and the store of its catalogue."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ..actors import CatalogueFile, default_cache_path
from ..protocol.config import Config, Pinning, ServerDefinition, Settings
from ..protocol.config_parse import parse_config
from ._given import path
from ._stores import CatalogueStore, FileStore, MemoryStore
from .config_files import load_config, working_directory

MEMORY: Final = ":memory:"


def open_config(source: str | os.PathLike[str] | Mapping[str, Any] | Config) -> Config:
    """The configuration, from any of its forms. Raises `ConfigError`."""
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        return parse_config(source, source="the configuration", environ=os.environ)
    file = Path(path(source, "The configuration"))
    return load_config(
        file,
        cwd=working_directory(file),
        home=Path.home(),
        environ=os.environ,
        trust=True,  # a program chose it, which may choose to start anything
    )


def open_store(place: str | os.PathLike[str] | None, settings: Settings) -> CatalogueStore:
    """The store of the catalogue: this user's file (None), the file at `place`, or only in memory
    (`:memory:`)."""
    if place == MEMORY:
        return MemoryStore()
    file = default_cache_path() if place is None else Path(path(place, "cache_path"))
    return FileStore(CatalogueFile(file, max_age=settings.cache_max_age))


def with_objects(config: Config, servers: Mapping[str, Any]) -> Config:
    """The configuration with the servers that were given in code. They replace entries of the same name. Their tools
    are not pinned: they are the program's own, and no command could accept a change of them."""
    given = {
        name: ServerDefinition(name, in_process=server, pinning=Pinning.OFF)
        for name, server in servers.items()
    }
    broken = {name: problem for name, problem in config.broken.items() if name not in given}
    return attrs.evolve(config, servers={**config.servers, **given}, broken=broken) if given else config
