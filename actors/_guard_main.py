"""The guard's own program. It is run by path with `python -I -S`, so it may import the standard library and
nothing of Greenroom.

    _guard_main.py RUN_TAG OWNER_PID        fd 0: the lifeline, a stream socket to the owner

Lines on the lifeline: `+pgid` and `-pgid` keep the list of groups. `?TAG` comes with a descriptor. It means: kill every
process that carries TAG in its environment, and write their number to that descriptor. When the lifeline closes or the
owner ends, the guard kills every group on the list. Then it kills every process that carries the run's tag, until it
finds no more.

The guard ignores the signals that ask its owner to end, because the guard must end last. Its own environment is empty,
so that no sweep can hit it, neither our own nor that of a room in which we ourselves run.
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
ROUNDS = 50  # of one sweep; more rounds mean a fork bomb, which is left to the last sweep
QUIET = 3  # sweeps in a row that must find nothing once the owner was killed: its children may be forking
PAUSE = 0.05  # seconds between those sweeps
DEATH = 0.5  # seconds in which a killed process should be dead


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
    """Reads the lifeline and keeps what the owner has told us."""

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
            with suppress(OSError):  # the reader may be gone
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
    """Kill every process that carries one of the tags. Look again until no new process has appeared meanwhile.

    Waits until they are dead. Returns how many processes carried each tag.
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
        return set()  # no /proc here: we can kill only the groups


def tag_of(name: str, tags: set[bytes]) -> bytes | None:
    try:
        with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
            environ = file.read()
    except OSError:
        return None  # it has ended, or belongs to another user or to the kernel
    for tag in tags:
        if tag in environ and tag in environ.split(b"\0"):
            return tag
    return None


def kill(name: str, tags: set[bytes]) -> int | None:
    """Kill the process through a descriptor, and only if it carries a tag: so a recycled pid is never hit.

    Returns the descriptor; None when the process was not killed after all.
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
    """A descriptor that is readable when the process has ended. Greenroom itself uses this, too.

    None: this is not Linux, its kernel is older than 5.3, or no descriptor is left.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    main(os.fsencode(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
