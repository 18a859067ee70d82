"""How the commands start the background room of a configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._attach import Starting
from .._background_place import environment
from ._common import room_of, say, say_whose

if TYPE_CHECKING:
    from ...protocol.config import Config


def start_in_background(config: Config, path: Path | None, words: Sequence[str]) -> None:
    """`greenroom serve --background`: returns when clients can come. Raises `NoRoom`."""
    there = starting(config, path, words)
    started = there.start()
    say(
        f"the background room {'is ready' if started else 'runs already'}. Clients join it with greenroom attach, and "
        f"greenroom stop ends it. Its log: {there.place.log}"
    )


def starting(config: Config, path: Path | None, words: Sequence[str] = ()) -> Starting:
    """How the room of `config` is started."""
    say_whose(config, path)
    named = ["--config", os.path.abspath(path.expanduser())] if path is not None else []
    return Starting(
        room_of(config, path), [*named, *words], environment(os.environ, frozenset(session_names(config)))
    )


def session_names(config: Config) -> set[str]:
    """The values of a session that the configuration uses. Nothing else of a client's environment is passed on."""
    from ...protocol.interpolate import session_variables

    return {name for server in config.servers.values() for name in session_variables(server)}
