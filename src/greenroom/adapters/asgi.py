"""A room for the life of a web application (Starlette, FastAPI): `Starlette(…, lifespan=room_lifespan("mcp.json"))`.

The room opens before the first request and closes after the last. It stands in the state of the application and in that
of each request, so that all requests share it. It belongs to the task of the lifespan, and requests use it from theirs.

Nothing of a web framework is imported: the application is whatever has a `state`, as ASGI's lifespan protocol wants it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from .. import Greenroom

Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]


def room_lifespan(config: Any, *, name: str = "room", **options: Any) -> Lifespan:
    """The `lifespan` of an application, with a room in `app.state.room` and `request.state.room`.

    `config` and `options` are the arguments of `Greenroom.open`, which is called when the application starts. If it
    raises, the application does not start. `name`: the name of the room in the state. If your application has its own
    lifespan, enter this one inside it: `async with room_lifespan("mcp.json")(app) as state: yield {**state, …}`."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[dict[str, Any]]:
        async with Greenroom.open(config, **options) as room:
            setattr(app.state, name, room)
            yield {name: room}

    return lifespan
