"""The keys of catalogue entries and of pinned definitions, and the file of the latter.

Rooms use this, and so do commands that start no room. It needs only the environment and the working directory, so a
command pays for nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

from ..actors import PinsFile
from ..protocol.config import Config
from ..protocol.config_parse import definition_hash, pin_key
from ..protocol.pinning import PinKey


def catalogue_keys(config: Config, servers: Iterable[str] | None = None) -> dict[str, str]:
    """The definition hash of these servers (None: of all), for the present working directory and environment. It looks
    which files are there, so it may block."""
    directory = _directory()
    environ = dict(os.environ)  # read thousands of times, and `os.environ` decodes each time
    exists = _in_folder(directory)
    names = config.servers if servers is None else config.servers.keys() & servers
    return {
        name: definition_hash(config.servers[name], environ, directory, config.settings, exists)
        for name in names
    }


def pin_keys(config: Config, hashes: Mapping[str, str] | None = None) -> dict[str, PinKey]:
    """The key of every server's pinned definitions. `hashes`: its `catalogue_keys`, if they are known."""
    directory = _directory()
    hashes = catalogue_keys(config) if hashes is None else hashes
    return {
        name: PinKey(hashes[name], pin_key(definition, directory))
        for name, definition in config.servers.items()
    }


def pins_file(catalogue: Path) -> PinsFile:
    """The pins that belong to the catalogue's file: `catalogue.pins.json` beside `catalogue.json`."""
    return PinsFile(catalogue.with_name(f"{catalogue.stem}.pins.json"))


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # the directory was removed, so relative paths lead nowhere
        return ""


def _in_folder(directory: str) -> Callable[[str], bool]:
    """Whether a path exists in the folder. The folder is listed once, for nearly nothing that is asked for is there."""

    @cache
    def names() -> frozenset[str] | None:
        try:
            return frozenset(name.casefold() for name in os.listdir(directory or "."))
        except OSError:  # it may still be entered
            return None

    def exists(path: str) -> bool:
        there = names()
        first = path.replace("\\", "/").partition("/")[0].casefold()
        return (there is None or first in there) and os.path.exists(os.path.join(directory, path))

    return exists
