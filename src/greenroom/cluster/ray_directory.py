"""The directory of a cluster on Ray, as hosts and fronts ask it; and the child through which a front asks.

A front is no driver of Ray itself. Ray ends the process of a driver a minute after the head is gone, and a front is
often somebody's program; besides, Ray brings threads, handlers and 100 MB into the process. So a child of the front is
the driver: it is asked through its pipes, ends when the front does, and a new one is started when it has ended. For a
front, a lost child is a directory that is silent.

Between the two go pickles, each after its length. The child is ours, started by us, and nobody else can write to it.
"""

from __future__ import annotations

import os
import pickle
import queue
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import attrs

from ..actors.workers import apart
from ..protocol.errors import UsageError
from .directory import Directory, DirectorySilent
from .leases import LeaseTimes

Ask = Callable[[str, tuple[Any, ...], float], Any]
_WITHIN: Final = 3.0  # seconds
TO_CONNECT: Final = 60.0  # seconds; Ray takes three on an idle machine
_AGAIN_AFTER: Final = 2.0  # seconds from the start of one child to the next
_TIMES: Final = LeaseTimes()
_LENGTH: Final = struct.Struct("!I")
_ENDED: Final = "the process that asks Ray has ended"
_ADDRESS: Final = re.compile(r"auto|(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):\d{1,5}")


@attrs.frozen
class ClusterAbout:
    """What a cluster says of itself to whoever belongs to it."""

    version: str
    token: str
    times: LeaseTimes
    number: int  # of this life of the directory


class RayDirectory(Directory):
    """The directory behind `ask(verb, args, within)`, which blocks and raises `DirectorySilent`: each call of it is
    made in a thread."""

    def __init__(
        self,
        ask: Ask,
        close: Callable[[], object] = bool,
        token: Callable[[], str] = str,
        *,
        within: float = _WITHIN,
    ) -> None:
        self._ask = ask
        self.token: Callable[[], str] = token  # of the hosts; another one once there is another cluster
        self._within = within  # seconds that a verb may take
        self.close: Callable[[], object] = close  # plain; idempotent

    async def ask(self, verb: str, *args: Any) -> Any:
        return await apart(partial(self._ask, verb, args, self._within))

    async def nodes(self) -> Collection[str] | None:
        """The names of the hosts that there are to be: one for each node of Ray that carries one. None: nobody has
        looked yet."""
        return await self.ask("nodes")


