"""What servers write to their stderr, in a file for each server: for `greenroom logs`.

The file is beside the catalogue, and its name is made of the server and the hash of its definition, as the key of its
entry is. It is bounded: when it has grown to its bound, it takes the place of the one before it. Only the user can read
it, and it loses credentials as the tail of stderr does. Each start has a line of ours that says when, which process and
which incarnation; each end has one that says why. Lines of ours begin with `--- `, and no line of a server does.

Nothing of this is on a call's path. Bytes are only put aside when they come, and a moment later a thread looks through
them and writes them; no file stays open. When a flood comes in that time, its middle is left out and counted. A
file that cannot be written turns the logs of the room off, with one message.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import msgspec

from ...config.private_files import make_folder, open_own
from ...protocol import bounds
from ...protocol.address import Address
from ...protocol.safe_text import one_line, printable
from ..backend import Backend
from ..workers import apart

OURS: Final = "--- "  # what a line of ours begins with
KEPT: Final = 7 * 86_400.0  # seconds after the last line, until a log is removed
_SOON: Final = 0.25  # seconds from the first byte to the write
_AT_ONCE: Final = 32 * 1024  # bytes of one write
_LINE_END: Final = ord("\n")
_HANGS: Final = 1.0  # seconds after which nobody waits for the disk any more
_PATIENCE: Final = 0.2  # seconds to wait for another write
_LONGEST: Final = 4_000  # characters of a line
_NAMED: Final = 40  # characters of a server's name in that of its file
Hide = Callable[[str], str]


def stderr_log_path(folder: Path, server: str, key: str) -> Path:
    """Where the log of this server is. `folder`: the catalogue's; `key`: the hash of its definition."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", server)[:_NAMED]
    told = hashlib.sha256(f"{key} {server}".encode(errors="surrogatepass")).hexdigest()[:16]
    return folder / "logs" / f"{name}-{told}.log"


def older_log(path: Path) -> Path:
    """The file that was full before this one."""
    return path.with_name(path.name + ".old")


def last_lines(path: Path, most: int) -> list[str]:
    """The last lines of a log, with those of the file before it if need be. None yet: an empty list. Blocks. Raises
    `OSError` for a file that is not this user's."""
    lines: list[str] = []
    for file in (path, older_log(path)):
        with suppress(FileNotFoundError), open(open_own(file, os.O_RDONLY), "rb") as log:
            lines = log.read().decode(errors="replace").splitlines() + lines
        if len(lines) >= most:
            break
    return lines[-most:]


class StderrLogs:
    """The logs of one room. `tell` is told once when they cannot be written; then they are off. `why_stopped`: why we
    end this incarnation, in words; empty: nothing is written of that."""

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], object],
        backend: Backend,
        why_stopped: Callable[[Address, int], str] = lambda _address, _incarnation: "",
    ) -> None:
        self._folder = folder
        self._tell = tell
        self.why_stopped = why_stopped
        self._is_off = False
        self._has_pruned = False
        self._ready: dict[StderrLog, None] = {}
        self._began = math.inf  # when the present write began
        self._backend = backend
        self._wake = backend.waiter()

    def of(self, key: str, address: Address, incarnation: int, hide: Callable[[], Hide]) -> StderrLog | None:
        """The log of one incarnation. `hide()` returns the function that takes the secrets known by then out of a
        text."""
        if self._is_off:
            return None
        return StderrLog(self, stderr_log_path(self._folder, address.server, key), address, incarnation, hide)

    def queue(self, log: StderrLog) -> None:
        """Have `run` write what this log has. Never raises."""
        if not self._is_off:
            self._ready[log] = None
            self._wake.set()

    @property
    def takes_more(self) -> bool:
        """Whether a write would neither fail nor hang, as far as is known."""
        return not self._is_off and time.monotonic() - self._began < _HANGS

    async def run(self) -> None:
        """Write whatever is ready, a moment after it came, until cancelled. One task for all servers."""
        while not self._is_off:
            await self._wake.wait()
            await anyio.sleep(_SOON)
            self._wake = self._backend.waiter()
            ready, self._ready = self._ready, {}
            writes = [log.handed_over() for log in ready]
            self._began = time.monotonic()
            try:
                await apart(lambda writes=writes: [write() for write in writes])
            except OSError as error:
                self.failed(error)
            self._began = math.inf

    def append(self, path: Path, data: bytes) -> None:
        """Append to a log, and begin another when it is full. Blocks. Raises `OSError`."""
        make_folder(path.parent)
        if not self._has_pruned:
            self._has_pruned = True
            _prune(path.parent)
        with suppress(FileNotFoundError):
            if os.stat(path, follow_symlinks=False).st_size >= bounds.STDERR_LOG:
                os.replace(path, older_log(path))
        descriptor = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(f"{path} takes no more")
        finally:
            os.close(descriptor)

    def failed(self, error: OSError) -> None:
        """Write no logs any more, and say so once."""
        if not self._is_off:
            self._is_off = True
            self._tell(
                f"What servers write to stderr is not logged any more: {error}. Calls are not affected."
            )


class _LogChunk(msgspec.Struct, frozen=True):
    """What one write is made of. A thread turns it into lines."""

    notes: str  # lines of ours
    said: bytes = b""  # whole lines of the server: half a secret would not be recognised
    left_out: int = 0  # bytes that came after them


