"""The recipes of README run as they are written there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.support import run

from greenroom import Greenroom

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
CLOCK = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}


def _recipe(name: str) -> dict[str, Any]:
    """What the one Python block of README that defines `name` leaves behind."""
    [block] = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if f"def {name}(" in block]
    names: dict[str, Any] = {"Greenroom": Greenroom, "clock": CLOCK}
    exec(compile(block, f"README.md: {name}", "exec"), names)
    return names


async def _get(app: Any, path: str, query: str = "") -> tuple[int, Any]:
    """A GET as a web server hands it to an application."""
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "headers": [],
        "app": app,
    }
    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in said)
    return said[0]["status"], json.loads(body)


def test_a_web_application_opens_a_room_in_its_lifespan(
    backend: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def main() -> None:
        app = _recipe("lifespan")["app"]
        async with app.router.lifespan_context(app):
            for _ in range(2):
                status, answer = await _get(app, "/now")
                assert (status, "weekday" in answer) == (200, True)
            status, answer = await _get(app, "/now", "utc_offset=far")
            assert (status, answer["code"], answer["tool"]) == (422, "tool_error", "clock_now")
            room = app.state.room
        assert room.drain_report.completed == 3
        status, answer = await _get(app, "/now")
        assert (status, answer["code"]) == (503, "server_not_connected")

    run(backend, main)


def test_the_first_list_waits_for_servers_that_nobody_knows(backend: str) -> None:
    async def main() -> None:
        async with Greenroom.open({"mcpServers": {"clock": CLOCK}}, cache_path=":memory:") as room:
            tools = await _recipe("tools_for_a_model")["tools_for_a_model"](room)
        assert {tool["name"] for tool in tools} == {"clock_between", "clock_now"}
        assert all(tool["input_schema"]["type"] == "object" for tool in tools)

    run(backend, main)