def connect(address: str, times: LeaseTimes | None = _TIMES) -> tuple[RayDirectory, str]:
    """The directory of the Ray cluster at `address` (HOST:PORT of its head, or "auto"), and the token of its hosts. A
    cluster that has none gets one, whose leases have these `times`; with None it must have one. Close the directory
    when it is no longer needed. Blocks for some seconds, and a minute at most.

    Raises `UsageError`: this is no such address, Ray is not installed or lets nobody in there, or the hosts have
    another Greenroom.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address  # as Ray has it
    if not _ADDRESS.fullmatch(address):  # of some others, as of "local", Ray would start a cluster of its own
        raise UsageError(
            f"{address!r} is not an address of a Ray cluster. Write HOST:PORT of its head, or auto."
        )
    driver = Driver(address, times)
    try:
        about = driver.connect()
    except BaseException:
        driver.close()
        raise
    return RayDirectory(driver.ask, driver.close, lambda: driver.token), about.token


def what_next(address: str) -> str:
    """What to do about a failure of Ray, or of its cluster at this address."""
    named = "" if address == "auto" else f" --address={address}"
    return f"It needs the cluster's token, and its versions of Ray and Python. Whether it is well: ray status{named}"


# ---- The front's end of its child -----------------------------------------------------------------------------------


class Driver:
    """The child of this process that is a driver of the Ray cluster at `address`, and the one after it. All of it
    blocks, and may be called from any thread."""

    def __init__(self, address: str, times: LeaseTimes | None) -> None:
        self._address = address
        self._times = times
        self._lock = threading.Lock()
        self._child: _DirectoryProcess | None = None
        self._started = -_AGAIN_AFTER
        self._is_closed = False
        self._told: _DirectoryProcess | None = None  # that has said which cluster it has joined
        self.token: str = ""  # of that cluster: where its head was lost, there may be another one by now

    def ask(self, verb: str, args: tuple[Any, ...], within: float) -> Any:
        """What the directory answers. Raises `DirectorySilent`."""
        child = self._child_now()
        if child is not self._told:
            self._meet(child, within)
        return _said(child.ask(verb, args, within))

    def connect(self) -> ClusterAbout:
        """What the cluster is. Raises `UsageError`: the cluster cannot be joined, or has another Greenroom."""
        try:
            return self._meet(self._child_now(), TO_CONNECT)
        except ChildSilent as error:
            why = f"{error}. {what_next(self._address)}"
        except DirectorySilent as error:
            why = str(error)
        raise UsageError(f"The Ray cluster at {self._address} cannot be used: {why}")

    def _meet(self, child: _DirectoryProcess, within: float) -> ClusterAbout:
        about: ClusterAbout = _said(child.ask("", (), within))
        self.token, self._told = about.token, child
        return about

    def _child_now(self) -> _DirectoryProcess:
        with self._lock:
            if self._is_closed:
                raise DirectorySilent("the connection to the cluster is closed")
            child = self._child
            if child is None or child.has_ended:
                if time.monotonic() - self._started < _AGAIN_AFTER:
                    raise ChildSilent(_ENDED)
                self._started = time.monotonic()
                child = self._child = _DirectoryProcess(self._address, self._times)
            return child

    def close(self) -> None:
        """End the child. Idempotent."""
        with self._lock:
            self._is_closed = True
            child, self._child = self._child, None
        if child is not None:
            child.end()


class ChildSilent(DirectorySilent):
    """The child has ended, whatever Ray did to it, or Ray keeps it waiting."""


def _said(answer: tuple[bool, Any]) -> Any:
    fine, value = answer
    if not fine:
        raise DirectorySilent(value)
    return value


class _DirectoryProcess:
    def __init__(self, address: str, times: LeaseTimes | None) -> None:
        root = str(Path(__file__).parents[2])  # where a program found us, who may not be installed
        code = (
            f"import sys; sys.path.append({root!r}); from greenroom.cluster.ray_cluster import main; main()"
        )
        self._popen = subprocess.Popen(
            (sys.executable, "-P", "-B", "-c", code),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Ray's own log is in its session's folder
            start_new_session=True,  # a Ctrl-C at the terminal is for the front
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._to, self._from = self._popen.stdin, self._popen.stdout
        self._writing = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[tuple[bool, Any] | None]] = {}
        self._number = 0
        self.has_ended = False
        with suppress(OSError):  # then it has ended, and the reader says so
            write(self._to, (address, times))
        self._reader = threading.Thread(target=self._read, name="greenroom cluster", daemon=True)
        self._reader.start()

    def ask(self, verb: str, args: tuple[Any, ...], within: float) -> tuple[bool, Any]:
        answer: queue.SimpleQueue[tuple[bool, Any] | None] = queue.SimpleQueue()  # None: it has ended
        with self._writing:
            self._number += 1
            number = self._number
            self._waiting[number] = answer
            try:
                if self.has_ended:
                    raise ChildSilent(_ENDED)
                write(self._to, (number, verb, args, within))
            except (OSError, ValueError):
                self._waiting.pop(number, None)
                raise ChildSilent(_ENDED) from None
        try:
            said = answer.get(timeout=within + 0.5)
        except queue.Empty:
            raise ChildSilent(f"Ray has not answered within {within:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if said is None:
            raise ChildSilent(_ENDED)
        return said

    def _read(self) -> None:
        with suppress(EOFError, OSError, ValueError):
            while True:
                number, fine, value = read(self._from)
                if (answer := self._waiting.get(number)) is not None:
                    answer.put((fine, value))
        with self._writing:
            self.has_ended = True
        for answer in list(self._waiting.values()):
            answer.put(None)
        self._popen.kill()
        self._popen.wait()
        self._from.close()
        with self._writing, suppress(OSError):
            self._to.close()

    def end(self) -> None:
        self._popen.kill()  # its end is read, and then all is put away
        self._reader.join()


def write(to: IO[bytes], message: object) -> None:
    raw = pickle.dumps(message)
    to.write(_LENGTH.pack(len(raw)) + raw)
    to.flush()


def read(source: IO[bytes]) -> Any:
    """The next message. Raises `EOFError` at the end."""
    (length,) = _LENGTH.unpack(_exactly(source, _LENGTH.size))
    return pickle.loads(_exactly(source, length))  # noqa: S301 - from our own child, or our parent


def _exactly(source: IO[bytes], size: int) -> bytes:
    raw = source.read(size)
    if len(raw) < size:
        raise EOFError
    return raw
