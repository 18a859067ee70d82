"""The whole thing under real violence: `greenroom serve` with real children, killed, flooded, hung and left.

Each test ends by looking for every process the far ends say they started.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import (
    PATIENCE,
    Gateway,
    alive,
    faulty,
    gone_within,
    logged_pids,
    logged_when_all,
    named_after,
    serve,
)
from tests.support.patience import until

KINDS = ("group", "setsid", "double")
FOR_EVER = 1_000_000  # ms: nobody may wait for what is given this


def _details(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result["_meta"]["greenroom/details"]


def _call(gateway: Gateway, server: str, tool: str = "echo", **arguments: object) -> dict[str, object]:
    return gateway.mcp(tool=f"{server}_{tool}", args=arguments)


@pytest.mark.parametrize("end", ["eof", "SIGTERM", "SIGINT"])
def test_t08_no_process_of_any_tree_survives_the_end_of_the_gateway(tmp_path: Path, end: str) -> None:
    """Stubborn children: they ignore EOF and SIGTERM, and have forked grandchildren in every way there is."""
    servers = {
        kind: faulty(tmp_path, kind, "--fork", kind, "--ignore-eof", "--ignore-term") for kind in KINDS
    }
    stop = FOR_EVER if end == "eof" else 1500
    with serve(tmp_path, servers, drainTimeoutMs=2000, stopTimeoutMs=stop) as gateway:
        gateway.initialize()
        for kind in KINDS:
            assert not _call(gateway, kind, text="hello").get("isError")
        pids = logged_when_all(tmp_path, 6)
        assert len(alive(pids)) == 6

        assert gateway.end(None if end == "eof" else signal.Signals[end]) == 0

        assert gone_within(pids) == set()


def test_t32_children_die_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    servers = {
        kind: faulty(tmp_path, kind, "--fork", kind, "--ignore-eof", "--ignore-term") for kind in KINDS
    }
    with serve(tmp_path, servers) as gateway:
        gateway.initialize()
        for kind in KINDS:
            _call(gateway, kind, text="hello")
        pids = logged_when_all(tmp_path, 6)
        assert len(alive(pids)) == 6

        gateway.end(signal.SIGKILL)

        assert gone_within(pids) == set()


def test_t32_a_group_whose_environment_says_nothing_dies_too(tmp_path: Path) -> None:
    """What the guard was told by id: a server that was started by `env -i` cannot be found by our mark."""
    entry = faulty(tmp_path, "a", "--fork", "group", "--ignore-eof", "--ignore-term")
    bare = {"command": "env", "args": ["-i", entry["command"], *entry["args"]]}
    with serve(tmp_path, {"a": bare}) as gateway:
        gateway.initialize()
        _call(gateway, "a", text="hello")
        pids = logged_when_all(tmp_path, 2)
        assert len(alive(pids)) == 2

        gateway.end(signal.SIGKILL)

        assert gone_within(pids) == set()


def test_t32_a_kill_while_children_are_starting_leaves_none(tmp_path: Path) -> None:
    """The guard may not even be up yet: what it was told is in its pipe."""
    servers = {f"s{n}": faulty(tmp_path, f"s{n}", "--hang-at", "initialize") for n in range(5)}
    with serve(tmp_path, servers) as gateway:
        gateway.initialize()
        for name in servers:
            gateway.start_mcp(tool=f"{name}_echo", args={})
        logged_when_all(tmp_path, 1)

        gateway.end(signal.SIGKILL)

        assert gone_within(gateway.left) == set()  # the guard, too: it has looked for the last time
        assert named_after(tmp_path) | alive(logged_pids(tmp_path)) == set()


def test_t06_a_server_that_was_killed_comes_back_for_the_next_call(tmp_path: Path) -> None:
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.initialize()
        _call(gateway, "a", text="one")
        (first,) = logged_pids(tmp_path)
        os.kill(first, signal.SIGKILL)
        while gateway.mcp()["_meta"]["greenroom/details"]["servers"][0]["status"] == "connected":
            pass  # a call in this moment would be sent, and lost; that is another test

        result = _call(gateway, "a", text="two")

        assert result["content"][0]["text"] == "two"  # type: ignore[index]
        assert len(logged_pids(tmp_path)) == 2
        gateway.end()


def test_t11_fifty_cold_callers_start_one_process(tmp_path: Path) -> None:
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.initialize()
        numbers = [gateway.start_mcp(tool="a_echo", args={"text": str(n)}) for n in range(50)]

        texts = [gateway.answer(number)["result"]["content"][0]["text"] for number in numbers]

        assert texts == [str(n) for n in range(50)]
        assert len(logged_pids(tmp_path)) == 1
        gateway.end()


def test_t13_listing_never_waits_for_a_server_that_does_not_answer(tmp_path: Path) -> None:
    hung = {
        f"s{n}": {**faulty(tmp_path, f"s{n}", "--hang-at", "initialize"), "lifecycle": "eager"}
        for n in range(12)
    }
    patience: dict[str, Any] = {"connectTimeoutMs": FOR_EVER, "stopTimeoutMs": 1000}
    with serve(tmp_path, {**hung, "good": faulty(tmp_path, "good")}, **patience) as gateway:
        gateway.initialize()
        assert len(gateway.answer(gateway.send("tools/list"))["result"]["tools"]) == 1
        status = gateway.mcp()
        assert len(status["_meta"]["greenroom/details"]["servers"]) == 13
        gateway.end()


def test_t15_megabytes_each_way_at_once_do_not_deadlock(tmp_path: Path) -> None:
    with serve(
        tmp_path, {"a": faulty(tmp_path, "a", "--stderr", str(1 << 20))}, outputGuard=False
    ) as gateway:
        gateway.initialize()
        text = "x" * (4 << 20)

        result = _call(gateway, "a", text=text)

        assert result["content"][0]["text"] == text  # type: ignore[index]
        gateway.end()


def test_t16_banners_and_junk_are_not_fatal_to_the_gateway(tmp_path: Path) -> None:
    with serve(tmp_path, {"a": faulty(tmp_path, "a", "--banner", "Welcome!", "--junk-before")}) as gateway:
        gateway.initialize()

        assert _call(gateway, "a", text="hi")["content"][0]["text"] == "hi"  # type: ignore[index]
        gateway.end()
        assert "Traceback" not in (tmp_path / "stderr.txt").read_text()


def test_t21_cancelling_a_call_reaches_the_server_and_nobody_else(tmp_path: Path) -> None:
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.initialize()
        _call(gateway, "a", text="warm")
        number = gateway.start_mcp(tool="a_sleep", args={"seconds": 0.3})
        gateway.tell("notifications/cancelled", {"requestId": number, "reason": "enough"})

        assert _call(gateway, "a", text="next")["content"][0]["text"] == "next"  # type: ignore[index]

        assert number not in gateway.answered
        assert "got notifications/cancelled" in (tmp_path / "a.log").read_text()
        gateway.end()


def test_t22_idle_eviction_leaves_a_busy_server_alone(tmp_path: Path) -> None:
    servers = {"busy": faulty(tmp_path, "busy"), "idle": faulty(tmp_path, "idle")}
    with serve(tmp_path, servers, "--idle-timeout", "200") as gateway:
        gateway.initialize()
        _call(gateway, "idle", text="once")
        number = gateway.start_mcp(tool="busy_sleep", args={"seconds": 1.0})
        is_up = False
        while (states := _states(gateway))["idle"] != "cached":
            if number not in gateway.answered:  # it was under way when this was said
                is_up = is_up or states["busy"] == "connected"
                assert not is_up or states["busy"] == "connected"

        assert not gateway.answer(number)["result"].get("isError")
        assert _starts(tmp_path, "busy") == 1
        gateway.end()


def _states(gateway: Gateway) -> dict[str, str]:
    return {row["name"]: row["status"] for row in _details(gateway.mcp())["servers"]}


def test_t26_one_server_that_floods_and_one_that_crashes_do_not_touch_the_third(tmp_path: Path) -> None:
    servers = {
        "floods": faulty(tmp_path, "floods", "--stderr", "200000", "--junk-before"),
        "crashes": faulty(tmp_path, "crashes", "--crash-at", "call:echo"),
        "good": faulty(tmp_path, "good"),
    }
    with serve(tmp_path, servers) as gateway:
        gateway.initialize()
        numbers = [gateway.start_mcp(tool=f"{n}_echo", args={"text": n}) for n in ("crashes", "floods") * 5]
        good = [gateway.start_mcp(tool="good_echo", args={"text": "fine"}) for _ in range(20)]

        assert [gateway.answer(n)["result"]["content"][0]["text"] for n in good] == ["fine"] * 20
        for number in numbers:
            assert "result" in gateway.answer(number)
        gateway.end()


def test_t31_a_child_sees_no_secret_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENROOM_TEST_SECRET", "hush")
    with serve(tmp_path, {"a": {**faulty(tmp_path, "a"), "env": {"GIVEN": "yes"}}}) as gateway:
        gateway.initialize()

        text = str(_call(gateway, "a", "env"))

        assert "GIVEN" in text
        assert "hush" not in text
        gateway.end()


def test_a_client_that_is_killed_takes_the_gateway_and_its_children_with_it(tmp_path: Path) -> None:
    """The client's death closes our stdin: nobody waits for what a server may take otherwise."""
    patience: dict[str, Any] = {"drainTimeoutMs": FOR_EVER, "stopTimeoutMs": FOR_EVER}
    with serve(
        tmp_path, {"a": faulty(tmp_path, "a", "--ignore-eof", "--ignore-term")}, **patience
    ) as gateway:
        gateway.initialize()
        _call(gateway, "a", text="hello")
        gateway.start_mcp(tool="a_sleep", args={"seconds": 1_000})
        pids = logged_pids(tmp_path)
        gateway.end()
        assert gone_within(pids) == set()


