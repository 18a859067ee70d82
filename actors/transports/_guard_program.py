"""The guard's own program. It is run with `python -I -S`, so it may import the standard library and nothing of
Greenroom. Every room starts one, so at its start it imports only modules that are built in or written in C: `socket`,
`signal` and `contextlib` would triple the processor time of its start. `guard` starts it from its compiled form.

    _guard_program.py RUN_TAG OWNER_PID        fd 0: the lifeline, a stream socket to the owner

Lines on the lifeline: `+pgid` and `-pgid` keep the list of groups. `?TAG` comes with a descriptor. It means: kill every
process that carries TAG in its environment, and write their number to that descriptor. `=pid` asks for a cgroup around
the server with this process, which `-pid` ends. When the lifeline closes or the owner ends, the guard kills every group
on the list and every cgroup. Then it kills every process that carries the run's tag, until it finds no more.

`!NANOSECONDS` names a time of the system's monotonic clock, which is the same in all processes. From then on the guard
kills all this while the owner lives, too, whether the owner runs or is stopped, and whatever else it starts, until it
names a later time (or none, `!`).

The cgroups are made here, after the server has started, because the kernel may take tens of milliseconds to move a
process: here only the guard waits. What the server has forked by then is moved too, unless it has left its parent.

The guard ignores the signals that ask its owner to end, because the guard must end last. Its own environment is empty,
so that no sweep can hit it, neither our own nor that of a room in which we ourselves run.
"""

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
else:
    import _signal as signal
    import _socket as socket

CHUNK = 65_536
FDS = 32
ROUNDS = 50  # of one sweep; more rounds mean a fork bomb, which is left to the last sweep
QUIET = 3  # sweeps in a row that must find nothing once the owner was killed: its children may be forking
PAUSE = 0.05  # seconds between those sweeps
DEATH = 0.5  # seconds in which a killed process should be dead
LOOK = 50  # milliseconds between two looks at cgroups that are ending, and
FIRST_LOOK = 0.001  # seconds while somebody waits for them
LONGEST = 3_600_000  # milliseconds that one `poll` waits: it takes no numbers of any size


def main(run_tag: bytes, owner: int) -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    lifeline = Lifeline(socket.socket(fileno=0))
    cgroups = Cgroups(own_cgroup(), os.fsdecode(run_tag.partition(b"=")[2]), owner)
    watch = select.poll()
    watch.register(0, select.POLLIN)
    owner_fd = open_pidfd(owner)
    if owner_fd is not None:
        watch.register(owner_fd, select.POLLIN)
    ended = False
    while not ended:
        ended = any(fd == owner_fd for fd, _ in watch.poll(sooner(cgroups.patience(), lifeline.patience())))
        ended = not lifeline.listen() or ended
        if lifeline.is_time_over():
            cgroups.kill_all()
            lifeline.found(kill_tagged(lifeline.groups, run_tag))
        cgroups.follow(lifeline.take_servers())
        requests = lifeline.take_requests()
        if requests:
            cgroups.wait_ended()
        answer(requests)
        cgroups.work()
    cgroups.end_all()
    last_sweep(lifeline.groups, run_tag, owner_is_gone=os.getppid() != owner)
    cgroups.wait_ended()


