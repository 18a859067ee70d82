"""The background room: one room for all clients of a configuration, without a client of its own.

It is `greenroom serve`, started by `_background_start` with standard input and output to nowhere. Clients come through
its socket (`_background_doorway`), and commands through its control socket, as to any gateway.

It ends politely: after a SIGTERM, when `greenroom stop` or a newer Greenroom asks for it, or when nobody has been
attached for `backgroundIdle`. First its socket is removed, so that whoever comes from then on starts another room. Then
no new calls are taken, the room drains, and each client can read its last answers and is told why the room ends. A
second signal ends it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc

from ..actors import want_orphans
from ..protocol.config import Config
from . import _control as control
from ._background_doorway import Doorway
from ._background_listener import Listener
from ._background_log import keep_small
from ._background_place import RoomPlace
from ._commands import PLAIN, Commands
from ._conversations import Conversations
from ._event_log import TOLD, Log, follow, to_log
from ._garbage import collect_again, set_room_aside
from ._serve import (
    Exit,
    OpenRoom,
    Options,
    attend,
    commands,
    events_file,
    heed_signals,
    set_alarm,
)

if TYPE_CHECKING:
    from ..supervisor import Greenroom

_OFTEN: Final = 64  # lines between two looks at the size of the log
_LAST_RESORT: Final = 5.0  # seconds from ending at once to the alarm; nobody waits for this process


class RoomLog(Log):
    """Writes to the room's standard error, which goes to a file of bounded size. Each line says when."""

    def __init__(self, path: Path, commands: Commands = PLAIN) -> None:
        super().__init__(commands=commands)
        self._path = path
        self._lines = 0

    def line(self, text: str) -> None:
        super().line(f"{datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')} {text}")
        self._lines += 1
        if self._lines % _OFTEN == 0:
            with suppress(OSError):
                keep_small(self._path)


async def serve_background(
    config: Config, open_room: OpenRoom, options: Options, place: RoomPlace, on_ready: Callable[[], None]
) -> None:
    """Serve the clients of the room at `place` until it ends. `on_ready` is called once they can come. Raises
    `UsageError` when the events file cannot be written, `OSError` when the socket cannot be made."""
    collect_again()
    want_orphans()
    log = RoomLog(place.log, options.commands)
    with ExitStack() as stack:
        hearers = [to_log(log), *events_file(options.events, stack, log.line)]
        async with anyio.create_task_group() as outer:
            room = open_room(config)
            room.expect_clients()

            def hurry() -> None:
                set_alarm(_LAST_RESORT)
                outer.start_soon(room.aclose, 0)

            leaving = Exit(hurry)
            await outer.start(heed_signals, leaving)
            await outer.start(partial(follow, room, hearers, kinds=None if options.events else TOLD))
            async with anyio.create_task_group() as owner:
                await room.start(owner)
                set_room_aside()
                listener = Listener(place.socket)
                doorway = _doorway(room, options, listener, leaving, log)
                try:
                    await _until_asked(room, doorway, listener, options, outer, leaving, log, on_ready)
                finally:
                    listener.shut()
                    await room.aclose(leaving.patience)
                await doorway.closed()
            outer.cancel_scope.cancel()


def _doorway(room: Greenroom, options: Options, listener: Listener, leaving: Exit, log: RoomLog) -> Doorway:
    def leave() -> None:
        listener.shut()
        leaving.politely()

    return Doorway(
        room,
        Conversations(
            room, expose=options.expose, version=options.version, note=log.line, commands=options.commands
        ),
        options.version,
        options.profile,
        room.config.settings.max_line,
        log.line,
        leave,
        leaving.asked.is_set,
    )


async def _until_asked(
    room: Greenroom,
    doorway: Doorway,
    listener: Listener,
    options: Options,
    outer: anyio.abc.TaskGroup,
    leaving: Exit,
    log: RoomLog,
    on_ready: Callable[[], None],
) -> None:
    """Serve clients and commands, until it is time to end."""
    async with anyio.create_task_group() as commanding:
        await commanding.start(doorway.conversations.watch)
        await attend(commanding, room, options, log, _commands(room, options.version, doorway))
        commanding.start_soon(doorway.take, listener, outer)
        commanding.start_soon(doorway.leave_when_idle, room.config.settings.background_idle)
        on_ready()
        await leaving.asked.wait()
        listener.shut()
        doorway.conversations.refuse_new()
        commanding.cancel_scope.cancel()


def _commands(room: Greenroom, version: str, doorway: Doorway) -> Mapping[str, control.Handler]:
    """The methods of the control socket. The status also shows who is attached."""
    methods = commands(room, version)

    async def status(params: Mapping[str, Any]) -> Any:
        return {**await methods["status"](params), "background": doorway.view()}

    return {**methods, "status": status}
