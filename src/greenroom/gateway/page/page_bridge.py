"""`greenroom page`: a small server for the owner's browser, on this machine, which asks a gateway over the control
socket.

A gateway on standard input and output has no door for a browser, nor has the background gateway. Each has a control
socket, which only its owner can use. So the command that the owner runs serves the page, and passes every question on.
It listens on a loopback address, on a free port, and needs a token that is made anew each time (256 bits). A browser is
given the token in the fragment of the address, which no browser sends to anybody.

Each question has a connection of its own to the gateway. When that gateway has ended, the answer is `no_gateway`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from ...actors.transports.lines import LineSplitter
from ...protocol.errors import GreenroomError
from ..doors.control_client import Gateway
from ..doors.control_server import MAX_LINE
from ..doors.http_auth import Access, BearerToken
from ..doors.http_paths import Paths
from ..doors.http_request import Caller, Rules
from ..doors.http_server import HttpServer, bound
from .page_methods import DO, LOOK, WATCH
from .page_routes import Routes
from .room_page import LOOKS, PageAnswer, PageResponder, answered

if TYPE_CHECKING:
    from ...tape.tape_reader import Tape

Find = Callable[[], Gateway | None]  # connects to the gateway that is shown; None: it has ended; blocks
_HOST: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 32


async def serve_page(
    find: Find, port: int, on_ready: Callable[[str], object], note: Callable[[str], None]
) -> None:
    """Serve the page until cancelled. `find` connects to the gateway. `on_ready` is told the address, with its token,
    once it can be opened. Raises `UsageError` when nothing can listen on this port. asyncio only."""
    await _serve(_ControlResponder(find), LOOKS, port, on_ready, note)


async def serve_tape(
    tape: Tape, port: int, on_ready: Callable[[str], object], note: Callable[[str], None]
) -> None:
    """Serve the page of a tape, with the arguments of `serve_page`, until cancelled."""
    from . import tape_page

    await _serve(tape_page.TapePage(tape), tape_page.LOOKS, port, on_ready, note)


async def _serve(
    answers: PageResponder,
    looks: Sequence[str],
    port: int,
    on_ready: Callable[[str], object],
    note: Callable[[str], None],
) -> None:
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    access = Access(_HOST, [BearerToken.of("its owner", token, is_owner=True)])
    rules = Rules()
    paths = Paths(access, note, rules)
    routes = Routes(answers, rules, looks)
    paths.show(routes.open_pages(), routes.pages(), routes.posts())

    with bound(_HOST, port) as listener:
        server = HttpServer(paths, listener, rules)
        async with anyio.create_task_group() as serving:
            await serving.start(server.run)
            on_ready(f"http://{_HOST}:{listener.getsockname()[1]}/#token={token}")


class _ControlResponder:
    """`PageResponder` of a running gateway."""

    def __init__(self, find: Find) -> None:
        self._find = find

    async def look(self, what: str, params: Mapping[str, Any], *, acts: bool) -> PageAnswer:
        return await self._ask(LOOK, what=what, params=dict(params))

    async def act(self, params: Mapping[str, Any], who: str) -> PageAnswer:
        return await self._ask(DO, params=dict(params))

    async def _ask(self, method: str, **params: Any) -> PageAnswer:
        def ask() -> dict[str, Any] | GreenroomError:
            try:
                gateway = self._find()
                if gateway is None:
                    return _NONE
                with gateway:
                    return gateway.ask(method, **params)
            except GreenroomError as error:
                return error

        said = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
        if isinstance(said, GreenroomError):
            return await answered({"error": {"code": said.code, "message": said.message}}, _BAD_GATEWAY)
        return PageAnswer(said["status"], said["text"].encode())

    async def watch(self, caller: Caller) -> AsyncGenerator[bytes]:
        """What the gateway tells, until it ends. The page asks again then."""
        try:
            gateway = await anyio.to_thread.run_sync(self._find)
        except GreenroomError as error:
            yield _refused(error)
            return
        if gateway is None:
            yield _refused(_NONE)
            return
        with gateway, suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            gateway.connection.setblocking(False)
            async with await anyio.abc.UNIXSocketStream.from_socket(gateway.connection) as stream:
                await stream.send(json.dumps({"method": WATCH}).encode() + b"\n")
                splitter = LineSplitter(MAX_LINE, lambda _head, _bound: None)
                while True:
                    for line in splitter.feed(await stream.receive()):
                        said = json.loads(bytes(line))
                        if "error" in said:  # a gateway that is older, and has no page
                            yield _told({"error": said["error"]})
                        if "part" not in said:
                            return
                        yield said["part"].encode()


class _NoGateway(GreenroomError):
    code = "no_gateway"


_NONE: Final = _NoGateway("The gateway of this page has ended. To see one that runs now: greenroom page")
_BAD_GATEWAY: Final = 502


def _refused(error: GreenroomError) -> bytes:
    return _told({"error": {"code": error.code, "message": error.message}})


def _told(said: Mapping[str, Any]) -> bytes:
    return f"event: refused\ndata: {json.dumps(said)}\n\n".encode()
