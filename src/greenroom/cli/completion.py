"""`greenroom completion SHELL`: the lines that teach a shell to complete commands, options, servers and tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import get_completion_class

from ..protocol.errors import UsageError

if TYPE_CHECKING:
    from ..config.model import Config


# ---- What a shell offers after Tab -----------------------------------------------------------------------------------
#
# Names of servers, tools, profiles and clients. It reads files and starts nothing.
#
# The shell waits, so a configuration that cannot be read offers nothing, and nothing is ever printed.


def complete_servers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The servers of the configuration that `--config` names, or of the one that is found."""
    config = _config(ctx)
    return [] if config is None else [name for name in config.servers if name.startswith(incomplete)]


def complete_several_servers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The servers of that configuration, behind each comma: for an option that takes several."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in complete_servers(ctx, param, last)]


def complete_tools(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The tools that the cache knows, of the server that `--server` names or of all."""
    from ..gateway.offline_catalogue import open_catalogue

    config = _config(ctx)
    if config is None:
        return []
    tools = open_catalogue(config).index.tools(ctx.params.get("server"))
    return [tool.name for tool in tools if tool.name.startswith(incomplete)]


def complete_profiles(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The profiles of that configuration."""
    config = _config(ctx)
    return [] if config is None else [name for name in config.profiles if name.startswith(incomplete)]


def complete_clients(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The clients that `greenroom init` knows."""
    from .client_files import CLIENTS

    return [name for name in CLIENTS if name.startswith(incomplete)]


def _config(ctx: click.Context) -> Config | None:
    from ..protocol.errors import GreenroomError
    from .config_reading import load

    path = ctx.params.get("config_path")
    try:
        return load(path if isinstance(path, Path) else None)
    except (GreenroomError, OSError):
        return None


_PLACES: Final = {
    "bash": 'eval "$(greenroom completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(greenroom completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "greenroom completion fish > ~/.config/fish/completions/greenroom.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_PLACES.values()))
@click.argument("shell", type=click.Choice([*_PLACES]))
def completion_command(shell: str) -> None:
    """Print what SHELL needs to complete greenroom's commands.

    Names of servers come from the configuration, those of tools from the cache; nothing is started for them.
    """
    found = get_completion_class(shell)
    if found is None:
        raise UsageError(f"This version of click cannot complete in {shell}. Update click.")
    root = click.get_current_context().find_root()
    source = found(root.command, {}, "greenroom", "_GREENROOM_COMPLETE").source()
    # click's lines for fish cut each description, and each of several names, at its first comma.
    click.echo(source.replace('string split ","', 'string split --max 1 ","'))
