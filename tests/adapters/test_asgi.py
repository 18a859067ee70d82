"""A room for the life of a web application."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from tests.support import in_virtual_time
from tests.support.forked import ROOT
from tests.support.gateway import PATIENCE, children, gone_within
from tests.support.patience import until

from greenroom import Greenroom
from greenroom.adapters.asgi import room_lifespan
from greenroom.errors import ConfigError
from greenroom.testing import FakeServer, fake_connectors

EXAMPLE = ROOT / "examples" / "web_app.py"
NOTES = {"mcpServers": {"notes": {"command": "a fake"}}}


def options(server: FakeServer) -> dict[str, Any]:
    return {
        "cache_path": ":memory:",
        "bootstrap": False,
        "connectors": fake_connectors({"notes": server}),
    }


@in_virtual_time
async def test_a_room_is_open_as_long_as_the_app_runs_and_each_start_has_one_of_its_own() -> None:
    server, rooms = FakeServer(), list[Greenroom]()
    app = Starlette(lifespan=room_lifespan(NOTES, **options(server)))
    for starts in (1, 2):
        async with app.router.lifespan_context(app) as state:
            assert state is not None
            room = state["room"]
            assert app.state.room is room
            assert (await room.call("notes_echo", {"text": "hi"})).text
            assert (server.starts, server.live) == (starts, 1)
        assert server.live == 0
        assert room.drain_report.is_final
        rooms.append(room)
    assert rooms[0] is not rooms[1]


@in_virtual_time
async def test_it_stands_beside_what_the_app_does_itself_and_under_another_name() -> None:
    happened: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[dict[str, Any]]:
        happened.append("open")
        try:
            async with room_lifespan(NOTES, name="tools", **options(FakeServer()))(app) as state:
                yield {**state, "more": 1}
        finally:
            happened.append("closed")

    app = Starlette(lifespan=lifespan)
    async with app.router.lifespan_context(app) as state:
        assert state is not None
        assert (app.state.tools is state["tools"], state["more"]) == (True, 1)
    assert happened == ["open", "closed"]


@in_virtual_time
async def test_what_cannot_be_opened_keeps_the_app_from_starting() -> None:
    app = Starlette(lifespan=room_lifespan({"mcpServers": 7}))
    with pytest.raises(ConfigError):
        async with app.router.lifespan_context(app):
            raise AssertionError


def test_the_example_runs_under_uvicorn_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": os.fspath(tmp_path), "HOME": os.fspath(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as out:
        app = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "web_app:app", "--port", "0", "--app-dir", EXAMPLE.parent],
            env=environment,
            stdout=out,
            stderr=out,
        )
    try:
        found = until(lambda: re.search(r"running on (http://127.0.0.1:\d+)", log.read_text()), "the app")
        answers = [httpx2.get(f"{found[1]}/time", params={"offset": n}, timeout=PATIENCE) for n in (1, 2)]
        assert ["+01:00" in answers[0].text, "+02:00" in answers[1].text] == [True, True], log.read_text()
        started = children(app.pid)
        assert started, "its server is a child"
        app.send_signal(signal.SIGTERM)
        app.wait(PATIENCE)
        assert not gone_within(started)
        assert "Application shutdown complete" in log.read_text()
    finally:
        app.kill()
        app.wait()