def test_t27_a_changed_file_reloads_what_changed_and_a_broken_one_nothing(tmp_path: Path) -> None:
    servers = {"a": faulty(tmp_path, "a"), "b": faulty(tmp_path, "b")}
    with serve(tmp_path, servers) as gateway:
        gateway.initialize()
        pids = {name: _call(gateway, name, "pid")["content"][0]["text"] for name in servers}  # type: ignore[index]
        config = tmp_path / "mcp.json"
        written = json.loads(config.read_text())

        config.write_text("{ broken")
        _until_logged(tmp_path, "the old one stays")
        assert _call(gateway, "a", "pid")["content"][0]["text"] == pids["a"]  # type: ignore[index]

        written["mcpServers"]["b"]["env"] = {"NEW": "1"}
        config.write_text(json.dumps(written))
        _until_logged(tmp_path, "configuration reloaded: keep 1, drain 1, start 1")
        assert _call(gateway, "a", "pid")["content"][0]["text"] == pids["a"]  # type: ignore[index]
        assert _call(gateway, "b", "pid")["content"][0]["text"] != pids["b"]  # type: ignore[index]
        gateway.end()


def _until_logged(folder: Path, words: str) -> None:
    until(lambda: words in (folder / "stderr.txt").read_text(), words)


def _starts(folder: Path, name: str) -> int:
    log = folder / f"{name}.log"
    return log.read_text().count("start ") if log.exists() else 0


