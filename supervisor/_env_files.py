"""The `envFile` of each server, made absolute, and its state.

A relative path starts at the folder of the configuration file that names it. The content is read when a server starts
(`_asking`). The state (inode, size, time) is taken when the configuration is read: with it, a reload sees that the file
has changed, and starts the server again.

Who said yes to a project's file did not say yes to what its `envFile` will hold: a key that is rotated there asks for
no new yes. So what it holds may not decide what runs (`actors.env_file`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import attrs

from ..protocol.config import Config, ServerDefinition
from ..protocol.interpolate import expand_path


def with_env_files(
    config: Config, cwd: Path, environ: Mapping[str, str], asked: Collection[str] = ()
) -> Config:
    """The configuration with these files found and among its `places`, which are watched. `asked`: the files of a
    project, which are obeyed after a yes."""
    found = {
        name: _found(definition, definition.env_file, cwd, environ, asked)
        for name, definition in config.servers.items()
        if definition.env_file is not None
    }
    if not found:
        return config
    files = (str(each.env_file) for each in found.values())
    places = tuple(dict.fromkeys((*config.places, *files)))
    return attrs.evolve(config, servers={**config.servers, **found}, places=places)


def _found(
    definition: ServerDefinition, file: str, cwd: Path, environ: Mapping[str, str], asked: Collection[str]
) -> ServerDefinition:
    source = definition.sources.get("env_file", "")
    path = cwd / Path(source).parent / expand_path(file, environ)
    return attrs.evolve(
        definition, env_file=str(path), env_file_state=_state(path), env_file_asked=source in asked
    )


def _state(path: Path) -> str | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"
