"""The `envFile` of each server, made absolute, and its state.

A relative path starts at the folder of the configuration file that names it. The content is read when a server starts
(`_asking`). The state (inode, size, time) is taken when the configuration is read: with it, a reload sees that the file
has changed, and starts the server again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from ..protocol.config import Config, ServerDefinition
from ..protocol.interpolate import expand_path


def with_env_files(config: Config, cwd: Path, environ: Mapping[str, str]) -> Config:
    """The configuration with these files found and among its `places`, which are watched."""
    found = {
        name: _found(definition, definition.env_file, cwd, environ)
        for name, definition in config.servers.items()
        if definition.env_file is not None
    }
    if not found:
        return config
    files = (str(each.env_file) for each in found.values())
    places = tuple(dict.fromkeys((*config.places, *files)))
    return attrs.evolve(config, servers={**config.servers, **found}, places=places)


def _found(
    definition: ServerDefinition, file: str, cwd: Path, environ: Mapping[str, str]
) -> ServerDefinition:
    path = cwd / Path(definition.sources.get("env_file", "")).parent / expand_path(file, environ)
    return attrs.evolve(definition, env_file=str(path), env_file_state=_state(path))


def _state(path: Path) -> str | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"
