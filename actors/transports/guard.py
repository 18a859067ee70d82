"""The guard: child processes end with us, even when we are killed with SIGKILL.

The guard is one tiny process of ours that holds the other end of a socket. While we live, we tell it which process
groups exist. When the socket closes, or our process ends, the guard kills those groups. On Linux it also kills every
other process that carries our run's id in its environment: so it finds processes that left their group by `setsid` or
a double fork. Whenever a child is stopped, the guard sweeps in the same way for that one incarnation.

Each request to the guard carries a new pipe for its answer. So each caller waits on its own descriptor, the guard's
death is an end of file on all of them, and we need no task to read answers. A guard that dies is restarted and told
everything again: at the next message to it, or at once where `watch` runs. A stopped guard (SIGSTOP) counts as dead
and is replaced within seconds. No event reports that, so `watch` looks regularly.

When the guard cannot be started, no new server is started, because nothing could end it for sure. Servers that run go
on: restarting the guard is an optional part, tried until it succeeds. Rejected: PR_SET_PDEATHSIG, which reaches only
the leader and fires when the spawning *thread* ends.

The guard can also hold a deadline (`end_children_at`): it ends the children then, although we live. That is for an
owner that may run them for so long and no longer, and that may be stopped itself when the time is over. No timer of its
own would do, for it stops with it. While the guard and its owner are both stopped, nobody holds the deadline.

A server gets a cgroup of its own where we may make one. The guard moves it there after its start: moved between fork
and exec, it would make the whole room wait for about 20 ms, and Python could not use the cheap `vfork`. Anything that
the server forks before and orphans at once is not in the cgroup.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio

from ..backend import Backend
from ..fork import inert_in_forks, let_go
from ..timers import at_most
from ..workers import OptionalPart
from ._guard_program import open_pidfd
from .orphans import born, has_orphans, strays, take_orphans, to_end

ROOM_KEY = "GREENROOM_ROOM"
INCARNATION_KEY = "GREENROOM_INCARNATION"
_PROGRAM = Path(__file__).with_name("_guard_program.py")
_COMPILED = (  # runs the program named by the first word, as by its path, but from what Python has compiled of it
    "import sys; from importlib.machinery import SourceFileLoader as Loader; del sys.argv[0]; "
    "exec(Loader('__main__', sys.argv[0]).get_code('__main__'))"
)
_CLOSE_WITHIN = 1.0
_RETRY = 0.005  # seconds between two tries to ask a busy guard
LOOK = 5.0  # seconds between two looks at a guard whose end causes no event
_AT_ONCE = 1.0  # seconds: when a guard ends this soon after its restart, another restart will not help


class Guard:
    """The guard of one room. It is started before the first child.

    Each child carries `run_id` as `GREENROOM_ROOM`. `tell` takes log lines about the guard itself. Only `start` raises
    `OSError` when the guard cannot be started: call it before there is anything to guard.
    """

    def __init__(
        self, backend: Backend, run_id: str, tell: Callable[[str], object] = lambda _text: None
    ) -> None:
        self._backend = backend
        self.run_id = run_id
        self._part = OptionalPart(
            "the guard process", tell, "Until then servers would outlive a SIGKILL of Greenroom.", backend.now
        )
        self.tell = tell
        self._groups: set[int] = set()
        self._births: dict[int, int] = {}  # when each running server started, where we adopt orphans
        self._strays: dict[int, int] = {}  # orphans of these servers, with their groups
        self._children_until: float | None = None
        self._unsaid: deque[bytes] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._started = anyio.Event()
        self._watched: int | None = None
        self._closed = False
        inert_in_forks(self)

    @property
    def pid(self) -> int | None:
        """The guard's process, while it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the guard, if it does not run. Idempotent. Raises `OSError`."""
        if self._closed:
            raise OSError(errno.ECHILD, "its room is closed, or belongs to the process that forked this one")
        if self._is_up():
            return
        self._forget_process()
        take_orphans()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(theirs, self.run_id)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._lifeline = ours
        self._unsaid = deque(b"+%d\n" % group for group in self._groups)
        if self._children_until is not None:
            self._unsaid.appendleft(_deadline(self._children_until))
        self._flush()  # a child may be started now, and we may be stopped before we say more
        self._started.set()

    def add(self, pgid: int) -> None:
        """Guard this group: it must not outlive us."""
        if has_orphans():
            self._births[pgid] = born(pgid)
        self._guard(pgid)

    def enclose(self, pid: int) -> None:
        """Put a server that has just started, and what it starts, into a cgroup of its own, where we may make one.
        `remove` ends it."""
        self._say(b"=%d\n" % pid)

    def end_children_at(self, at: float | None) -> None:
        """End all children at this time of `time.monotonic()`, and all that are started later, whatever we do until
        then: we may be stopped, or too busy. A later call takes the place of an earlier one, and None takes it back.

        It does not wait. A guard that has not been started, or is started again, is told when it starts.
        """
        if self._closed or at == self._children_until:
            return
        self._children_until = at
        if self._process is not None:
            self._say(_deadline(at))

    @property
    def is_time_over(self) -> bool:
        """Whether the children have been ended, and others must not be started."""
        return self._children_until is not None and time.monotonic() >= self._children_until

    def _guard(self, pgid: int) -> None:
        self._groups.add(pgid)
        self._say(b"+%d\n" % pgid)

    def remove(self, pgid: int) -> None:
        """This group is dead. Call this *before* its leader is reaped: afterwards the id may belong to another
        process."""
        self._births.pop(pgid, None)
        if pgid in self._groups:
            self._groups.discard(pgid)
            self._say(b"-%d\n" % pgid)

    async def sweep(self, tag: str, timeout: float) -> int:
        """Kill every process that carries `tag` (`KEY=value`) in its environment. Returns how many there were.

        Waits at most `timeout` seconds; 0 if there was no answer, or where there is no /proc to look into.
        """
        killed = 0
        if sys.platform == "linux" and not self._closed:
            async with at_most(timeout):
                killed = await self._ask_until_answered(b"?%b\n" % os.fsencode(tag))
                await self._tend_until_dead()
        return killed

    def sweep_soon(self, tag: str) -> None:
        """Kill what `sweep` kills, without waiting, for a `finally`. Best effort: the last sweep finds what this one
        misses."""
        if sys.platform == "linux" and self._process is not None and not self._closed:
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                self._send(b"?%b\n" % os.fsencode(tag), nowhere.fileno())

    async def watch(self) -> None:
        """Restart the guard as soon as it dies. Run this in a task of the room; it ends with the room."""
        await self._started.wait()
        await self._part.keep(self._stay)

    async def _stay(self) -> None:
        """Start the guard. Raises `OSError` when it cannot be started or ends at once."""
        restarted = -math.inf
        while not self._closed:
            if not self._is_up():
                if self._backend.now() - restarted < _AT_ONCE:
                    raise ChildProcessError("it ends as soon as it is started")
                self.start()
                restarted = self._backend.now()
            await self._until_unwell()
            self._tend()
            if self._backend.now() - restarted >= _AT_ONCE and self._is_up():
                self._part.works()

    async def _until_unwell(self) -> None:
        """Wait until the guard may have died. With a pidfd this returns as soon as it has died, without one after a
        fixed time."""
        assert self._process is not None
        fd = open_pidfd(self._process.pid)
        if fd is None:
            await anyio.sleep(LOOK)
            return
        self._watched = fd
        try:
            async with at_most(LOOK):
                await self._backend.read_forever(fd, lambda: False)
        finally:
            self._watched = None
            os.close(fd)

    def _is_up(self) -> bool:
        """Whether the guard runs. A stopped guard would sleep through our end, so it does not count as running."""
        process = self._process
        return process is not None and process.poll() is None and not _is_stopped(process.pid)

    def close(self) -> None:
        """The room has ended: the guard kills what is left of it and exits. Blocks for milliseconds, at most 1 s."""
        self._births.clear()  # no server runs any more
        deadline = time.monotonic() + _CLOSE_WITHIN
        while not self._closed and self._tend() and time.monotonic() < deadline:
            time.sleep(_RETRY)
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

    async def _tend_until_dead(self) -> None:
        dying = self._tend()
        while dying:
            await anyio.sleep(_RETRY)
            dying = self._tend()

    def _tend(self) -> bool:
        """Handle the orphans that we adopted: reap the dead, end those that no running server can own, and tell the
        guard of the others. Returns whether some are still dying."""
        if not has_orphans():
            return False
        guard = self.pid
        found = strays([*self._births, *([guard] if guard is not None else [])])
        dead = [one for one in found if one.is_dead]
        living = [one for one in found if not one.is_dead]
        for one in living:
            if one.pid not in self._strays:
                self._strays[one.pid] = one.group
                if one.group not in self._groups:
                    self._guard(one.group)
        for one in dead:
            group = self._strays.pop(one.pid, None)
            if group is not None and group not in self._births and group not in self._strays.values():
                self.remove(group)
            one.reap()
        dying = to_end(living, self._births.values())
        for one in dying:
            one.end()
        return bool(dying)

    def disown(self) -> None:
        """In a fork: the guard and its groups belong to the parent, which now holds the lifeline alone."""
        self._closed = True
        self._groups.clear()
        self._unsaid.clear()
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0
        lifeline = self._lifeline
        let_go(self._watched, lifeline.fileno() if lifeline is not None else None)

    # -- talking to it --

    def _say(self, line: bytes) -> None:
        """Send the line now. If the guard is too busy to take it, send it before the next message."""
        if self._closed:
            return
        self._unsaid.append(line)
        self._flush_to_one()

    def _flush_to_one(self) -> bool:
        """Send all unsent lines, to a new guard if necessary. False: no guard can be started."""
        try:
            self.start()  # a new guard is told of all groups, whatever the old one missed
        except OSError as error:
            self._unsaid.clear()
            self._part.failed(error)
            return False
        self._flush()
        return True

    def _flush(self) -> None:
        while self._unsaid and self._send(self._unsaid[0]):
            self._unsaid.popleft()

    async def _ask_until_answered(self, request: bytes) -> int:
        while self._flush_to_one():
            try:
                answer = await self._ask(request)
            except OSError as error:  # out of descriptors
                self._part.failed(error)
                break
            if answer is not None:
                return answer
            await anyio.sleep(_RETRY)  # the guard was busy, or died before it answered
        return 0

    async def _ask(self, request: bytes) -> int | None:
        answer, theirs = os.pipe()
        os.set_blocking(answer, False)
        said = bytearray()
        try:
            try:
                asked = self._begin_request(request, theirs)
            finally:
                os.close(theirs)
            if asked:
                await self._backend.read_forever(answer, lambda: _read_into(said, answer))
        finally:
            os.close(answer)
        return int(said) if said else None

    def _begin_request(self, request: bytes, fd: int) -> bool:
        return not self._unsaid and self._send(request, fd)

    def _send(self, line: bytes, *fds: int) -> bool:
        """False: the guard takes nothing now, or has just died (the next `start` notices that)."""
        if self._lifeline is None:
            return False
        try:
            sent = socket.send_fds(self._lifeline, [line], fds) if fds else self._lifeline.send(line)
        except OSError:
            return False
        return sent == len(line)

    def _forget_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._part.tell("the guard process had been stopped (SIGSTOP), and is replaced")
            self._process.kill()
            self._process.wait()
        if self._lifeline is not None:
            self._lifeline.close()
        self._process = self._lifeline = None


def guard_command(*words: str) -> list[str]:
    """The command that runs the guard's program, as a list of words."""
    return [sys.executable, "-B", "-I", "-S", "-c", _COMPILED, os.fspath(_PROGRAM), *words]


def _deadline(at: float | None) -> bytes:
    return b"!\n" if at is None else b"!%d\n" % int(at * 1_000_000_000)


def _spawn(lifeline: socket.socket, run_id: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        guard_command(f"{ROOM_KEY}={run_id}", str(os.getpid())),
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


def _is_stopped(pid: int) -> bool:
    """Used where the system reports the end of a process without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except (AttributeError, OSError):
        return False
