"""`greenroom completion SHELL`: the lines that teach a shell to complete commands, options, servers and tools."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from ...protocol.errors import UsageError

_PLACES: Final = {
    "bash": 'eval "$(greenroom completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(greenroom completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "greenroom completion fish > ~/.config/fish/completions/greenroom.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_PLACES.values()))
@click.argument("shell", type=click.Choice([*_PLACES]))
def completion_command(shell: str) -> None:
    """Print what SHELL needs to complete our commands.

    Names of servers come from the configuration, those of tools from the cache; nothing is started for them.
    """
    found = get_completion_class(shell)
    if found is None:
        raise UsageError(f"This version of click cannot complete in {shell}. Update click.")
    root = click.get_current_context().find_root()
    click.echo(found(root.command, {}, "greenroom", "_GREENROOM_COMPLETE").source())
