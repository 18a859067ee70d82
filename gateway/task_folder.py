"""The folder in which tasks outlive the gateway (`tasks.keep`): one private file for each, of mode 0600.

A file says what a task is, whose, until when, and how it ended. The owner is a digest. What is to be written or removed
is noted on the loop, the last for each task, and a thread does it. Of a task that ran when the gateway ended there is a
file that says so. Files are replaced in one step. One that is torn all the same, or of somebody else, is passed over.

One gateway at a time has the folder, because only it knows which tasks still run. A lock shows it, which the system
gives back when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import msgspec

from ..actors.workers import aside
from ..config.private_files import make_own_folder, open_own, read_own, replacing
from ..protocol import jsonrpc as rpc
from ..protocol.bounds import TASK_BYTES, TASKS
from ..protocol.tasks import Status

_NAME: Final = re.compile(r"task-([\w-]{32})\.json")
_UNFINISHED: Final = re.compile(r"\.task-[\w-]{32}\.json\..*\.tmp")  # a file whose writer was killed
_HEAD: Final = 1 << 20  # bytes of a file beside its result, at most


NOTHING: Final = msgspec.Raw(b"null")


class TaskRecord(msgspec.Struct):
    """One task as its file has it. `until`: seconds since 1970. `result` is as the task keeps it."""

    id: str
    owner: str
    modern: bool
    status: Status
    message: str
    created: str
    changed: str
    ttl: int
    until: float
    result: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


_record: Final = msgspec.json.Decoder(TaskRecord)


class TaskFolder:
    """`note` is told what does not work."""

    def __init__(self, path: Path, note: Callable[[str], object]) -> None:
        self._path = path
        self._note = note
        self._todo: dict[str, TaskRecord | None] = {}  # by the ids of tasks; None: its file is removed
        self._turn = anyio.Lock()
        self._lock: int | None = None

    async def open(self) -> list[TaskRecord]:
        """Take the folder and read its tasks, the oldest first. Raises `OSError` when it cannot be used."""
        return await aside(self._open)

    def close(self) -> None:
        """Let another gateway have it. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def put(self, task_id: str, record: TaskRecord | None) -> None:
        """Note what the file of this task shall be. None: there shall be none."""
        self._todo[task_id] = record

    async def written(self) -> None:
        """Write what was noted. It is on the disk at the end, also if the task that waits is cancelled meanwhile. What
        cannot be written is told, and nothing else follows from it."""
        with anyio.CancelScope(shield=True):
            async with self._turn:
                while self._todo and self._lock is not None:
                    todo, self._todo = self._todo, {}
                    trouble = await aside(partial(self._write, todo))
                    if trouble is not None:
                        self._note(f"a task cannot be kept in {self._path}: {trouble}")

    # ---- in the thread ----------------------------------------------------------------------------------------------

    def _open(self) -> list[TaskRecord]:
        make_own_folder(self._path)
        lock = open_own(self._path / "lock", os.O_WRONLY | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = list(self._records())
        except BlockingIOError as error:
            os.close(lock)
            raise OSError(error.errno, "another gateway keeps its tasks there", str(self._path)) from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return found[::-1]

    def _records(self) -> Iterator[TaskRecord]:
        """The newest tasks, as many as are kept. The files of older ones, and of those whose time is over, go."""
        files = list[tuple[float, int, Path]]()
        for path in self._path.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)
            elif _NAME.fullmatch(path.name):
                found = path.lstat()
                files.append((found.st_mtime, found.st_size, path))
        count, room = TASKS, TASK_BYTES
        for _, size, path in sorted(files, reverse=True):
            record = self._read(path) if count and size <= room + _HEAD else None
            if record is not None and record.until > time.time() and len(record.result) <= room:
                count, room = count - 1, room - len(record.result)
                yield record
            elif record is not None or not count or size > room + _HEAD:
                path.unlink(missing_ok=True)

    def _read(self, path: Path) -> TaskRecord | None:
        try:
            record = _record.decode(read_own(path))
        except (OSError, *rpc.UNWRITABLE):
            return None
        is_whole = record.status is not Status.COMPLETED or bytes(record.result).startswith(b"{")
        return record if is_whole and path.name == f"task-{record.id}.json" else None

    def _write(self, todo: Mapping[str, TaskRecord | None]) -> Exception | None:
        """Returns the last thing that went wrong."""
        trouble = None
        for task_id, record in todo.items():
            path = self._path / f"task-{task_id}.json"
            try:
                if record is None:
                    with suppress(FileNotFoundError):
                        path.unlink()
                else:
                    with replacing(path) as file:
                        file.write(rpc.encode(record))
            except (OSError, *rpc.UNWRITABLE) as error:
                trouble = error
        return trouble
