"""A web app that has a room for as long as it runs: `uvicorn web_app:app`, then open /time?offset=1."""

import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from greenroom.adapters.asgi import room_lifespan

CLOCK = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}


async def time(request: Request) -> PlainTextResponse:
    offset = float(request.query_params.get("offset", 0))
    result = await request.state.room.call("clock_now", {"utc_offset": offset})
    return PlainTextResponse(result.text)


app = Starlette(routes=[Route("/time", time)], lifespan=room_lifespan({"mcpServers": {"clock": CLOCK}}))
