"""No secret leaves in what a server says: planted in its results, errors, log messages, progress messages and standard
error, and looked for at every way out of a real gateway."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.support.gateway import serve
from tests.support.leaker import TOOLS, leaker
from tests.support.planted import KNOWN, assert_clean, planted
from tests.torture.test_torture_secrets import greenroom


@pytest.mark.parametrize("door", ["proxy", "direct"])
def test_t40_no_secret_in_what_a_server_says_leaves_a_gateway(tmp_path: Path, door: str) -> None:
    said, events = tmp_path / "said.json", tmp_path / "events.jsonl"
    entry = {**leaker(os.fspath(said)), "env": {"API_TOKEN": KNOWN}, "scrub": "all"}
    numbers = itertools.count()
    audited = tmp_path / "audit.jsonl"
    options = ["--expose", door, "--events", os.fspath(events), "--audit", os.fspath(audited)]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(tmp_path),
        "XDG_CACHE_HOME": os.fspath(tmp_path / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(tmp_path),
    }
    with serve(tmp_path, {"s": entry}, *options) as gateway:
        gateway.initialize()
        said.write_text('"nothing yet"')
        gateway.answer(gateway.send("logging/setLevel", {"level": "debug"}))

        @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(planted())
        def every_way_out(value: Any) -> None:
            said.write_text(json.dumps(value))
            gateway.told.clear()
            gateway.asked.clear()
            meta = {"progressToken": f"p{next(numbers)}"}
            for tool in TOOLS:
                params = {"name": f"s_{tool}", "arguments": {}}
                if door == "proxy":
                    params = {"name": "mcp", "arguments": {"tool": tool, "server": "s"}}
                answer = gateway.answer(gateway.send("tools/call", {**params, "_meta": meta}))
                assert_clean(f"answer of {tool}", json.dumps(answer, ensure_ascii=False))
                kept = (
                    answer.get("result", {}).get("_meta", {}).get("greenroom/details", {}).get("outputGuard")
                )
                if kept:
                    assert_clean("a file", Path(kept["fullOutputPath"]).read_text())
                    assert_clean("a page", json.dumps(gateway.mcp(output=kept["output"], offset=66_000)))
            heard = json.dumps([*gateway.told, *gateway.asked], ensure_ascii=False)
            assert_clean("messages", heard)
            told = {said["method"] for said in gateway.told}
            assert {"notifications/message", "notifications/progress"} <= told
            assert "***" in heard or "[REDACTED" in heard, "something was removed, and the rest was told"

        every_way_out()
        if door == "proxy":
            for command in (
                ["status"],
                ["status", "--json"],
                ["call", "s_text"],
                ["call", "s_refused", "--json"],
            ):
                shown = greenroom(
                    environment, tmp_path, *command, "--config", os.fspath(tmp_path / "mcp.json")
                )
                assert_clean(" ".join(command), shown)
        assert gateway.end() == 0
    assert_clean("log", (tmp_path / "stderr.txt").read_text())
    assert_clean("events", events.read_text())
    assert_clean("audit", audited.read_text())
    assert audited.read_text().count("\n") > len(TOOLS)
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            assert_clean(file.name, file.read_bytes().decode(errors="replace"))
