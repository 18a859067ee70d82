"""The guard's own program. It is run by path with `python -I -S`, so it may import the standard library and
nothing of ours.

    _guard_main.py RUN_TAG OWNER_PID        fd 0: the lifeline, a stream socket to the owner

Lines on the lifeline: `+pgid` and `-pgid` keep the list of groups. `?TAG` is sent with a descriptor: kill every
process that carries TAG in its environment, and write their number to that descriptor. When the lifeline ends, or
the owner does, the guard kills every group on the list, then whatever carries the run's tag, until it finds
nothing more.

The guard ignores the polite signals that end its owner, because it must be the last to end. Its own environment is
empty, so that no sweep can hit it, whether ours or one of a room that we ourselves run in.
"""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

CHUNK = 65_536
FDS = 32
ROUNDS = 50  # of one sweep: more is a fork bomb, left to the last sweep
QUIET = 3  # sweeps without a find, once the owner was killed: its children may be forking
PAUSE = 0.05
DEATH = 0.5  # seconds until what was killed must be dead


def main(run_tag: bytes, owner: int) -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    lifeline = Lifeline(socket.socket(fileno=0))
    watch = select.poll()
    watch.register(0, select.POLLIN)
    owner_fd = open_pidfd(owner)
    if owner_fd is not None:
        watch.register(owner_fd, select.POLLIN)
    ended = False
    while not ended:
        ended = any(fd == owner_fd for fd, _ in watch.poll())
        ended = not lifeline.listen() or ended
        answer(lifeline.take_requests())
    last_sweep(lifeline.groups, run_tag, owner_is_gone=os.getppid() != owner)


class Lifeline:
    """What the owner has told us so far."""

    def __init__(self, channel: socket.socket) -> None:
        self.groups: set[int] = set()
        self._channel = channel
        channel.setblocking(False)  # the flags of `recv_fds` are ignored
        self._rest = b""
        self._fds: list[int] = []
        self._requests: dict[bytes, list[int]] = {}

    def listen(self) -> bool:
        """Read all there is. False: the owner closed the lifeline."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._channel, CHUNK, FDS)
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._fds += fds
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._obey(line[:1], line[1:])
            if not data:
                return False

    def take_requests(self) -> dict[bytes, list[int]]:
        requests, self._requests = self._requests, {}
        return requests

    def _obey(self, verb: bytes, rest: bytes) -> None:
        if verb == b"+":
            self.groups.add(int(rest))
        elif verb == b"-":
            self.groups.discard(int(rest))
        elif verb == b"?":
            self._requests.setdefault(rest, []).append(self._fds.pop(0))


def answer(requests: dict[bytes, list[int]]) -> None:
    """Sweep for all the tags at once, then answer each."""
    if not requests:
        return
    killed = sweep(set(requests))
    for tag, fds in requests.items():
        for fd in fds:
            with suppress(OSError):  # the asker may be gone
                os.write(fd, b"%d" % killed.get(tag, 0))
            os.close(fd)


def last_sweep(groups: set[int], run_tag: bytes, *, owner_is_gone: bool) -> None:
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    quiet = 0
    while quiet < (QUIET if owner_is_gone else 1):
        quiet = 0 if sweep({run_tag}) else quiet + 1
        if owner_is_gone:
            select.select([], [], [], PAUSE)


def sweep(tags: set[bytes]) -> dict[bytes, int]:
    """Kill what carries one of the tags. Look again for what was born meanwhile, until nothing was.

    Returns how many processes carried each tag, when they are dead.
    """
    killed: dict[bytes, int] = {}
    seen: set[str] = set()
    dying: list[int] = []
    for _ in range(ROUNDS):
        born = processes() - seen
        if not born:
            break
        seen |= born
        for name in born:
            tag = tag_of(name, tags)
            if tag is not None and (fd := kill(name, tags)) is not None:
                killed[tag] = killed.get(tag, 0) + 1
                dying.append(fd)
    wait_dead(dying)
    return killed


def wait_dead(pidfds: list[int]) -> None:
    deadline = time.monotonic() + DEATH
    for fd in pidfds:
        select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        os.close(fd)


def processes() -> set[str]:
    try:
        return {name for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        return set()  # no /proc here: groups are all we can reach


def tag_of(name: str, tags: set[bytes]) -> bytes | None:
    try:
        with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
            environ = file.read()
    except OSError:
        return None  # it has ended, or is another user's, or the kernel's
    for tag in tags:
        if tag in environ and tag in environ.split(b"\0"):
            return tag
    return None


def kill(name: str, tags: set[bytes]) -> int | None:
    """Kill it through a descriptor, so that a recycled pid is never hit: only what carries the tag is killed.

    Returns the descriptor; None if it was not killed after all.
    """
    fd = open_pidfd(int(name))
    if fd is None:
        return None
    try:
        if tag_of(name, tags) is not None:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return fd
    except OSError:
        pass  # it has already ended
    os.close(fd)
    return None


def open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    main(os.fsencode(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
