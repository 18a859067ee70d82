"""What a server says beside its results, in our own texts: no half of a secret, no commands for a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import HELLO, serve

SECRET = "q7Zk2Wm9x4TrB8LpYn3V"
HALVES = (SECRET[:11], SECRET[11:])
ESCAPES = "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe \x9b2J"
SERVER = r"""
import json, os, sys
secret, escapes, how = os.environ["API_TOKEN"], sys.argv[1], sys.argv[2]
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    key, method = asked.get("id"), asked["method"]
    if key is None:
        continue
    if method == "initialize":
        if how == "refuses":
            say(id=key, error={"code": -32000, "message": escapes})
        elif how == "dies":
            print(f"connecting\nerror: the token {secret[:11]}\n{secret[11:]} was refused", file=sys.stderr, flush=True)
            sys.exit(1)
        else:
            hello = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
            say(id=key, result={**hello, "protocolVersion": "2025-11-25"})
    elif method == "tools/list":
        say(id=key, result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        say(method=f"notifications/{secret}", params={"x": 1})
        say(method="notifications/custom", params={"x": 1})
        print(f"error: the token {secret[:11]}\n   {secret[11:]} was refused", file=sys.stderr, flush=True)
        if how == "odd":
            print(f"error: {escapes}", file=sys.stderr, flush=True)
        sys.exit(3)
    else:
        say(id=key, error={"code": -32601, "message": "no"})
"""
DOORS = pytest.mark.parametrize("door", ["proxy", "direct"])


def said(folder: Path, door: str, how: str) -> tuple[str, list[dict[str, Any]], str]:
    """What a client is answered, and told, and the log."""
    entry = {
        "command": sys.executable,
        "args": ["-S", "-c", SERVER, ESCAPES, how],
        "env": {"API_TOKEN": SECRET},
        "scrub": "all",
    }
    with serve(folder, {"s": entry}, "--expose", door, restartBackoff={"minMs": 10, "maxMs": 10}) as gateway:
        gateway.answer(gateway.send("initialize", HELLO))
        gateway.tell("notifications/initialized")
        params: dict[str, Any] = {"name": "s_t", "arguments": {}}
        if door == "proxy":
            params = {"name": "mcp", "arguments": {"tool": "t", "server": "s"}}
        else:
            gateway.answer(gateway.send("tools/list"))
        answer = gateway.answer(gateway.send("tools/call", params))
        assert gateway.end() == 0
        told = [*gateway.told, *gateway.asked]
    return json.dumps(answer, ensure_ascii=False), told, (folder / "stderr.txt").read_text()


@DOORS
@pytest.mark.parametrize("how", ["dies", "exits"])
def test_no_half_of_a_secret_that_stands_in_two_lines_of_stderr_is_shown(
    tmp_path: Path, door: str, how: str
) -> None:
    answer, _, log = said(tmp_path, door, how)
    assert "was refused" in answer + log, "its last words are quoted"
    assert [half for half in HALVES if half in answer or half in log] == []


@DOORS
def test_a_notification_with_a_secret_in_its_name_is_told_nobody(tmp_path: Path, door: str) -> None:
    _, told, _ = said(tmp_path, door, "odd")
    methods = {each["method"] for each in told}
    assert "notifications/custom" in methods
    assert SECRET not in json.dumps(told)
    assert "notifications/***" not in methods, "nor by a name that is none"


@DOORS
@pytest.mark.parametrize("how", ["refuses", "odd"])
def test_our_own_errors_bring_no_commands_for_a_terminal(tmp_path: Path, door: str, how: str) -> None:
    answer, _, log = said(tmp_path, door, how)
    assert "red" in answer, "the server's words are quoted"
    text = json.loads(answer)
    assert [sign for sign in "\x1b\x07\u202e\x9b" if sign in json.dumps(text, ensure_ascii=False) + log] == []
    assert [sign for sign in ("\\u001b", "\\x1b", "\\u0007") if sign in answer] == []
