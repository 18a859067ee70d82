"""The keys of catalogue entries and of pinned definitions, and the file of the latter.

Rooms use this, and so do commands that start no room. It needs only the environment and the working directory, so a
command pays for nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..actors import PinsFile
from ..protocol.config import Config
from ..protocol.config_parse import definition_hash, pin_key


def catalogue_keys(config: Config) -> dict[str, str]:
    """The definition hash of every server, for the present working directory and environment."""
    directory = _directory()
    environ = dict(os.environ)  # read thousands of times, and `os.environ` decodes each time
    return {
        name: definition_hash(definition, environ, directory, config.settings)
        for name, definition in config.servers.items()
    }


def pin_keys(config: Config) -> dict[str, str]:
    """The key of every server's pinned definitions, for the present working directory."""
    directory = _directory()
    return {name: pin_key(definition, directory) for name, definition in config.servers.items()}


def pins_file(catalogue: Path) -> PinsFile:
    """The pins that belong to the catalogue's file: `catalogue.pins.json` beside `catalogue.json`."""
    return PinsFile(catalogue.with_name(f"{catalogue.stem}.pins.json"))


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # the directory was removed, so relative paths lead nowhere
        return ""
