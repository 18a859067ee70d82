"""Starts the background gateway of a configuration, exactly one however many ask for it at once.

Whoever finds no room takes a file lock, looks again, and only then starts one. The room inherits the lock, and it is
free once clients can come, or once the room is gone. So even if the process that started it is killed meanwhile,
nobody starts a second. (That is why it is taken here and not by `filelock`, which does not give its descriptor away.)

The room is detached: it has a session of its own, no terminal, no standard input or output, and no parent (its first
process only starts the second), so it neither ends with the client that came first nor waits for it. `-P` keeps the
folder it works in, which is somebody's project, from being searched for Python modules.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ...config.private_files import (
    NotOurs,
    check_peer,
    make_folder,
    make_own_folder,
    open_own,
    socket_in,
    state_folder,
)
from ...protocol.address import DEPTH_KEY
from ...protocol.errors import GreenroomError
from .control_protocol import control_directory, name_of

if TYPE_CHECKING:
    from ...config.model import Config


# ---- Where the background gateway of a configuration is --------------------------------------------------------------
#
# Its socket, its lock, its log, and the folder it works in.
#
# There is one background gateway per configuration and user. A configuration is the files it is made of (`name_of`), so
# clients in different projects have different rooms, and clients that only have the user's own files share one,
# whatever folder they were started in. For the same reason the room does not work in the folder of its first client: it
# works in the folder that the configuration belongs to. That is the project's folder; else the folder of the file. So a
# relative path in an entry means the same whichever client came first. Some programs keep the servers of each project
# in one file of the user's. Where that file is imported and says something else in this folder, the folder is part of
# the configuration.
#
# When a file is added, or goes, the configuration has another name. The room then moves to its new place
# (`move_room`). If another room is there already, it gives way to that.
#
# The socket is `room-<configuration>.sock`, beside the control sockets and as private as they are. The log is in the
# user's state folder.

_ANSWERS_WITHIN: Final = 10.0  # seconds for a connection to be taken; a busy machine needs some
_OF_A_CHILD: Final = ("GREENROOM_ROOM", "GREENROOM_INCARNATION", DEPTH_KEY)


class RoomPlace(msgspec.Struct, frozen=True):
    """Where one background gateway is. `name` is its configuration's; `folder` the one it works in."""

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


def room_place(config: Config, path: Path | None, cwd: Path, *, of_project: bool) -> RoomPlace:
    """The place of the room of `config`, which was read from the file at `path`, or found from `cwd`. `of_project`:
    some of its files belong to the project in `cwd`."""
    meant = (file for file in config.files if file not in config.left_out)
    files = tuple(os.fspath(cwd / Path(file).expanduser()) for file in meant)
    is_of_folder = path is None and (of_project or config.folder is not None or not files)
    name = name_of(msgspec.structs.replace(config, files=files or (os.fspath(cwd),)))
    return place_named(name, cwd if is_of_folder else Path(os.path.abspath(files[0])).parent)


def place_named(name: str, folder: Path | None = None) -> RoomPlace:
    """The place of the room of this name, which works in `folder`; None: in the present folder."""
    run, state = control_directory(), state_folder()
    return RoomPlace(
        name,
        folder or Path.cwd(),
        run / f"room-{name}.sock",
        run / f"room-{name}.lock",
        state / f"room-{name}.log",
    )


def places() -> list[RoomPlace]:
    """The places of the rooms that have a socket, whatever their configurations."""
    found = control_directory().glob("room-*.sock")
    return [place_named(path.stem.removeprefix("room-")) for path in found]


def environment(environ: Mapping[str, str], of_sessions: frozenset[str]) -> dict[str, str]:
    """The environment of a room that this process starts. It lacks what belongs to this process alone: the mark of
    the room that started it, whose guard would end the new one too, and the values of its session."""
    unwanted = {*_OF_A_CHILD, *of_sessions}
    return {name: value for name, value in environ.items() if name not in unwanted}


_READY_WITHIN: Final = 120.0  # seconds; a large configuration on a busy machine
_READY: Final = b"ready\n"
_POLL: Final = 0.02  # seconds between two looks at the lock


class NoRoom(GreenroomError):
    """The background gateway cannot be started or reached."""

    code = "no_room"


def start_room(
    place: RoomPlace, words: Sequence[str], environ: Mapping[str, str], is_there: Callable[[], bool]
) -> bool:
    """Start the room with `greenroom serve WORDS`, unless `is_there()` says that somebody else has started it by now.
    Returns when clients can attach: True if this process has started it. Raises `NoRoom`."""
    try:
        make_own_folder(place.lock.parent)
        lock = open_own(place.lock, os.O_RDWR | os.O_CREAT)
    except NotOurs as error:
        raise NoRoom(f"No background gateway can be started: {error}.") from None
    try:
        take_lock(lock)
        if is_there():
            return False
        _start(place, words, environ, lock)
        return True
    finally:
        os.close(lock)


