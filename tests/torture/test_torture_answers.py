"""What a client shows of the `mcp` tool's answers, whichever part of a result it prefers: real gateway, real client."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway import Gateway, faulty
from tests.support.gateway import serve as serve_gateway
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


@contextmanager
def serve(*given: Any, **settings: Any) -> Generator[Gateway]:
    """A gateway that is ended politely: nothing of it is left when the test is over."""
    with serve_gateway(*given, **settings) as gateway:
        yield gateway
        assert gateway.end() == 0


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
    "a tool's own error": {"tool": "a_failed"},
}


def test_t50_whatever_was_not_done_is_an_error_at_the_proxy(tmp_path: Path) -> None:
    more = {"off": {"command": "x", "disabled": True}}
    with serve(tmp_path, servers(tmp_path) | more, failureThreshold=1, cooldownMs=60_000) as gateway:
        gateway.initialize()
        assert "isError" not in gateway.mcp(connect="a")
        for what, asked in NOT_DONE.items():
            assert gateway.mcp(**asked).get("isError") is True, what
        refused = gateway.mcp(tool="gone_x")
        assert refused["_meta"]["greenroom/details"]["error"] == "server_unavailable", (
            "its circuit breaker refuses"
        )
        assert refused["isError"] is True
        other = gateway.answer(gateway.send("tools/call", {"name": "a_half", "arguments": {}}))
        assert other["result"]["isError"] is True
        assert "mcp({ tool:" in other["result"]["content"][0]["text"]


@pytest.mark.parametrize("name", ["old_zebra", "zebra", "gone_x"])
def test_t50_whatever_was_not_done_is_an_error_at_the_direct_door(name: str, tmp_path: Path) -> None:
    given = {"old": whole("old"), "gone": {"command": "/no/such/program"}}
    with serve(tmp_path, given, "--expose", "direct") as gateway:
        gateway.initialize()
        result = gateway.answer(gateway.send("tools/call", {"name": name, "arguments": {}}))["result"]
        assert result["isError"] is True
        assert result["_meta"]["greenroom/error"]["error"]
        assert result["content"][0]["text"]


# ---- how much an answer says, and what it says once ------------------------------------------------------------------


def test_no_look_is_longer_than_the_guard_and_every_list_says_how_to_go_on(tmp_path: Path) -> None:
    fat = "told at length " * 70_000
    tools = [tool(f"t{number}", f"does {number} things") for number in range(700)]
    tools.append(tool("t_fat", fat, annotations={"readOnlyHint": True}))
    given = {"a": lister(tmp_path, "a", tools=tools, instructions=fat)}
    with serve(tmp_path, given) as gateway:
        gateway.initialize()
        for asked in (
            {"connect": "a"},
            {"server": "a", "limit": 100_000},
            {"search": "", "server": "a", "limit": 100_000},
            {"search": "told things", "limit": 100_000},
            {"search": "told"},
            {"describe": "a_t_fat"},
            {"instructions": "a"},
            {"tool": "x" * 200_000},
            {"describe": "a_" + "x" * 200_000},
            {"search": "x" * 200_000},
        ):
            result = gateway.mcp(**asked)
            assert sum(len(block["text"].encode()) for block in result["content"]) <= 51_200, asked
            assert len(json.dumps(result)) <= 120_000, asked
        assert (
            "fullOutputPath" in gateway.mcp(describe="a_t_fat")["_meta"]["greenroom/details"]["outputGuard"]
        )
        for asked in ({"server": "a"}, {"search": "", "server": "a", "limit": 90}):
            seen: list[str] = []
            offset: int | None = 0
            while offset is not None:
                result = gateway.mcp(**asked, offset=offset)
                details = result["_meta"]["greenroom/details"]
                seen += details.get("tools") or [match["tool"] for match in details["matches"]]
                offset = details.get("nextOffset")
                more = f"offset: {offset} for more" if offset is not None else " of 701"
                assert more in result["content"][0]["text"]
            assert len(seen) == len(set(seen)) == 701


@pytest.mark.parametrize(("pages", "why"), [(9, "cut after 3 pages"), ("same", "repeats its cursor")])
def test_a_list_that_was_cut_says_so(pages: Any, why: str, tmp_path: Path) -> None:
    given = {"a": lister(tmp_path, "a", tools=[tool("x")], pages=pages)}
    with serve(tmp_path, given, maxPages=3) as gateway:
        gateway.initialize()
        assert "Incomplete: tools/list: " in gateway.mcp(connect="a")["content"][0]["text"]
        assert why in gateway.mcp(server="a")["content"][0]["text"]
        status = gateway.mcp()
        assert why in status["content"][0]["text"]
        (row,) = status["_meta"]["greenroom/details"]["servers"]
        assert why in row["problems"][0]
    with serve(tmp_path, given, maxPages=3) as gateway:  # from the cache
        gateway.initialize()
        assert why in gateway.mcp(server="a")["content"][0]["text"]


def test_what_went_wrong_is_said_once(tmp_path: Path) -> None:
    given = {"gone": {"command": "/no/such/program"}, "weak": faulty(tmp_path, "weak")}
    with serve(tmp_path, given) as gateway:
        gateway.initialize()
        for asked in ({"connect": "gone"}, {"tool": "gone_x"}):
            text = gateway.mcp(**asked)["content"][0]["text"]
            said, _, _step = text.partition(" Use mcp(")
            assert said.count("gone") == 1, text
            assert text.count("connect to") <= 1, text
        text = gateway.mcp(tool="weak_crash", args={"code": 3})["content"][0]["text"]
        assert text.count("may have run") == 1, text
        assert text.count("sent") == 1, text
