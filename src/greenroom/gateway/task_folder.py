"""The folder in which tasks outlive the gateway (`tasks.keep`), for all gateways of one user.

Each gateway has a folder of its own in it, under a random name, which it locks for as long as it lives; the system
gives the lock back when the process ends. Only its owner writes there: one private file for each of its tasks. Every
other gateway may read it. So a result is found through any gateway, whether the one that ran the task has ended or not.
A task that has not ended, of a gateway that has, is lost.

Rejected: one folder for all, which only the first gateway could use; and to take over what a dead gateway left, because
all of it would be held in memory, mostly for nobody.

A file begins with a line that says what the task is and how it ended. Its result follows as it was, so nobody reads
megabytes to know whether it is there. The name begins with the task's owner, which is a digest: a task of somebody else
is not even looked for. The file's time is when its time to live is over. So what dead gateways left is bounded and
removed by names alone (`sweep`): as much as one gateway keeps, and the oldest goes first.

What is to be written or removed is noted on the loop, the last for each task, and a thread does it. Files are replaced
in one step. One that is damaged all the same, too long, or of somebody else, is passed over; the first of them is told.
So all of it is looked at before it is believed: a result that is not one JSON object on one line would be two messages
to a client.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import msgspec
from anyio.lowlevel import RunVar

from ..actors.message_buffer import MessageBuffer
from ..actors.workers import aside
from ..config.private_files import NotOurs, make_own_folder, open_own, open_own_folder, replacing
from ..protocol import jsonrpc as rpc
from ..protocol.bounds import LARGE_MESSAGE, TASK_BYTES, TASKS, TASKS_OF_ONE
from ..protocol.jsonrpc.encoding import decode, decode_parts
from ..protocol.tasks import Status

if TYPE_CHECKING:
    from io import BufferedReader

    from filelock import BaseFileLock

_GATEWAY: Final = re.compile(r"gateway-[\w-]{22}")
_FILE: Final = re.compile(r"([0-9a-f]{64})-([\w-]{32})\.task")
_ID: Final = re.compile(r"[\w-]{32}", re.ASCII)
_UNFINISHED: Final = re.compile(r"\..*\.task\..*\.tmp")  # a file whose writer was killed
_LONGEST_TTL: Final = 86_400_000  # milliseconds
_LAST: Final = 1 << 40  # seconds since 1970
_HEAD: Final = 1 << 20  # bytes of the first line, at most
_LOCK: Final = "lock"
_TURN: Final = 5.0  # seconds to wait for a gateway that is just starting or sweeping
_PROBE: Final = 0.1  # seconds to wait for one that only looks whether a third lives
# Not that of large messages: it may wait for a lock.
_THREAD: RunVar[anyio.CapacityLimiter] = RunVar("greenroom's thread for the files of tasks")
_PIECE: Final = 1 << 16  # bytes of a result that are read in one go
NOTHING: Final = msgspec.Raw(b"null")
Moment = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")]


class TaskError(msgspec.Struct):
    """How a task failed."""

    code: int = rpc.INTERNAL_ERROR
    message: str = ""
    data: Any = None


class TaskRecord(msgspec.Struct):
    """One task as the first line of its file has it. `until`: seconds since 1970. `size`: bytes of its result, which
    follows. `is_error`: the result says that the tool failed. `wraps`: older clients get its structure in an object."""

    id: str
    owner: str
    modern: bool
    status: Status
    message: str
    created: Moment
    changed: Moment
    ttl: Annotated[int, msgspec.Meta(ge=0, le=_LONGEST_TTL)]
    until: Annotated[float, msgspec.Meta(ge=0, le=_LAST)]
    size: Annotated[int, msgspec.Meta(ge=0, le=TASK_BYTES)] = 0
    is_error: bool = False
    error: msgspec.Raw = NOTHING
    wraps: bool = False

    @property
    def name(self) -> str:
        return _name(self.owner, self.id)


class FolderTask(msgspec.Struct):
    """A task of another gateway. `is_lost`: it has not ended, and its gateway has. `result`: None if it has none, or if
    it was not read. `error`: None if it has not failed."""

    record: TaskRecord
    is_lost: bool
    result: bytes | None = None
    error: TaskError | None = None


class DamagedFileError(Exception):
    """What the file of a task says cannot be what was written."""


_record: Final = msgspec.json.Decoder(TaskRecord)
_error: Final = msgspec.json.Decoder(TaskError)


class TaskFolder:
    """The part of one gateway. `note` is told what does not work."""

    def __init__(self, path: Path, note: Callable[[str], object]) -> None:
        self._path = path
        self._own = path / f"gateway-{secrets.token_urlsafe(16)}"
        self._note = note
        self._todo: dict[str, tuple[TaskRecord, bytes] | None] = {}  # by file names; None: it is removed
        self._writing = anyio.Lock()
        self._lock: BaseFileLock | None = None
        self._unreadable = ""  # the last file of a task that could not be read, and why
        self._has_told = False

    async def open(self) -> None:
        """Make the gateway's own folder, and sweep. Raises `OSError` when it cannot be used."""
        await aside(self._open, _THREAD)

    def close(self) -> None:
        """The gateway ends. Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def put(self, record: TaskRecord, result: bytes = b"") -> None:
        """Note what the file of this task shall be."""
        self._todo[record.name] = record, result

    def remove(self, owner: str, task_id: str) -> None:
        """Note that there shall be none."""
        self._todo[_name(owner, task_id)] = None

    async def written(self) -> None:
        """Write what was noted. It is on the disk at the end, also if the task that waits is cancelled meanwhile. What
        cannot be written is told, and nothing else follows from it."""
        with anyio.CancelScope(shield=True):
            async with self._writing:
                while self._todo and self._lock is not None:
                    todo, self._todo = self._todo, {}
                    trouble = await aside(partial(self._write, todo), _THREAD)
                    if trouble is not None:
                        self._note(f"a task cannot be kept in {self._path}: {trouble}")

    async def find(self, owner: str, task_id: str) -> FolderTask | None:
        """The task of this id and owner that another gateway has, or had."""
        if not _ID.fullmatch(task_id):
            return None
        found = await aside(partial(self._find, owner, task_id), _THREAD)
        self._tell_unreadable()
        return found

    async def others(self, owner: str) -> list[FolderTask]:
        """All tasks of this owner that other gateways have, or had, without their results."""
        found = await aside(partial(self._others, owner), _THREAD)
        self._tell_unreadable()
        return found

    def _tell_unreadable(self) -> None:
        """Once: there may be thousands, and each is looked at again and again."""
        if self._unreadable and not self._has_told:
            self._has_told = True
            self._note(
                f"a task cannot be read, and is passed over, as are others like it: {self._unreadable}"
            )

    async def sweep(self) -> None:
        """Remove what dead gateways left and nobody can have any more, and what is more than the bounds."""
        with suppress(OSError):  # somebody else sweeps, or the folder is gone: then there is nothing to do
            await aside(self._sweep, _THREAD)

    # ---- in a thread: this gateway's own --------------------------------------------------------------------------

    def _open(self) -> None:
        from filelock import FileLock

        make_own_folder(self._path)
        with self._turn():  # so that nobody sweeps the new folder before it is locked
            make_own_folder(self._own)
            lock = FileLock(self._own / _LOCK, timeout=0, mode=0o600, thread_local=False)
            lock.acquire()
        self._lock = lock
        with suppress(OSError):
            self._sweep()

    @contextmanager
    def _turn(self) -> Generator[None]:
        """Hold the lock of all gateways. Raises `TimeoutError`, which is an `OSError`, or another `OSError`."""
        from filelock import FileLock

        os.close(open_own(self._path / _LOCK, os.O_RDWR | os.O_CREAT))  # no link, no pipe
        with FileLock(self._path / _LOCK, timeout=_TURN, mode=0o600):
            yield

    def _write(self, todo: Mapping[str, tuple[TaskRecord, bytes] | None]) -> Exception | None:
        """Returns the last thing that went wrong."""
        trouble = None
        for name, kept in todo.items():
            path = self._own / name
            try:
                if kept is None:
                    path.unlink(missing_ok=True)
                else:
                    _write_one(path, *kept)
            except (OSError, *rpc.UNWRITABLE) as error:
                trouble = error
        return trouble

    # ---- in a thread: those of others -------------------------------------------------------------------------------

    def _gateways(self) -> list[Path]:
        """The folders of the other gateways. Raises `OSError`."""
        return [
            entry
            for entry in self._path.iterdir()
            if _GATEWAY.fullmatch(entry.name) and entry != self._own and _is_ours(entry)
        ]

    def _find(self, owner: str, task_id: str) -> FolderTask | None:
        with suppress(OSError):
            for folder in self._gateways():
                if (found := self._read(folder / _name(owner, task_id), whole=True)) is not None:
                    return found
        return None

    def _others(self, owner: str) -> list[FolderTask]:
        found = list[FolderTask]()
        with suppress(OSError):
            for folder in self._gateways():
                paths = [path for path in folder.iterdir() if path.name.startswith(f"{owner}-")]
                found += filter(None, (self._read(path, whole=False) for path in paths[:TASKS_OF_ONE]))
        return found

    def _read(self, path: Path, *, whole: bool) -> FolderTask | None:
        """The task in this file. None: there is no such file, it is none of ours, or its time is over."""
        try:
            with open(open_own(path, os.O_RDONLY), "rb") as file:
                record = _record_in(file, path.name)
                if record.until <= time.time():
                    return None
                is_done = record.status is Status.COMPLETED
                result = _result_in(file, record.size) if whole and is_done else None
                error = decode(_error, record.error) if record.status is Status.FAILED else None
        except FileNotFoundError:
            return None
        except (OSError, DamagedFileError, *rpc.UNWRITABLE) as problem:
            self._unreadable = f"{path}: {problem}"
            return None
        is_lost = not record.status.is_final and not _lives(path.parent)
        return FolderTask(record, is_lost, result, error)

    def _sweep(self) -> None:
        with self._turn():
            dead = [folder for folder in self._gateways() if not _lives(folder)]
            count, room, each = TASKS, TASK_BYTES, Counter[str]()
            for until, size, owner, path in sorted(_left_in(dead), reverse=True):
                count, room = count - 1, room - size
                each[owner] += 1
                if until <= time.time() or count < 0 or room < 0 or each[owner] > TASKS_OF_ONE:
                    count, room = count + 1, room + size
                    each[owner] -= 1
                    with suppress(OSError):  # one that cannot be removed keeps none of the others
                        path.unlink(missing_ok=True)
            for folder in dead:
                with suppress(OSError):  # something is left in it
                    if not any(entry.name != _LOCK for entry in folder.iterdir()):
                        (folder / _LOCK).unlink(missing_ok=True)
                        folder.rmdir()


def _name(owner: str, task_id: str) -> str:
    return f"{owner}-{task_id}.task"


def _record_in(file: BufferedReader, name: str) -> TaskRecord:
    """The first line of a task's file, which has this name. Raises `DamagedFileError`, or as a decoder does."""
    record = decode(_record, file.readline(_HEAD))
    if record.name != name:
        raise DamagedFileError("it is about another task")
    return record


