"""The control socket, the gateway's half: how `greenroom status`, `call` and the rest reach one that is running.

The file system decides who may connect (`_control_place`), the kernel says who has connected, and nothing ever listens
on a network. It is an optional part: a gateway serves its client without one, if it must. When it cannot listen, or
cannot accept a connection because descriptors have run out, it closes the socket, logs that once and tries again later.
Commands that are already connected go on.

Messages are JSON, one a line: `{"method": …, "params": {…}}` in, `{"result": …}` or `{"error": {"code", "message"}}`
out, one answer per request in order. When the command goes away, what it asked for is cancelled.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._own_files import NotOurs, check_peer, make_own_folder, socket_in
from ..actors import LineSplitter
from ..protocol.errors import GreenroomError, UsageError
from ..protocol.secrets import in_words
from ._control_request import parse_request

if TYPE_CHECKING:
    import anyio.abc

    from ..actors import Part

MAX_LINE: Final = 16 << 20
_BACKLOG: Final = 64
_THEY_LEFT: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR)

Handler = Callable[[Mapping[str, Any]], Any]  # returns an awaitable; raises GreenroomError


@attrs.define(eq=False)
class Place:
    """Where the socket is, or would be. It moves with its configuration: a gateway that reads other files has another
    name."""

    path: Path
    _bound_by: int = attrs.field(default=0, init=False)  # the process that removes it; a fork of it does not

    def move(self, path: Path) -> None:
        """Raises `OSError` when it cannot; both are in one folder."""
        if path != self.path and self._bound_by:
            with socket_in(self.path.parent) as (folder, _):
                os.rename(self.path.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        self.path = path

    @contextmanager
    def bound(self) -> Generator[socket.socket]:
        """The listening socket; it is removed at the end, synchronously: it must happen under cancellation too.

        Raises `OSError`.
        """
        make_own_folder(self.path.parent)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.setblocking(False)
            with socket_in(self.path.parent) as (folder, prefix):
                with suppress(FileNotFoundError):
                    os.unlink(self.path.name, dir_fd=folder)
                listener.bind(prefix + self.path.name)
                os.chmod(self.path.name, 0o600, dir_fd=folder)
            self._bound_by = os.getpid()
            try:
                listener.listen(_BACKLOG)
                yield listener
            finally:
                owner, self._bound_by = self._bound_by, 0
                if owner == os.getpid():
                    with suppress(OSError):
                        self.path.unlink(missing_ok=True)


async def serve_control(
    path: Path,
    methods: Mapping[str, Handler],
    part: Part,
    *,
    task_status: anyio.abc.TaskStatus[Place],
) -> None:
    """Listen on `path` until cancelled. `started` is called with its `Place` when it listens, or has failed to for the
    first time."""
    import anyio

    place = Place(path)
    is_started = False

    def started() -> None:
        nonlocal is_started
        if not is_started:
            is_started = True
            task_status.started(place)

    async with anyio.create_task_group() as clients:

        async def listen() -> None:
            try:
                with place.bound() as listener:
                    part.works()
                    started()
                    await _let_in(listener, methods, clients, part)
            finally:
                started()

        await part.keep(listen)


async def _let_in(
    listener: socket.socket, methods: Mapping[str, Handler], clients: anyio.abc.TaskGroup, part: Part
) -> None:
    """Accept commands until cancelled. Raises `OSError` when no more can be accepted."""
    import anyio

    while True:
        await anyio.wait_readable(listener)
        try:
            line, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _THEY_LEFT:
                continue
            raise
        try:
            check_peer(line)
        except NotOurs:
            line.close()
        else:
            clients.start_soon(_serve_line, line, methods, part)


async def _serve_line(line: socket.socket, methods: Mapping[str, Handler], part: Part) -> None:
    """Serve one command. An error in it concerns nobody else."""
    import anyio.abc

    with line:
        try:
            await _serve_client(await anyio.abc.UNIXSocketStream.from_socket(line), methods)
        except Exception as error:
            part.tell(f"{part.name}: a command was hung up on: {in_words(error)}")


async def _serve_client(stream: Any, methods: Mapping[str, Handler]) -> None:
    """Serve one command. Its requests are answered one after another; when it disconnects, the request in progress is
    cancelled."""
    import anyio

    send, receive = anyio.create_memory_object_stream[bytes | None](16)
    async with stream, send, receive, anyio.create_task_group() as group:

        async def read() -> None:
            overlong: list[bytes] = []
            splitter = LineSplitter(MAX_LINE, lambda head, _bound: overlong.append(head))
            try:
                while not overlong:
                    for line in splitter.feed(await stream.receive()):
                        await send.send(bytes(line))
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
        return _error("bug", f"A bug in Greenroom, please report it: {in_words(error)}")


def _encoded(answer: dict[str, Any]) -> bytes:
    """One answer as a line; an error in its place when it cannot be written as JSON."""
    try:
        return json.dumps(answer).encode() + b"\n"
    except (RecursionError, TypeError, ValueError) as problem:
        why = "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        return (
            json.dumps(_error("unwritable", f"The answer cannot be written as JSON: {why}.")).encode() + b"\n"
        )


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
