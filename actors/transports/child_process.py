"""A child process and its group. No signal can hit another process that got a recycled id.

The child leads its own session and group. Its end is seen through a pidfd, because end of file on its pipe may never
come while a grandchild holds the pipe. A dead leader stays a zombie until its group has been killed. While the zombie
owns the id, no other process can get it, so a signal to the group hits the group or nothing.

It is a synchronous `subprocess.Popen` with raw pipes. The process class of neither loop lets a leader stay unreaped,
and both start threads or watchers that are not needed here.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import anyio
import anyio.to_thread

from ...config.command_faults import file_of, why_no_program, why_not_found, why_not_run
from ...config.model import ServerDefinition
from ...protocol.errors import ConnectFailed, FailureKind
from ..backend import Backend
from ..fork import inert_in_forks, let_go
from ._guard_program import children_of, open_pidfd

_FIRST_LOOK = 0.001  # seconds between two looks at a group that is ending; doubled each time, up to
_LAST_LOOK = 0.02


class Child:
    """One running (or dead but unreaped) leader of a session of its own, and its group. Its pipes, if it has any, do
    not block. A server is started by `start_child`."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid: int = popen.pid
        self.stdin: Any = popen.stdin
        self.stdout: Any = popen.stdout
        self.stderr: Any = popen.stderr
        self._seen_dead = False
        self._pidfd = open_pidfd(popen.pid)
        self._pipes = [pipe for pipe in (self.stdin, self.stdout, self.stderr) if pipe is not None]
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        inert_in_forks(self)

    @property
    def is_reaped(self) -> bool:
        return self._popen.returncode is not None

    @property
    def exit_code(self) -> int | None:
        """The leader's exit code, or minus the signal that ended it; None while it runs, or where it cannot be known
        before it is reaped."""
        if self.is_reaped:
            return self._popen.returncode
        return _peek_exit_code(self.pid)

    @property
    def is_dead(self) -> bool:
        """Whether the leader has ended, reaped or not."""
        return self._seen_dead or self.exit_code is not None

    async def wait_exit(self, backend: Backend) -> None:
        """Wait until the leader is dead; it stays a zombie."""
        if self._pidfd is not None:
            await backend.read_forever(self._pidfd, lambda: False)
        else:
            await anyio.to_thread.run_sync(_block_until_exit, self.pid, abandon_on_cancel=True)
        self._seen_dead = True

    def signal_group(self, number: int) -> None:
        """Signal the whole group. Does nothing once the leader has been reaped: the id may belong to another group."""
        if not self.is_reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def reap(self) -> None:
        """Reap the leader if it is dead. Before, kill its group and tell the guard, which might signal the group."""
        self._popen.poll()

    def block_until_dead(self, seconds: float) -> None:
        """Block until a killed leader is dead, for a `finally` that may not await. The leader stays a zombie."""
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll(seconds * 1000)
            return
        deadline = time.monotonic() + seconds
        while not self.is_dead and time.monotonic() < deadline:
            time.sleep(_LAST_LOOK)

    async def wait_group_gone(self, seconds: float) -> bool:
        """Wait, at most so long, until only zombies are left of the group (pid 1 may reap them late). Returns whether
        that is so. Call it when the group was killed and the leader reaped."""
        look, until = _FIRST_LOOK, anyio.current_time() + seconds
        while group_lives(self.pid):
            left = until - anyio.current_time()
            if left <= 0:
                return False
            await anyio.sleep(min(look, left))
            look = min(2 * look, _LAST_LOOK)
        return True

    def disown(self) -> None:
        """In a forked process: count the child as reaped, so that we neither signal it nor wait for it."""
        self._popen.returncode = 0
        open_pipes = [pipe.fileno() for pipe in self._pipes if not pipe.closed]
        let_go(self._pidfd, *open_pipes)

    def close(self) -> None:
        """Close every descriptor. Idempotent."""
        for pipe in self._pipes:
            pipe.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def start_child(definition: ServerDefinition, environment: Mapping[str, str]) -> Child:
    """Start what the definition names. Raises `ConnectFailed` that says why it cannot and what to do."""
    assert definition.command is not None
    try:
        popen = subprocess.Popen(
            [definition.command, *definition.args],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=definition.cwd,
            env=dict(environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        path = environment.get("PATH")
        is_lasting = isinstance(error, _LASTING) or getattr(error, "errno", None) == errno.ENOEXEC
        why = _why_not(definition, error, path)
        raise ConnectFailed(
            why, server=definition.name, is_lasting=is_lasting, kind=FailureKind.PROGRAM
        ) from None
    return Child(popen)


_LASTING = (FileNotFoundError, NotADirectoryError, PermissionError)


def _why_not(definition: ServerDefinition, error: OSError | ValueError, path: str | None) -> str:
    command, cwd = definition.command or "", definition.cwd
    if cwd is not None and not os.path.isdir(cwd):
        return f'its working directory "{cwd}" does not exist. Create it, or change "cwd".'
    if isinstance(error, FileNotFoundError):
        missing = f'command "{command}" was not found. Install it, or give its full path in "command".'
        return str(why_not_found(command, definition.args, cwd, path) or missing)
    file = file_of(command, cwd, path)
    if isinstance(error, PermissionError):
        may_not = f'"{command}" may not be executed. Make it executable (chmod +x), or correct "command".'
        return str(why_not_run(file or command) or may_not)
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return str(why_no_program(command, file))
    return f'{error}. Check its "command", "args" and "env".'


def _peek_exit_code(pid: int) -> int | None:
    if not hasattr(os, "waitid"):
        return None
    with suppress(ChildProcessError):
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
    return None


def _block_until_exit(pid: int) -> None:
    """Runs in a thread where there is no pidfd. It waits for the leader's exit and leaves the zombie."""
    if sys.platform == "darwin":  # `os.waitid` exists there only since Python 3.13
        with closing(select.kqueue()) as queue, suppress(ProcessLookupError):
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            queue.control([event], 1)
    else:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def group_lives(pgid: int) -> bool:
    """Whether a member that is not a zombie is left. The cheap check comes first: nearly always nobody is left."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not os.path.isdir("/proc/self") or any(_lives_in(pgid, name) for name in os.listdir("/proc"))


def _lives_in(pgid: int, name: str) -> bool:
    if not name.isdigit():
        return False
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            state, _, group = file.read().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(group) == pgid and state not in (b"Z", b"X")


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number itself where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tree_signs(pid: int) -> object:
    """The processes in the tree of `pid` and the processor time that each has used. Compare it with an earlier result:
    when they differ, the tree works.

    Where the system does not tell, each result differs from every other, as if the tree worked.
    """
    if not os.path.exists("/proc/self/task"):
        return object()
    found: dict[int, bytes] = {}
    to_see = [pid]
    while to_see:
        one = to_see.pop()
        with suppress(OSError):  # it has ended meanwhile
            found[one] = _times_of(one)
            to_see += [child for child in children_of(one) if child not in found]
    return found


def _times_of(pid: int) -> bytes:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return b" ".join(fields[11:13])  # utime, stime
