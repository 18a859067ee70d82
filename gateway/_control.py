"""The control socket: how `greenroom status`, `call` and the rest reach a gateway that is already running.

Each running gateway listens on one socket of its own, `<config>-<pid>.sock`, mode 0600 in a directory of mode 0700
that is ours: the file system says who may come in, nothing is ever heard from a network. `<config>` is a hash of the
paths the configuration was read from, so a command finds the gateway of the configuration it would itself use; among
several the newest, or the one asked for by pid. A socket whose process is gone is removed by whoever meets it.

Messages are JSON, one a line: `{"method": …, "params": {…}}` in, `{"result": …}` or `{"error": {"code", "message"}}`
out, one answer per request in order. When the command goes away, what it asked for is cancelled.

The server half runs in the gateway's loop; the client half is plain blocking sockets, so a command pays for no loop.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from ..protocol.errors import GreenroomError, UsageError
from ._control_request import parse_request

MAX_LINE: Final = 16 << 20
_LONGEST_PATH: Final = 100  # what every system takes for a socket's path


# ---- where -----------------------------------------------------------------------------------------------------------


def identity(files: Sequence[str]) -> str:
    """The name of a configuration: the files it was read from; without any, the directory we are in."""
    places = [os.path.realpath(file) for file in files] or [os.getcwd()]
    return hashlib.sha256("\0".join(places).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def control_directory() -> Path:
    """Where the sockets are: `run/` in the user's cache directory, or, where its path is too long for a socket's, a
    directory of ours beside the temporary files."""
    import platformdirs

    wanted = platformdirs.user_cache_path("greenroom", appauthor=False) / "run"
    if len(os.fsencode(wanted)) + len("/0123456789ab-4194304.sock") <= _LONGEST_PATH:
        return wanted
    tag = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"greenroom-{os.getuid()}-{tag}"


def make_private(directory: Path) -> None:
    """Create `directory` for us alone. Raises `UsageError` when it is somebody else's or open to others."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{directory} must be a directory of mode 0700 of your own: remove it and try again."
        )


def socket_path(config: str, pid: int) -> Path:
    return control_directory() / f"{config}-{pid}.sock"


# ---- the gateway's half ----------------------------------------------------------------------------------------

Handler = Callable[[Mapping[str, Any]], Any]  # returns an awaitable; raises GreenroomError


@attrs.define(eq=False)
class Place:
    """Where the socket is. It moves with its configuration: a gateway that reads other files has another name."""

    path: Path

    def move(self, path: Path) -> None:
        """Raises `OSError` when it cannot."""
        if path != self.path:
            self.path.rename(path)
            self.path = path


async def serve_control(path: Path, methods: Mapping[str, Handler], *, task_status: Any) -> None:
    """Listen on `path` until cancelled; the socket is removed at the end. `started` is called with its `Place` once it
    listens."""
    import anyio

    _make_way(path)
    place = Place(path)
    listener = await anyio.create_unix_listener(path, mode=0o600)
    try:
        async with listener:
            task_status.started(place)
            await listener.serve(lambda stream: _serve_client(stream, methods))
    finally:
        _remove(place.path)  # synchronous: it must happen under cancellation too


def _make_way(path: Path) -> None:
    make_private(path.parent)
    _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _serve_client(stream: Any, methods: Mapping[str, Handler]) -> None:
    """One command. Its requests are answered one after another; when it hangs up, the one at work is cancelled."""
    import anyio

    send, receive = anyio.create_memory_object_stream[bytes | None](16)
    async with stream, send, receive, anyio.create_task_group() as group:

        async def read() -> None:
            buffer = b""
            try:
                while len(buffer) <= MAX_LINE:
                    buffer += await stream.receive()
                    *lines, buffer = buffer.split(b"\n")
                    for line in lines:
                        await send.send(line)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                group.cancel_scope.cancel()
            else:
                await send.send(None)

        group.start_soon(read)
        async for line in receive:
            if line is None:
                answer = _error("invalid_request", f"A request may have {MAX_LINE} bytes; this one has more.")
            else:
                answer = await _answer(line, methods)
            try:
                await stream.send(_encoded(answer))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                group.cancel_scope.cancel()
            if line is None:
                group.cancel_scope.cancel()


async def _answer(line: bytes, methods: Mapping[str, Handler]) -> dict[str, Any]:
    try:
        method, params = parse_request(line)
    except UsageError as fault:
        return _error("invalid_request", fault.message)
    handler = methods.get(method)
    if handler is None:
        return _error("invalid_request", f"This gateway does not know {method!r}; is it older?")
    try:
        return {"result": await handler(params)}
    except GreenroomError as error:
        return _error(error.code, error.message)
    except Exception as error:
        return _error("bug", f"A bug in Greenroom, please report it: {type(error).__name__}: {error}")


