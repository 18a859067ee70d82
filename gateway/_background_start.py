"""Starts the background room of a configuration, exactly one however many ask for it at once.

Whoever finds no room takes a file lock, looks again, and only then starts one. It keeps the lock until the room says
that clients can come. The kernel frees the lock of a process that was killed, and a room that it had started by then
is found by the next one, or replaced once it is gone.

The room is detached: it has a session of its own, no terminal, no standard input or output, and no parent (its first
process only starts the second), so it neither ends with the client that came first nor waits for it. `-P` keeps the
folder it works in, which is somebody's project, from being searched for Python modules.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from .._own_files import NotOurs, make_own_folder, open_own
from ..protocol.errors import GreenroomError
from ._background_log import end_of, open_log
from ._background_place import RoomPlace

_READY_WITHIN: Final = 120.0  # seconds; a large configuration on a busy machine
_POLL: Final = 0.02  # seconds between two looks at the lock


class NoRoom(GreenroomError):
    """The background room cannot be started or reached."""

    code = "no_room"


def start_room(
    place: RoomPlace, words: Sequence[str], environ: Mapping[str, str], is_there: Callable[[], bool]
) -> bool:
    """Start the room with `greenroom serve WORDS`, unless `is_there` says that somebody else has by now. Returns when
    clients can come: True if this process has started it. Raises `NoRoom`."""
    from filelock import FileLock, Timeout

    try:
        make_own_folder(place.lock.parent)
        os.close(open_own(place.lock, os.O_RDWR | os.O_CREAT))
        with FileLock(place.lock, timeout=_READY_WITHIN, mode=0o600).acquire(poll_interval=_POLL):
            if is_there():
                return False
            _start(place, words, environ)
            return True
    except Timeout:
        raise NoRoom(
            f"Another process has been starting the background room for {_READY_WITHIN:g} s. Try again."
        ) from None
    except NotOurs as error:
        raise NoRoom(f"No background room can be started: {error}.") from None


def _start(place: RoomPlace, words: Sequence[str], environ: Mapping[str, str]) -> None:
    log = open_log(place.log)
    ready, theirs = os.pipe()
    try:
        command = [sys.executable, "-P", "-m", "greenroom", "serve", *words]
        command += ["--as-room", place.name, "--ready", str(theirs)]
        try:
            first = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=place.folder,
                env=dict(environ),
                start_new_session=True,
                pass_fds=[theirs],
            )
        finally:
            os.close(theirs)
        try:
            _await_ready(ready, place)
        except BaseException:
            with suppress(OSError):
                os.killpg(first.pid, signal.SIGKILL)  # what it started is in this group, too
            raise
        finally:
            first.wait()
    finally:
        os.close(ready)
        os.close(log)


def _await_ready(ready: int, place: RoomPlace) -> None:
    if not select.select([ready], [], [], _READY_WITHIN)[0]:
        why = f"it was not ready within {_READY_WITHIN:g} s"
    elif os.read(ready, 64):
        return
    else:
        why = end_of(place.log) or "it ended without a word"
    raise NoRoom(f"The background room did not start: {why} Its log: {place.log}")


def become_room() -> None:
    """In a process that `start_room` has started, before anything runs: go on as one without a parent."""
    if os.fork():
        os._exit(0)
