"""What a client shows of the `mcp` tool's answers, whichever part of a result it prefers: real gateway, real client."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway import serve
from tests.support.lister import lister, tool
from tests.support.whole import whole

COUNTED = {"count": 2, "names": ["Ada", "Grace"]}
RESULTS: dict[str, dict[str, Any]] = {
    "half": {"content": [{"type": "text", "text": "Found 2 people."}], "structuredContent": COUNTED},
    "both": {
        "content": [{"type": "text", "text": json.dumps(COUNTED, indent=1)}],
        "structuredContent": COUNTED,
    },
    "wrapped": {"content": [{"type": "text", "text": "noon"}], "structuredContent": {"result": "noon"}},
    "failed": {
        "content": [{"type": "text", "text": "no"}],
        "structuredContent": {"reason": "ink"},
        "isError": True,
    },
}


def servers(folder: Path) -> dict[str, Any]:
    tools = [tool(name, f"{name} of it, told at length") for name in RESULTS]
    return {"a": lister(folder, "a", tools=tools, results=RESULTS), "gone": {"command": "/no/such/program"}}


def on_fastmcp(folder: Path, body: Callable[[Any], Awaitable[None]]) -> None:
    """FastMCP's client in front of `greenroom serve`. Its `.data` is made of `structuredContent` where there is any."""
    from fastmcp import Client

    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers(folder), "settings": {"bootstrap": False}}))
    entry = {
        "command": sys.executable,
        "args": ["-m", "greenroom", "serve", "--config", os.fspath(file)],
        "env": {"HOME": os.fspath(folder), "XDG_CACHE_HOME": os.fspath(folder / "cache")},
    }

    async def main() -> None:
        async with Client({"mcpServers": {"room": entry}}) as client:
            await body(client)

    anyio.run(main)


def shown(result: Any) -> str:
    """What a client shows that prefers data to text, as several do."""
    data = result.data if result.data is not None else result.structured_content
    return (
        str(data) if data is not None else "\n".join(getattr(block, "text", "") for block in result.content)
    )


def test_t50_a_client_that_prefers_structured_content_shows_the_answer(tmp_path: Path) -> None:
    async def body(client: Any) -> None:
        async def ask(**arguments: Any) -> str:
            result = await client.call_tool("mcp", arguments, raise_on_error=False)
            assert result.structured_content is None
            assert result.meta["greenroom/details"]["mode"]
            return shown(result)

        (door,) = await client.list_tools()
        assert door.output_schema is None
        assert "half - half of it, told at length" in await ask(connect="a")
        assert "half of it, told at length" in await ask(search="half")
        assert "half of it, told at length" in await ask(describe="a_half")
        assert "4 tools" in await ask()
        assert (await ask(tool="a_both")) == json.dumps(COUNTED, indent=1)
        assert (await ask(tool="a_wrapped")) == "noon"
        half = await ask(tool="a_half")
        assert half.startswith("Found 2 people.")
        assert json.loads(half.partition("\n")[2]) == COUNTED
        assert "ink" in await ask(tool="a_failed")

    on_fastmcp(tmp_path, body)


NOT_DONE: dict[str, dict[str, Any]] = {
    "a failed connect": {"connect": "gone"},
    "a call whose server cannot be connected": {"tool": "gone_x"},
    "a connect of nobody": {"connect": "zebra"},
    "a connect of a disabled server": {"connect": "off"},
    "a call of a disabled server": {"tool": "off_x"},
    "a call of nobody's tool": {"tool": "zebra"},
    "a call of a tool it does not have": {"tool": "a_zebra"},
    "arguments that are none": {"tool": "a_half", "args": "{"},
    "no session to call in": {"tool": "own_half"},
    "a tool's own error": {"tool": "a_failed"},
}


def test_t50_whatever_was_not_done_is_an_error_at_the_proxy(tmp_path: Path) -> None:
    more = {"off": {"command": "x", "disabled": True}}
    more["own"] = {**lister(tmp_path, "own", tools=[tool("half")]), "isolation": "per_session"}
    with serve(tmp_path, servers(tmp_path) | more, failureThreshold=1, cooldownMs=60_000) as gateway:
        gateway.greet()
        assert "isError" not in gateway.mcp(connect="a")
        for what, asked in NOT_DONE.items():
            assert gateway.mcp(**asked).get("isError") is True, what
        refused = gateway.mcp(tool="gone_x")
        assert refused["_meta"]["greenroom/details"]["error"] == "server_unavailable", "its gate is shut"
        assert refused["isError"] is True
        other = gateway.answer(gateway.send("tools/call", {"name": "a_half", "arguments": {}}))
        assert other["result"]["isError"] is True
        assert "mcp({ tool:" in other["result"]["content"][0]["text"]


@pytest.mark.parametrize("name", ["old_zebra", "zebra", "gone_x"])
def test_t50_whatever_was_not_done_is_an_error_at_the_direct_door(name: str, tmp_path: Path) -> None:
    given = {"old": whole("old"), "gone": {"command": "/no/such/program"}}
    with serve(tmp_path, given, "--expose", "direct") as gateway:
        gateway.greet()
        result = gateway.answer(gateway.send("tools/call", {"name": name, "arguments": {}}))["result"]
        assert result["isError"] is True
        assert result["_meta"]["greenroom/error"]["error"]
        assert result["content"][0]["text"]
