"""The contract with the SDK (`greenroom.actors._sdk`, `greenroom.protocol._sdk_types`), in either of its majors.

`make test` runs it with the one that is installed, `make older-sdk` with 1.x in an environment of its own: so nothing
here imports what only one of them has. A tool, progress, `_meta`, an error, a second run and typed results are shown.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from tests.support import run

from greenroom import Greenroom
from greenroom.actors._sdk import as_server

EMPTY: dict[str, Any] = {"mcpServers": {}, "settings": {"toolPrefix": "none"}}


def _kinds() -> list[tuple[str, Any]]:
    """Each class of servers that is installed here, with its context's."""
    found: list[tuple[str, Any]] = []
    for module, name in (
        ("mcp.server.mcpserver", "MCPServer"),
        ("mcp.server.fastmcp", "FastMCP"),
        ("fastmcp", "FastMCP"),
    ):
        try:
            home = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        found.append((f"{module}.{name}", home))
    assert found
    return found


def _server(home: Any) -> Any:
    kind = getattr(home, "MCPServer", None) or home.FastMCP
    server = kind("within")

    async def steps(count: int, context: Any) -> str:
        for step in range(count):
            await context.report_progress(step + 1, count)
        meta = context.request_context.meta
        extra = meta if isinstance(meta, dict) else (meta.model_extra or {}) if meta is not None else {}
        return str(extra.get("traceparent"))

    def add(a: int, b: int) -> int:
        return a + b

    def fail() -> str:
        raise ValueError("as it should")

    steps.__annotations__["context"] = home.Context
    for function in (steps, add, fail):
        function.__annotations__ = {
            key: {"int": int, "str": str}.get(value, value) for key, value in function.__annotations__.items()
        }
        server.tool()(function)
    return server


@pytest.mark.parametrize("home", [home for _, home in _kinds()], ids=[name for name, _ in _kinds()])
def test_a_server_of_any_kind_runs_in_our_process(home: Any, backend: str) -> None:
    async def main() -> None:
        server, progress = _server(home), list[Any]()
        async with Greenroom.open(EMPTY, cache_path=":memory:", in_process={"in": server}) as room:
            await room.connect("in")
            traced = await room.call(
                "steps", {"count": 2}, meta={"traceparent": "00-1"}, on_progress=progress.append
            )
            assert (traced.text, [step["progress"] for step in progress]) == ("00-1", [1, 2])
            added = await room.call("add", {"a": 1, "b": 2})
            assert (added.text, added.is_error) == ("3", False)
            assert added.to_mcp().content[0].text == "3"  # type: ignore[union-attr]
            failed = await room.call("fail")
            assert failed.is_error
            assert "fail" in failed.text
            assert room.describe("add").to_mcp().name == "add"
            await room.restart("in")  # an object is run again
            assert (await room.call("add", {"a": 2, "b": 2})).text == "4"

    run(backend, main)


def test_what_is_no_server_is_none() -> None:
    assert as_server("a text") is None
    assert as_server(object()) is None
