"""`greenroom init`: writes our entry into the configuration of MCP clients, and takes it out again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
import click
from msgspec import UNSET, UnsetType

from ..config.files import own_file
from ..config.importers import Surroundings
from ..config.model import Config
from ..config.private_files import alone, refused, state_folder
from ..protocol.errors import ConfigError, GreenroomError, UsageError
from ..protocol.near_names import meant
from ..protocol.safe_text import counted, one_line
from . import file_edits
from .client_files import (
    CLIENTS,
    OURS,
    TAKEN,
    ClientProgram,
    decoded,
    diff,
    meaning,
    movable,
    of_its_own,
    our_command,
    run_twice,
    surroundings,
    with_member,
    without_member,
    would_move,
)
from .completion import complete_clients
from .config_reading import load
from .json_shapes import Shape, says
from .printing import from_home, say, show_json, tell
from .running_gateways import reload_gateways
from .shared_options import config_option, json_option
from .typed_options import commands_typed


class ClientJson(Shape, kw_only=True):
    """An MCP client that `init` knows."""

    client: Annotated[str, says("its name for `init`")]
    title: Annotated[str, says("its name for people")]
    file: Annotated[str, says("its file")]
    found: Annotated[bool, says("it is on this machine")]
    written: Annotated[bool, says("Greenroom is written there")]
    servers: Annotated[int, says("that it starts itself", "servers")]


class ClientsJson(Shape, kw_only=True):
    """The clients that `init` knows."""

    clients: Annotated[list[ClientJson], says("all of them")]


class WrittenJson(Shape, kw_only=True):
    """What was done for one client."""

    client: Annotated[str, says("its name for `init`")]
    file: Annotated[str, says("its file")]
    state: Annotated[
        Literal["written", "would be written", "unchanged", "put back", "would be put back", "failed"],
        says("what was done"),
    ]
    error: Annotated[str | UnsetType, says("why it failed; exit code 1", when="`failed`")] = UNSET
    diff: Annotated[str | UnsetType, says("the difference, without secrets", when="the file changes")] = UNSET
    backup: Annotated[
        str | UnsetType | None, says("the old file; null: there was none", when="`written`")
    ] = UNSET
    moved: Annotated[list[str] | UnsetType, says("servers that were moved", when="it is not undone")] = UNSET
    there: Annotated[
        list[str] | UnsetType,
        says("those of `moved` that your own file had already", when="servers are moved"),
    ] = UNSET
    stay: Annotated[
        dict[str, str] | UnsetType, says("servers that were not, and why", when="it is not undone")
    ] = UNSET
    ours: Annotated[
        str | UnsetType, says("your own file", when="servers are moved, or both files have servers")
    ] = UNSET
    kept: Annotated[
        str | UnsetType, says("what was there until now", when="`put back`, and it had changed")
    ] = UNSET
    both: Annotated[
        list[str] | UnsetType, says("servers in both files", when="`put back`, and both files exist")
    ] = UNSET


class InitJson(Shape, kw_only=True):
    """What was written."""

    clients: Annotated[list[WrittenJson], says("each client that was named")]
    next: Annotated[list[str], says("what comes next, one step each")]


_OURS: Final = "greenroom"


@attrs.frozen
class _InitOptions:
    """The options that the person gave."""

    name: str
    args: tuple[str, ...]
    move: bool
    dry_run: bool
    force: bool
    undo: bool
    options: tuple[str, ...]  # as they were given, for doing it after a dry run


@click.command("init")
@click.argument("clients", nargs=-1, metavar="[CLIENT]...", shell_complete=complete_clients)
@click.option("--all", "every", is_flag=True, help="All clients that are found on this machine.")
@click.option(
    "--list", "listing", is_flag=True, help="Show all known clients and their files; write nothing."
)
@click.option(
    "--attach",
    "attaches",
    is_flag=True,
    help="Let the client share the one background gateway (greenroom attach).",
)
@click.option(
    "--move",
    is_flag=True,
    help="Also move the client's servers into your own file, so that Greenroom runs them.",
)
@click.option("--name", default=_OURS, show_default=True, help="The name of the entry in the client's file.")
@config_option
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@click.option("--undo", is_flag=True, help="Put back the client's file as it was before.")
@click.option(
    "--force",
    is_flag=True,
    help="Write it although the client is not on this machine; with --undo: although the file has changed since.",
)
@json_option
def init_command(
    clients: tuple[str, ...],
    every: bool,
    listing: bool,
    attaches: bool,
    move: bool,
    name: str,
    config_path: Path | None,
    dry_run: bool,
    undo: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Write Greenroom into the configuration of CLIENT, and nothing else in it.

    Without CLIENT, it shows the clients that are on this machine, and writes nothing. With --move, Greenroom also takes
    over the servers that the client has. It prints the difference, and keeps the old file: --undo puts it back, byte
    for byte. With --config, the client will use only that file.
    """
    around = surroundings(os.environ, sys.platform)
    unknown = [client for client in clients if client not in CLIENTS]
    if unknown:
        there = f"Known are: {', '.join(CLIENTS)}.{meant(unknown[0], CLIENTS)}"
        raise UsageError(f'There is no client "{unknown[0]}". {there}')
    chosen = [key for key, one in CLIENTS.items() if key in clients or (every and one.is_found(around))]
    if listing or not (clients or every):
        _list(around, as_json, every=listing)
        return 0
    if not chosen:
        raise UsageError(
            "No known client was found on this machine. To write the file of one: greenroom init --force CLIENT"
        )
    named = ("--config", os.path.abspath(config_path.expanduser())) if config_path is not None else ()
    given = {"--attach": attaches, "--move": move, "--undo": undo, "--force": force}
    options = (*(option for option, is_given in given.items() if is_given), *_named(name))
    args = ("attach" if attaches else "serve", *named)
    wish = _InitOptions(name, args, move, dry_run, force, undo, options)
    rows = [_done(key, around, wish, undo=undo, quiet=as_json) for key in chosen]
    if any(row.get("state") in ("written", "put back") for row in rows):
        reload_gateways()  # our own file, or one that is imported, may have changed
    steps = _steps(rows, wish, config_path)
    if as_json:
        show_json({"clients": rows, "next": steps}, InitJson)
    elif steps:
        tell("\n" + "\n".join(steps))
    return int(any("error" in row for row in rows))


