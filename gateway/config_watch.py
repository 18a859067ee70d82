"""Watches the configuration of a running gateway, and reloads it when a file changes.

All places where the configuration is looked for are watched, even if nothing is there yet. When the bell
rings and a file is not as it was, the configuration is read again. The room is reloaded only if the
configuration says something new. Several writes in a short time count as one. A broken new configuration
changes nothing: the gateway keeps the old one, and the log says what is wrong and where. What a good one
changes is reported by the room itself.

The file of pinned definitions is watched too: what is accepted by `greenroom accept` counts at once.

A configuration may have thousands of servers, so it is read and compared in a thread, outside the loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from ..actors.workers import Part, apart
from ..config.file_watcher import hung_at, prepare
from ..config.model import Config
from ..protocol.errors import ConfigError, GreenroomError
from .event_log import Log

if TYPE_CHECKING:
    from ..supervisor.room import Greenroom

_DEBOUNCE: Final = 0.3  # seconds in which several writes count as one change
Look = Mapping[Path, object]  # a stamp per place, equal while nothing has changed there


async def watch_configuration(
    room: Greenroom,
    reread: Callable[[], Config],
    log: Log,
    reloaded: Callable[[], object] = lambda: None,
    pins: Collection[Path] = (),
) -> None:
    """Reload `room` with `reread()` whenever that says something new, until cancelled. `reloaded` is called
    after each reload. `pins`: the file of pinned definitions; when it changes, the owner may have accepted a tool."""
    seen: Look | None = None
    pinned: Look = look(pins) if pins else {}
    kernel = Part("hearing of changed files at once", log.line, "They are looked for every two seconds.")
    while True:
        await anyio.sleep(_DEBOUNCE)  # also the first time, so that starting up goes first
        places = [Path(place) for place in room.config.places]
        await apart(prepare)
        with hung_at([*places, *pins], kernel) as bell:
            if pins and pinned != (pinned := look(pins)):
                await room.accept()
            found = look(places)
            if found != seen:
                seen = found
                if await reload(room, reread, log):
                    reloaded()
                    continue  # the places may have changed
            await bell.rung()


async def reload(room: Greenroom, reread: Callable[[], Config], log: Log) -> bool:
    """Read the configuration again, and reload the room if it has changed. After any problem the old one
    stays in use. True: the room was reloaded."""
    try:
        config = await apart(lambda: _reread_if_other(reread, room.config))
        if config is None:
            return False
        await room.reload(config)
    except ConfigError as error:
        log.line(f"the changed configuration is not used, the old one stays: {_one_line(error.problems)}")
        return False
    except GreenroomError as error:
        log.line(f"the changed configuration is not used, the old one stays: {error}")
        return False
    return True


def _reread_if_other(reread: Callable[[], Config], known: Config) -> Config | None:
    config = reread()
    return None if config == known else config


def look(places: Iterable[Path]) -> Look:
    return {place: _stamp(place) for place in places}


def _stamp(place: Path) -> object:
    try:
        found = os.stat(place)
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _one_line(problems: Iterable[object]) -> str:
    return "; ".join(str(problem) for problem in problems)
