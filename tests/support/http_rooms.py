"""A room with one HTTP server in it, called `raw`, connected, its tools under their own names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from greenroom.supervisor.room import Greenroom


@asynccontextmanager
async def room_at(
    url: str, settings: dict[str, Any] | None = None, *, auth: Any = None, connect: bool = True, **entry: Any
) -> AsyncGenerator[Greenroom]:
    config = {
        "mcpServers": {"raw": {"url": url, **entry}},
        "settings": {"toolPrefix": "none", **(settings or {})},
    }
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False, auth=auth) as room:
        if connect:
            await room.connect("raw")
        yield room