def _named(name: str) -> tuple[str, ...]:
    return () if name == _OURS else ("--name", name)


def _done(key: str, around: Surroundings, wish: _InitOptions, *, undo: bool, quiet: bool) -> dict[str, Any]:
    """Carry out the wish for one client. An error does not stop the other clients."""
    row = {"client": key, "file": str(CLIENTS[key].file(around))}
    try:
        row |= _undone(key, around, wish) if undo else _written(key, around, wish)
    except GreenroomError as error:
        row |= {"state": "failed", "error": error.message}
    except OSError as error:
        row |= {"state": "failed", "error": refused(error)}
    except OverflowError as error:
        row |= {"state": "failed", "error": str(error)}
    if not quiet:
        _tell(row, undo=undo)
    return row


def _written(key: str, around: Surroundings, wish: _InitOptions) -> dict[str, Any]:
    client, file = CLIENTS[key], CLIENTS[key].file(around)
    if not (wish.force or client.is_found(around)):
        raise UsageError(
            f"{client.title} is not on this machine: neither {file} nor its folder is there. "
            "Install it first, or write the file anyway with --force."
        )
    before = file_edits.read(file)
    old = decoded(file, before)
    command, first = our_command()
    new = with_member(file, old, (client.section, wish.name), client.entry(command, [*first, *wish.args]))
    row: dict[str, Any] = {"moved": [], "stay": {}}
    if wish.move:
        new = _moved(key, client, around, new, wish, row)
    if new == old:
        return {**row, "state": "unchanged"}
    row["diff"] = diff(old, new, file, ours=wish.name)
    if wish.dry_run:
        return {**row, "state": "would be written"}
    backup = file_edits.change(file, before, new.encode("utf-8"), _state())
    return {**row, "state": "written", "backup": str(backup.content) if backup.content else None}


