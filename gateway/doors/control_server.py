"""The gateway's end of the control socket, by which `greenroom status`, `call` and others reach a running
gateway.

The file system decides who may connect (`control_protocol`), the kernel says who has connected, and nothing
ever listens on a network. The control socket is an optional part: without it a gateway still serves its
client. When the gateway cannot listen, or cannot accept a connection because it has no descriptors left, it
closes the socket, logs that once and tries again later. Commands that are already connected go on.

Messages are JSON, one per line: `{"method": …, "params": {…}}` in, `{"result": …}` or `{"error": {"code",
"message"}}` out. Each request gets one answer, in order. When a command disconnects, its request is
cancelled.
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

from ...actors.transports.lines import LineSplitter
from ...config.private_files import NotOurs, bind_own, check_peer, make_own_folder, socket_in
from ...config.secrets import in_words
from ...protocol.errors import GreenroomError, UsageError
from .control_protocol import parse_request

if TYPE_CHECKING:
    import anyio.abc

    from ...actors.workers import Part


MAX_LINE: Final = 16 << 20
_BACKLOG: Final = 64
_THEY_LEFT: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR)
Handler = Callable[[Mapping[str, Any]], Any]  # returns an awaitable; raises GreenroomError


@attrs.define(eq=False)
class Place:
    """The path of the socket, even while there is none. It changes when the gateway reads its configuration
    from other files."""

    path: Path
    _bound_by: int = attrs.field(default=0, init=False)  # only this process removes it, none of its forks

    def move(self, path: Path) -> None:
        """Rename the socket. Both paths are in the same folder. Raises `OSError`."""
        if path != self.path and self._bound_by:
            with socket_in(self.path.parent) as (folder, _):
                os.rename(self.path.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        self.path = path

    @contextmanager
    def bound(self) -> Generator[socket.socket]:
        """The listening socket. At the end it is removed without awaiting, so that cancellation cannot
        prevent it.

        Raises `OSError`.
        """
        make_own_folder(self.path.parent)
        with bind_own(self.path, _BACKLOG) as listener:
            self._bound_by = os.getpid()
            try:
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
    """Listen on `path` until cancelled. Starts with its `Place` as soon as it listens, or after its first
    failure to listen."""
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
    """Serve one command. An error ends this command's connection only."""
    import anyio.abc

    with line:
        try:
            await _serve_client(await anyio.abc.UNIXSocketStream.from_socket(line), methods)
        except Exception as error:
            part.tell(f"{part.name}: the connection of a command was closed: {in_words(error)}")


async def _serve_client(stream: Any, methods: Mapping[str, Handler]) -> None:
    """Answer a command's requests one after another. When it disconnects, the request in progress is
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
        text = (
            f"This gateway does not know the method {method!r}. If it is older than this command, restart it."
        )
        return _error("invalid_request", text)
    try:
        return {"result": await handler(params)}
    except GreenroomError as error:
        return _error(error.code, error.message)
    except Exception as error:
        return _error("bug", f"A bug in Greenroom, please report it: {in_words(error)}")


def _encoded(answer: dict[str, Any]) -> bytes:
    """One answer as a line. If it cannot be written as JSON, an error takes its place."""
    try:
        return json.dumps(answer).encode() + b"\n"
    except (RecursionError, TypeError, ValueError) as problem:
        why = "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        return (
            json.dumps(_error("unwritable", f"The answer cannot be written as JSON: {why}.")).encode() + b"\n"
        )


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
