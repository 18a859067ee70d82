"""Records an open room on a tape: the file, and the large results beside it. What stands in it is made by `line_maker`.

It is a watcher (`actors.watchers`). When a call ends, it writes its line in the same step: so the tape of a killed
process has every call whose answer anybody saw. The file is only appended to, and is ours alone. What is large is
written beside it by a thread. Its call has a line before that, without the content, and another one after it: who kills
the process in between loses the content, and not the call.

A tape ends with a note, its last line says why, and calls go on: when the disk is full, when it has been moved or
removed and something is to be written beside it, and before it is too long to be read. In the folder that somebody
names others may read and even write: the tape is a new file of ours (0600), and the folder beside it is ours, too
(0700).

What it costs a call of 24 µs is 8 µs: a quarter of that is the system call, the rest one encoding, one look for secrets
over parameters and result together, and the 20 fields of the line. Rejected, to save more:

* To collect lines and write them together. That loses what came last, which is what somebody looks for who has a crash
  on his tape.
* A file that is mapped into memory, which saves the system call. When the disk is full, or somebody cuts the file, the
  system kills the process (SIGBUS); only some file systems keep room that was asked for before. A tape must not be able
  to end its room. And programs that read along would find zeros.
* To hand calls to another process that makes the lines. A message to it costs as much as a line in the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import msgspec

from ..actors.fork import inert_in_forks
from ..actors.host import ASKED_FOR
from ..actors.last_minutes import refusal_of
from ..actors.watchers import Order
from ..config.private_files import make_folder, make_own_folder, open_own, refused
from ..protocol.address import Address
from ..protocol.bounds import TAPE_WAITING_BYTES
from ..protocol.errors import RpcRefusal, UsageError
from ..protocol.events import Event, Note, NoteCode
from ..supervisor.attachments import RECORDING_ALL, tape_place
from .line_maker import EVENT_KINDS, TapeLineMaker
from .open_calls import OpenCalls
from .tape_lines import (
    EMPTY,
    LARGE,
    LARGEST,
    MOST_LINES,
    NOTHING,
    SUFFIX,
    CallLine,
    EndLine,
    LargeResult,
    Schedule,
    encoded,
)

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..actors.host import ServerRequest
    from ..actors.peer import Handshake, Listing
    from ..catalogue.entries import ServerEntry
    from ..config.known_secrets import KnownSecrets, SecretsOfAll
    from ..config.model import Config
    from ..supervisor.attachments import RoomSeam

_LAST_LINE: Final = 1 << 10  # bytes that are left for it


class Recorder:
    """A tape that is being recorded. `place`: a file whose name ends with `.tape`, or a folder that gets one for each
    room. `redact`: names of members that are not recorded. `schedule`: the run of an exploration that it is. Opened
    before its room, and closed after it."""

    def __init__(
        self,
        place: str | os.PathLike[str],
        redact: Collection[str] = (),
        schedule: Schedule | None = None,
    ) -> None:
        self._schedule = schedule
        self.place: Path = Path(os.path.abspath(place))
        self.path: Path | None = None  # of the file, once it is open
        self._redact = frozenset(redact)
        self._fd: int | None = None
        self._lines: TapeLineMaker
        self._tell: Callable[[str], object]
        self._now: Callable[[], float]
        self._open: OpenCalls
        self._writing = Lock()  # two write: the loop, and the thread for what is large
        self._problem = ""  # that ended the tape, and was not told yet
        self._large: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._lines_left, self._bytes_left = MOST_LINES - 1, LARGEST - _LAST_LINE
        self._is_begun = False
        self._waiting = 0  # bytes of calls that the thread has not written

    # ---- open and close ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def attached(self, room: RoomSeam) -> AsyncGenerator[None]:
        events = room.events

        def tell(text: str) -> None:
            events.emit(Note, code=NoteCode.TAPE, words=text)

        self.open()
        try:
            await self.begin(room.config(), room.secrets, events.backend.now, tell)
            tell(f"recording the tape {self.path}")  # before it listens: so this is not on it
            events.listen(self.heard_event, EVENT_KINDS)
            room.watchers.add(self, Order.TAPE)
            yield
        finally:
            if self.is_busy:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self.finish)
            self.close()

    def open(self) -> None:
        """Make the file. Raises `UsageError` when it cannot be written."""
        is_file = self.place.suffix == SUFFIX
        if not is_file and self.place.exists() and not self.place.is_dir():
            text = (
                f"it is not a folder, and its name does not end with {SUFFIX}. Name a folder, or a new file."
            )
            raise UsageError(f"No tape can be recorded at {self.place}: {text}")
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())
        self.path = self.place if is_file else self.place / f"{stamp}-{token_hex(4)}{SUFFIX}"
        try:
            make_folder(self.path.parent)
            self._fd = open_own(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL)
        except FileExistsError:
            text = "it is there already. Name another file, or a folder, which gets a new one for each run."
            raise UsageError(f"No tape can be recorded at {self.path}: {text}") from None
        except OSError as error:
            raise UsageError(f"No tape can be recorded at {self.path}: {refused(error)}") from None
        inert_in_forks(self)

    async def begin(
        self, config: Config, secrets: KnownSecrets, now: Callable[[], float], tell: Callable[[str], object]
    ) -> None:
        """The room begins. `now`: its clock; `tell` gets what belongs into the log."""
        self._now, self._tell = now, tell
        began = now()
        self._lines, self._open = TapeLineMaker(secrets, began, self._redact), OpenCalls(began)
        await self._lines.foresee(config)
        self._write(self._lines.head(config, time.time(), self._schedule))
        self._is_begun = True

    @property
    def is_busy(self) -> bool:
        """Whether `close` may have to wait for what is large."""
        return self._thread is not None

    def finish(self) -> None:
        """Wait until what is large is written. For a thread; nothing may end meanwhile."""
        if self._thread is not None:
            self._large.put(None)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """End it: what is large is written first. Idempotent."""
        self.finish()
        with self._writing:
            self._end()
        self._tell_problem()

    def disown(self) -> None:
        self._writing, self._thread, self._is_begun = Lock(), None, False
        self._end()

    # ---- what it is told --------------------------------------------------------------------------------------------

    def heard_event(self, event: Event) -> None:
        self._write(self._lines.event(event))

    async def foresee(self, config: Config) -> None:
        """The room will have another configuration."""
        if self._fd is not None:
            await self._lines.foresee(config)

    def reconfigured(self, config: Config) -> None:
        """The room has another configuration from now on."""
        if self._fd is not None:
            self._write(self._lines.config(config, self._now()))

    def knew(self, entry: ServerEntry) -> None:
        """What is known of a server before it runs."""
        self._write(self._lines.known(entry, self._now()))

    def listed(
        self,
        address: Address,
        incarnation: int,
        handshake: Handshake,
        listing: Listing,
        offers: Mapping[str, Any],
    ) -> None:
        self._write(self._lines.listed(address, incarnation, handshake, listing, offers, self._now()))

    def noticed(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        self._write(self._lines.notice(address, method, params, self._now()))

    def progressed(self, call: Call, params: Mapping[str, Any]) -> None:
        if self._fd is not None:
            self._open.progressed(call, params, self._now())

    def asked(self, request: ServerRequest, began: float, answer: Mapping[str, Any] | RpcRefusal) -> None:
        if self._fd is not None and request.method in ASKED_FOR:
            self._open.asked(request, began, answer)

    def ended(self, call: Call) -> None:
        if self._fd is None:
            self._tell_problem()
            return
        if not call.number:
            self._write(self._lines.refused(*refusal_of(call)))
            return
        line = self._open.ended(call)
        size = len(line.params) + len(line.result)
        if size <= LARGE:
            self._lines.clean(line)
            self._write(encoded(line))
        elif self._waiting + size <= TAPE_WAITING_BYTES:
            self._write_short(line)  # the thread may never come to it
            secrets = self._lines.secrets_of(line)  # a session may have ended when the thread comes to it
            with self._writing:
                self._waiting += size
            self._later(partial(self._write_large, line, secrets, size))
        else:
            self._write_short(line)

    # ---- how --------------------------------------------------------------------------------------------------------

    def _write_short(self, line: CallLine) -> None:
        """Write a call without what is large."""
        short = msgspec.structs.replace(line)
        if len(line.params) > LARGE:
            short.left_out, short.params = {"params": len(line.params)}, EMPTY
        if len(line.result) > 0:
            short.left_out, short.result = {**short.left_out, "result": len(line.result)}, NOTHING
        self._lines.clean(short)
        self._write(encoded(short))

    def _write_large(self, line: CallLine, secrets: SecretsOfAll, size: int) -> None:
        """Write a call and, beside the tape, its result."""
        self._lines.clean(line, secrets)
        if len(line.result) > LARGE:
            self._put_beside(line)
        self._write(encoded(line))
        with self._writing:
            self._waiting -= size

    def _put_beside(self, line: CallLine) -> None:
        raw, line.result = bytes(line.result), NOTHING
        name = hashlib.sha256(raw).hexdigest()
        assert self.path is not None
        folder = self.path.with_name(self.path.name + ".d")
        try:
            if not self._is_there():
                return
            make_own_folder(folder)
            with open(open_own(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                file.write(raw)
        except OSError as error:
            with suppress(OSError):
                (folder / name).unlink()  # it is not whole
            with self._writing:
                self._end(_reason(error), refused(error))
        line.large = LargeResult(name, len(raw))

    def _is_there(self) -> bool:
        """Whether the tape is where it was made. If not, it ends: what is beside it would be missed."""
        assert self.path is not None
        with self._writing:
            if self._fd is not None:
                try:
                    if os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                        return True
                except FileNotFoundError:
                    pass
                self._end("it was moved or removed")
        return False

    def _later(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="greenroom tape", daemon=True)
            self._thread.start()
        self._large.put(work)

    def _work(self) -> None:
        while (work := self._large.get()) is not None:
            work()

    def _write(self, data: bytes) -> None:
        with self._writing:
            if self._fd is None:
                return
            self._lines_left -= 1
            self._bytes_left -= len(data)
            if self._lines_left < 0 or self._bytes_left < 0:
                lines = MOST_LINES - self._lines_left - 1
                self._end(f"it has {lines:,} lines, and a longer one could not be read")
                return
            try:
                if (written := os.write(self._fd, data)) != len(data):
                    os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._end(_reason(error), refused(error))

    def _end(self, why: str = "", told: str = "") -> None:
        """Write the last line, as far as that can be, and close the file. `why`: it ends before its room. `told`: the
        same for the log. Holds the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            if self._is_begun:
                with suppress(OSError):
                    os.write(fd, encoded(EndLine(why)))
            os.close(fd)
            self._problem = told or (f"{why}." if why else "")

    def _tell_problem(self) -> None:
        """Say that the tape has ended. In the loop, for the thread may not."""
        why, self._problem = self._problem, ""
        if why:
            self._tell(f"the tape {self.path} ends here: {why} Calls go on.")


def _reason(error: OSError) -> str:
    """For the tape, which says nothing of our folders."""
    return error.strerror or type(error).__name__


@contextmanager
def recording_all(folder: str | os.PathLike[str], schedule: Schedule) -> Generator[list[Recorder]]:
    """Each room that is opened meanwhile, and is not told where to record, records a tape in this folder. Gives those
    that record. Raises `UsageError`."""
    place, recorders = tape_place(folder), list[Recorder]()

    def recorder(redact: Collection[str]) -> Recorder:
        recorders.append(Recorder(place, redact, schedule))
        return recorders[-1]

    token = RECORDING_ALL.set(recorder)
    try:
        yield recorders
    finally:
        RECORDING_ALL.reset(token)
