"""What a room is opened from: a configuration in any of its forms, and the catalogue's store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..actors import CatalogueFile, default_cache_path
from ..protocol.config import Config, Settings
from ..protocol.config_parse import parse_config
from ._config_files import load_config, working_directory
from ._stores import CatalogueStore, FileStore, MemoryStore

MEMORY: Final = ":memory:"


def open_config(source: str | os.PathLike[str] | Mapping[str, Any] | Config) -> Config:
    """The configuration in whatever form it was given. Raises `ConfigError`."""
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        return parse_config(source, source="the configuration", environ=os.environ)
    return load_config(
        Path(source), cwd=working_directory(Path(source)), home=Path.home(), environ=os.environ
    )


def open_store(path: str | os.PathLike[str] | None, settings: Settings) -> CatalogueStore:
    """The catalogue of this user (None), of a file, or of nobody (`:memory:`)."""
    if path == MEMORY:
        return MemoryStore()
    return FileStore(
        CatalogueFile(default_cache_path() if path is None else Path(path), max_age=settings.cache_max_age)
    )
