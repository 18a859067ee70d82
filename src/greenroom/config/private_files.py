"""Opens our files, folders and sockets, and refuses what another user of the machine put in their place.

All rooms except the pure one may use this module. It imports only the standard library, so that a command which only
asks a running gateway loads nothing else.

A file is checked after it was opened, so nobody can swap it in between. It must be a regular file that belongs to us or
root, and nobody else may write to it. A link at the end of the path is not followed. Nothing here waits: a pipe that
nobody reads is an error. A folder of sockets is ours alone (0700). A socket in it is bound and reached through the
descriptor of that folder, so it is always that folder, whatever happens to its path, and however long the path is. The
kernel tells who is at the other end of a socket. Where it cannot tell, nobody is let in.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from ..protocol import bounds

OURS_ALONE: Final = 0o077  # the rights that others must not have on a private folder
WRITABLE: Final = 0o022  # the rights of others to write
_OPEN: Final = sum(
    getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
)
_LINKS_OF_THE_SYSTEM: Final = ("/dev/stdout", "/dev/stderr")  # and /dev/fd/N: a shell's >(…)
_LONGEST_ADDRESS: Final = 100  # bytes of a socket's path that every system accepts
_ROOT: Final = 0
_LOOKS: Final = 500
_BETWEEN: Final = 0.01  # seconds


class NotOurs(OSError):
    """Something of another user, or of another kind, is where our file, folder or socket should be."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(errno.EPERM, why, os.fspath(path) if isinstance(path, str | Path) else None)


