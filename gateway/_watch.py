"""Watching the configuration of a running gateway: a changed file is a reload.

All places where the configuration is looked for are watched, whether or not anything is there yet. When the bell rings,
or something is not as it was, the configuration is read again; only when it says something else is it a reload. Several
writes in a moment are one. A new configuration that is broken changes nothing: the old one goes on, and the log says
what is wrong and where. What a good one changed, the room says itself.

There may be thousands of servers in it, so it is read and compared beside the loop, in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio

from ..actors import Part, apart
from ..protocol.config import Config
from ..protocol.errors import ConfigError, GreenroomError
from ._bell import hung_at, prepare
from ._event_log import Log
from ._garbage import uncollected

_DEBOUNCE: Final = 0.3  # seconds in which several writes are one change

Look = Mapping[Path, object]  # what is at each place: equal while nothing has changed there


async def watch_configuration(
    room: Any,
    reread: Callable[[], Config],
    log: Log,
    reloaded: Callable[[], object] = lambda: None,
) -> None:
    """Reload `room` with `reread()` whenever that says something new, until cancelled. `reloaded` is called after each
    reload."""
    seen: Look | None = None
    kernel = Part("hearing of changed files at once", log.line, "They are looked for every two seconds.")
    while True:
        await anyio.sleep(_DEBOUNCE)  # the first time, starting goes first
        places = [Path(place) for place in room.config.places]
        await apart(prepare)
        with hung_at(places, kernel) as bell:
            found = look(places)
            if found != seen:
                seen = found
                if await reload(room, reread, log):
                    reloaded()
                    continue  # there may be other places now
            await bell.rung()


async def reload(room: Any, reread: Callable[[], Config], log: Log) -> bool:
    """Read the configuration again and go to it, if it is another one; on any problem the old one goes on. True: the
    room was reloaded."""
    try:
        config = await apart(lambda: _reread_if_other(reread, room.config))
        if config is None:
            return False
        await room.reload(config)
    except ConfigError as error:
        log.line(f"the changed configuration is not used, the old one goes on: {_one_line(error.problems)}")
        return False
    except GreenroomError as error:
        log.line(f"the changed configuration is not used, the old one goes on: {error}")
        return False
    return True


def _reread_if_other(reread: Callable[[], Config], known: Config) -> Config | None:
    with uncollected():
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
