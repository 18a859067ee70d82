"""`greenroom serve`: its options, and the loop it runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from ...protocol.config_parse import fit_keep_alive
from ...protocol.errors import UsageError
from ...supervisor.self_reference import check_depth
from ._common import config_option, load, read_config, say_whose

if TYPE_CHECKING:
    from ...protocol.config import Config


_TURN = 0.001  # seconds for which a thread may keep the interpreter from the loop; a fifth of the default


@click.command("serve")
@click.option(
    "--expose",
    type=click.Choice(["proxy", "direct"]),
    default="proxy",
    show_default=True,
    help="What clients see: one mcp tool for everything, or what the servers have, by name.",
)
@click.option(
    "--events", type=click.Path(path_type=Path), help="Append every event to this file, as JSON lines."
)
@click.option("--max-connections", type=click.IntRange(1), metavar="N", help="Run at most N servers at once.")
@click.option(
    "--idle-timeout",
    type=click.IntRange(0),
    metavar="MS",
    help="Stop servers that are idle this long; 0: never.",
)
@click.option(
    "--failure-threshold", type=click.IntRange(1), metavar="N", help="Failures that shut a server's gate."
)
@click.option("--cooldown", type=click.IntRange(0), metavar="MS", help="How long a gate then stays shut.")
@click.option(
    "--background",
    is_flag=True,
    help="Start the room that clients join with greenroom attach, and return when it is ready.",
)
@click.option("--as-room", hidden=True, metavar="NAME", help="Be the background room of this name.")
@click.option(
    "--ready", type=int, hidden=True, metavar="FD", help="Tell this descriptor that clients can come."
)
@config_option
def serve_command(
    expose: str,
    events: Path | None,
    max_connections: int | None,
    idle_timeout: int | None,
    failure_threshold: int | None,
    cooldown: int | None,
    background: bool,
    as_room: str | None,
    ready: int | None,
    config_path: Path | None,
) -> None:
    """Run the gateway on standard input and output, for an MCP client to start."""
    if as_room is not None:
        from .._background_start import become_room

        become_room()
    check_start("serve")
    flags = {
        "max_connections": max_connections,
        "idle_timeout": _seconds(idle_timeout),
        "failure_threshold": failure_threshold,
        "cooldown": _seconds(cooldown),
    }
    config = override(read_config(config_path), **flags)
    if background:
        from ._background import start_in_background

        start_in_background(config, config_path, _words(click.get_current_context()))
        return
    told = say_whose(config, config_path)

    def reread() -> Config:
        nonlocal told
        config = override(load(config_path), **flags)
        told = say_whose(config, config_path, told)
        return config

    from ... import Greenroom, __version__
    from .._serve import Options, serve

    options = Options(
        expose=expose,
        events=events,
        version=__version__,
        reread=reread,
    )
    if as_room is None or ready is None:
        _run(partial(serve, config, Greenroom.open, options))
        return
    from .._background_place import place_named
    from .._background_room import serve_background

    _run(partial(serve_background, config, Greenroom.open, options, place_named(as_room), ready))


def _words(context: click.Context) -> list[str]:
    """The options of this command that its background room gets, too."""
    words: list[str] = []
    for option in context.command.params:
        name, value = option.name or "", context.params[option.name or ""]
        if name in ("background", "as_room", "ready", "config_path") or value is None:
            continue
        words += [option.opts[0], os.path.abspath(value) if isinstance(value, Path) else str(value)]
    return words


def check_start(command: str) -> None:
    """Raises `UsageError` when this process cannot serve a client: it has no standard input, or a configuration
    seems to start itself."""
    check_depth(os.environ)
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  (Python has found it closed)
        text = f"Standard input is closed. An MCP client starts greenroom {command} with a pipe there."
        raise UsageError(text)


def _run(main: Callable[[], Awaitable[None]]) -> None:
    """Run the gateway on asyncio; the other commands run on trio.

    A gateway makes two reads and two writes per call. For each, asyncio calls a function, while trio wakes a
    task and registers the descriptor again, which takes twice as long (`benchmarks.b03_gateway` measures a
    bare forwarder on each). Our own loop calls the function without any work by asyncio
    (`actors._step_loop`). `serve` handles signals itself, so it does not need `run_to_end`.
    """
    import anyio

    from ...actors import new_loop

    sys.setswitchinterval(_TURN)
    anyio.run(main, backend="asyncio", backend_options={"loop_factory": new_loop})


def override(config: Config, **settings: Any) -> Config:
    """`config` with the settings that were given on the command line."""
    given = {key: value for key, value in settings.items() if value is not None}
    changed = attrs.evolve(config, settings=attrs.evolve(config.settings, **given))
    if changed.settings.min_connections >= changed.settings.max_connections:
        raise UsageError(
            f"--max-connections {changed.settings.max_connections} must be above the configured minConnections "
            f"({changed.settings.min_connections})."
        )
    return fit_keep_alive(changed)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
