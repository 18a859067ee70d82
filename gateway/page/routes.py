"""The page's paths: what a browser sends, and how it is answered.

| path | answer |
|---|---|
| `GET /` | the document; it needs no token, for it holds no data |
| `GET /page/hello` | who may what here |
| `GET /page/watch` | server-sent events: everything once, then what changes |
| `GET /page/server`, `tools`, `tool`, `trace` | details |
| `POST /page/do` | an act of an owner |

An error is `{"error": {"code", "message"}}` with a fitting status. Who may ask was decided before (`Access`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.responses import Response

from ...actors.workers import aside_if_many
from ...catalogue.hidden_characters import unhidden_value
from ...config.reading import is_object
from ...protocol import jsonrpc as rpc
from ...protocol.errors import GreenroomError
from ..doors.http_request import Refusal, Request, Rules, body_time
from .document import document
from .room_page import Answers
from .watch import ALIVE_FRAME, Frame

if TYPE_CHECKING:
    from starlette.requests import Request as PageRequest

    from ..doors.http_app import Page
    from ..doors.http_request import Receive, Scope, Send

LOOKS: Final = ("hello", "server", "tools", "tool", "trace")
_PRIVATE: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Routes:
    """The pages of `answers`. Callers are in `request.state.caller`."""

    def __init__(self, answers: Answers, rules: Rules) -> None:
        self._answers = answers
        self._body_time = body_time(rules)
        self._most = rules.max_body

    def open_pages(self) -> Mapping[str, Page]:
        return {"/": self._document}

    def pages(self) -> Mapping[str, Page]:
        return {**{f"/page/{what}": self._look for what in LOOKS}, "/page/watch": self._watch}

    def posts(self) -> Mapping[str, Page]:
        return {"/page/do": self._act}

    async def _document(self, _request: PageRequest) -> Response:
        page = document()
        return Response(page.body, headers=dict(page.headers))

    async def _look(self, request: PageRequest) -> Response:
        what = request.url.path.rpartition("/")[2]
        acts = request.state.caller.is_owner
        try:
            return await _json(await self._answers.look(what, request.query_params, acts=acts))
        except GreenroomError as error:
            return await _failed(error)

    async def _act(self, request: PageRequest) -> Response:
        caller, asked = request.state.caller, request.state.request
        assert isinstance(asked, Request)
        if not caller.is_owner:
            text = "Forbidden: this token may look, not act. A token in http.ownerTokens may, and: greenroom page"
            raise Refusal(403, text)
        if (asked.text(b"content-type") or "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "Unsupported Media Type: Content-Type must be application/json.")
        try:
            params = rpc.read_object(bytes(await asked.body(self._most, self._body_time)))
        except rpc.RpcFault as fault:
            raise Refusal(400, fault.message) from None
        try:
            return await _json(await self._answers.act(params, caller.name or "its owner"))
        except GreenroomError as error:
            return await _failed(error)

    async def _watch(self, request: PageRequest) -> Response:
        return _Streamed(self._answers.watch(acts=request.state.caller.is_owner))


class _Streamed(Response):
    """Frames as server-sent events, until they end or the browser leaves."""

    def __init__(self, frames: AsyncGenerator[Frame]) -> None:
        super().__init__()
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope["state"]["request"]
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_gone, request, group.cancel_scope)
            async with aclosing(self._frames) as frames:
                await self._write(frames, request)
            group.cancel_scope.cancel()

    async def _write(self, frames: AsyncGenerator[Frame], request: Request) -> None:
        async for frame in frames:
            if not request.is_answered:
                await request.begin_stream([(b"x-content-type-options", b"nosniff")])
            data = await encoded(frame)
            await (request.write_long(data) if len(data) > 1 << 18 else request.write(data))
        if not request.is_answered:
            await request.begin_stream()
        await request.end_stream()

    @staticmethod
    async def _until_gone(request: Request, scope: anyio.CancelScope) -> None:
        await request.disconnected()
        scope.cancel()


async def encoded(frame: Frame) -> bytes:
    """A frame as a server-sent event."""
    if frame == ALIVE_FRAME:
        return b": \n\n"
    name, said = frame
    many = len(said.get("servers", ())) if is_object(said) else len(said)
    return await aside_if_many(10 * many, lambda: _event(name, said))


def _event(name: str, said: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), rpc.encode(unhidden_value(said)))


async def _json(said: Any, status: int = 200) -> Response:
    body = await aside_if_many(0, lambda: rpc.encode(unhidden_value(said)))
    return Response(body + b"\n", status, headers=_PRIVATE, media_type="application/json")


async def _failed(error: GreenroomError) -> Response:
    said = {"error": {"code": error.code, "message": error.message}}
    return await _json(said, error.http_status)
