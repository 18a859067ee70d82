"""What `docs/windows.md` says of Windows, as far as it can be seen elsewhere (`tests.support.as_windows`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.as_windows import MODULES
from tests.support.homes import empty_home, own_config
from tests.support.patience import PATIENCE

from greenroom.cli.exit_codes import FAILED, OK, USAGE

ROOT = Path(__file__).resolve().parents[2]
SERVERS = {
    "web": {"url": "http://127.0.0.1:9/mcp"},
    "program": {"command": sys.executable},
    "socket": {"socket": "some.sock"},
}


STARTS_NOTHING = {
    "": OK, "--version --json": OK, "status --json": OK, "doctor --json": OK, "config": OK, "tools": OK,
    "search x": OK, "cost": OK, "explain web": OK, "init": OK, "trust": OK, "auth": OK, "accept": OK, "outputs": OK,
    "status -o wide": OK, "logs web": FAILED, "approve": FAILED, "add new -- sh": OK, "disable new": OK,
    "remove new": OK,
}  # fmt: skip


def windows(commands: str) -> Any:
    environ = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.as_windows", commands]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=3 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_the_page_says_of_windows_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is seen in one process of that kind, in a home with a configuration of its own."""
    with empty_home(monkeypatch) as home:
        own_config(home, json.dumps({"mcpServers": SERVERS}))
        seen = windows("\n".join((*STARTS_NOTHING, "refresh --json", "attach", "stop", "serve --background")))
    _all_but_what_the_page_names_can_be_imported(seen["imported"])
    assert seen["called"] == ["Hello, Ada", "Hello, Ada"], "a server in the same process, on both loops"
    _what_starts_nothing_works_and_the_rest_says_what_to_do(seen["typed"])


def _all_but_what_the_page_names_can_be_imported(reasons: dict[str, str]) -> None:
    missing = {name for name, reason in reasons.items() if reason in MODULES}
    others = {name: reason for name, reason in reasons.items() if name not in missing}
    assert all(name.startswith("greenroom.adapters.") for name in others), (
        others
    )  # frameworks are not installed here
    page = (ROOT / "docs" / "windows.md").read_text(encoding="utf-8")
    assert missing == {f"greenroom.{name}" for name in re.findall(r"^\* `([\w.]+)`$", page, re.MULTILINE)}


def _what_starts_nothing_works_and_the_rest_says_what_to_do(said: dict[str, Any]) -> None:
    for words, code in STARTS_NOTHING.items():
        assert "a bug in Greenroom" not in said[words]["err"], words
        assert said[words]["code"] == code, (words, said[words]["err"])
    for words in ("attach", "stop", "serve --background"):
        assert (said[words]["code"], "WSL" in said[words]["err"]) == (USAGE, True), said[words]
    rows = json.loads(said["refresh --json"]["out"])["servers"]
    failures = {row["server"]: row["failure"] for row in rows}
    for name in ("program", "socket"):
        assert 'Reach the server by a "url"' in failures[name]
        assert "Greenroom itself" not in failures[name]
    assert "127.0.0.1:9" in failures["web"], "it was tried"
