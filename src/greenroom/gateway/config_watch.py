"""Watches the configuration of a running gateway, and reloads it when a file changes.

All places where the configuration is looked for are watched, even if nothing is there yet. When the bell
rings and a file is not as it was, the configuration is read again. The room is reloaded only if the
configuration says something new. Several writes in a short time count as one. A broken new configuration
changes nothing, and neither does one of whose files in use one cannot be read now: the gateway keeps the old one, and
the log and the status say what is wrong and where. What a good one changes is reported by the room itself. A file that
is gone was removed, and its servers go.

The file of pinned definitions is watched too: what is accepted by `greenroom accept` counts at once. A door may follow
the configuration as well (`Follower`), for a token that was taken out has to be refused at once. It has a veto before
the room is reloaded, so that the room and the door never go by different files.

A configuration may have thousands of servers, so it is read and compared in a thread, outside the loop.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
import msgspec
from anyio.lowlevel import checkpoint

from ..actors.workers import OptionalPart, apart
from ..config.file_watcher import hung_at
from ..config.model import SETTING_KEY, Config, Settings
from ..config.parse import not_skipped
from ..protocol.errors import ConfigError, GreenroomError
from .event_log import EventLog

if TYPE_CHECKING:
    from ..supervisor.room import Greenroom
    from .doors.control_server import Handler

# Settings that are read once, when a gateway is started. (The HTTP door says itself what it does not follow.)
READ_ONCE: Final = ("backgroundIdle", "cacheMaxAgeDays", "maxLineBytes")
_DEBOUNCE: Final = 0.3  # seconds in which several writes count as one change
Look = Mapping[Path, object]  # a stamp per place, equal while nothing has changed there


class ReloadState(msgspec.Struct):
    """Whether the configuration in use is what its files say. `refused`: why the last change is not used, in words;
    empty if it is used."""

    refused: str = ""
    alone: anyio.Lock = msgspec.field(default_factory=anyio.Lock)  # one reads at a time
    asked: anyio.Lock = msgspec.field(default_factory=anyio.Lock)  # and one for commands

    def in_status(self, status: Handler) -> Handler:
        """The method `status` of a gateway, whose answer also has `refused`."""

        async def with_refused(params: Mapping[str, Any]) -> Any:
            said = await status(params)
            return {**said, "notReloaded": self.refused} if self.refused else said

        return with_refused


class Follower(msgspec.Struct, frozen=True):
    """What follows the configuration beside the room. `files` are watched too. `prepare` is called in a thread, with
    the configuration that is to be used; it raises `GreenroomError` when that, or one of `files`, cannot be used. What
    it returns is called on the loop, once the room has been reloaded."""

    prepare: Callable[[Config], Callable[[], object]] = lambda _config: lambda: None
    files: Collection[Path] = ()


NOBODY: Final = Follower()


async def watch_configuration(
    room: Greenroom,
    reread: Callable[[], Config],
    log: EventLog,
    reloaded: Callable[[], Awaitable[object]] = checkpoint,
    pins: Collection[Path] = (),
    state: ReloadState | None = None,
    follower: Follower = NOBODY,
) -> None:
    """Reload `room` with `reread()` whenever that returns something new, until cancelled. `reloaded` is awaited after
    each reload. `pins`: the file of pinned definitions; when it changes, the owner may have accepted a tool. `state` is
    told when a change is not used. `follower` is told of each change."""
    seen: Look | None = None
    pinned: Look = look(pins) if pins else {}
    state = state or ReloadState()
    kernel = OptionalPart(
        "hearing of changed files at once", log.line, "They are looked for every two seconds."
    )
    while True:
        await anyio.sleep(_DEBOUNCE)  # also the first time, so that starting up goes first
        places = [*map(Path, room.config.places), *follower.files]
        with hung_at([*places, *pins], kernel) as bell:
            if pins and pinned != (pinned := look(pins)):
                await room.accept()
            found = look(places)
            if found != seen:
                seen = found
                if await reload(room, reread, log, state, follower):
                    await reloaded()
                    continue  # the places may have changed
            await bell.rung()


async def reload(
    room: Greenroom,
    reread: Callable[[], Config],
    log: EventLog,
    state: ReloadState,
    follower: Follower = NOBODY,
) -> bool:
    """Read the configuration again, and reload the room if it has changed. After any problem the old one
    stays in use; the log is told once of each, and `state` has it. True: the room was reloaded."""

    def read() -> tuple[Config | None, Callable[[], object]]:
        config = _reread_if_other(reread, room.config)
        return config, follower.prepare(config or room.config)

    async with state.alone:
        try:
            before = room.config.settings
            config, follow = await apart(read)
            if config is not None:
                await room.reload(config)
                if late := ", ".join(not_followed(before, config.settings)):
                    log.line(f"not followed by this gateway, only by one that is started again: {late}")
            follow()
        except ConfigError as error:
            why = "; ".join(map(str, error.problems))
        except GreenroomError as error:
            why = str(error)
        else:
            if state.refused and config is None:
                log.line("the configuration can be read again, and is the one in use")
            state.refused = ""
            return config is not None
        if why != state.refused:
            state.refused = why
            log.line(f"the changed configuration is not used, the old one stays: {why}")
        return False


class _SharedReload(msgspec.Struct, eq=False):
    """A reload that commands wait for."""

    ended: anyio.Event = msgspec.field(default_factory=anyio.Event)
    is_done: bool = False
    fault: Exception | None = None


def reload_now(
    tasks: anyio.abc.TaskGroup, reloading: Callable[[], Awaitable[object]], state: ReloadState
) -> Handler:
    """The method `reload` of a gateway: it reads the configuration now, and answers once that is in use, or why it is
    not. It runs in `tasks`, so a command that goes away in between does not stop it. Commands that come while a reload
    waits to begin share it: hundreds of them at once have the files read twice."""
    next_one: list[_SharedReload] = []  # at most one, which has not begun to read

    async def run(one: _SharedReload) -> None:
        try:
            async with state.asked:
                next_one.clear()
                await reloading()
            one.is_done = True
        except Exception as error:  # it is the command's to say
            one.fault = error
        finally:  # the gateway may end meanwhile
            one.ended.set()

    async def method(_params: Mapping[str, Any]) -> Any:
        if not next_one and not tasks.cancel_scope.cancel_called:
            next_one.append(_SharedReload())
            tasks.start_soon(run, next_one[0])
        if next_one:
            one = next_one[0]
            await one.ended.wait()
            if one.fault is not None:
                raise one.fault
            if one.is_done:
                return {"notReloaded": state.refused}
        return {"notReloaded": "it is ending"}

    return method


def not_followed(before: Settings, now: Settings) -> list[str]:
    """The settings that a reload has changed and this gateway does not follow, by their names in a file."""
    attributes = {name: SETTING_KEY[name].attribute for name in READ_ONCE}
    return [name for name, each in attributes.items() if getattr(before, each) != getattr(now, each)]


def _reread_if_other(reread: Callable[[], Config], known: Config) -> Config | None:
    """The configuration as it is now, or None if it is `known`. Raises `ConfigError` if a file that is in use cannot be
    read now: somebody may be writing it, and its servers are not to end for that."""
    config = reread()
    lost = {*config.unread} & ({*known.files} - {*known.unread})
    if lost:
        raise ConfigError([not_skipped(problem) for problem in config.problems if problem.where in lost])
    return None if config == known else config


def look(places: Iterable[Path]) -> Look:
    return {place: _stamp(place) for place in places}


def _stamp(place: Path) -> object:
    try:
        found = os.stat(place)
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
