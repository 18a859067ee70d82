"""`greenroom enable S` and `greenroom disable S`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._common import commands_typed, config_option, load, say, show
from ._complete import complete_servers

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import _shapes as shapes


def _command(name: str, text: str, *, disabled: bool) -> click.Command:
    def run(server: str, as_json: bool, config_path: Path | None) -> None:
        _switch(server, as_json, config_path, disabled=disabled)

    command: Callable[..., None] = config_option(run)
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    command = click.argument("server", shell_complete=complete_servers)(command)
    return click.command(name, help=text)(command)


enable_command = _command(
    "enable",
    "Bring SERVER back into service.\n\nThe file that defines it is edited. A running gateway sees it by itself.",
    disabled=False,
)
disable_command = _command(
    "disable",
    "Take SERVER out of service.\n\nThe file that defines it is edited. A running gateway sees it by itself.",
    disabled=True,
)


def _switch(server: str, as_json: bool, path: Path | None, *, disabled: bool) -> None:
    from ...supervisor.config_files import find_files, own_file, working_directory
    from .._setup._switch import switch

    home, cwd = Path.home(), working_directory(path)
    files = [cwd / path.expanduser()] if path else find_files(cwd=cwd, home=home, environ=os.environ)
    fallback = files[0] if path is not None else own_file(home, os.environ)
    changed = switch(server, disabled=disabled, files=files, fallback=fallback, load=lambda: load(path))
    state = "disabled" if disabled else "enabled"
    names = [str(file) for file in changed]
    details: shapes.Switched = {"server": server, "disabled": disabled, "files": names}
    told = f"{server} is {state}: {', '.join(names)}" if names else f"{server} is {state} already."
    show(told, details, as_json)
    if not disabled and server in load(path).broken:
        say(f"{server} cannot be used yet. To see why: {commands_typed().about('explain', server)}")
