"""`refresh`: start servers whose tools are unknown once, and read what they have.

It uses the running gateway, whose clients have the result at once. Without a gateway it opens a room of its own and
fills the cache. Progress and a total go to stderr; the answer is one line for each server, printed when that server is
done.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click
from msgspec import UNSET, UnsetType

from ..protocol.errors import UsageError
from ..protocol.events import Place
from ..protocol.safe_text import counted, one_line, tools_in_words
from .completion import complete_servers
from .config_reading import only_asked_for, read_config
from .interruption import run_to_end
from .json_shapes import Shape, SourceJson, says
from .missing_servers import left_out, no_such_server, none_in_service
from .printing import say, show, tell
from .running_gateways import running_gateway
from .shared_options import common_options
from .text_wrapping import on_terminal
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config
    from ..gateway.doors import control_client as control


class ReadJson(Shape, kw_only=True):
    """A server that was started to read what it has."""

    server: Annotated[str, says("the server")]
    name: Annotated[str, says("the same; the older word")]
    state: Annotated[Literal["known", "failed"], says("how it ended")]
    tools: Annotated[int | UnsetType, says("how many it has", "tools", when="`known`")] = UNSET
    resources: Annotated[
        int | UnsetType, says("how many are offered as tools", "resources", when="`known`")
    ] = UNSET
    failure: Annotated[str | UnsetType | None, says("why it failed", when="`failed`")] = UNSET
    retry_in: Annotated[
        float | UnsetType | None,
        says("until it may be tried again", "s", when="`failed`, and it is configured"),
    ] = UNSET


class RefreshedJson(SourceJson, kw_only=True):
    """Which servers were read."""

    servers: Annotated[list[ReadJson], says("those that were unknown, or the one")]


_QUICK: Final = (None, Place.BREAKER.value, Place.TURN.value)  # what it waits for and soon has
LOOK_EVERY: Final = 0.3  # seconds
_NAMED: Final = 20  # servers of a line of progress, at most
_SUMMARY: Final = 400  # characters
_EXPLAINED: Final = 3  # servers that failed, for each of which it is said how to see why
SAY_AFTER: Final = 10.0  # seconds until the first summary, where no terminal shows the progress


@click.command("refresh")
@click.argument("servers", metavar="[SERVER]...", nargs=-1, shell_complete=complete_servers)
@click.option(
    "--all", "every", is_flag=True, help="Every server in service, also those whose tools are known."
)
@common_options
def refresh_command(
    servers: tuple[str, ...], every: bool, config_path: Path | None, pid: int | None, as_json: bool
) -> int:
    """Start each SERVER once, to read which tools it has. Without SERVER, those whose tools are not known.

    A server that has failed is tried again at once.
    """
    if servers and every:
        raise UsageError("--all means every server. Leave it out, or the names.")
    config = read_config(config_path)
    gateway = running_gateway(config, pid)
    for server in servers if gateway is None else ():
        if server not in (*config.servers, *config.broken):
            raise no_such_server(config, server)
    origin: dict[str, Any] = {"source": "room"}
    unkept: list[str] = []  # what went wrong with keeping what they have, in words
    progress = Progress(None if as_json else _tell_done)
    if gateway is None:
        rows = run_to_end(partial(_in_own_room, config, servers, every, unkept, progress))
    else:
        origin = {"source": "gateway", "pid": gateway.pid}
        rows = _through(gateway, servers, every, progress)
    unused: list[str] = []
    if not servers and pid is None:
        unused = [*(none_in_service(config) if not rows else ()), *left_out(config)]
    if as_json:
        show("", {"servers": rows, **origin}, as_json, RefreshedJson)
    else:
        for line in unused if rows or unused else ("Every server is known; nothing to do.",):
            tell(line)
        _sum_up(rows)
    return int(_is_lost(config, rows, unkept) or any(row["state"] == "failed" for row in rows))


def _is_lost(config: Config, rows: list[dict[str, Any]], unkept: list[str]) -> bool:
    """Say what went wrong with keeping what the servers have. Returns whether the next command will not know it."""
    from ..catalogue.store import default_cache_path
    from ..config.private_files import can_be_written, other_folder
    from ..gateway.offline_catalogue import open_catalogue

    if not unkept:
        return False
    for words in dict.fromkeys(unkept):
        say(words)
    folder = default_cache_path().parent
    if not can_be_written(folder):
        say(other_folder(folder))
    known = open_catalogue(config)
    return any(row["state"] == "known" and known.entry(row["name"]) is None for row in rows)


def _through(
    gateway: control.Gateway, servers: Sequence[str], every: bool, progress: Progress
) -> list[dict[str, Any]]:
    asked = gateway.ask("refresh", servers=servers, every=every)
    while not progress.tell(rows := gateway.ask("refreshed", **asked)):
        time.sleep(LOOK_EVERY)
    return rows


async def _in_own_room(
    config: Config, servers: Sequence[str], every: bool, unkept: list[str], progress: Progress
) -> list[dict[str, Any]]:
    import anyio

    from ..gateway.control_methods import begin, look
    from ..protocol.events import Kind, Note, NoteCode
    from ..supervisor.room import Greenroom, port_of

    opened = Greenroom.open(only_asked_for(config), bootstrap=False)
    async with opened.events([Kind.NOTE]) as notes:
        async with opened as room:
            port = port_of(room)
            asked = begin(room, servers, every=every)
            while True:
                rows = await look(port, asked)
                if progress.tell(rows):
                    break
                await anyio.sleep(LOOK_EVERY)
        notes.close()
        async for note in notes:
            if isinstance(note, Note) and note.code is NoteCode.CATALOGUE_FILE:
                unkept.append(note.words)
        return rows


class Progress:
    """What has been said of servers that are waited for. Each that is done is told at once, as `tell_done` does it. Of
    the others, a terminal has one line that is drawn again and again. Anywhere else there is a line for each server
    that does something slow or cannot go on, and a summary after ten seconds, after twenty, forty and so on."""

    def __init__(self, tell_done: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._tell_done = tell_done
        self._done: dict[
            str, str
        ] = {}  # the states that were told; one that has failed may still become known
        self._said: dict[str, str | None] = {}  # what each was last waiting for
        self._began = time.monotonic()
        self._sums_up_after = SAY_AFTER

    def tell(self, rows: list[dict[str, Any]]) -> bool:
        """Print what has changed. Returns True when no server is left to wait for."""
        is_drawn = on_terminal(sys.stderr)
        done = [row for row in rows if row["state"] not in ("waiting", self._done.get(row["name"]))]
        if done and self._tell_done is not None:
            if is_drawn:
                self._draw_line("")
            for row in done:
                self._tell_done(row)
        self._done.update((row["name"], row["state"]) for row in done)
        if is_drawn:
            return self._draw(rows)
        waiting = [row for row in rows if row["state"] == "waiting"]
        for row in waiting:
            self._tell(row)
        took = time.monotonic() - self._began
        if waiting and took >= self._sums_up_after:
            self._sums_up_after *= 2
            say(f"after {took:.0f} s: {_progress(rows, waiting, _SUMMARY, with_lines=True)}")
        return not waiting

    def _draw(self, rows: list[dict[str, Any]]) -> bool:
        waiting = [row for row in rows if row["state"] == "waiting"]
        width = max(20, shutil.get_terminal_size().columns - 1)
        self._draw_line(_progress(rows, waiting, width, with_lines=len(waiting) == 1) if waiting else "")
        return not waiting

    @staticmethod
    def _draw_line(line: str) -> None:
        """Draw a line that is overwritten again and again, and removed by an empty one."""
        click.echo(f"\r\x1b[2K{line}", nl=False, err=True, color=True)

    def _tell(self, row: Mapping[str, Any]) -> None:
        place, before = row["waitingFor"], self._said.get(row["name"])
        self._said[row["name"]] = place
        if place not in (*_QUICK, before):
            line = f": {row['lastLine']}" if row["lastLine"] else ""
            say(one_line(f"{row['name']}: {row['waitsFor']}{line}"))


def _progress(
    rows: Sequence[Mapping[str, Any]], waiting: Sequence[Mapping[str, Any]], width: int, *, with_lines: bool
) -> str:
    """How many are done, and what the others do, as many as `width` characters have room for. `with_lines`: and what
    each wrote last to its stderr."""
    shown = waiting[:_NAMED]
    lines = [f": {row['lastLine']}" if with_lines and row["lastLine"] else "" for row in shown]
    doing = [f"{row['name']} ({row['waitsFor']}{line})" for row, line in zip(shown, lines, strict=True)]
    while True:
        more = len(waiting) - len(doing)
        others = f" and {more} more" if more else ""
        line = f"{len(rows) - len(waiting)} of {len(rows)} done; {', '.join(doing)}{others}"
        if len(doing) == 1 or len(line) <= width:
            return one_line(line, width)
        doing.pop()


def _tell_done(row: Mapping[str, Any]) -> None:
    """Print the line of a server that is done."""
    if row["state"] == "known":
        tell(one_line(f"✓ {row['name']}: {tools_in_words(row['tools'], row.get('resources', 0))}"))
    else:
        tell(one_line(f"✗ {row['name']}: {row['failure']}"))


def _sum_up(rows: list[dict[str, Any]]) -> None:
    """Say how many servers answered, and what to do about those that did not."""
    if len(rows) > 1:
        known = [row for row in rows if row["state"] == "known"]
        count = tools_in_words(
            sum(row["tools"] for row in known), sum(row.get("resources", 0) for row in known)
        )
        say(f"{len(known)} of {counted(len(rows), 'server')} answered, {count}")
    say_why([row["name"] for row in rows if row["state"] == "failed"])


def say_why(failed: Sequence[str]) -> None:
    """Say how to see why these servers failed, and what to do."""
    if failed:
        typed = (commands_typed().about("explain", name) for name in failed[:_EXPLAINED])
        say(f"to see why: {'; '.join(typed)}")
    if len(failed) > _EXPLAINED:
        more = len(failed) - _EXPLAINED
        say(f"{counted(more, 'more server')} failed: {commands_typed().live('status')}")
