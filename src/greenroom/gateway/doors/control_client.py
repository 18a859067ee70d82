"""A command's end of the control socket: finds the running gateway of a configuration, and sends it requests.

The sockets are plain and blocking, so a command needs no event loop. When a command finds a socket whose
process is gone, it removes the socket. It does not look in a folder that is not this user's, and it does not
ask a gateway of another user.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs

from ...config.private_files import NotOurs, check_peer, other_folder, socket_in
from ...protocol.errors import GreenroomError, Reach, UsageError
from .control_protocol import control_directory

ANSWER_WITHIN: Final = 2.0  # seconds
SILENT: Final = "gateway_silent"  # the code of a `GatewayLost` that may still run
HELLO_WITHIN: Final = 0.5  # seconds for a gateway that is only to be named
MOST_ELSEWHERE: Final = 5
_LOOK_AGAIN: Final = 0.01  # seconds
_SHORT: Final = 1 << 20  # bytes of a short answer
_OF_A_GATEWAY: Final = re.compile(r"[0-9a-f]+-[0-9]+\.sock")  # of any; others lie there too


class GatewayError(GreenroomError):
    """The running gateway refused a request, or ended while it handled it."""

    def __init__(self, message: str, code: str = "gateway_error") -> None:
        super().__init__(message)
        self.code = code


class GatewayLost(GatewayError):
    """The gateway ended, or stopped answering, before its answer came. `reach`: how far the request got. A gateway does
    nothing for a request that was not written to its end."""

    def __init__(self, why: str, step: str, reach: Reach, code: str = "gateway_error") -> None:
        super().__init__(f"{why}. {step}", code)
        self.why = why
        self.reach = reach


@attrs.frozen(eq=False)
class Gateway:
    """A connection to a running gateway. Use it as a context manager."""

    pid: int
    connection: socket.socket
    path: Path
    _rest: bytearray = attrs.field(factory=bytearray, init=False, repr=False)  # of what came, the next answer

    def ask(self, method: str, *, quickly: bool = False, **params: Any) -> Any:
        """Send one request and return its answer. Raises `GatewayError`; a `GatewayLost` when the gateway ends or
        does not respond.

        A request may take any time, as long as the gateway answers a second connection within two seconds.
        `quickly`: the answer comes from memory, so the request itself fails after two seconds.
        """
        return self._ask({"method": method, "params": params}, quickly)["result"]

    def parts(self, method: str, **params: Any) -> Iterator[str]:
        """Send one request whose answer is a stream, and return its parts as they come. Raises as `ask` does."""
        answer = self._ask({"method": method, "params": params})
        while "part" in answer:
            yield answer["part"]
            answer = self._ask(None)

    def _ask(self, request: Mapping[str, Any] | None, quickly: bool = False) -> dict[str, Any]:
        """Send a request, if there is one, and return the next line of the answer."""
        if request is not None:
            self.send(request)
        with self._as_lost(Reach.SENT):
            return self._read(self._read_line(quickly))

    def send(self, request: Mapping[str, Any]) -> None:
        """Send one request, and wait for nothing. Raises `GatewayLost`."""
        with self._as_lost(Reach.NOT_SENT):
            self.connection.sendall(json.dumps(request).encode() + b"\n")

    @contextmanager
    def _as_lost(self, reach: Reach, within: float = ANSWER_WITHIN) -> Generator[None]:
        try:
            yield
        except TimeoutError:
            raise silent(self.pid, reach, within) from None
        except OSError as error:
            why = f"The gateway (pid {self.pid}) went away: {error}"
            raise GatewayLost(why, "Run the command again.", reach) from None

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            answer: Any = json.loads(line)
            if "error" not in (said := {**answer}):
                return said
            message, code = str(answer["error"]["message"]), str(answer["error"]["code"])
        except (ValueError, LookupError, TypeError, RecursionError):
            text = f"The gateway (pid {self.pid}) answered what cannot be read. Restart it."
            raise GatewayError(text) from None
        raise GatewayError(message, code)

    def answer_by(self, until: float, within: float) -> Any:
        """The short result of the one request that was sent. It must come before `until` (`time.monotonic`); `within`:
        the seconds that an error names. Raises `GatewayError`."""
        line = bytearray()
        with self._as_lost(Reach.SENT, within):
            is_late = False
            while not line.endswith(b"\n"):
                if is_late:
                    raise TimeoutError
                is_late = time.monotonic() >= until  # what came in time is read, though others kept us
                self.connection.settimeout(max(until - time.monotonic(), _LOOK_AGAIN))
                part = self.connection.recv(_SHORT)
                line += part
                if not part:
                    raise OSError("it closed the connection")
                if len(line) > _SHORT:
                    break  # nobody reads a flood to its end
        return self._read(bytes(line)).get("result")

    def _read_line(self, quickly: bool) -> bytes:
        parts = [bytes(self._rest)]
        while (end := parts[-1].find(b"\n")) < 0:
            try:
                parts.append(self.connection.recv(1 << 18))
            except TimeoutError:
                if quickly or not self._is_responding():
                    raise
                continue
            if not parts[-1]:
                raise OSError("it closed the connection")
        self._rest[:] = parts[-1][end + 1 :]
        parts[-1] = parts[-1][:end]
        return b"".join(parts)

    def _is_responding(self) -> bool:
        """Whether the gateway still answers a request on another connection. One that takes no more is ending, or its
        configuration has moved: our own connection ends if it does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(ANSWER_WITHIN)
            try:
                _dial(other, self.path)
                other.sendall(b'{"method": "hello"}\n')
                return bool(other.recv(1))
            except (FileNotFoundError, ConnectionRefusedError):
                return True
            except OSError:
                return False

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def ask_each(gateways: Sequence[Gateway], method: str, within: float) -> list[Any]:
    """Ask all of these at once. Returns the result of each, or the `GatewayError` in its place. All have `within`
    seconds together, and one that does not answer takes no time from the others."""
    answers: list[Any] = [None] * len(gateways)
    until = time.monotonic() + within
    for place, gateway in enumerate(gateways):
        with _kept(answers, place):
            gateway.send({"method": method, "params": {}})
    for place, gateway in enumerate(gateways):
        if answers[place] is None:
            with _kept(answers, place):
                answers[place] = gateway.answer_by(until, within)
    return answers