def _result_in(file: BufferedReader, size: int) -> bytes:
    """The result that follows, of this size. Raises `DamagedFileError`, or as a decoder does."""
    buffer, left = MessageBuffer(), size + 1
    while left and (piece := file.read(min(left, _PIECE))):
        left -= len(piece)
        if exceeded := buffer.add(piece):
            raise DamagedFileError(f"its result has more than {exceeded}")
    result = bytes(buffer.end())
    if left != 1 or buffer.repaired:
        raise DamagedFileError("its result is not whole")
    if b"\n" in result or b"\r" in result:
        raise DamagedFileError("its result has more than one line")
    decode_parts(result)
    if size < LARGE_MESSAGE:
        result.decode()
    return result


def _is_ours(folder: Path) -> bool:
    try:
        os.close(open_own_folder(folder))
    except OSError:
        return False
    return True


def _lives(folder: Path) -> bool:
    """Whether the gateway of this folder runs. If that cannot be known, it does: nothing of it is called lost."""
    from filelock import FileLock, Timeout

    place = folder / _LOCK
    try:
        os.close(open_own(place, os.O_RDWR))
        with FileLock(place, timeout=_PROBE, mode=0o600):
            return False
    except FileNotFoundError:
        return False
    except (Timeout, NotOurs, OSError):
        return True


def _write_one(path: Path, record: TaskRecord, result: bytes) -> None:
    with replacing(path) as file:
        file.write(rpc.encode(record) + b"\n")
        file.write(result)
        file.flush()
        os.utime(file.fileno(), (record.until, record.until))


def _left_in(folders: list[Path]) -> Iterator[tuple[float, int, str, Path]]:
    """Until when each task may be kept, its bytes, its owner, its file. Files that writers left half-done go."""
    for folder in folders:
        for path in folder.iterdir():
            named = _FILE.fullmatch(path.name)
            if named is not None:
                found = path.lstat()
                yield found.st_mtime, found.st_size, named[1], path
            elif _UNFINISHED.fullmatch(path.name):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
