"""Paths behind the checks that every request passes: its head, its host, its origin, who sends it.

What is refused is a `Refusal`; any other exception is a bug of ours, which is noted, and which its request alone
notices. The HTTP door has these paths, and so has `greenroom page`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request as PageRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from ...protocol import jsonrpc as rpc
from .http_auth import Access
from .http_request import Caller, Gone, Receive, Refusal, Request, Scope, Send, no_such_path

Page = Callable[[PageRequest], Awaitable[Response]]


class Paths:
    """An ASGI application without routes yet: `route` them. `refusals` counts the refused requests by the status of the
    answer."""

    def __init__(self, access: Access, note: Callable[[str], None]) -> None:
        self.refusals: Counter[int] = Counter()
        self._access = access
        self._note = note
        self._router: Router

    def route(self, *routes: BaseRoute) -> None:
        self._router = Router([*routes], redirect_slashes=False, default=self._nowhere)

    def guarded(self, path: str, page: Page, method: str = "GET") -> Route:
        """A page that shows everything. It needs a token, and does not exist for a caller that is bound to a profile.
        The page finds its caller in the state of its request."""

        async def shown(request: PageRequest) -> Response:
            caller = request.state.caller = await self._access.caller(request.state.request)
            if self._bound(caller) is not None:
                raise no_such_path()
            return await page(request)

        return Route(path, shown, methods=[method])

    def _bound(self, caller: Caller) -> str | None:
        """The profile that this caller is bound to; None: it sees everything."""
        return caller.profile

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: the ASGI application."""
        request: Request | None = None
        try:
            request = scope.setdefault("state", {})["request"] = Request(scope, receive, send)
            self._access.check_place(request)
            if (
                b"%" in request.path
            ):  # each path has one spelling, also for a proxy that lets only some of them through
                raise no_such_path()
            await self._router(scope, receive, send)
        except Refusal as refusal:
            await self._refuse(request or _bare(scope, receive, send), refusal)
        except Gone:
            return
        except Exception as error:
            self._report(error)
            self.refusals[500] += 1
            if request is not None and not request.is_answered:
                await request.refuse(Refusal(500, "Internal error in the gateway.", code=rpc.INTERNAL_ERROR))
            elif request is not None:
                request.abort()

    async def _refuse(self, request: Request, refusal: Refusal) -> None:
        self.refusals[refusal.status] += 1
        if not request.is_answered:
            await request.refuse(refusal)

    def _report(self, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        places = ", from ".join(
            f"{Path(frame.filename).name}, line {frame.lineno}" for frame in reversed(frames)
        )
        self._note(f"a bug in Greenroom, please report it: {type(error).__name__} at {places}")

    async def _nowhere(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        await self._access.caller(scope["state"]["request"])
        raise no_such_path()


def _bare(scope: Scope, receive: Receive, send: Send) -> Request:
    """A request whose headers were refused."""
    return Request({**scope, "headers": []}, receive, send)