class StderrLog:
    """The stderr of one incarnation on its way into the file."""

    def __init__(
        self, logs: StderrLogs, path: Path, address: Address, incarnation: int, hide: Callable[[], Hide]
    ) -> None:
        self._logs = logs
        self._path = path
        self._incarnation = incarnation
        self._why_stopped: Callable[[], str] = partial(logs.why_stopped, address, incarnation)
        self._scope = _scope_of(address)
        self._hide = hide
        self._has_said = False  # anything at all
        self._notes = ""
        self._pending = bytearray()
        self._left_out = 0
        self._hole = 0  # where in `_pending` that was
        self._skips = False  # the rest of this line is left out, too
        self._parts: list[_LogChunk] = []  # for the next write
        self._writing = threading.Lock()
        self._owner = os.getpid()

    # ---- in the loop ------------------------------------------------------------------------------------------------

    def begin(self, process: int) -> None:
        """The process has been started."""
        self._notes += self._note(f"started: process {process}, incarnation {self._incarnation}")
        self._logs.queue(self)

    def pass_to(self, address: Address, incarnation: int) -> None:
        """The process was started ahead, and serves this address from now on."""
        self._hand_over(self._whole_lines())
        self._notes += self._note(f"taken over: {_scope_of(address)}incarnation {incarnation}")
        self._scope, self._incarnation = _scope_of(address), incarnation
        self._why_stopped = partial(self._logs.why_stopped, address, incarnation)
        self._logs.queue(self)

    def feed(self, chunk: bytes) -> None:
        """Put aside what it has written."""
        self._has_said |= bool(chunk)
        if self._skips:
            rest = chunk.partition(b"\n")
            self._left_out += len(rest[0] + rest[1])
            self._skips, chunk = not rest[1], rest[2]
        self._pending += chunk
        if len(self._pending) > _AT_ONCE:
            self._leave_out()
        if self._left_out or self._whole_lines():
            self._logs.queue(self)

    def _leave_out(self) -> None:
        """Keep the first and the last lines of a flood: why a program ended is often in its last ones."""
        pending = self._pending
        if not self._left_out:
            self._hole = pending.rfind(b"\n", 0, _AT_ONCE // 2) + 1
        after = pending.find(b"\n", max(self._hole, len(pending) - _AT_ONCE // 2)) + 1 or len(pending)
        self._skips = pending[after - 1] != _LINE_END
        self._left_out += after - self._hole
        del pending[self._hole : after]

    def handed_over(self) -> Callable[[], None]:
        """The function that writes all lines that have come. It blocks, so it is called in a thread."""
        self._hand_over(self._whole_lines())
        return partial(self._write, self._hide())

    def end(self, how: str, instead: bytes = b"") -> None:
        """Write the rest. `how`: how the process was lost; empty when it was stopped. `instead`: what it
        wrote to its stdout that was no answer, in words. Blocks for a moment at most."""
        how = how or self._why_stopped()
        self._why_stopped = str  # it no longer holds its address: a session may be over
        self._hand_over(len(self._pending))
        if instead:
            self._parts.append(_LogChunk(self._note("not on stderr:"), instead + b"\n"))
        if how:
            silent = "" if self._has_said or instead else "; it printed nothing"
            self._parts.append(_LogChunk(self._note(f"ended: {one_line(how, _LONGEST)}{silent}")))
        if self._logs.takes_more and self._owner == os.getpid():  # in a fork the parent writes
            try:
                self._write(self._hide())
            except OSError as error:
                self._logs.failed(error)

    def _whole_lines(self) -> int:
        return max(self._pending.rfind(b"\n"), self._pending.rfind(b"\r")) + 1

    def _hand_over(self, end: int) -> None:
        if self._notes or end or self._left_out:
            first = self._hole if self._left_out else end
            self._parts.append(_LogChunk(self._notes, bytes(self._pending[:first]), self._left_out))
            if first < end:
                self._parts.append(_LogChunk("", bytes(self._pending[first:end])))
            del self._pending[:end]
            self._notes, self._left_out, self._hole = "", 0, 0

    def _note(self, what: str) -> str:
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return f"{OURS}{now} {self._scope}{what}\n"

    # ---- in a thread ------------------------------------------------------------------------------------------------

    def _write(self, hide: Hide) -> None:
        if not self._writing.acquire(timeout=_PATIENCE):
            return  # the disk hangs: the write that runs now will write this as well
        try:
            parts, self._parts = self._parts, []
            if parts:
                self._logs.append(
                    self._path, "".join(self._text(part, hide) for part in parts).encode(errors="replace")
                )
        finally:
            self._writing.release()

    def _text(self, part: _LogChunk, hide: Hide) -> str:
        lines = hide(printable(part.said.decode(errors="replace"))).splitlines()
        lost = f"{OURS}{self._scope}{part.left_out:,} bytes were left out here\n" if part.left_out else ""
        return part.notes + "".join(map(self._shown, lines)) + lost

    def _shown(self, line: str) -> str:
        cut = line if len(line) <= _LONGEST else line[:_LONGEST] + "…"
        return f"{self._scope or (' ' if cut.startswith(OURS) else '')}{cut}\n"


def _scope_of(address: Address) -> str:
    return str(address).removeprefix(address.server) + " " * (not address.is_shared)


def _prune(folder: Path) -> None:
    """Remove logs that nobody has written to for long."""
    for entry in os.scandir(folder):
        with suppress(OSError):
            is_log = entry.name.endswith((".log", ".log.old")) and entry.is_file(follow_symlinks=False)
            if is_log and time.time() - entry.stat(follow_symlinks=False).st_mtime > KEPT:
                os.unlink(entry.path)
