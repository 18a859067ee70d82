"""The gateway's end of the control socket, by which `greenroom status`, `call` and others reach a running
gateway.

The file system decides who may connect (`control_protocol`), the kernel says who has connected, and nothing
ever listens on a network. The control socket is an optional part: without it a gateway still serves its
client. When the gateway cannot listen, or cannot accept a connection because it has no descriptors left, it
closes the socket, logs that once and tries again later. Commands that are already connected go on.

Messages are JSON, one per line: `{"method": …, "params": {…}}` in, `{"result": …}` or `{"error": {"code",
"message"}}` out. Each request gets one answer, in order; one that is a stream has lines `{"part": …}` before it. When a
command disconnects, its request is cancelled. A gateway that ends takes no more requests, and answers those that it has
(`ControlConnections`), except streams.

The methods are loaded when the first request comes, in a thread: most gateways are never asked anything.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from ...actors.timers import at_most
from ...actors.transports.lines import LineSplitter
from ...actors.workers import OptionalPart, apart
from ...config.private_files import NotOurs, bind_own, check_peer, make_own_folder, socket_in
from ...protocol.errors import GreenroomError, UsageError
from ...protocol.safe_text import in_words
from .control_protocol import parse_request

MAX_LINE: Final = 16 << 20
_BACKLOG: Final = 64
_THEY_LEFT: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR)
Handler = Callable[[Mapping[str, Any]], Any]  # returns an awaitable; raises GreenroomError


class ControlSocket(msgspec.Struct, eq=False):
    """The path of the socket, even while there is none. It changes when the gateway reads its configuration
    from other files."""

    path: Path
    _bound_by: int = 0  # only this process removes it, none of its forks

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


class ControlConnections(msgspec.Struct, eq=False):
    """The connections of commands. They run in the `group` of the gateway, because they outlive the listener: calls of
    commands drain with all others."""

    group: anyio.abc.TaskGroup
    _asking: dict[anyio.CancelScope, bool] = msgspec.field(default_factory=dict["anyio.CancelScope", bool])
    _is_leaving: bool = False
    _on_end: Callable[[], object] = lambda: None

    @contextmanager
    def open(self, scope: anyio.CancelScope) -> Generator[None]:
        """A connection; `scope` ends it."""
        self.asks(scope, False)
        try:
            yield
        finally:
            del self._asking[scope]
            self._on_end()

    def asks(self, scope: anyio.CancelScope, does: bool) -> None:
        """Whether a request of this connection is being answered. One without ends when the gateway does."""
        self._asking[scope] = does
        if self._is_leaving and not does:
            scope.cancel()

    def leave(self) -> None:
        """The gateway begins to end: take no more requests."""
        self._is_leaving = True
        for scope, does in self._asking.items():
            self.asks(scope, does)

    async def closed(self, within: float) -> None:
        """The room has closed: let the last answers be written, and end every connection."""
        async with at_most(within):
            await self._until_none()
        for scope in self._asking:
            scope.cancel()
        await self._until_none()

    async def _until_none(self) -> None:
        while self._asking:
            ended = anyio.Event()
            self._on_end = ended.set
            await ended.wait()


class ControlMethods(msgspec.Struct, eq=False):
    """The methods by their names. `make` is called when they are first needed, in a thread."""

    make: Callable[[], Mapping[str, Handler]]
    _made: Mapping[str, Handler] | None = None

    async def there(self) -> Mapping[str, Handler]:
        if self._made is None:
            made = await apart(self.make)
            self._made = self._made or made  # another request may have come meanwhile
        return self._made


async def serve_control(
    path: Path,
    methods: ControlMethods,
    part: OptionalPart,
    lines: ControlConnections,
    *,
    task_status: anyio.abc.TaskStatus[ControlSocket],
) -> None:
    """Listen on `path` until cancelled. Starts with its `ControlSocket` as soon as it listens, or after its first
    failure to listen."""
    place = ControlSocket(path)
    is_started = False

    def started() -> None:
        nonlocal is_started
        if not is_started:
            is_started = True
            task_status.started(place)

    async def listen() -> None:
        try:
            with place.bound() as listener:
                part.works()
                started()
                await _let_in(listener, methods, lines, part)
        finally:
            started()

    await part.keep(listen)


async def _let_in(
    listener: socket.socket, methods: ControlMethods, lines: ControlConnections, part: OptionalPart
) -> None:
    """Accept commands until cancelled. Raises `OSError` when no more can be accepted."""
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
            lines.group.start_soon(_serve_line, line, methods, lines, part)


async def _serve_line(
    line: socket.socket, methods: ControlMethods, lines: ControlConnections, part: OptionalPart
) -> None:
    """Serve one command. An error ends this command's connection only."""
    with line:
        try:
            await _serve_client(await anyio.abc.UNIXSocketStream.from_socket(line), methods, lines)
        except Exception as error:
            part.tell(f"{part.name}: the connection of a command was closed: {in_words(error)}")


async def _serve_client(stream: Any, methods: ControlMethods, lines: ControlConnections) -> None:
    """Answer a command's requests one after another. When it disconnects, the request in progress is
    cancelled."""
    send, receive = anyio.create_memory_object_stream[bytes | None](16)
    async with stream, send, receive, anyio.create_task_group() as group:
        scope = group.cancel_scope

        async def read() -> None:
            overlong: list[bytes] = []
            splitter = LineSplitter(MAX_LINE, lambda head, _bound: overlong.append(head))
            try:
                while not overlong:
                    for line in splitter.feed(await stream.receive()):
                        await send.send(bytes(line))
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                scope.cancel()
            else:
                await send.send(None)

        group.start_soon(read)
        with lines.open(scope):
            async for line in receive:
                lines.asks(scope, True)
                if line is None:
                    text = f"A request may have {MAX_LINE} bytes; this one has more."
                    answer = _error("invalid_request", text)
                else:
                    answer = await _answer(line, methods)
                if isinstance(parts := answer.get("result"), AsyncGenerator):
                    # It never ends by itself: a gateway that ends does not wait for it.
                    lines.asks(scope, False)
                    answer = {"result": await _streamed(cast("AsyncGenerator[str]", parts), stream, scope)}
                try:
                    await stream.send(_encoded(answer))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    scope.cancel()
                if line is None:
                    scope.cancel()
                lines.asks(scope, False)


async def _streamed(parts: AsyncGenerator[str], stream: Any, scope: anyio.CancelScope) -> None:
    """Write the parts of an answer, each as a line. The next is asked for when the one before is written, so a command
    that reads slowly holds nobody up."""
    async with aclosing(parts):
        async for part in parts:
            try:
                await stream.send(json.dumps({"part": part}).encode() + b"\n")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                scope.cancel()
                await anyio.lowlevel.checkpoint()


async def _answer(line: bytes, methods: ControlMethods) -> dict[str, Any]:
    try:
        method, params = parse_request(line)
    except UsageError as fault:
        return _error("invalid_request", fault.message)
    handler = (await methods.there()).get(method)
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
