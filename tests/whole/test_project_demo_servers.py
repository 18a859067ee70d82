"""The bundled demo servers, each as a process of `greenroom demo NAME`: answers, crashes, the end of stdin."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.patience import PATIENCE


class Child:
    """One demo server over plain pipes."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "greenroom", "demo", name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._number = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self.tell({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == self._number
        return answer

    def tell(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=tool, arguments=arguments)["result"]


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[Child]:
    server = Child(request.param)
    with server.process:
        yield server


def served_by(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("child", [name], indirect=True, ids=[name])


@pytest.mark.parametrize("child", ["clock", "notes", "flaky"], indirect=True)
def test_each_initializes_lists_and_ends_with_stdin(child: Child) -> None:
    hello = child.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})["result"]
    child.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
    tools = child.ask("tools/list")["result"]["tools"]

    assert hello["protocolVersion"] == "2025-11-25"
    assert len(tools) == 2
    assert all(tool["description"] and tool["inputSchema"]["type"] == "object" for tool in tools)
    assert child.ask("server/discover")["error"]["code"] == -32601
    assert child.process.communicate(timeout=PATIENCE) == ("", "")
    assert child.process.returncode == 0


@served_by("clock")
def test_the_clock_tells_time_and_refuses_nonsense(child: Child) -> None:
    assert child.call("now", utc_offset=5.5)["structuredContent"]["time"].endswith("+05:30")
    assert (
        child.call("between", start="2026-01-31T12:00", end="2026-01-31T13:30")["structuredContent"][
            "seconds"
        ]
        == 5400
    )
    assert child.call("now", utc_offset="noon")["isError"]
    assert child.call("between", start="today", end="tomorrow")["isError"]
    assert child.call("between", start="2026-01-31")["content"][0]["text"] == "missing argument: end"


@served_by("notes")
def test_notes_live_as_long_as_the_process(child: Child) -> None:
    assert child.call("add", text="Buy a skull")["structuredContent"] == {"number": 1}
    assert child.call("find", word="SKULL")["structuredContent"] == {"notes": ["Buy a skull"]}
    assert child.call("add", text=" ")["isError"]
    (listed,) = child.ask("resources/list")["result"]["resources"]
    assert child.ask("resources/read", uri=listed["uri"])["result"]["contents"][0]["text"] == "1. Buy a skull"
    assert child.ask("resources/read", uri="notes://none")["error"]["code"] == -32602


@served_by("flaky")
def test_flaky_divides_and_crashes_on_command(child: Child) -> None:
    assert child.call("divide", dividend=7, divisor=2)["content"][0]["text"] == "3.5"
    assert child.call("divide", dividend=7, divisor=0)["isError"]
    assert child.ask("tools/call", name="juggle")["error"]["code"] == -32602
    child.tell({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "crash"}})
    out, err = child.process.communicate(timeout=PATIENCE)
    assert (out, child.process.returncode) == ("", 70)
    assert "collapsed" in err
