"""How the commands start the background room of a configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...protocol.errors import UsageError
from .._attach import Starting
from .._background_place import environment
from ._common import commands_typed, room_of, running_gateway, say, say_whose

if TYPE_CHECKING:
    from ...protocol.config import Config


def start_in_background(
    config: Config, path: Path | None, words: Sequence[str], audit: Path | None = None
) -> None:
    """`greenroom serve --background`: returns when clients can come. Raises `NoRoom`, and `UsageError` when the room
    runs already and does not keep the `audit` file that was asked for."""
    there = starting(config, path, words)
    started = there.start()
    if not started and audit is not None and _audit_of(config) != os.path.abspath(audit):
        text = f"The background room runs already, and does not keep the audit file {audit}."
        raise UsageError(f"{text} Run this again after: greenroom stop")
    commands = commands_typed()
    say(
        f"the background room {'is ready' if started else 'runs already'}. Its log: {there.place.log}\n"
        f"Clients join it with: {commands.about('attach')}\n"
        f"To end it: {commands.about('stop')}"
    )


def _audit_of(config: Config) -> str | None:
    gateway = running_gateway(config, None)
    status: dict[str, Any] = {} if gateway is None else gateway.ask("status", quickly=True)
    return status.get("audit", {}).get("file")


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
