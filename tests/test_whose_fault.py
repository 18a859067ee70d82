"""No error of a client or of a file is called a bug of ours."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest
from tests.support import run, run_virtual
from tests.support.http_door import http_door
from tests.support.rooms import Outcomes, open_room

from greenroom.protocol.errors import UNTRUSTED, Problem
from greenroom.testing import FakeServer

LEVEL = "io.modelcontextprotocol/logLevel"


@pytest.mark.parametrize("expose", ["proxy", "meta", "direct"])
def test_a_log_level_that_does_not_exist_is_the_clients_mistake(expose: str) -> None:
    async def main() -> None:
        names = {"proxy": ("mcp", {}), "meta": ("mcp_discover", {}), "direct": ("a_echo", {"text": "hi"})}
        name, arguments = names[expose]
        async with open_room({"a": FakeServer()}) as room, http_door(room, expose=expose) as opened:
            await room.connect("a")
            params: dict[str, Any] = {"name": name, "arguments": arguments, "_meta": {LEVEL: "loud"}}
            answer = (await opened.stateless("tools/call", params)).json()
            assert "loud" in str(answer)
            assert answer.get("error", {}).get("code") in (None, -32602)
            assert "result" not in answer or answer["result"]["isError"]
            good = {**params, "_meta": {LEVEL: "info"}}
            assert "result" in (await opened.stateless("tools/call", good)).json()

    run("asyncio", main)


@pytest.mark.parametrize("lifecycle", ["lazy", "eager", "keep-alive"])
def test_a_reload_that_takes_the_definition_away_while_it_connects_says_so(
    lifecycle: str, backend: str
) -> None:
    async def main() -> None:
        server = FakeServer(greet_latency=5.0)
        async with (
            open_room({"a": server}, entries={"a": {"lifecycle": lifecycle}}) as room,
            Outcomes() as calls,
        ):
            waiting = calls.start(room, "a_echo")
            await anyio.sleep(1)
            why = Problem("mcp.json", "is not trusted", code=UNTRUSTED)
            before = room.config
            await room.reload(attrs.evolve(before, servers={}, broken={"a": why}))
            await anyio.sleep(30)
            assert (waiting.error.code, waiting.error.reach.value) == (UNTRUSTED, "not_sent")
            assert server.starts == 1, "there is nothing to start"
            await room.reload(before)
            assert (await room.call("a_echo", {"text": "hi"})).text

    run_virtual(backend, main)
