"""A client's first list behind `--expose direct` when nothing is known yet: many clients list once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.gateway import Gateway, faulty, logged_pids, serve
from tests.support.installs import held, npx, release
from tests.support.patience import until

LISTS = {"tools/list": "tools", "resources/list": "resources", "prompts/list": "prompts"}


def names(gateway: Gateway) -> set[str]:
    """The servers whose tools are listed."""
    tools = gateway.answer(gateway.send("tools/list"))["result"]["tools"]
    return {tool["name"].partition("_")[0] for tool in tools}


def test_t48_the_first_list_waits_for_the_discoveries(tmp_path: Path) -> None:
    servers = {"slow": faulty(tmp_path, "slow", "--late", "0.3")}
    patience: dict[str, Any] = {"firstListTimeoutMs": 60_000}
    with serve(tmp_path, servers, "--expose", "direct", bootstrap=True, **patience) as gateway:
        gateway.initialize()
        asked = {method: gateway.send(method) for method in LISTS}
        found = {method: gateway.answer(number)["result"] for method, number in asked.items()}
        assert all(field in found[method] for method, field in LISTS.items())
        assert found["tools/list"]["tools"][0]["name"] == "slow_ask"
        gateway.end()


def test_t48_it_waits_so_long_and_no_longer_and_the_change_is_told(tmp_path: Path) -> None:
    servers = {"quick": faulty(tmp_path, "quick"), "slow": npx(tmp_path, "slow", held(tmp_path))}
    direct = ("--expose", "direct")
    with serve(tmp_path, servers, *direct, bootstrap=True, firstListTimeoutMs=3_000) as gateway:
        gateway.initialize()
        assert names(gateway) == {"quick"}
        assert names(gateway) == {"quick"}
        release(tmp_path)
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        until(lambda: names(gateway) == {"quick", "slow"} and changed in gateway.told)
        gateway.end()


def test_t48_what_a_client_that_lists_once_and_leaves_made_known_is_saved(tmp_path: Path) -> None:
    servers = {"quick": faulty(tmp_path, "quick"), "slow": npx(tmp_path, "slow", "sleep 60 & wait")}
    direct = ("--expose", "direct")
    with serve(tmp_path, servers, *direct, bootstrap=True, firstListTimeoutMs=3_000) as gateway:
        gateway.initialize()
        assert names(gateway) == {"quick"}
        gateway.end()
    started = logged_pids(tmp_path)
    with serve(tmp_path, servers, *direct, bootstrap=False) as gateway:
        gateway.initialize()
        assert names(gateway) == {"quick"}
        gateway.end()
    assert logged_pids(tmp_path) == started, "it was known, and nothing was started for it"
