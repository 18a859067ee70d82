"""Notices that a file may have changed, without polling.

A `Bell` rings when something happens on the way to one of the given paths: a name is created, moved or
removed in a folder where it is looked up, a folder on the way is moved, or the file itself is written. The
way includes links and missing parts. So the bell notices a file that is created later, and a link that is set
to another folder. It may ring without a change, so look before you act. It notices only what happens after it
was hung, so look at the files after hanging it.

On Linux the kernel reports changes through a descriptor that the loop waits for. That needs no thread, and
nothing wakes up while nothing happens. On other systems the bell rings every two seconds. It also does so
when the kernel grants no watches (a user has 128 instances, and all may be in use). This is logged once, and
the next bell asks for watches again. Rejected: watchfiles. Its thread wakes up five times a second to see
whether it should end, and the program cannot end before that.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import anyio

LOOK_AGAIN: Final = 2.0  # seconds between two rings without the kernel's help
_MOST_LINKS: Final = 40  # as many as the system itself follows


class KernelWatch(Protocol):
    """Is told whether the kernel reports changes."""

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
            catalogue = _inotify()
            if catalogue is not None:
                kernel = stack.enter_context(catalogue.INotify(nonblocking=True))
                bell = _KernelBell(kernel, catalogue, paths)
                kernel_watch.works()
        except OSError as error:  # too many instances, watches or descriptors
            kernel_watch.failed(error)
        yield bell


def prepare() -> None:
    """Load the library, which starts a program to find the system's library. Slow the first time. It blocks,
    so run it in a thread. Raises nothing."""
    with suppress(OSError):
        library = _inotify()
        if library is not None:
            library.INotify(nonblocking=True).close()


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

    def __init__(self, kernel: Any, catalogue: Any, paths: Collection[Path]) -> None:
        """Raises `OSError` when the kernel grants no more watches."""
        flags = catalogue.flags
        self._kernel = kernel
        self._of_names = int(
            flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE | flags.ONLYDIR | flags.MASK_ADD
        )
        self._of_folder = int(flags.MOVE_SELF | flags.DELETE_SELF | flags.ONLYDIR | flags.MASK_ADD)
        self._of_file = int(flags.CLOSE_WRITE | flags.ATTRIB | flags.MASK_ADD)
        self._names: defaultdict[int, set[str]] = defaultdict(set)  # by watch; "" is the watched thing itself
        self._is_late = False
        for path in paths:
            self._hang(path)

    def _hang(self, path: Path) -> None:
        for folder, name in way_to(path):
            at = os.path.join(folder, name)
            if os.path.isdir(at) and not os.path.islink(at):
                self._watch(at, self._of_folder, "")
                continue
            self._watch(folder, self._of_names, name)
            if os.path.isfile(at) and not os.path.islink(
                at
            ):  # a mounted file is reported by its own watch only
                self._watch(at, self._of_file, "")

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
            if any(self._is_ours(event) for event in self._kernel.read(timeout=0)):
                return

    def _is_ours(self, event: Any) -> bool:
        """Whether the event is about a watched name. An event of an unknown watch counts too, because it means that
        events were lost."""
        return event.wd not in self._names or event.name in self._names[event.wd]


def _inotify() -> Any:
    """The library, on Linux. It is imported by name, because it is not installed on other systems."""
    if sys.platform != "linux":
        return None
    try:
        return importlib.import_module("inotify_simple")
    except ImportError:
        return None