def sooner(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


class Lifeline:
    """Reads the lifeline and keeps what the owner has told us."""

    def __init__(self, channel: socket.socket) -> None:
        self.groups: set[int] = set()
        self._ends: int | None = None  # when everything is killed though the owner lives, in nanoseconds
        self._quiet = 0  # looks in a row after that which found nothing
        self._servers: list[tuple[bytes, int]] = []
        self._channel = channel
        channel.setblocking(False)
        self._rest = b""
        self._fds: list[int] = []
        self._requests: dict[bytes, list[int]] = {}

    def listen(self) -> bool:
        """Read all there is. False: the owner closed the lifeline."""
        while True:
            try:
                data, fds = receive(self._channel)
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

    def patience(self) -> int | None:
        """Milliseconds after which everything has to be killed, or to be looked for again; None: nothing is to do."""
        if self._ends is None or self._quiet == QUIET:
            return None
        left = self._ends - time.monotonic_ns()
        return min(-(-left // 1_000_000), LONGEST) if left > 0 else int(PAUSE * 1000)

    def is_time_over(self) -> bool:
        return self._ends is not None and time.monotonic_ns() >= self._ends

    def found(self, any_more: bool) -> None:
        """Whether a look after the time was over found processes to kill."""
        self._quiet = 0 if any_more else min(self._quiet + 1, QUIET)

    def take_requests(self) -> dict[bytes, list[int]]:
        requests, self._requests = self._requests, {}
        return requests

    def take_servers(self) -> list[tuple[bytes, int]]:
        """The servers that have started (`=`) and ended (`-`) since the last time, in order."""
        servers, self._servers = self._servers, []
        return servers

    def _obey(self, verb: bytes, rest: bytes) -> None:
        self._quiet = 0
        if verb == b"+":
            self.groups.add(int(rest))
        elif verb == b"-":
            self.groups.discard(int(rest))
            self._servers.append((verb, int(rest)))
        elif verb == b"=":
            self._servers.append((verb, int(rest)))
        elif verb == b"!":
            self._ends = int(rest) if rest else None
        elif verb == b"?":
            self._requests.setdefault(rest, []).append(self._fds.pop(0))


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """What has arrived, with its descriptors. Raises `OSError`."""
    data, ancillary, _, _ = channel.recvmsg(CHUNK, socket.CMSG_SPACE(4 * FDS))
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += memoryview(content[: len(content) // 4 * 4]).cast("i")
    return data, fds


class suppress:  # noqa: N801 (like contextlib's)
    """Like `contextlib.suppress`."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)


class Cgroups:
    """A cgroup for each server, in one folder for the room, below the cgroup `home` that we are in ourselves.

    No process leaves its cgroup by `setsid`, by a double fork or by emptying its environment, and `cgroup.kill` (Linux
    5.14) ends all of it at once. Where we may make none, nothing here does anything, and the groups and the sweeps do
    what they can. A guard that replaces another finds the cgroups by their names.
    """

    def __init__(self, home: str | None, run_id: str, owner: int) -> None:
        self._home = home
        self._folder = f"{home}/greenroom-{run_id}"
        self._owner = owner
        self._joining: list[int] = []
        self._ending: set[str] = set()
        if home is not None:
            remove_left_over(home)

    def patience(self) -> int | None:
        """Milliseconds after which there is something to do here; None: nothing."""
        return 0 if self._joining else LOOK if self._ending else None

    def follow(self, servers: list[tuple[bytes, int]]) -> None:
        """Take in which servers have started and ended."""
        for verb, pid in servers if self._home is not None else ():
            if verb == b"=":
                self._joining.append(pid)
                continue
            self._joining = [one for one in self._joining if one != pid]
            if os.path.isdir(folder := f"{self._folder}/{pid}"):
                end_cgroup(folder)
                self._ending.add(folder)

    def work(self) -> None:
        """Move one server that waits into its cgroup, and remove those that are over."""
        self._remove()
        if self._joining:
            pid = self._joining.pop(0)
            folder = f"{self._folder}/{pid}"
            with suppress(OSError):
                os.makedirs(folder, exist_ok=True)
                if os.path.exists(f"{folder}/cgroup.kill"):
                    self._move_tree(pid, folder)
                else:
                    remove_cgroup(self._folder)

    def wait_ended(self) -> None:
        """Wait until the ended servers are dead, for a bounded time."""
        deadline = time.monotonic() + DEATH
        while self._ending and time.monotonic() < deadline:
            self._remove()
            if self._ending:
                select.select([], [], [], FIRST_LOOK)
        self._ending.clear()  # what is left is removed when the room ends

    def kill_all(self) -> None:
        """Kill what is in them. They stay."""
        if os.path.isdir(self._folder):
            end_cgroup(self._folder)

    def end_all(self) -> None:
        if os.path.isdir(self._folder):
            end_cgroup(self._folder)
            self._ending.add(self._folder)

    def _remove(self) -> None:
        self._ending = {folder for folder in self._ending if not remove_cgroup(folder)}

    def _move_tree(self, leader: int, folder: str) -> None:
        to_move = [(leader, self._owner)]
        seen: set[int] = set()
        while to_move:
            pid, parent = to_move.pop()
            if pid not in seen:
                seen.add(pid)
                self._move(pid, parent, folder)
                to_move += [(child, pid) for child in children_of(pid)]

    def _move(self, pid: int, parent: int, folder: str) -> None:
        """Move a child of `parent`. Another process that has got its id is never left in there."""
        fd = open_pidfd(pid)
        if fd is None:
            return
        with suppress(OSError):
            fields = stat_of(pid)
            if fields and int(fields[1]) == parent:
                write(f"{folder}/cgroup.procs", pid)
                if select.select([fd], [], [], 0)[0]:  # it ended meanwhile
                    write(f"{self._home}/cgroup.procs", pid)
        os.close(fd)


def own_cgroup() -> str | None:
    """The folder of the cgroup (v2) that we are in; None when we may make none there."""
    try:
        with open("/proc/self/cgroup") as file:
            ours = next(line[3:].rstrip("\n") for line in file if line.startswith("0::"))
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split()[3:5] for line in file if " - cgroup2 " in line]
        root, point = next(each for each in mounts if f"{ours}/".startswith(f"{each[0].rstrip('/')}/"))
    except (OSError, StopIteration):
        return None
    home = os.path.normpath(f"{point}/{ours[len(root.rstrip('/')) :]}")
    return home if os.access(home, os.W_OK) and is_delegated(home, point) else None


def is_delegated(home: str, point: str) -> bool:
    """Whether this part of the tree is not systemd's. For a user the rights say so, but root may write anywhere."""
    if os.geteuid() != 0 or not os.path.isdir("/run/systemd/system"):
        return True
    while len(home) > len(point):
        with suppress(OSError):
            if os.getxattr(home, "trusted.delegate") == b"1":
                return True
        home = os.path.dirname(home)
    return False


def end_cgroup(folder: str) -> None:
    with suppress(OSError):
        write(f"{folder}/cgroup.kill", 1)


def remove_cgroup(folder: str) -> bool:
    """Remove what is empty of it. True: nothing is left."""
    for each, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            os.rmdir(each)
    return not os.path.isdir(folder)


def remove_left_over(home: str) -> None:
    """Remove the empty cgroups of rooms that are gone, and whose guards were killed with them."""
    with suppress(OSError):
        for name in os.listdir(home):
            pid = name.removeprefix("greenroom-").partition("-")[0]
            if name.startswith("greenroom-") and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                remove_cgroup(f"{home}/{name}")


def write(path: str, number: int) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(b"%d" % number)


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
    kill_groups(groups)
    quiet = 0
    while quiet < (QUIET if owner_is_gone else 1):
        quiet = 0 if sweep({run_tag}) else quiet + 1
        if owner_is_gone:
            select.select([], [], [], PAUSE)


def kill_tagged(groups: set[int], run_tag: bytes) -> bool:
    """Kill the groups, and what carries the tag. Returns whether any did."""
    kill_groups(groups)
    return bool(sweep({run_tag}))


def kill_groups(groups: set[int]) -> None:
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


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


def stat_of(pid: int) -> list[bytes]:
    """The kernel's fields about the process, from its state on; empty when it is gone. Greenroom uses these, too."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """The children of a process. A child is listed under the thread that made it. Empty where the system does not
    tell."""
    children: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += [int(child) for child in file.read().split()]
    return children


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