@contextmanager
def _kept(answers: list[Any], place: int) -> Generator[None]:
    try:
        yield
    except GatewayError as error:
        answers[place] = error


def find_gateway(config: str, pid: int | None = None) -> Gateway | None:
    """Connect to the newest gateway of `config`, or to the one with this `pid`, whatever its configuration. None: there
    is none.

    Raises `UsageError` when `pid` is given and is no gateway, and `GatewayError` for a gateway that no longer accepts
    connections.
    """
    for found, path in _candidates(config if pid is None else None):
        if pid is None or found == pid:
            connection = _connect(path, found)
            if connection is not None:
                return Gateway(found, connection, path)
    if pid is not None:
        text = f"No gateway runs as process {pid}. Leave out --pid to use the newest of this configuration."
        raise UsageError(text)
    return None


@attrs.frozen
class OtherGateway:
    """A gateway of another configuration. `folder`: where it works; "" if it did not say."""

    pid: int
    folder: str


def find_elsewhere(config: str) -> list[OtherGateway]:
    """The gateways that run for other configurations, the newest first, some at most."""
    found: list[OtherGateway] = []
    with suppress(UsageError):
        for pid, path in _candidates(None):
            if path.name.startswith(f"{config}-") or len(found) == MOST_ELSEWHERE:
                continue
            with suppress(GatewayError):
                line = _connect(path, pid)
                if line is not None:
                    found.append(OtherGateway(pid, _folder_of(Gateway(pid, line, path))))
    return found