def _steps(rows: Sequence[dict[str, Any]], wish: _InitOptions, config_path: Path | None) -> list[str]:
    """The next steps, one a line, each with its command at the end."""
    done = [row["client"] for row in rows if "error" not in row]
    if not done:
        return []
    commands = commands_typed()
    if wish.dry_run:
        if all(row.get("state") == "unchanged" for row in rows):
            return []
        return [f"To do it: {commands.about('init', *done, options=wish.options)}"]
    changed = [CLIENTS[row["client"]].title for row in rows if row.get("state") in ("written", "put back")]
    steps = [f"Restart {_joined(changed)}. The file is only read at the start."] if changed else []
    if wish.undo:
        return steps
    try:
        config = load(config_path)
    except ConfigError:
        return [*steps, f"The configuration cannot be used. To see why: {commands.about('doctor')}"]
    around = surroundings(os.environ, sys.platform)
    steps += [text for key in done if (text := left_in(key, around, config))]
    if servers := config.servers:
        are = "1 server is" if len(servers) == 1 else f"{len(servers)} servers are"
        return [*steps, f"{are} configured. To see the state of each: {commands.live('status')}"]
    return [*steps, f"No server is configured yet. To add one: {commands.about('add', 'NAME')} -- COMMAND"]


def left_in(key: str, around: Surroundings, config: Config) -> str:
    """What is to be said of the servers that this client starts itself: how many, those that run twice, and the next
    step. "": it has none."""
    client = CLIENTS[key]
    own = of_its_own(key, client, around)
    if not own:
        return ""
    step = f"{commands_typed().about('init', key)} --move"
    if not client.is_written(around):
        them = "it" if len(own) == 1 else "them"
        return f"{client.title} has {counted(len(own), 'server')}. To let Greenroom run {them}: {step}"
    if twice := run_twice(own, config):
        runs = "it runs" if len(twice) == 1 else "they run"
        what = f"{client.title} starts {one_line(_joined(twice), 200)} itself, too, so {runs} twice"
    else:
        what = f"{client.title} also starts {counted(len(own), 'server')} itself"
    move = would_move(key, client, around)
    if move.servers:
        return f"{what}: {step}"
    taken = [name for name, why in move.stay.items() if why == TAKEN]
    if not taken:
        return f"{what}."
    there = "another server of this name" if len(taken) == 1 else "other servers of these names"
    names = one_line(_joined(taken), 200)
    return f"{what}. Greenroom's own file has {there}: rename {names} in one of the two, then: {step}"


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _moved(
    key: str, client: ClientProgram, around: Surroundings, text: str, wish: _InitOptions, row: dict[str, Any]
) -> str:
    """Write the client's servers into our own file, and return the client's text without them."""
    ours, file = own_file(around.home, around.environ), client.file(around)
    with alone(ours):
        before = file_edits.read(ours)
        own = old = decoded(ours, before)
        there: Any = meaning(ours, own).get(OURS) or {}
        move = movable(key, client, around, meaning(file, text), there)
        for name, entry in move.servers.items():
            own = with_member(ours, own, (OURS, name), entry)
            text = without_member(file, text, (client.section, name))
        if own != old and not wish.dry_run:
            file_edits.change(ours, before, own.encode("utf-8"), _state())
    already = [name for name in move.servers if name in there]
    row |= {"moved": [*move.servers], "there": already, "stay": {**move.stay}, "ours": str(ours)}
    return text


def _undone(key: str, around: Surroundings, wish: _InitOptions) -> dict[str, Any]:
    client = CLIENTS[key]
    file = client.file(around)
    if wish.dry_run:
        backup = file_edits.last_backup(file, _state())
        return {"state": "would be put back" if backup else "unchanged"}
    kept = file_edits.undo(file, _state(), force=wish.force)
    row: dict[str, Any] = {"state": "put back"} | ({"kept": str(kept)} if kept else {})
    ours = own_file(around.home, around.environ)
    now, own = file_edits.read(file), file_edits.read(ours)
    if now and own:
        here: Any = meaning(file, decoded(file, now)).get(client.section) or {}
        there: Any = meaning(ours, decoded(ours, own)).get(OURS) or {}
        row |= {"both": [name for name in here if name in there], "ours": str(ours)}
    return row


