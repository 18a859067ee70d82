"""The guard: children die with us, even when we are killed with SIGKILL.

One tiny process of ours holds the other end of a socket. While we live it is told which groups exist; when the socket
closes, or our pid ends, it kills them, and on Linux everything else that carries our run's id in its environment, which
finds what left its group by `setsid` or a double fork. At each stop of a child it also sweeps for that one incarnation.

A sweep's answer comes back on a pipe of its own, handed over with the question: each asker waits on its own descriptor,
the guard's death is an end of file on all of them, and the guard needs no task of ours. If it dies it is restarted and
told again, at the next thing said to it, or at once where `watch` runs. Rejected: PR_SET_PDEATHSIG, which reaches the
leader only and fires when the spawning *thread* ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import anyio

from ._rim import Rim

ROOM_KEY = "GREENROOM_ROOM"
INCARNATION_KEY = "GREENROOM_INCARNATION"

_PROGRAM = Path(__file__).with_name("_guard_main.py")
_CLOSE_WITHIN = 1.0
_RETRY = 0.005  # between two tries to ask a guard that is busy


class Guard:
    """The guard of one room. Not started before the first child is.

    `run_id` is what each child carries as `GREENROOM_ROOM`. Methods that talk to the guard raise `OSError` when it
    cannot be started at all.
    """

    def __init__(self, rim: Rim, run_id: str) -> None:
        self._rim = rim
        self._run_id = run_id
        self._groups: set[int] = set()
        self._unsaid: deque[bytes] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._started = anyio.Event()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The guard's process, while it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it, if it does not run. Idempotent. Raises `OSError`."""
        if self._process is not None and self._process.poll() is None:
            return
        self._forget_process()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(theirs, self._run_id)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._lifeline = ours
        self._unsaid = deque(b"+%d\n" % group for group in self._groups)
        self._started.set()

    def add(self, pgid: int) -> None:
        """This group must not outlive us."""
        self._groups.add(pgid)
        self._say(b"+%d\n" % pgid)

    def remove(self, pgid: int) -> None:
        """This group is dead. Say so *before* its leader is reaped: the id may be anybody's afterwards."""
        if pgid in self._groups:
            self._groups.discard(pgid)
            self._say(b"-%d\n" % pgid)

    async def sweep(self, tag: str, timeout: float) -> int:
        """Kill every process that carries `tag` (`KEY=value`) in its environment. Returns how many there were.

        Waits at most `timeout` seconds; 0 if there was no answer, or where there is no /proc to look into.
        """
        killed = 0
        if sys.platform == "linux" and not self._closed:
            with anyio.move_on_after(timeout):
                killed = await self._ask_until_answered(b"?%b\n" % os.fsencode(tag))
        return killed

    def sweep_soon(self, tag: str) -> None:
        """The same without waiting, for a `finally`. Best effort: the last sweep finds what this one misses."""
        if sys.platform == "linux" and self._process is not None and not self._closed:
            with open(os.devnull, "wb") as nowhere:
                self._send(b"?%b\n" % os.fsencode(tag), nowhere.fileno())

    async def watch(self) -> None:
        """Restart the guard as soon as it dies. Run it in a task of the room; it ends with the room."""
        await self._started.wait()
        while self._process is not None and (fd := _pidfd(self._process.pid)) is not None:
            try:
                await self._rim.read_forever(fd, lambda: False)
            finally:
                os.close(fd)
            if self._closed:
                return
            self.start()
            self._flush()

    def close(self) -> None:
        """The room has ended: the guard kills what is left of it and goes. Blocks for milliseconds, at most 1 s."""
        self._closed = True
        process = self._process
        if self._lifeline is not None:
            self._lifeline.close()
        if process is not None:
            try:
                process.wait(_CLOSE_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = self._lifeline = None

    # -- talking to it --

    def _say(self, line: bytes) -> None:
        """Say it now, or, if the guard is too busy to take it, before the next thing that is said."""
        if self._closed:
            return
        self._unsaid.append(line)
        self.start()
        self._flush()

    def _flush(self) -> None:
        while self._unsaid and self._send(self._unsaid[0]):
            self._unsaid.popleft()

    async def _ask_until_answered(self, question: bytes) -> int:
        while True:
            answer = await self._ask(question)
            if answer is not None:
                return answer
            await anyio.sleep(_RETRY)  # it was busy, or died under the question

    async def _ask(self, question: bytes) -> int | None:
        answer, theirs = os.pipe()
        os.set_blocking(answer, False)
        said = bytearray()
        try:
            try:
                asked = self._begin_question(question, theirs)
            finally:
                os.close(theirs)
            if asked:
                await self._rim.read_forever(answer, lambda: _read_into(said, answer))
        finally:
            os.close(answer)
        return int(said) if said else None

    def _begin_question(self, question: bytes, fd: int) -> bool:
        self.start()
        self._flush()
        return not self._unsaid and self._send(question, fd)

    def _send(self, line: bytes, *fds: int) -> bool:
        """False: it takes nothing just now, or has just died (the next `start` sees that)."""
        assert self._lifeline is not None
        try:
            sent = socket.send_fds(self._lifeline, [line], fds) if fds else self._lifeline.send(line)
        except OSError:
            return False
        return sent == len(line)

    def _forget_process(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
        self._process = self._lifeline = None


def _spawn(lifeline: socket.socket, run_id: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_PROGRAM), f"{ROOM_KEY}={run_id}", str(os.getpid())],
        stdin=lifeline.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
    )


def _read_into(said: bytearray, fd: int) -> bool:
    try:
        chunk = os.read(fd, 64)
    except BlockingIOError:
        return True
    said += chunk
    return bool(chunk)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
