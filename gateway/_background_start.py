"""Starts the background room of a configuration, exactly one however many ask for it at once.

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
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from .._own_files import NotOurs, make_own_folder, open_own
from ..protocol.errors import GreenroomError
from ._background_log import end_of, open_log
from ._background_place import RoomPlace

_READY_WITHIN: Final = 120.0  # seconds; a large configuration on a busy machine
_READY: Final = b"ready\n"
_POLL: Final = 0.02  # seconds between two looks at the lock


class NoRoom(GreenroomError):
    """The background room cannot be started or reached."""

    code = "no_room"


def start_room(
    place: RoomPlace, words: Sequence[str], environ: Mapping[str, str], is_there: Callable[[], bool]
) -> bool:
    """Start the room with `greenroom serve WORDS`, unless `is_there` says that somebody else has by now. Returns when
    clients can come: True if this process has started it. Raises `NoRoom`."""
    try:
        make_own_folder(place.lock.parent)
        lock = open_own(place.lock, os.O_RDWR | os.O_CREAT)
    except NotOurs as error:
        raise NoRoom(f"No background room can be started: {error}.") from None
    try:
        _take(lock)
        if is_there():
            return False
        _start(place, words, environ, lock)
        return True
    finally:
        os.close(lock)


def _take(lock: int) -> None:
    """Wait for the lock. It is free once every process that has this descriptor has closed it. Raises `NoRoom`."""
    until = time.monotonic() + _READY_WITHIN
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                text = f"Another process has been starting the background room for {_READY_WITHIN:g} s. Try again."
                raise NoRoom(text) from None
            time.sleep(_POLL)
        else:
            return


def _start(place: RoomPlace, words: Sequence[str], environ: Mapping[str, str], lock: int) -> None:
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


def become_room(*held: int | None) -> None:
    """In a process that `start_room` has started, before anything runs: go on as one without a parent. No child of its
    own inherits the descriptors that it `held`."""
    if os.fork():
        os._exit(0)
    for descriptor in held:
        if descriptor is not None:
            os.set_inheritable(descriptor, False)


def say_ready(ready: int, lock: int) -> None:
    """Clients can come: tell the process that has started this one, if it still lives, and free the lock."""
    with suppress(BrokenPipeError):
        os.write(ready, _READY)
    os.close(lock)
    os.close(ready)
