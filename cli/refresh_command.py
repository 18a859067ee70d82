"""`refresh`: start servers whose tools are unknown once, and read what they have.

It uses the running gateway, whose clients have the result at once. Without a gateway it opens a room of its own and
fills the cache. Progress and a total go to stderr; the answer is one line for each server.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..protocol.safe_text import counted, one_line
from .common import (
    commands_typed,
    common_options,
    left_out,
    no_such_server,
    none_in_service,
    read_config,
    run_to_end,
    running_gateway,
    say,
)
from .completion import complete_servers
from .tables import show_lines
from .wrapping import on_terminal

if TYPE_CHECKING:
    from ..config.model import Config
    from ..gateway.doors import control_client as control


LOOK_EVERY: Final = 0.3  # seconds
SAY_EVERY: Final = 5.0  # seconds between two lines about a server whose state has not changed


@click.command("refresh")
@click.argument("server", required=False, shell_complete=complete_servers)
@common_options
def refresh_command(server: str | None, config_path: Path | None, pid: int | None, as_json: bool) -> int:
    """Start servers whose tools are unknown, or SERVER, once, to read what they have."""
    config = read_config(config_path)
    gateway = running_gateway(config, pid)
    if gateway is None and server is not None and server not in (*config.servers, *config.broken):
        raise no_such_server(config, server)
    origin: dict[str, Any] = {"source": "room"}
    unkept: list[str] = []  # what went wrong with keeping what they have, in words
    if gateway is None:
        rows = run_to_end(partial(_in_own_room, config, server, unkept))
    else:
        origin = {"source": "gateway", "pid": gateway.pid}
        rows = _through(gateway, server)
    unused: list[str] = []
    if server is None and pid is None:
        unused = [*(none_in_service(config) if not rows else ()), *left_out(config)]
    show_lines(_lines(rows, unused), {"servers": rows, **origin}, as_json)
    if len(rows) > 1 and not as_json:
        say(_total(rows))
    return int(_is_lost(config, rows, unkept) or any(row["state"] == "failed" for row in rows))


def _is_lost(config: Config, rows: list[dict[str, Any]], unkept: list[str]) -> bool:
    """Say what went wrong with keeping what the servers have. Returns whether the next command will not know it."""
    from ..catalogue.store import default_cache_path
    from ..config.private_files import can_be_written, other_folder
    from ..gateway.offline import open_catalogue

    if not unkept:
        return False
    for words in dict.fromkeys(unkept):
        say(words)
    folder = default_cache_path().parent
    if not can_be_written(folder):
        say(other_folder(folder))
    known = open_catalogue(config)
    return any(row["state"] == "known" and known.entry(row["name"]) is None for row in rows)


def _through(gateway: control.Gateway, server: str | None) -> list[dict[str, Any]]:
    asked = gateway.ask("refresh", server=server)
    progress = Progress()
    while not progress.tell(rows := gateway.ask("refreshed", **asked)):
        time.sleep(LOOK_EVERY)
    return rows


async def _in_own_room(config: Config, server: str | None, unkept: list[str]) -> list[dict[str, Any]]:
    import anyio

    from ..gateway.commands import begin, look
    from ..protocol.events import Kind, Note, NoteCode
    from ..supervisor.room import Greenroom, port_of

    opened = Greenroom.open(config, bootstrap=False)
    async with opened.events([Kind.NOTE]) as notes:
        async with opened as room:
            port = port_of(room)
            asked = begin(room, server)
            progress = Progress()
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
    """What has been printed about each server, so that nothing is printed twice."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}

    def tell(self, rows: list[dict[str, Any]]) -> bool:
        """Print what has changed. Returns True when no server is left to wait for."""
        if on_terminal(sys.stderr):
            return self._draw(rows)
        for row in rows:
            if row["state"] == "waiting":
                self._tell(row)
        return all(row["state"] != "waiting" for row in rows)

    @staticmethod
    def _draw(rows: list[dict[str, Any]]) -> bool:
        """Draw a line that is overwritten again and again, and removed at the end."""
        waiting = [row for row in rows if row["state"] == "waiting"]
        doing = (f"{row['name']} {row['waitsFor']} {row['lastLine'] or ''}".rstrip() for row in waiting)
        line = f"{len(rows) - len(waiting)} of {len(rows)} done: {'; '.join(doing)}" if waiting else ""
        width = max(20, shutil.get_terminal_size().columns - 1)
        click.echo(f"\r\x1b[2K{one_line(line, width)}", nl=False, err=True, color=True)
        return not waiting

    def _tell(self, row: Mapping[str, Any]) -> None:
        now, words = time.monotonic(), str(row["waitsFor"])
        is_refused = row.get("retryIn") is not None  # until its circuit breaker lets it pass nothing happens
        kind = ("circuit breaker" if is_refused else words.partition(" for ")[0]) + str(row["lastLine"])
        before, at = self._said.get(row["name"], ("", 0.0))
        if kind != before or (now >= at + SAY_EVERY and not is_refused):
            self._said[row["name"]] = (kind, now)
            say(one_line(f"{row['name']}: {words}" + (f": {row['lastLine']}" if row["lastLine"] else "")))
            if is_refused:
                say(f"to try it now: {commands_typed().live('reconnect', row['name'])}")


def _lines(rows: list[dict[str, Any]], unused: list[str]) -> Iterator[str]:
    """The answer. `unused`: the text about servers that are not used, or about there being none."""
    if not rows and not unused:
        yield "Every server is known; nothing to do."
    for row in rows:
        if row["state"] == "known":
            yield one_line(f"✓ {row['name']}: {counted(row['tools'], 'tool')}")
        else:
            yield one_line(f"✗ {row['name']}: {row['failure']}")
    yield from unused


def _total(rows: list[dict[str, Any]]) -> str:
    known = [row["tools"] for row in rows if row["state"] == "known"]
    count = counted(sum(known), "tool")
    return f"{len(known)} of {counted(len(rows), 'server')} answered, {count}"
