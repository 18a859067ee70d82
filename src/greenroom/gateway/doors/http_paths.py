"""Paths behind the checks that every request passes: its head, its host, its origin, who sends it.

A door that knows a path itself answers in the step in which a request came (`_find`). All others are pages of
starlette's router, each in a task.

A request is refused by an `HttpRefusal`. Any other exception is a bug of ours: it is noted, and ends its own request
alone. The HTTP door has these paths, and so has `greenroom page`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from functools import partial
from typing import Any, Final

from starlette.requests import Request as PageRequest
from starlette.responses import Response
from starlette.routing import Route, Router

from ...protocol import jsonrpc as rpc
from ..jobs import bug_in_words
from .caller_shares import Shares
from .http_auth import Access
from .http_request import (
    CLOSE,
    Caller,
    ClientGone,
    DoorRequest,
    HttpRefusal,
    Rules,
    no_such_path,
    too_many,
)

Page = Callable[[PageRequest], Awaitable[Response]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_NO_PAGES: Final[Mapping[str, Page]] = {}


class Paths:
    """What a server gives its requests (`Door`), without pages yet: `show` them. `refusals` counts the refused requests
    by the status of the answer. `in_work`: the requests that are being answered, however long that takes: what
    is waited for, event streams, pages that watch. No caller can take all connections by them."""

    def __init__(self, access: Access, note: Callable[[str], None], rules: Rules) -> None:
        self.in_work: Shares = Shares(rules.connections, access.callers, has_owners=access.has_owners)
        self.refusals: Counter[int] = Counter()
        self._access = access
        self._note = note
        self._router = Router(redirect_slashes=False, default=self._nowhere)

    def show(
        self,
        open_pages: Mapping[str, Page] = _NO_PAGES,
        pages: Mapping[str, Page] = _NO_PAGES,
        posts: Mapping[str, Page] = _NO_PAGES,
    ) -> None:
        """Show these pages, by their paths. `posts` are for POST. Those in `open_pages` need no token."""
        routes = self._router.routes
        routes += [Route(path, page) for path, page in open_pages.items()]
        routes += [self._guarded(path, page) for path, page in pages.items()]
        routes += [self._guarded(path, page, "POST") for path, page in posts.items()]

    def _guarded(self, path: str, page: Page, method: str = "GET") -> Route:
        """A page that shows everything. It needs a token, and does not exist for a caller that is bound to a profile.
        The page finds its caller in the state of its request."""

        async def shown(request: PageRequest) -> Response:
            caller = request.state.caller = await self._access.caller(request.state.request)
            if self._bound(caller) is not None:
                raise no_such_path()
            self.hold_place(request.state.request, caller)
            return await page(request)

        return Route(path, shown, methods=[method])

    def _bound(self, caller: Caller) -> str | None:
        """The profile that this caller is bound to; None: it sees everything."""
        return caller.profile

    def hold_place(self, request: DoorRequest, caller: Caller) -> None:
        """Have a place for this request until it is answered. Raises `HttpRefusal`."""
        if not self.in_work.take(caller):
            raise too_many("requests")
        request.when_over(partial(self.in_work.give_back, caller))

    def __call__(self, request: DoorRequest) -> None:
        """Answer a request. Never raises."""
        try:
            if request.fault is not None:
                raise request.fault
            self._access.check_place(request)
            # Each path has one spelling, also for a proxy that lets only some of them through.
            if request.path.find(b"%") >= 0:  # `in` first asks whether it was given a number, by raising
                raise no_such_path()
            self._find(request)
        except Exception as error:
            self._failed(request, error)

    def _find(self, request: DoorRequest) -> None:
        """Answer a request that comes from where it may come from. Raises `HttpRefusal`."""
        self.later(request, self._show(request))

    def later(self, request: DoorRequest, work: Coroutine[Any, Any, None]) -> None:
        """Go on with a request in a task. `work` may raise `HttpRefusal`."""
        request.later(self._carried_out(request, work))

    async def _carried_out(self, request: DoorRequest, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._failed(request, error)

    def _failed(self, request: DoorRequest, error: Exception) -> None:
        if isinstance(error, ClientGone):
            return
        if not isinstance(error, HttpRefusal):
            self._note(bug_in_words(error))
            error = HttpRefusal(500, "Internal error in the gateway.", CLOSE, code=rpc.INTERNAL_ERROR)
            if request.is_answered:
                request.abort()
        self.refusals[error.status] += 1
        if not request.is_answered:
            request.refuse(error)

    async def _show(self, request: DoorRequest) -> None:
        """Answer with the page of its path."""
        await self._router(*as_asgi(request))

    async def _nowhere(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        await self._access.caller(scope["state"]["request"])
        raise no_such_path()


# ---- Pages are starlette's, which speaks ASGI -----------------------------------------------------------------------


def as_asgi(request: DoorRequest) -> tuple[Scope, Receive, Send]:
    """A request as an ASGI application takes it. It is in the state of the scope, too."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path.decode("latin-1"),
        "raw_path": request.path,
        "query_string": request.query,
        "root_path": "",
        "headers": [*request.headers.items()],
        "client": None,
        "server": None,
        "state": {"request": request},
    }
    return scope, partial(_received, request), _AnswerSender(request)


async def _received(request: DoorRequest) -> MutableMapping[str, Any]:
    try:
        piece = await request.piece()
    except ClientGone:
        return {"type": "http.disconnect"}
    if piece is None:
        await request.disconnected()
        return {"type": "http.disconnect"}
    return {"type": "http.request", "body": piece, "more_body": True}


class _AnswerSender:
    """Takes the parts of an answer. One that comes whole is written whole."""

    def __init__(self, request: DoorRequest) -> None:
        self._request = request
        self._status = 500
        self._headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, event: MutableMapping[str, Any]) -> None:
        request = self._request
        if event["type"] == "http.response.start":
            self._status = event["status"]
            self._headers = [(name, value) for name, value in event["headers"] if name != b"content-length"]
            return
        body, more = event.get("body", b""), event.get("more_body", False)
        if not request.is_answered and not more:
            request.answer(self._status, body, self._headers)
            return
        if not request.is_answered:
            request.begin_stream(self._headers, self._status, ())
        await request.write(body)
        if not more:
            request.end_stream()
