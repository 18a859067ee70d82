"""`greenroom add` and `greenroom remove`: a server comes into the user's own file, or goes out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click

from ..protocol.errors import UsageError
from .completion import complete_servers
from .config_reading import load
from .json_shapes import Shape, says
from .missing_servers import no_such_server
from .printing import say, show
from .running_gateways import reload_gateways
from .shared_options import config_option, json_option
from .typed_options import commands_typed


class AddedJson(Shape, kw_only=True):
    """A server that was written into a file."""

    server: Annotated[str, says("the server")]
    file: Annotated[str, says("the file")]
    replaced: Annotated[bool, says("another server of this name was there")]
    next: Annotated[str, says("the command that reads what it has")]


class RemovedServerJson(Shape, kw_only=True):
    """A server that was taken out of a file."""

    server: Annotated[str, says("the server")]
    file: Annotated[str, says("the file")]
    others: Annotated[list[str], says("other files that have a server of this name")]


class RemovedJson(Shape, kw_only=True):
    """The servers that were taken out."""

    servers: Annotated[list[RemovedServerJson], says("each that was named")]


class _DashCommand(click.Command):
    """A command whose words after `--` belong to the server's program, options included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            what = f"{error.option_name} is not an option of greenroom add. If it belongs to the server's command,"
            raise click.UsageError(f"{what} put -- before that: greenroom add NAME -- COMMAND", ctx) from None


@click.command("add", cls=_DashCommand)
@click.argument("name")
@click.argument("words", nargs=-1, required=True, metavar="[--] COMMAND...|URL|JSON")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable for the command.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar='"NAME: VALUE"',
    help="A header for the address.",
)
@click.option(
    "-t",
    "--transport",
    type=click.Choice(["stdio", "http", "sse"]),
    help="How to reach it. Only sse needs this: an address does not show it.",
)
@click.option(
    "--openapi",
    metavar="FILE|URL",
    help="Make tools of the HTTP API at this address, as this OpenAPI document describes it.",
)
@click.option("--force", is_flag=True, help="Replace a server of this name.")
@json_option
@config_option
def add_command(
    name: str,
    words: tuple[str, ...],
    env: tuple[str, ...],
    headers: tuple[str, ...],
    transport: str | None,
    openapi: str | None,
    force: bool,
    as_json: bool,
    config_path: Path | None,
) -> None:
    """Write the server NAME into your own configuration file.

    COMMAND and its arguments come after --, as in: greenroom add time -- uvx mcp-server-time. A URL needs no --. An
    entry may also be given as one JSON object. With --openapi the URL is that of an HTTP API, and its paths are those
    of the document. With --config FILE it is written there. Nothing is started.
    """
    from .own_servers import TypedServer, doubts, others_with, our_files, put

    file, files = our_files(config_path)
    entry = TypedServer(name, words, env, headers, transport, openapi).entry(Path.cwd())
    replaced = put(file, name, entry, replace=force)
    reload_gateways()
    next_step = commands_typed().about("refresh", name)
    done = f"✓ {name} {'replaces the server of this name' if replaced else 'is'} in {file}"
    lines = [done, f"Start it once, to read what it has: {next_step}"]
    if "cwd" in entry and words[0][:1] != "{":
        lines.insert(1, '  It is started in this folder ("cwd"), because its command names a file of it.')
    if entry.get("command") != words[0] and "command" in entry and words[0][:1] != "{":
        lines.insert(
            1, f"  It is started as {entry['command']}, the one of the virtual environment that is activated."
        )
    details = AddedJson(server=name, file=str(file), replaced=replaced, next=next_step)
    show("\n".join(lines), details, as_json)
    for doubt in doubts(name, entry, Path.cwd()):
        say(doubt)
    for other in others_with(name, files, file):
        say(f"{other} has a server of this name, too; where both give a key, the nearer file counts.")


@click.command("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_servers)
@json_option
@config_option
def remove_command(names: tuple[str, ...], as_json: bool, config_path: Path | None) -> None:
    """Take each server NAME out of your own configuration file.

    The rest of the file stays as it is. With --config FILE they are taken out of that.
    """
    from .own_servers import drop, has, others_with, our_files

    file, files = our_files(config_path)
    others = {name: [str(each) for each in others_with(name, files, file)] for name in names}
    for name in names:  # before anything is changed
        if not has(file, name):
            raise _not_there(load(config_path), name, file, others[name])
    for name in others:
        drop(file, name)
    reload_gateways()
    rows: list[RemovedServerJson] = [
        RemovedServerJson(server=name, file=str(file), others=also) for name, also in others.items()
    ]
    details = RemovedJson(servers=rows)
    show("\n".join(f"✓ {name} is no longer in {file}" for name in others), details, as_json)
    left = load(config_path)
    for name, also in others.items():
        if name in left.servers or name in left.broken:
            step = commands_typed().about("disable", name)
            where = ", ".join(also) or "the file of another program"
            say(f"{name} is still defined in {where}. To switch it off: {step}")


def _not_there(config: Any, name: str, file: Path, others: list[str]) -> UsageError:
    if name not in config.servers and name not in config.broken:
        return no_such_server(config, name)
    where = ", ".join(others) or "the file of another program"
    step = commands_typed().about("disable", name)
    return UsageError(f'"{name}" is not in {file}, but in {where}. To switch it off: {step}', server=name)