def wait_for_start(place: RoomPlace, say: Callable[[str], object]) -> bool:
    """Wait for the room if it is just being started, and `say` so. Returns whether it was. Raises `NoRoom`."""
    try:
        lock = open_own(place.lock, os.O_RDWR)
    except (FileNotFoundError, NotOurs):
        return False
    try:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        say("the background gateway is just starting; waiting for it.")
        take_lock(lock)
        return True
    finally:
        os.close(lock)


def take_lock(lock: int, within: float = _READY_WITHIN) -> None:
    """Wait for the lock. It is free once every process that has this descriptor has closed it. Raises `NoRoom`."""
    until = time.monotonic() + within
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                text = (
                    f"Another process has been starting the background gateway for {within:g} s. Try again."
                )
                raise NoRoom(text) from None
            time.sleep(_POLL)
        else:
            return


def move_room(socket: Path, place: RoomPlace) -> bool:
    """Move the socket of a room to another place. Returns False if a room is there already, or is just being started.
    Raises `OSError`."""
    lock = open_own(place.lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        line = place.dial()
        if line is not None:
            line.close()
            return False
        with socket_in(socket.parent) as (folder, _):
            os.rename(socket.name, place.socket.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BlockingIOError:  # somebody holds the lock, or many clients wait there
        return False
    finally:
        os.close(lock)
    return True


def _start(place: RoomPlace, words: Sequence[str], environ: Mapping[str, str], lock: int) -> None:
    import subprocess  # whoever finds a room needs none

    log = open_log(place.log)
    ready, theirs = os.pipe()
    try:
        command = [sys.executable, "-P", "-m", "greenroom", "serve", *words]
        command += ["--as-room", place.name, "--ready", str(theirs), "--lock", str(lock)]
        try:
            first = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=place.folder,
                env=dict(environ),
                start_new_session=True,
                pass_fds=[theirs, lock],
            )
        finally:
            os.close(theirs)
        try:
            await_ready(ready, place)
        except BaseException:
            with suppress(OSError):
                os.killpg(first.pid, signal.SIGKILL)  # what it started is in this group, too
            raise
        finally:
            first.wait()
    finally:
        os.close(ready)
        os.close(log)


def await_ready(ready: int, place: RoomPlace, within: float = _READY_WITHIN) -> None:
    """Wait until the room says that it is ready. Raises `NoRoom`."""
    if not select.select([ready], [], [], within)[0]:
        why = f"it was not ready within {within:g} s"
    elif os.read(ready, 64):
        return
    else:
        why = end_of(place.log) or "it ended without a word"
    raise NoRoom(f"The background gateway did not start: {why} Its log: {place.log}")


def become_room(*held: int | None) -> None:
    """In a process that `start_room` has started, before anything runs: go on as one without a parent. No child of its
    own inherits the descriptors that it `held`."""
    if os.fork():
        os._exit(0)
    for descriptor in held:
        if descriptor is not None:
            os.set_inheritable(descriptor, False)


def say_ready(ready: int, lock: int) -> None:
    """Clients can attach: tell the process that has started this one, if it still lives, and free the lock."""
    with suppress(BrokenPipeError):
        os.write(ready, _READY)
    os.close(lock)
    os.close(ready)


# ---- The log of a background gateway: its standard error, in a file of bounded size ----------------------------------
#
# When the file has grown to its bound, it takes the place of the one before it, and a new one is begun. So there are at
# most two. Only the user can read them.

LARGEST: Final = 1 << 20  # bytes of each of the two files
_HEAD: Final = re.compile(r"greenroom: (?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* )?")  # of each of our lines
_LAST_LINES: Final = 2048  # bytes of the end of a log that an error quotes


def open_log(path: Path) -> int:
    """A descriptor to append to the log. Raises `OSError`."""
    make_folder(path.parent)
    _turn_over(path)
    return open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def end_of(path: Path) -> str:
    """The last lines of a log, for an error message; empty when there are none."""
    with suppress(OSError), open(open_own(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_LINES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return " ".join(_HEAD.sub("", line).strip() for line in lines[-3:])
    return ""


def keep_small(path: Path) -> None:
    """Begin a new log, if standard error goes to one that has grown to its bound. Raises `OSError`."""
    if os.fstat(2).st_size >= LARGEST:
        direct_log(path)


def direct_log(path: Path) -> None:
    """Let standard error go to this log. Raises `OSError`."""
    new = open_log(path)
    os.dup2(new, 2, inheritable=True)
    os.close(new)


def _turn_over(path: Path) -> None:
    with suppress(FileNotFoundError):
        if os.stat(path, follow_symlinks=False).st_size >= LARGEST:
            os.replace(path, path.with_name(path.name + ".old"))