def _state() -> Path:
    return state_folder() / "init"


def _tell(row: dict[str, Any], *, undo: bool) -> None:
    if "error" in row:
        say(f"{row['client']}: {row['error']}")
        return
    mark = "✓ " if row["state"] == "written" else ""
    words = _NOT_UNDONE if undo and row["state"] == "unchanged" else _WORDS.get(row["state"], row["state"])
    tell(f"{mark}{row['client']}: {row['file']} {words}")
    if row.get("diff"):
        click.echo(_coloured(row["diff"].splitlines()))
    if row.get("backup"):
        tell(f"The old file is kept: {row['backup']}. greenroom init --undo {row['client']} puts it back.")
    if row.get("moved"):
        moved = "Moved" if row["state"] == "written" else "Would be moved"
        if new := [name for name in row["moved"] if name not in row["there"]]:
            tell(f"{moved} to {row['ours']}: {', '.join(new)}")
        if row["there"]:
            tell(f"In {row['ours']} already: {', '.join(row['there'])}")
    for name, why in row.get("stay", {}).items():
        tell(f"Not moved: {name}, because {why}.")
    if row.get("kept"):
        tell(f"What was there until now is kept: {row['kept']}")
    if row.get("both"):
        tell(f"These are in {row['ours']} as well, and stay there: {', '.join(row['both'])}")


_NOT_UNDONE = "has no change of ours that could be undone"
_WORDS = {
    "unchanged": "has this entry already",
    "written": "has been written",
    "put back": "is as it was before",
}


def _coloured(lines: Sequence[str]) -> str:
    """click takes the colours out again when stdout is no terminal."""
    if os.environ.get("NO_COLOR"):
        return "\n".join(lines)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    return "\n".join(click.style(line, fg=colours.get(line[:1])) for line in lines)


def _list(around: Surroundings, as_json: bool, *, every: bool) -> None:
    rows = [
        ClientJson(
            client=key,
            title=one.title,
            file=str(one.file(around)),
            found=one.is_found(around),
            written=one.is_written(around),
            servers=len(of_its_own(key, one, around)),
        )
        for key, one in CLIENTS.items()
    ]
    if as_json:
        show_json(ClientsJson(clients=rows))
        return
    tell("\n".join(_client_lines(rows, around, every=every)))


def _client_lines(rows: Sequence[ClientJson], around: Surroundings, *, every: bool) -> Iterator[str]:
    """The clients that are here, or `every` one that is known, and the next step."""
    here = [row for row in rows if row.found]
    shown = rows if every else here
    has = {row.client: counted(row.servers, "server") if row.servers else "" for row in here}
    cells = [(row.client, has.get(row.client, "not here"), from_home(row.file, around.home)) for row in shown]
    names, counts = (max((len(cell[at]) for cell in cells), default=0) for at in (0, 1))
    for row, (name, count, file) in zip(shown, cells, strict=True):
        yield (
            f"{'✓' if row.written else '○'} {name:<{names}}  "
            + (f"{count:<{counts}}  " if counts else "")
            + file
        )
    if not here:
        yield "None of the clients that Greenroom knows is on this machine."
    if any(row.written for row in shown):
        yield "✓: it uses Greenroom already."
    if not every and len(here) < len(rows):
        others = [row.client for row in rows if not row.found]
        yield f"{'Also known' if here else 'Known are'}: {', '.join(others)}"
    config = load(None)
    init = commands_typed().about("init")
    steps: list[str] = []
    for row in here:
        if row.servers:
            steps.append(left_in(row.client, around, config))
        elif not row.written:
            steps.append(
                f"{row.title} has no servers of its own. To let it use Greenroom: {init} {row.client}"
            )
    if not here:
        entry = json.dumps({"mcpServers": {_OURS: {"command": "greenroom", "args": ["serve"]}}})
        steps.append(f"To write the file of one of them all the same: {init} --force CLIENT")
        steps.append(f"Another client needs this in its own file: {entry}")
    yield from ["", *steps] if steps else ()
