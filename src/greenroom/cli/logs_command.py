"""`greenroom logs`: what a server has written to its stderr, over its last starts. It starts nothing.

The rooms write it (`actors.transports.stderr_log`); this only reads the files, so it needs no gateway.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import click
from msgspec import field

from ..protocol.safe_text import printable, seen_in_json
from .completion import complete_servers
from .config_reading import load_asked
from .json_shapes import Shape, plain, says
from .missing_servers import no_such_server
from .printing import say, show
from .shared_options import common_options

if TYPE_CHECKING:
    from ..config.model import Config


class LogsJson(Shape, kw_only=True):
    """What a server has printed to its stderr."""

    server: Annotated[str, says("the server")]
    file: Annotated[str, says("the log")]
    lines: Annotated[list[LogLineJson], says("the last ones, the oldest first")]


class LogLineJson(Shape, kw_only=True):
    """A line of a server's log. With `--follow` each is an object on a line of its own."""

    from_: Annotated[Literal["server", "greenroom"], says("who wrote it")] = field(name="from")
    text: Annotated[str, says("the line")]


LOOK_EVERY: Final = 0.3  # seconds between two looks of --follow


@click.command("logs")
@click.argument("server", shell_complete=complete_servers)
@click.option("--follow", "-f", is_flag=True, help="Go on printing what it writes, until Ctrl-C.")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(0),
    metavar="NUMBER",
    default=200,
    show_default=True,
    help="How many of the last lines to show; 0: all.",
)
@common_options
def logs_command(
    server: str, follow: bool, lines: int, config_path: Path | None, pid: int | None, as_json: bool
) -> int:
    """Show what SERVER has written to its stderr.

    A line that begins with --- is Greenroom's: when a process was started, and why it ended. Credentials are
    removed. Nothing is started. With --follow and --json each line is an object of its own.
    """
    config = load_asked(config_path, pid)
    if (why := _why_no_log(config, server)) is not None:
        say(why)
        return 1
    path = _place(config, server)
    file = _ServerLog(path)
    found = file.read()
    shown = found[-lines:] if lines else found
    if not found:
        say(f"nothing of {server} is logged: it was not started with its present entry in the last 7 days.")
    if not follow:
        details = LogsJson(server=server, file=str(path), lines=[_as_json(line) for line in shown])
        if shown or as_json:
            show("\n".join(shown), details, as_json, ours=False)
        return 0
    while True:
        for line in shown:
            click.echo(seen_in_json(json.dumps(plain(_as_json(line)))) if as_json else printable(line))
        time.sleep(LOOK_EVERY)
        shown = file.read()


def _why_no_log(config: Config, server: str) -> str | None:
    """Why this server has no log. Raises `UsageError` when there is no such server."""
    if server in config.broken:
        return f'Server "{server}" cannot be used, so it was never started: {config.broken[server]}'
    definition = config.servers.get(server)
    if definition is None:
        raise no_such_server(config, server)
    if definition.command is None:
        return f'Server "{server}" is reached at an address, so what it logs stays where it runs.'
    return None


def has_printed(config: Config, server: str) -> bool:
    """Whether the log of this server with its present entry holds a line that is not ours."""
    from ..actors.transports.stderr_log import OURS

    with suppress(OSError):  # `greenroom logs` says what is wrong with the file
        return any(not line.startswith(OURS) for line in _ServerLog(_place(config, server)).read())
    return True


def _place(config: Config, server: str) -> Path:
    from ..actors.transports.stderr_log import stderr_log_path
    from ..catalogue.store import catalogue_keys, default_cache_path

    return stderr_log_path(default_cache_path().parent, server, catalogue_keys(config, [server])[server])


def _as_json(line: str) -> LogLineJson:
    from ..actors.transports.stderr_log import OURS

    is_ours = line.startswith(OURS)
    return LogLineJson(
        from_="greenroom" if is_ours else "server", text=line.removeprefix(OURS) if is_ours else line
    )


class _ServerLog:
    """The two files of a server, read from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None  # the file that was read last, and up to where
        self._rest = b""  # the beginning of a line

    def read(self) -> list[str]:
        """The whole lines that have come since the last look. Raises `NotOurs`."""
        data = self._rest + b"".join(self._new())
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        return data[:end].decode(errors="replace").splitlines()

    def _new(self) -> Iterator[bytes]:
        from ..actors.transports.stderr_log import older_log

        seen = self._seen
        for path in (older_log(self._path), self._path):
            with suppress(FileNotFoundError):
                number, data = _content(path)
                if seen is not None and path != self._path and number != seen[0]:
                    continue  # it was read before it became the older one
                start = seen[1] if seen is not None and number == seen[0] else 0
                self._seen = number, len(data)
                yield data[start:]


def _content(path: Path) -> tuple[int, bytes]:
    from ..config.private_files import open_own

    with open(open_own(path, os.O_RDONLY), "rb") as file:
        return os.fstat(file.fileno()).st_ino, file.read()
