"""The page's paths: what a browser sends, and how it is answered.

| path | answer |
|---|---|
| `GET /` | the document; it needs no token, for it holds no data |
| `GET /page/hello` | who may what here |
| `GET /page/watch` | server-sent events: everything once, then what changes |
| `GET /page/server`, `tools`, `tool`, `call`, `timeline`, `tree` | details of a room |
| `GET /page/timeline`, `calls`, `call` | details of a tape |
| `POST /page/do` | an act of an owner |

An error is `{"error": {"code", "message"}}` with a fitting status. Who may ask was decided before (`Access`). An act
needs JSON and a token in a header, so that no page of another origin can send one without a browser's asking first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from starlette.responses import Response

from ...protocol import jsonrpc as rpc
from ..doors.http_request import PIECE, DoorRequest, HttpRefusal, Rules, body_time
from .page_document import document
from .room_page import LOOKS, PageAnswer, PageResponder

if TYPE_CHECKING:
    from starlette.requests import Request as PageRequest

    from ..doors.http_paths import Page, Receive, Scope, Send

_PRIVATE: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_NOT_AN_OWNER: Final = (
    "Forbidden: this token may look, and not act. A token of http.ownerTokens may act, and so may the owner who runs: "
    "greenroom page"
)


class Routes:
    """The pages of `answers`, which can be asked for these `looks`. The caller is in `request.state.caller`."""

    def __init__(self, answers: PageResponder, rules: Rules, looks: Sequence[str] = LOOKS) -> None:
        self._answers = answers
        self._looks = looks
        self._body_time = body_time(rules)
        self._most = rules.max_body

    def open_pages(self) -> Mapping[str, Page]:
        return {"/": self._document}

    def pages(self) -> Mapping[str, Page]:
        return {**{f"/page/{what}": self._look for what in self._looks}, "/page/watch": self._watch}

    def posts(self) -> Mapping[str, Page]:
        return {"/page/do": self._act}

    async def _document(self, _request: PageRequest) -> Response:
        page = document()
        return Response(page.body, headers=dict(page.headers))

    async def _look(self, request: PageRequest) -> Response:
        _check_site(request)
        what = request.url.path.rpartition("/")[2]
        acts: bool = request.state.caller.is_owner
        return _response(await self._answers.look(what, dict(request.query_params), acts=acts))

    async def _act(self, request: PageRequest) -> Response:
        _check_site(request)
        caller = request.state.caller
        asked: DoorRequest = request.state.request
        if not caller.is_owner:
            raise HttpRefusal(403, _NOT_AN_OWNER)
        if (asked.text(b"content-type") or "").partition(";")[0].strip().lower() != "application/json":
            raise HttpRefusal(415, "Unsupported Media Type: Content-Type must be application/json.")
        body = await asked.body(self._most, self._body_time)
        try:
            params = rpc.read_object(msgspec.Raw(bytes(body)))
        except rpc.RpcFault as fault:
            raise HttpRefusal(400, fault.message) from None
        return _response(await self._answers.act(params, caller.name or "its owner"))

    async def _watch(self, request: PageRequest) -> Response:
        _check_site(request)
        return _EventResponse(self._answers.watch(request.state.caller))


def _check_site(request: PageRequest) -> None:
    """Where no token is needed, an image of any page could ask for a stream. Browsers say for whom they ask. Raises
    `HttpRefusal`."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise HttpRefusal(403, "Forbidden: only this gateway's own page may ask for this.")


def _response(answer: PageAnswer) -> Response:
    return Response(answer.body + b"\n", answer.status, headers=_PRIVATE, media_type="application/json")


class _EventResponse(Response):
    """Server-sent events, until they end or the browser leaves. A browser that does not read is waited for, and cut
    after a while, as every peer is."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__()
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: DoorRequest = scope["state"]["request"]
        async with anyio.create_task_group() as group:
            group.start_soon(_until_gone, request, group.cancel_scope)
            request.begin_stream([(b"x-content-type-options", b"nosniff")])
            async with aclosing(self._events) as events:
                async for data in events:
                    await (request.write_long(data) if len(data) > PIECE else request.write(data))
            request.end_stream()
            group.cancel_scope.cancel()


async def _until_gone(request: DoorRequest, writing: anyio.CancelScope) -> None:
    await request.disconnected()
    writing.cancel()
