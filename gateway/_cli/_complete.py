"""What a shell offers after Tab: names of servers, tools, profiles and clients. It reads files and starts nothing.

The shell waits, so a configuration that cannot be read offers nothing, and nothing is ever printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...protocol.config import Config


def complete_servers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The servers of the configuration that `--config` names, or of the one that is found."""
    config = _config(ctx)
    return [] if config is None else [name for name in config.servers if name.startswith(incomplete)]


def complete_tools(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The tools that the cache knows, of the server that `--server` names or of all."""
    from .._offline import open_catalogue

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
    from .._setup._clients import CLIENTS

    return [name for name in CLIENTS if name.startswith(incomplete)]


def _config(ctx: click.Context) -> Config | None:
    from ...protocol.errors import GreenroomError
    from ._common import load

    path = ctx.params.get("config_path")
    try:
        return load(path if isinstance(path, Path) else None)
    except (GreenroomError, OSError):
        return None