# ---- files -----------------------------------------------------------------------------------------------------------
def open_own(path: str | os.PathLike[str], flags: int, *, is_named: bool = False) -> int:
    """A descriptor of our file at `path`; if `flags` create the file, its mode is 0600. Never waits, never follows a
    link, and the descriptor is not inherited.

    `is_named`: a person named the file for us to write to, so it may also be our own pipe, or a device. Raises
    `OSError`.
    """
    path = os.fspath(path)
    is_link = is_named and (path in _LINKS_OF_THE_SYSTEM or os.path.dirname(path) == "/dev/fd")
    how = (flags & ~os.O_TRUNC) | (_OPEN & ~getattr(os, "O_NOFOLLOW", 0) if is_link else _OPEN)
    try:
        descriptor = os.open(path, how, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotOurs(path, "it is a link: put a file there, or name the file it leads to") from None
        raise
    try:
        found = os.fstat(descriptor)
        _check(path, found, is_read=flags & (os.O_WRONLY | os.O_RDWR) == 0, is_named=is_named)
        if flags & os.O_TRUNC and stat.S_ISREG(found.st_mode):
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_own(path: str | os.PathLike[str]) -> bytes:
    """The content of our file at `path`. Raises `FileNotFoundError`, `NotOurs` or another `OSError`."""
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read()


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file, at most `most` bytes. It may belong to anybody and be reached through links.
    Raises `OverflowError` when it is longer, `NotOurs` for a pipe or a device, or another `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | _OPEN & ~getattr(os, "O_NOFOLLOW", 0))
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise NotOurs(os.fspath(path), "it is not a regular file")
    with open(descriptor, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OverflowError(f"more than {most} bytes")
    return data


def why_not_read(error: OSError | ValueError) -> str:
    """Why a file of text that a person named cannot be read, in words that follow its name, and what to do."""
    match error:
        case FileNotFoundError():
            return "does not exist: create it, or name another file"
        case IsADirectoryError():
            return "is a directory: name the file in it"
        case NotOurs():
            return "is not a regular file: name the file itself"
        case UnicodeDecodeError():
            return f"is not UTF-8 (byte {error.start}): save it as UTF-8"
        case OSError():
            return f"cannot be read ({error.strerror or 'system error'})"
        case _:  # a NUL in the path
            return "cannot be read (it is not a path)"


def _check(path: str, found: os.stat_result, *, is_read: bool, is_named: bool) -> None:
    kind = found.st_mode
    if not stat.S_ISREG(kind) and not (is_named and (stat.S_ISFIFO(kind) or stat.S_ISCHR(kind))):
        raise NotOurs(path, "it is not a regular file: remove it")
    if stat.S_ISCHR(kind) or not hasattr(os, "geteuid"):
        return
    if found.st_uid not in (os.geteuid(), _ROOT):
        raise NotOurs(path, "it belongs to another user: remove it, or choose another place")
    if is_read and kind & WRITABLE:
        raise NotOurs(path, "others may write to it: remove it, or forbid that (chmod go-w)")


@contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """A new file (0600) beside `path`, to be written in the block, and then put in the place of `path` in one step. If
    the block raises, `path` stays as it was."""
    with _made_beside(path) as file:
        try:
            yield file
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise


def _made_beside(path: Path) -> IO[bytes]:
    beside = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        return open(os.fspath(beside), "xb", opener=_open_for_owner)
    except OSError as error:  # it names a file that nobody knows; what cannot be used is the folder
        raise OSError(error.errno, error.strerror, os.fspath(path.parent)) from None


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | _OPEN, 0o600)


# ---- folders ---------------------------------------------------------------------------------------------------------
def make_own_folder(path: Path, *, denied: int = OURS_ALONE) -> None:
    """Make the folder `path` and missing folders above it, 0700. Raises `NotOurs` when it belongs to another user, or
    grants others any right of `denied`."""
    make_folder(path)
    os.close(open_own_folder(path, denied=denied))


def make_folder(path: Path) -> None:
    """Make the folder `path` and missing folders above it, 0700. Existing folders stay unchanged. Raises `OSError`."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if path == path.parent:
            raise
        make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise NotOurs(path, "it must be a directory: remove it and try again") from None


def open_own_folder(path: Path, *, denied: int = OURS_ALONE) -> int:
    """Open a folder of ours, and return its descriptor. Raises `NotOurs` for a link, for what is no folder or not our
    user's, and where others have one of the rights `denied`; or another `OSError`."""
    flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _OPEN
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.lexists(path):
            raise NotOurs(path, "it must be a directory and not a link: remove it and try again") from None
        raise
    found = os.fstat(descriptor)
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & denied):
        os.close(descriptor)
        mode = f" of mode {0o777 & ~denied:04o} or less"
        raise NotOurs(path, f"it must be a directory{mode} of your own: remove it and try again")
    return descriptor


# By the variable of the standard that names another one: where a user's programs keep what they have, on Linux and
# on macOS. Windows has one folder for all of it.
_USUAL: Final = {
    "XDG_CACHE_HOME": (".cache", "Library/Caches"),
    "XDG_STATE_HOME": (".local/state", "Library/Application Support"),
    "XDG_DATA_HOME": (".local/share", "Library/Application Support"),
}


def config_home(home: Path, environ: Mapping[str, str]) -> Path:
    """Where the programs of the user whose home is `home` keep their settings."""
    return _named(environ.get("XDG_CONFIG_HOME")) or home / ".config"


def cache_folder() -> Path:
    """Our folder of what can be made again."""
    folder = _user_folder("XDG_CACHE_HOME") / "greenroom"
    return folder / "Cache" if sys.platform == "win32" else folder


def state_folder() -> Path:
    """Our folder of what is worth keeping, and belongs to this machine."""
    return _user_folder("XDG_STATE_HOME") / "greenroom"


def data_folder() -> Path:
    """Our folder of what belongs to the user, such as logins."""
    return _user_folder("XDG_DATA_HOME") / "greenroom"


def _user_folder(variable: str) -> Path:
    if named := _named(os.environ.get(variable)):
        return named
    if sys.platform == "win32":
        return _named(os.environ.get("LOCALAPPDATA")) or Path.home() / "AppData" / "Local"
    return Path.home() / _USUAL[variable][sys.platform == "darwin"]


def _named(folder: str | None) -> Path | None:
    """A folder that is not absolute does not count, says the standard."""
    return Path(folder) if folder and os.path.isabs(folder) else None


def refused(error: OSError) -> str:
    """What the system refused, and what to do."""
    if not isinstance(error.filename, str):
        return f"the system refused: {error.strerror or error}."
    return f"{error.filename} cannot be used: {error.strerror}. {other_folder(error.filename)}"


@contextmanager
def alone(path: Path) -> Generator[None]:
    """Wait until no other command of ours changes a file in the folder of `path`, so that what it has written is read
    first. The folder is locked, so nothing is left. Where that cannot be (Windows, some file systems), or another
    keeps it for long, go on."""
    folder = next(each for each in Path(os.path.realpath(path)).parents if each.is_dir())
    with ExitStack() as stack:
        if sys.platform != "win32":
            with suppress(OSError):
                lock = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, lock)
                _wait_for(lock)
        yield


def _wait_for(lock: int) -> None:
    import fcntl

    for _ in range(_LOOKS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_BETWEEN)
        else:
            return


def can_be_written(folder: Path) -> bool:
    """Whether files can be made in the folder `folder`, which need not exist yet."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def other_folder(path: str | os.PathLike[str]) -> str:
    """What to do when our file or folder at `path` cannot be used: the next step, as a sentence."""
    folders = {
        "XDG_CACHE_HOME": _user_folder("XDG_CACHE_HOME"),
        "XDG_CONFIG_HOME": config_home(Path.home(), os.environ),
        "XDG_STATE_HOME": _user_folder("XDG_STATE_HOME"),
        "XDG_DATA_HOME": _user_folder("XDG_DATA_HOME"),
    }
    place, home = Path(path), Path.home()
    near = (name for name, folder in folders.items() if place.is_relative_to(folder))
    above = (name for name, folder in folders.items() if place != home and folder.is_relative_to(place))
    name = next(near, None) or (next(above, None) if place.is_relative_to(home) else None)
    if name is None:
        return "Make it a file or a folder of your own that you can write to."
    folder = path if os.path.isdir(path) else folders[name]
    return f"Make {os.fspath(folder)} a folder that you can write to, or name another one in {name}."


# ---- sockets ---------------------------------------------------------------------------------------------------------
def reaches_long_paths() -> bool:
    """Whether a socket can be reached through its folder's descriptor, however long its path is."""
    return sys.platform == "linux" and os.path.isdir("/proc/self/fd")


@contextmanager
def socket_in(folder: Path) -> Generator[tuple[int, str]]:
    """Our folder of sockets: its descriptor, and the prefix for the name of a socket in it, to bind or to connect.

    Raises `NotOurs`, or another `OSError`.
    """
    descriptor = open_own_folder(folder)
    try:
        place = f"/proc/self/fd/{descriptor}" if reaches_long_paths() else os.fspath(folder)
        yield descriptor, place + os.sep
    finally:
        os.close(descriptor)


def bind_own(path: Path, backlog: int) -> socket.socket:
    """A socket of ours (0600) that listens at `path`, in a folder of ours, in place of whatever is there. It does not
    block. Raises `NotOurs`, or another `OSError`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        with socket_in(path.parent) as (folder, prefix):
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=folder)
            listener.bind(prefix + path.name)
            os.chmod(path.name, 0o600, dir_fd=folder)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def fits_socket(folder: Path, longest_name: str) -> bool:
    """Whether a socket with such a name can be in `folder`."""
    return reaches_long_paths() or len(os.fsencode(folder / longest_name)) <= _LONGEST_ADDRESS


def check_peer(line: socket.socket, *, or_root: bool = False) -> None:
    """Raises `NotOurs` unless the process at the other end of a unix socket runs as our own user (or as root)."""
    uid = peer_uid(line)
    if uid is None or (uid != os.geteuid() and not (or_root and uid == _ROOT)):
        who = "its user is unknown" if uid is None else f"it runs as user {uid}"
        raise NotOurs(None, f"the process at the other end of the socket is not yours: {who}")


def peer_uid(line: socket.socket) -> int | None:
    """The user of the process at the other end of a unix socket. None: the system does not say."""
    with suppress(OSError, struct.error):
        if sys.platform == "linux":
            _, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return uid
        if sys.platform == "darwin":  # struct xucred: version, uid, how many groups, 16 of them
            sol_local, local_peercred = 0, 1
            _, uid = struct.unpack_from("2I", line.getsockopt(sol_local, local_peercred, 76))
            return uid
    return None


def peer_pid(line: socket.socket) -> int | None:
    """The process at the other end of a unix socket: the one that listened. None: the system does not say."""
    with suppress(OSError, struct.error):
        if sys.platform == "linux":
            return struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        if sys.platform == "darwin":
            sol_local, local_peerpid = 0, 2
            return struct.unpack("i", line.getsockopt(sol_local, local_peerpid, 4))[0]
    return None


# ---- A file that several rooms write: read, changed and replaced whole, under a lock --------------------------------
#
# Reading takes no lock, because the file is only ever replaced in one step. A file that is not ours (torn, of another
# version, or put there by another user of the machine) is set aside, not deleted. There is no fsync: after a power
# failure the file is the old one or unreadable. Everything here blocks; call it from a thread.

LOCK_TIMEOUT: Final = 5.0
MAX_BROKEN: Final = 5  # files set aside and kept; the last one is replaced


class BrokenFile(Exception):
    """The file is not one that Greenroom wrote. The text says why."""


class LockedFile:
    """The file at `path`, changed under a lock. A writer waits at most `lock_timeout` seconds for another."""

    def __init__(self, path: Path, lock_timeout: float = LOCK_TIMEOUT) -> None:
        self.path = path
        self.lock_timeout = lock_timeout

    def read(self) -> bytes:
        """The file's bytes; none if there is no file. Raises `OSError`, and `BrokenFile` for something that another
        user may have put there, or that is not a file."""
        try:
            size = self.path.lstat().st_size
            data = read_own(self.path) if size <= bounds.CACHE_BYTES else b""
        except FileNotFoundError:
            return b""
        except NotOurs as error:
            raise BrokenFile(f"is not used ({(error.strerror or '').partition(':')[0]})") from None
        if size > bounds.CACHE_BYTES:
            raise BrokenFile(f"has more than {bounds.CACHE_BYTES:,} bytes")
        return data

    def replace(self, data: bytes | Iterable[bytes]) -> None:
        """Replace the file in one step, readable for its owner only. `data`: its content, or the pieces of that, which
        are written one by one. Only under the lock."""
        self._sweep()
        with replacing(self.path) as file:
            file.writelines((data,) if isinstance(data, bytes) else data)

    def set_aside(self) -> str:
        """Move a broken file out of the way. Returns its new name. Only under the lock."""
        names = [self.path.with_name(f"{self.path.name}.broken-{n}") for n in range(1, MAX_BROKEN + 1)]
        aside = next((name for name in names if not name.exists()), names[-1])
        os.replace(self.path, aside)
        return aside.name

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the writers' lock. Raises `TimeoutError`, an `OSError`, when the lock is not free in time. In a worker
        thread whose task is cancelled it raises that cancellation, so a writer that hangs holds up nobody who ends."""
        from filelock import FileLock

        place = self.path.with_name(self.path.name + ".lock")
        os.close(open_own(place, os.O_RDWR | os.O_CREAT))  # no link, no pipe, nobody else's to hold for ever
        lock = FileLock(place, timeout=self.lock_timeout, mode=0o600)
        with lock.acquire(poll_interval=0.01, cancel_check=_check_cancelled):
            yield

    def _sweep(self) -> None:
        """Remove files that killed writers left. No temporary file is in use while the lock is held."""
        for leftover in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            with suppress(OSError):
                leftover.unlink()


def _check_cancelled() -> bool:
    """False; raises in a worker thread whose task was cancelled."""
    from anyio import from_thread  # a command that only reads the file has no threads, and starts without it

    with suppress(RuntimeError):  # this is not a worker thread
        from_thread.check_cancelled()
    return False