def _folder_of(gateway: Gateway) -> str:
    with gateway, suppress(GatewayError, ValueError):
        gateway.connection.settimeout(HELLO_WITHIN)
        folder = gateway.ask("hello", quickly=True).get("folder")
        return folder if isinstance(folder, str) else ""
    return ""


def find_gateways(
    config: str | None, tell: Callable[[GatewayError], object], without: Collection[int] = ()
) -> list[Gateway]:
    """Connect to every gateway of `config` (None: of any), the newest first. One that cannot be asked is told of and
    left out; together they have two seconds to take the connections. `without`: pids of those that are not wanted.
    Raises `UsageError` as `find_gateway` does."""
    gateways: list[Gateway] = []
    until = time.monotonic() + ANSWER_WITHIN
    for pid, path in _candidates(config):
        if pid in without:
            continue
        try:
            connection = _connect(path, pid, until)
        except GatewayError as error:
            tell(error)
        else:
            if connection is not None:
                gateways.append(Gateway(pid, connection, path))
    return gateways


def _candidates(config: str | None) -> Iterator[tuple[int, Path]]:
    """The sockets of this configuration (None: of all), newest first. Those of dead processes are removed. Raises
    `UsageError` when their folder is not this user's alone."""
    directory = control_directory()
    found: list[tuple[float, int, Path]] = []
    try:
        with socket_in(directory) as (folder, _):
            for name in os.listdir(folder):
                if config is None:
                    if not _OF_A_GATEWAY.fullmatch(name):
                        continue
                elif not name.startswith(f"{config}-") or not name.endswith(".sock"):
                    continue
                pid = _pid_of(directory / name)
                with suppress(FileNotFoundError):
                    if pid is None or not _alive(pid):
                        os.unlink(name, dir_fd=folder)
                        continue
                    seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISSOCK(seen.st_mode):
                        found.append((seen.st_mtime, pid, directory / name))
    except FileNotFoundError:
        return
    except NotOurs as error:
        raise UsageError(f"No gateway can be looked for in {directory}: {error.strerror}.") from None
    except NotADirectoryError:
        text = f"No gateway can be looked for in {directory}: a folder above it is none. {other_folder(directory)}"
        raise UsageError(text) from None
    for _, pid, path in sorted(found, reverse=True):
        yield pid, path


def _pid_of(path: Path) -> int | None:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else None


def _connect(path: Path, pid: int, until: float | None = None) -> socket.socket | None:
    """Connect to a socket, until then at the latest, or for two seconds. None: nobody listens, because the process id
    now belongs to another program. Then the socket is removed."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_WITHIN)
    try:
        _dial(connection, path, until)
    except NotOurs as error:
        connection.close()
        raise GatewayError(f"Process {pid} is not trusted as a gateway: {error.strerror}.") from None
    except (BlockingIOError, TimeoutError):
        connection.close()
        raise silent(pid) from None
    except ConnectionRefusedError:
        connection.close()
        if pid != os.getpid():
            path.unlink(missing_ok=True)
        return None
    except OSError:
        connection.close()
        return None
    return connection


def _dial(line: socket.socket, path: Path, until: float | None = None) -> None:
    """Connect to a socket. It and the process that listens on it must be this user's. Raises `NotOurs`, or
    another `OSError`."""
    until = time.monotonic() + ANSWER_WITHIN if until is None else until
    with socket_in(path.parent) as (_, prefix):
        while True:
            try:
                line.connect(prefix + path.name)
                break
            except BlockingIOError:  # many commands have just come, and the kernel does not wait for a place
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK_AGAIN)
    check_peer(line)


def silent(pid: int, reach: Reach = Reach.NOT_SENT, within: float = ANSWER_WITHIN) -> GatewayLost:
    """The error about a gateway from which nothing came in time."""
    why = f"The gateway (pid {pid}) does not answer: nothing came from it for {within:g} s"
    step = "It may be stopped or stuck. Continue or end that process, or name another gateway with --pid."
    return GatewayLost(why, step, reach, SILENT)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
