"""Watching the configuration of a running gateway: a changed file is a reload.

The folders are watched, not the files: editors and deployments replace a file by renaming another over it, and a
discovered file may come to be. Several writes in a moment are one reload. A new configuration that is broken changes
nothing: the old one goes on, and the log says what is wrong and where; so does the log say what a good one changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

from ..protocol.config import Config
from ..protocol.errors import ConfigError, GreenroomError
from ._event_log import Log

_DEBOUNCE: Final = 300  # milliseconds in which several writes are one change
_STEP: Final = 200  # milliseconds; how soon the watching thread notices that it is to end


async def watch_configuration(
    room: Any,
    reread: Callable[[], Config],
    log: Log,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Reload `room` with `reread()` whenever a file it was made of changes, until cancelled."""
    from watchfiles import awatch  # not before a gateway watches: it is a compiled library

    files, folders = _places(room.config)
    task_status.started()
    if not folders:
        return

    def is_ours(_change: object, path: str) -> bool:
        return Path(path) in files

    async for _changes in awatch(
        *folders, watch_filter=is_ours, debounce=_DEBOUNCE, step=_STEP, recursive=False, raise_interrupt=False
    ):
        await reload(room, reread, log)


async def reload(room: Any, reread: Callable[[], Config], log: Log) -> None:
    """Read the configuration again and go to it; on any problem the old one goes on."""
    try:
        config = reread()
        plan = await room.reload(config)
    except ConfigError as error:
        log.line(f"the changed configuration is not used, the old one goes on: {_one_line(error.problems)}")
    except GreenroomError as error:
        log.line(f"the changed configuration is not used, the old one goes on: {error}")
    else:
        for problem in config.problems:
            log.line(str(problem))
        log.line(f"configuration reloaded: {plan}")


def _places(config: Config) -> tuple[set[Path], list[Path]]:
    """The files a configuration was made of, and the folders they are in."""
    files = {Path(file).resolve() for file in config.files}
    return files, [folder for folder in {file.parent for file in files} if folder.is_dir()]


def _one_line(problems: Iterable[object]) -> str:
    return "; ".join(str(problem) for problem in problems)
