"""Notices that a file may have changed, without polling.

A `Bell` rings when something happens on the way to one of the given paths: a name is created, moved or
removed in a folder where it is looked up, a folder on the way is moved, or the file itself is written. The
way includes links and missing parts. So the bell notices a file that is created later, and a link that is set
to another folder. It may ring without a change, so look before you act. It notices only what happens after it
was hung, so look at the files after hanging it.

On Linux the kernel reports changes through a descriptor that the loop waits for. That needs no thread, and
nothing wakes up while nothing happens. On other systems the bell rings every two seconds. It also does so
when the kernel grants no watches (a user has 128 instances, and all may be in use). This is logged once, and
the next bell asks for watches again. Rejected: watchfiles, whose thread wakes up five times a second to see
whether it should end, and the program cannot end before that; inotify_simple, which starts a program to find the C
library that this process has already loaded, and keeps a megabyte of modules for it.
"""

from __future__ import annotations

import os
import struct
import sys
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

import anyio

LOOK_AGAIN: Final = 2.0  # seconds between two rings without the kernel's help
_MOST_LINKS: Final = 40  # as many as the system itself follows


class KernelWatch(Protocol):
    """Is told whether the kernel reports changes: an `OptionalPart` of `actors.workers`, a room above this one."""

    def works(self) -> object: ...

    def failed(self, why: OSError, /) -> object: ...


class Bell(Protocol):
    async def rung(self) -> None:
        """Wait until something may have changed."""
        ...


@contextmanager
def hung_at(paths: Collection[Path], kernel_watch: KernelWatch) -> Generator[Bell]:
    """A bell for these absolute paths. `kernel_watch` is told whether the kernel reports changes, on
    systems where it can. Raises nothing."""
    bell: Bell = _ClockBell()
    with ExitStack() as stack:
        try:
            if sys.platform == "linux":
                bell = _KernelBell(stack.enter_context(closing(Inotify())), paths)
                kernel_watch.works()
        except OSError as error:  # too many instances, watches or descriptors
            kernel_watch.failed(error)
        yield bell


def way_to(path: Path) -> Iterator[tuple[str, str]]:
    """Each look-up on the way to an absolute `path`: the real folder, and the name looked up in it. It ends
    at the first missing name, or with the file."""
    here, links = path.anchor, 0
    ahead = [*reversed(path.parts[1:])]
    while ahead:
        name = ahead.pop()
        if name == os.pardir:
            here = os.path.dirname(here)
            continue
        yield here, name
        at = os.path.join(here, name)
        try:
            aim = Path(os.readlink(at))
        except OSError:  # no link, or nothing at all
            if not os.path.lexists(at):
                return
            here = at
            continue
        links += 1
        if links > _MOST_LINKS:
            return
        if aim.anchor:
            here = aim.anchor
        ahead += reversed(aim.parts[1:] if aim.anchor else aim.parts)


class _ClockBell:
    async def rung(self) -> None:
        await anyio.sleep(LOOK_AGAIN)


class _KernelBell:
    """Rings when the kernel reports a change. It watches folders only for names that are missing, that are links, or
    that are the file's own. For another name in a busy folder like /tmp, the folder of that name is watched instead: it
    reports when it is moved itself."""

    def __init__(self, kernel: Inotify, paths: Collection[Path]) -> None:
        """Raises `OSError` when the kernel grants no more watches."""
        self._kernel = kernel
        self._names: defaultdict[int, set[str]] = defaultdict(set)  # by watch; "" is the watched thing itself
        self._is_late = False
        for path in paths:
            self._hang(path)

    def _hang(self, path: Path) -> None:
        for folder, name in way_to(path):
            at = os.path.join(folder, name)
            if os.path.isdir(at) and not os.path.islink(at):
                self._watch(at, _OF_FOLDER, "")
                continue
            self._watch(folder, _OF_NAMES, name)
            # A mounted file is reported by its own watch only.
            if os.path.isfile(at) and not os.path.islink(at):
                self._watch(at, _OF_FILE, "")

    def _watch(self, path: str, mask: int, name: str) -> None:
        try:
            watch = self._kernel.add_watch(path, mask)
        except (FileNotFoundError, NotADirectoryError):
            self._is_late = True  # it has gone since we looked
        except PermissionError:
            return  # we may not read it, so the kernel reports nothing
        else:
            self._names[watch].add(name)

    async def rung(self) -> None:
        if self._is_late:
            return
        while True:
            await anyio.wait_readable(self._kernel)
            if any(self._is_ours(watch, name) for watch, name in self._kernel.read()):
                return

    def _is_ours(self, watch: int, name: str) -> bool:
        """Whether the report is about a watched name. One of an unknown watch counts too, because it means that reports
        were lost."""
        return watch not in self._names or name in self._names[watch]


# See inotify(7), and <sys/inotify.h>.
_ATTRIB: Final = 0x4
_CLOSE_WRITE: Final = 0x8
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_ONLYDIR: Final = 0x1000000
_MASK_ADD: Final = 0x20000000
_OF_NAMES: Final = _CREATE | _MOVED_FROM | _MOVED_TO | _DELETE | _ONLYDIR | _MASK_ADD
_OF_FOLDER: Final = _MOVE_SELF | _DELETE_SELF | _ONLYDIR | _MASK_ADD
_OF_FILE: Final = _CLOSE_WRITE | _ATTRIB | _MASK_ADD
_HEAD: Final = struct.Struct("iIII")  # the watch, what happened, a cookie, the bytes of the name that follows
_AT_ONCE: Final = 65_536  # bytes; one report has 272 at most


class Inotify:
    """What the kernel reports to this process. Raises `OSError` when there are too many of these."""

    def __init__(self) -> None:
        import ctypes

        self._system = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        self._descriptor = self._checked(self._system.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def add_watch(self, path: str, mask: int) -> int:
        """Have what `mask` says of this path reported under the number that is returned. Raises `OSError`."""
        return self._checked(self._system.inotify_add_watch(self._descriptor, os.fsencode(path), mask))

    def read(self) -> Iterator[tuple[int, str]]:
        """The watch and the name of each report that is there."""
        try:
            data = os.read(self._descriptor, _AT_ONCE)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, _, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size + length
            yield watch, os.fsdecode(data[at - length : at].rstrip(b"\0"))

    def _checked(self, answer: int) -> int:
        if answer == -1:
            number = self._errno()
            raise OSError(number, os.strerror(number))
        return answer
