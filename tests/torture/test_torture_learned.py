"""What servers say of themselves without end or bottom, with a real gateway, real servers and a real cache file."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import PATIENCE, Gateway
from tests.support.gateway import serve as serve_gateway
from tests.support.lister import lister, tool

MIB = 1 << 20


@contextmanager
def serve(*given: Any, **settings: Any) -> Generator[Gateway]:
    """A gateway that is ended politely: nothing of it is left when the test is over."""
    with serve_gateway(*given, **settings) as gateway:
        gateway.initialize()
        yield gateway
        assert gateway.end() == 0


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


def memory(gateway: Gateway, what: str) -> int:
    """Bytes that are resident now (`VmRSS`), or were at most (`VmHWM`)."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(what))


def problems(gateway: Gateway, server: str) -> str:
    rows = gateway.mcp()["_meta"]["greenroom/details"]["servers"]
    return "\n".join(next(row.get("problems", []) for row in rows if row["name"] == server))


def test_t34_a_deeply_nested_schema_costs_only_itself_now_and_at_every_later_boot(tmp_path: Path) -> None:
    given = {
        "a": lister(tmp_path, "a", tools=[tool("x")]),
        "abyss": lister(tmp_path, "abyss", tools=[tool("y")], nested=964),
        "deeper": lister(tmp_path, "deeper", tools=[tool("z")], nested=100_000),
    }
    for boot in range(3):
        with serve(tmp_path, given, bootstrap=boot == 0) as gateway:
            assert gateway.mcp(connect="deeper")["isError"] is True  # its answer cannot be read
            for name, its in (("a", "x"), ("abyss", "y")):
                if boot == 0:
                    gateway.mcp(connect=name)
                assert f"{name}_{its}" in text(gateway.mcp(server=name))
                assert text(gateway.mcp(tool=f"{name}_{its}")) == its
                said = problems(gateway, name)
                assert ("nested deeper than 100 was left out" in said) is (name != "a")
                assert "nested" not in gateway.mcp(server=name)["_meta"]["greenroom/details"]["tools"]


TOO_MUCH: dict[str, tuple[dict[str, Any], str, int]] = {
    "bytes at once": (
        {"tools": [tool(f"fat{at}", "x" * (2 * MIB - 999)) for at in range(12)]},
        "and what comes after it, is left out",
        0,
    ),
    "items": ({"many": 12_000}, "may have 10,000 items", 10_000),
    "pages of megabytes": (
        {"tools": [tool("fat", "x" * (2 * MIB - 999))], "pages": "endless"},
        "may have 16,777,216 bytes",
        8,
    ),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_t36_lists_without_end_are_cut_said_and_cost_nobody_else_anything(name: str, tmp_path: Path) -> None:
    what, why, count = TOO_MUCH[name]
    given = {
        "calm": lister(tmp_path, "calm", tools=[tool("x")]),
        "endless": lister(tmp_path, "endless", **{"tools": [], **what}) | {"bootstrap": False},
    }
    with serve(tmp_path, given) as gateway:
        gateway.mcp(tool="calm_x")
        before = memory(gateway, "VmRSS")
        connecting, others = gateway.start_mcp(connect="endless"), 0
        while connecting not in gateway.answered:
            assert text(gateway.mcp(tool="calm_x")) == "x"
            others += 1
        assert others > 5
        assert len(gateway.mcp(server="endless")["content"][0]["text"]) < 60_000
        assert why in problems(gateway, "endless")
        row = next(
            row for row in gateway.mcp()["_meta"]["greenroom/details"]["servers"] if row["name"] == "endless"
        )
        assert row["toolCount"] == count
        assert memory(gateway, "VmHWM") < before + 150 * MIB
        bound, until = before + (4 * MIB if not count else 60 * MIB), time.monotonic() + PATIENCE
        while memory(gateway, "VmRSS") >= bound and time.monotonic() < until:
            time.sleep(0.05)  # what was read is given back when whoever read it has had its turn
        assert memory(gateway, "VmRSS") < bound
    with serve(tmp_path, given) as gateway:  # from the cache
        assert why in problems(gateway, "endless")
