"""A boot costs what the configuration costs to read, whatever stands behind it: real gateways, real processes counted.

A boot's processor time is compared with that of a bare interpreter on the same machine in the same minute, and the
bound is wide. What it waits for is not timed: that no server was started is counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import PATIENCE, Gateway, faulty, logged_pids, named_after, serve
from tests.support.patience import until_still

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys
from greenroom.config.files import load_config

FIFTY = 50


def fifty(folder: Path) -> dict[str, Any]:
    return {f"s{n}": faulty(folder, f"s{n}") for n in range(FIFTY)}


def children(gateway: Gateway) -> list[str]:
    """Every process the gateway has started and not yet reaped, the guard included."""
    found = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text()
    return found.split()


def cpu_time(pid: int) -> float:
    """Seconds of user and system time so far, with the precision of the scheduler (not that of a tick)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def interpreter_time() -> float:
    """The processor time of a bare interpreter's start, in seconds; the best of three."""
    program = "import time; print(time.process_time())"
    starts = (subprocess.check_output([sys.executable, "-I", "-S", "-c", program]) for _ in range(3))
    return min(map(float, starts))


@pytest.mark.parametrize("known", [False, True], ids=["without bootstrap", "with a cache"])
def test_t13_fifty_lazy_servers_boot_with_no_child(tmp_path: Path, known: bool) -> None:
    if known:
        _keep_all_of(tmp_path)
    bare = interpreter_time()

    with serve(tmp_path, fifty(tmp_path), bootstrap=known, cold=True) as gateway:
        gateway.initialize()
        tools = gateway.answer(gateway.send("tools/list"))["result"]["tools"]
        took = cpu_time(gateway.process.pid)

        assert [tool["name"] for tool in tools] == ["mcp"]
        status = gateway.mcp()["_meta"]["greenroom/details"]["servers"]
        assert {row["status"] for row in status} == {"cached" if known else "not-connected"}
        assert children(gateway) == []
        gateway.end()
    assert took < max(1.5, 120 * bare), (took, bare)
    assert logged_pids(tmp_path) == set()


def _keep_all_of(folder: Path) -> None:
    """Write what an earlier gateway would have kept of each of the fifty."""
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": fifty(folder)}))
    keys = catalogue_keys(load_config(file, cwd=folder, home=folder, environ={}))
    tools, now = ({"name": "echo", "inputSchema": {"type": "object"}},), time.time()
    entries = [ServerEntry(name, key, tools=tools, fetched_at=now) for name, key in keys.items()]
    CatalogueFile(folder / "cache" / "greenroom" / "catalogue.json").save(entries, now)


def test_a_second_boot_lists_searches_and_describes_with_no_process(tmp_path: Path) -> None:
    servers = {name: faulty(tmp_path, name) for name in ("stage", "wings")}
    with serve(
        tmp_path, servers, bootstrap=True
    ) as gateway:  # the first one asks each server once, by itself
        gateway.initialize()
        until = time.monotonic() + PATIENCE
        while not all(row["toolCount"] for row in gateway.mcp()["_meta"]["greenroom/details"]["servers"]):
            assert time.monotonic() < until, gateway.mcp()
            time.sleep(0.05)
        gateway.end()
    started = logged_pids(tmp_path)
    assert len(started) == 2

    with serve(tmp_path, servers, bootstrap=True, cold=True) as gateway:
        gateway.initialize()
        assert "stage_echo" in gateway.mcp(server="stage")["_meta"]["greenroom/details"]["tools"]
        found = gateway.mcp(search="echo")["_meta"]["greenroom/details"]["matches"]
        assert {match["tool"] for match in found} >= {"stage_echo", "wings_echo"}
        assert gateway.mcp(describe="wings_echo")["_meta"]["greenroom/details"]["tool"]["server"] == "wings"
        assert children(gateway) == []
        gateway.end()
    assert logged_pids(tmp_path) == started


def test_t02_a_gateway_at_rest_does_nothing_at_all(tmp_path: Path) -> None:
    """A hundred servers, one of them connected, one call cancelled under way; then one second of nothing."""
    servers = {f"s{n}": faulty(tmp_path, f"s{n}") for n in range(100)}
    with serve(tmp_path, servers, cold=True) as gateway:
        gateway.initialize()
        gateway.mcp(tool="s0_echo", args={"text": "warm"})
        number = gateway.start_mcp(tool="s0_sleep", args={"seconds": 0.2})
        gateway.tell("notifications/cancelled", {"requestId": number})
        gateway.mcp(tool="s0_echo", args={"text": "settled"})
        until_still(lambda: cpu_time(gateway.process.pid), 1.0, "its processor time")
        gateway.end()
    assert named_after(tmp_path) == set()
