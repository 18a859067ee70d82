"""The page's methods of the control socket, for `greenroom page`. Only the owner may use that socket, so each method
may change things. Answers go through as text, with their HTTP status: nothing is read and written again on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from ..doors.control_protocol import object_in, text_in

if TYPE_CHECKING:
    from ..doors.control_server import Handler
    from .room_page import PageAnswer, RoomPage

LOOK, DO, WATCH = "page_look", "page_do", "page_watch"
_OWNER: Final = "its owner"
_PIECE: Final = 1 << 16


def page_methods(page: Callable[[], RoomPage]) -> Mapping[str, Handler]:
    """`page` is called when somebody asks for the first time: a gateway whose page nobody opens has none."""
    made: list[RoomPage] = []

    def there() -> RoomPage:
        if not made:
            made.append(page())
        return made[0]

    async def look(params: Mapping[str, Any]) -> Any:
        what, asked = text_in(params, "what") or "", object_in(params, "params")
        return _told(await there().look(what, asked, acts=True))

    async def do(params: Mapping[str, Any]) -> Any:
        return _told(await there().act(object_in(params, "params"), _OWNER))

    async def watch(_params: Mapping[str, Any]) -> Any:
        from ..doors.http_request import Caller

        return _texts(there().watch(Caller(_OWNER, is_owner=True)))

    return {LOOK: look, DO: do, WATCH: watch}


async def _texts(events: AsyncGenerator[bytes]) -> AsyncGenerator[str]:
    """The events in pieces, so that none is long to write."""
    async with aclosing(events):
        async for event in events:
            text = event.decode()
            for start in range(0, len(text), _PIECE):
                yield text[start : start + _PIECE]


def _told(answer: PageAnswer) -> dict[str, Any]:
    return {"status": answer.status, "text": answer.body.decode()}