def _encoded(answer: dict[str, Any]) -> bytes:
    """One line; an error where the answer cannot be written."""
    try:
        return json.dumps(answer).encode() + b"\n"
    except (RecursionError, TypeError, ValueError) as problem:
        why = "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        return (
            json.dumps(_error("unwritable", f"The answer cannot be written as JSON: {why}.")).encode() + b"\n"
        )


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


# ---- the command's half ----------------------------------------------------------------------------------------


ANSWER_WITHIN: Final = 2.0  # seconds


class GatewayError(GreenroomError):
    """The running gateway refused a request, or went away over it."""

    def __init__(self, message: str, code: str = "gateway_error") -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen(eq=False)
class Gateway:
    """A running gateway, connected to. Use as a context manager."""

    pid: int
    connection: socket.socket
    path: Path

    def ask(self, method: str, *, quickly: bool = False, **params: Any) -> Any:
        """One request and its answer. Raises `GatewayError`, also when the gateway falls silent.

        A request may take its time, as long as the gateway answers another one within two seconds. `quickly`: this one
        is answered from memory, so it is given up after two seconds itself.
        """
        request = json.dumps({"method": method, "params": params})
        try:
            self.connection.sendall(request.encode() + b"\n")
            answer = self._read_line(quickly)
        except TimeoutError:
            raise _silent(self.pid) from None
        except OSError as error:
            raise GatewayError(f"The gateway (pid {self.pid}) went away: {error}.") from None
        if "error" in answer:
            raise GatewayError(answer["error"]["message"], answer["error"]["code"])
        return answer["result"]

    def _read_line(self, quickly: bool) -> dict[str, Any]:
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            try:
                parts.append(self.connection.recv(1 << 18))
            except TimeoutError:
                if quickly or not self._is_responding():
                    raise
                continue
            if not parts[-1]:
                raise OSError("it closed the connection")
        return json.loads(b"".join(parts))

    def _is_responding(self) -> bool:
        """Whether it answers somebody else meanwhile."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(ANSWER_WITHIN)
            try:
                other.connect(os.fspath(self.path))
                other.sendall(b'{"method": "hello"}\n')
                return bool(other.recv(1))
            except OSError:
                return False

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def find_gateway(config: str, pid: int | None = None) -> Gateway | None:
    """Connect to the newest gateway of `config`, or to that of `pid`; None when there is none.

    Raises `UsageError` when `pid` is given and has no gateway of this configuration, `GatewayError` for one that lets
    nobody in any more.
    """
    for found, path in _candidates(config):
        if pid is None or found == pid:
            connection = _connect(path, found)
            if connection is not None:
                return Gateway(found, connection, path)
    if pid is not None:
        text = f"No gateway of this configuration runs as process {pid}. Leave out --pid to use the newest."
        raise UsageError(text)
    return None


def _candidates(config: str) -> Iterator[tuple[int, Path]]:
    """Sockets of this configuration, newest first. Those of dead processes are removed."""
    found: list[tuple[float, int, Path]] = []
    for path in control_directory().glob(f"{config}-*.sock"):
        pid = _pid_of(path)
        if pid is None or not _alive(pid):
            path.unlink(missing_ok=True)
            continue
        try:
            found.append((path.lstat().st_mtime, pid, path))
        except FileNotFoundError:
            continue
    for _, pid, path in sorted(found, reverse=True):
        yield pid, path


def _pid_of(path: Path) -> int | None:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else None


def _connect(path: Path, pid: int) -> socket.socket | None:
    """None, and the socket removed, when nobody listens: its process id is some other program's by now."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_WITHIN)
    try:
        connection.connect(os.fspath(path))
    except (BlockingIOError, TimeoutError):
        connection.close()
        raise _silent(pid) from None
    except ConnectionRefusedError:
        connection.close()
        if pid != os.getpid():
            path.unlink(missing_ok=True)
        return None
    except OSError:
        connection.close()
        return None
    return connection


def _silent(pid: int) -> GatewayError:
    text = (
        f"The gateway (pid {pid}) does not answer: nothing came from it for {ANSWER_WITHIN:g} s. It may be stopped or "
        "stuck: let it go on or end it, or name another one with --pid."
    )
    return GatewayError(text, "gateway_silent")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