def _until_failed(gateway: Gateway) -> None:
    """Until its end has been counted: a call that comes before that waits for the circuit breaker instead of being
    refused."""
    while gateway.mcp()["_meta"]["greenroom/details"]["servers"][0]["status"] != "failed":
        pass


def test_t29_a_breaker_that_tripped_on_real_deaths_starts_nothing_until_its_one_probe(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "failureThreshold": 3,
        "cooldownMs": 2500,
        "restartBackoff": {"minMs": 1, "maxMs": 1},
    }
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}, **settings) as gateway:
        gateway.initialize()
        for _ in range(3):
            while _details(_call(gateway, "a", "crash", code=1))["error"] == "server_unavailable":
                pass  # its backoff of a millisecond
            _until_failed(gateway)
        assert _starts(tmp_path, "a") == 3

        refused = _details(_call(gateway, "a", text="x"))
        assert refused["error"] == "server_unavailable"
        assert refused["reach"] == "not_sent"
        assert _starts(tmp_path, "a") == 3

        def passed() -> int:
            with gateway.in_one_write():
                numbers = [gateway.start_mcp(tool="a_echo", args={"text": "probe"}) for _ in range(5)]
            texts = [gateway.answer(number)["result"]["content"][0]["text"] for number in numbers]
            return texts.count("probe")

        assert until(passed, "the end of the cooldown") == 1, "half-open passes exactly one"
        assert _call(gateway, "a", text="open")["content"][0]["text"] == "open"  # type: ignore[index]
        assert _starts(tmp_path, "a") == 4
        gateway.end()


def test_t09_a_server_that_initializes_and_dies_is_not_started_without_end(tmp_path: Path) -> None:
    """Keep-alive, and every handshake succeeds: only the intensity can stop it."""
    entry = {**faulty(tmp_path, "a", "--crash-at", "notifications/initialized"), "lifecycle": "keep-alive"}
    settings: dict[str, Any] = {
        "failureThreshold": 1000,
        "restartBackoff": {"minMs": 1, "maxMs": 1},
        "cooldownMs": 60_000,
    }
    with serve(tmp_path, {"a": entry}, **settings) as gateway:
        gateway.initialize()
        _until_logged(tmp_path, "quarantined")
        assert _starts(tmp_path, "a") == 6, "the first, and five restarts a minute"
        gateway.end()


def _unread(gateway: Gateway) -> int:
    assert gateway.process.stdout is not None
    said = fcntl.ioctl(gateway.process.stdout.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(said, sys.byteorder)


def test_t22_the_last_answer_is_written_although_the_client_reads_late(tmp_path: Path) -> None:
    """It is more than a pipe holds, and the room has ended before it is read."""
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}, "--expose", "direct") as one:
        one.initialize()
        one.answer(one.send("tools/call", {"name": "a_echo", "arguments": {"text": "up"}}))
        asked = one.send("tools/call", {"name": "a_echo", "arguments": {"size": 400_000}})
        until(lambda: _unread(one), "as much of the answer as the pipe takes")
        one.process.send_signal(signal.SIGTERM)
        assert gone_within(logged_pids(tmp_path)) == set()
        assert len(one.answer(asked)["result"]["content"][0]["text"]) == 400_000
        assert one.process.wait(PATIENCE) == 0
