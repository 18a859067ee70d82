"""The errors and texts about servers and profiles that a configuration does not have, or does not use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..protocol.errors import DISABLED, UNTRUSTED, UsageError
from ..protocol.safe_text import one_line
from .printing import say
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config

_NAMED: Final = 10  # servers that are named in one line
_LONGEST_NAME: Final = 100  # characters of a name: one that a file has made up may have line breaks, too
_NO_SERVERS: Final = "There are none. To add one: greenroom add NAME -- COMMAND"


def check_profile(config: Config, profile: str | None) -> None:
    """Raises `UsageError` for a profile that the configuration does not have."""
    if profile is not None and profile not in config.profiles:
        from ..protocol.near_names import meant

        known = f"There are: {', '.join(config.profiles)}." if config.profiles else "It has none."
        text = f'There is no profile "{profile}" in this configuration. {known}'
        raise UsageError(f"{text}{meant(profile, config.profiles)}")


def no_such_server(config: Config, server: str) -> UsageError:
    """The error for the name of a server that the configuration does not have."""
    from ..protocol.near_names import meant

    known = [one_line(name, _LONGEST_NAME) for name in (*config.servers, *config.broken)]
    there = f"There are: {', '.join(known)}.{meant(server, known)}" if known else _NO_SERVERS
    what = f'There is no server "{one_line(server, _LONGEST_NAME)}" in this configuration.'
    return UsageError(f"{what} {there}", server=server)


def check_usable(config: Config, server: str) -> None:
    """Raises `UsageError` for a server that the configuration does not have, or whose entry cannot be used."""
    if (problem := config.broken.get(server)) is not None:
        raise UsageError(f'Server "{server}" cannot be used: {problem}', server=server)
    if server not in config.servers:
        raise no_such_server(config, server)


def none_in_service(config: Config) -> Iterator[str]:
    """The text for a configuration without servers where some are wanted, with the next step."""
    if config.broken or not all(server.disabled for server in config.servers.values()):
        return
    if config.servers:
        yield "Every server is disabled."
        yield f"To bring one back into service: {commands_typed().about('enable', next(iter(config.servers)))}"
    elif config.unread:
        yield f"No server is known, because a file cannot be read: {one_line(config.unread[0])}"
        yield f"To see why: {commands_typed().about('doctor')}"
    else:
        yield "No servers are configured."
        yield f"To add one: {commands_typed().about('add')} NAME -- COMMAND"


def say_if_none(config: Config) -> None:
    """Say on stderr if no server is in service."""
    for text in none_in_service(config):
        say(text)


def left_out(config: Config) -> Iterator[str]:
    """One line for each reason why configured servers are not used, with their names and the next step."""
    untrusted = [name for name, problem in config.broken.items() if problem.code == UNTRUSTED]
    broken = [name for name, problem in config.broken.items() if problem.code not in (UNTRUSTED, DISABLED)]
    about = commands_typed().about
    if untrusted:
        yield f"Not trusted, so not used: {_first(untrusted)}. To see them, and decide: {about('trust')}"
    if broken:
        yield f"Cannot be used: {_first(broken)}. To see why: {about('doctor')}"


def not_read(config: Config) -> Iterator[str]:
    """The text about an `mcp.json` in this folder that is not read, with the next step."""
    unread = unread_here(config)
    if unread is not None:
        yield f"{one_line(os.fspath(unread))} is not read: of a folder only .mcp.json and .greenroom/mcp.json are."
        yield "To use it, give it one of these names, or: greenroom --config mcp.json"


def unread_here(config: Config) -> Path | None:
    """An `mcp.json` in this folder that is not read. None, too, if one file was named."""
    from ..config.files import unread_file, working_directory

    return None if commands_typed().config is not None else unread_file(working_directory(None), config.files)


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return one_line(", ".join(names[:_NAMED])) + more
