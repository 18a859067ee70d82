"""Where the background room of a configuration is: its socket, its lock, its log, and the folder it works in.

There is one background room per configuration and user. A configuration is the files it was read from (`identity`),
so clients in different projects have different rooms, and clients that only have the user's own files share one,
whatever folder they were started in. For the same reason the room does not work in the folder of its first client: it
works in the folder that the configuration belongs to. That is the project's folder; else the folder of the file. So
a relative path in an entry means the same whichever client came first. Some programs keep the servers of each project
in one file of the user's. Where that file is imported and says something else in this folder, the folder is part of the
configuration.

The socket is `room-<configuration>.sock`, beside the control sockets and as private as they are. The log is in the
user's state folder.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from .._own_files import check_peer, socket_in
from ..protocol.address import DEPTH_KEY
from ._control_place import control_directory, identity

if TYPE_CHECKING:
    from ..protocol.config import Config

_ANSWERS_WITHIN: Final = 10.0  # seconds for a connection to be taken; a busy machine needs some
_OF_A_CHILD: Final = ("GREENROOM_ROOM", "GREENROOM_INCARNATION", DEPTH_KEY)


@attrs.frozen
class RoomPlace:
    """Where one background room is. `name` is its configuration's; `folder` the one it works in."""

    name: str
    folder: Path
    socket: Path
    lock: Path
    log: Path

    def dial(self) -> socket.socket | None:
        """A blocking connection to the room. None: none runs. Raises `NotOurs` for a room of another user or a folder
        that others may change, `TimeoutError`, or another `OSError`."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(_ANSWERS_WITHIN)
        try:
            with socket_in(self.socket.parent) as (_, prefix):
                line.connect(prefix + self.socket.name)
            check_peer(line)
        except (FileNotFoundError, ConnectionRefusedError):
            line.close()
            return None
        except BaseException:
            line.close()
            raise
        return line


def room_place(
    config: Config, path: Path | None, cwd: Path, *, of_project: bool, apart: bool = False
) -> RoomPlace:
    """The place of the room of `config`, which was read from the file at `path`, or found from `cwd`. `of_project`:
    some of its files belong to the project in `cwd`. `apart`: none does, but they say something of their own there."""
    import platformdirs

    files = [cwd / Path(file).expanduser() for file in config.files]
    name = identity([os.fspath(file) for file in (*files, *([cwd] if apart or not files else []))])
    is_of_folder = path is None and (of_project or apart or not files)
    folder = cwd if is_of_folder else Path(os.path.abspath(files[0])).parent
    run = control_directory()
    state = platformdirs.user_state_path("greenroom", appauthor=False)
    return RoomPlace(
        name, folder, run / f"room-{name}.sock", run / f"room-{name}.lock", state / f"room-{name}.log"
    )


def place_named(name: str) -> RoomPlace:
    """The place as the room itself knows it: by its name, in the folder it was started in."""
    import platformdirs

    run, state = control_directory(), platformdirs.user_state_path("greenroom", appauthor=False)
    return RoomPlace(
        name, Path.cwd(), run / f"room-{name}.sock", run / f"room-{name}.lock", state / f"room-{name}.log"
    )


def environment(environ: Mapping[str, str], of_sessions: frozenset[str]) -> dict[str, str]:
    """The environment of a room that this process starts. It lacks what belongs to this process alone: the mark of
    the room that started it, whose guard would end the new one too, and the values of its session."""
    unwanted = {*_OF_A_CHILD, *of_sessions}
    return {name: value for name, value in environ.items() if name not in unwanted}
