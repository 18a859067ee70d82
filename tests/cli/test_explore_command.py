"""`greenroom explore`: a real agent, as a process, under each single fault of a tape."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support import run as run_async
from tests.support.forked import GREENROOM, popen_forked
from tests.support.gateway import PATIENCE
from tests.support.patience import until
from tests.support.shapes import conforms

from greenroom.cli.main import run
from greenroom.testing import FakeServer, fake_room, tool

# Both speak MCP by hand, for an SDK takes a second to import, and what speaks HTTP a tenth of one: there are a hundred.
# An agent is the two calls that it makes.
SPEAKS = """
import json, os, socket, sys

class Http:
    def __init__(self):
        self.host, _, path = os.environ["GREENROOM_MCP_URL"].partition("://")[2].partition("/")
        self.head = f"POST /{path} HTTP/1.1\\r\\nHost: {self.host}\\r\\nConnection: close\\r\\n"
        self.head += "Content-Type: application/json\\r\\nAccept: application/json, text/event-stream\\r\\n"
        self.ask("initialize", HELLO)

    def ask(self, method, params):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        address, _, port = self.host.partition(":")
        with socket.create_connection((address, int(port))) as line:
            line.sendall(f"{self.head}Content-Length: {len(body)}\\r\\n\\r\\n{body}".encode())
            said = b"".join(iter(lambda: line.recv(65_536), b"")).decode()
        first, *lines = said.splitlines()
        assert " 200 " in first, said
        if method == "initialize":
            self.head += "".join(f"{each}\\r\\n" for each in lines if each.lower().startswith("mcp-session-id:"))
        messages = [each.removeprefix("data:").strip() for each in lines]
        return json.loads([each for each in messages if each.startswith("{")][-1])

class Stdio:
    def __init__(self):
        with open(sys.argv[1]) as file:
            (server,) = json.load(file)["mcpServers"].values()
        import subprocess

        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process = subprocess.Popen([server["command"], *server["args"]], **pipes)
        self.ask("initialize", HELLO)

    def ask(self, method, params):
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        self.process.stdin.write(line + b"\\n")
        self.process.stdin.flush()
        while True:
            answer = json.loads(self.process.stdout.readline())
            if "id" in answer and "method" not in answer:
                return answer

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
far = Stdio() if len(sys.argv) > 1 else Http()

def call(name, times):
    for _ in range(times):
        answer = far.ask("tools/call", {"name": name, "arguments": {"item": "hat"}})
        if not answer.get("result", {"isError": True}).get("isError"):
            return True
    return False
"""
STUBBORN = 'assert call("shop_look", 3), "no shop today"\nassert call("shop_order", 3), "no hat"\n'
CAREFUL = 'if not (call("shop_look", 3) and call("shop_order", 1)): print("please look")\n'
DEEDS = ("crash before", "crash after", "lost answer", "too slow", "hangs", "error")


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    path = tmp_path / "shop.tape"

    async def main() -> None:
        tools = [tool("look", annotations={"readOnlyHint": True}), tool("order")]
        backoff = {"restartBackoff": {"minMs": 1, "maxMs": 1}, "failureThreshold": 1000}
        async with fake_room({"shop": FakeServer(tools=tools)}, record=path, settings=backoff) as room:
            for name in ("look", "order"):
                await room.call(f"shop_{name}", {"item": "hat"})

    run_async("asyncio", main)
    return path


@pytest.fixture
def explored(tape: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Explore with this agent; the exit code and the document."""

    def explore(agent: str, *options: str, words: Sequence[str] = ()) -> tuple[int, Any]:
        (tmp_path / "agent.py").write_text(SPEAKS + agent)
        command = [sys.executable, "-S", os.fspath(tmp_path / "agent.py"), *words]
        given = ["--expose", "direct", "--call-timeout", "0.5", *options, "--json"]
        code = run(["explore", os.fspath(tape), *given, "--", *command])
        document = json.loads(capfd.readouterr().out)
        conforms("explore", document)
        return code, document

    return explore


def found(document: Any, tool: str) -> dict[str, tuple[str, bool]]:
    """Of one tool, by what went wrong: the verdict, and whether it asked again."""
    return {
        one["deed"]: (one["verdict"], bool(one["askedAgain"]))
        for one in document["trials"]
        if one["tool"] == tool
    }


def test_an_agent_that_asks_again_whatever_happens_orders_twice(explored: Any) -> None:
    code, document = explored(STUBBORN)
    assert code == 1
    assert not document["isGood"]
    assert found(document, "shop_look") == {
        **dict.fromkeys(DEEDS, ("survived", False)),
        "hangs": ("failed", False),
    }
    certain, doubtful = ("survived", False), ("survived", True)
    assert found(document, "shop_order") == {
        "crash before": certain,
        "crash after": doubtful,
        "lost answer": doubtful,
        "too slow": doubtful,
        "hangs": ("failed", True),
        "error": certain,
    }
    (last,) = (one for one in document["trials"] if one["call"] is None)
    assert (last["verdict"], last["fault"]) == ("failed", "shop start: crash")
    assert "no shop today" in last["why"]
    assert len(document["trials"]) == 13


def test_an_agent_that_asks_a_person_gives_up_and_does_no_harm(explored: Any) -> None:
    code, document = explored(CAREFUL, "--runs", "12", words=["{config}"])
    assert code == 0
    given_up = ("gave up a call", False)
    assert found(document, "shop_order") == {
        **dict.fromkeys(DEEDS, given_up),
        "crash before": ("survived", False),
    }
    assert document["leftOut"] == 1


def test_the_table_names_each_place_and_how_to_repeat_it(
    explored: Any, tape: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    explored(STUBBORN, "--runs", "1")
    words = [
        "explore",
        os.fspath(tape),
        "--expose",
        "direct",
        "--call-timeout",
        "0.5",
        "--keep",
        os.fspath(tmp_path / "kept"),
    ]
    assert run([*words, "--", sys.executable, "-S", os.fspath(tmp_path / "agent.py")]) == 1
    out = capfd.readouterr().out
    table = out[out.index("               crash") : out.index("shop never starts")].splitlines()
    assert table == [
        "               crash   crash  lost    too",
        "               before  after  answer  slow  hangs  error",
        "#1 shop_look   ✓       ✓      ✓       ✓     ✗      ✓",
        "#2 shop_order  ✓       ✓ !    ✓ !     ✓ !   ✗ !    ✓",
        "✓ survived   ✗ failed   ! asked again",
    ]
    assert "shop never starts: ✗ failed" in out
    assert (
        f"greenroom replay {tape} --expose direct --call-timeout 0.5 --fault 'shop call 2: crash after sent'"
        in out
    )
    assert "asked again, and it may have run: shop_order {}" not in out
    assert 'asked again, and it may have run: shop_order {"item":"hat"}' in out
    assert len(list((tmp_path / "kept").glob("*/*.tape"))) == 14


def test_over_the_command_that_is_printed_the_agent_does_the_same_again(
    tape: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It waits as short, sees the same tools, and may ask with other arguments."""
    agent = tmp_path / "agent.py"
    agent.write_text(SPEAKS.replace('"item": "hat"', '"item": os.urandom(4).hex()') + CAREFUL)
    starts = [sys.executable, "-S", os.fspath(agent)]
    given = ["--expose", "direct", "--call-timeout", "0.5", "--ignore", "item", "--runs", "11"]
    assert run(["explore", os.fspath(tape), *given, "--", *starts]) == 0
    printed = [shlex.split(line) for line in capfd.readouterr().out.splitlines() if "delay" in line]
    (words,) = (each for each in printed if "shop call 2" in each[-1])
    assert words[:2] == ["greenroom", "replay"]
    config = tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": ["-m", *words]}
    config.write_text(json.dumps({"mcpServers": {"shop": server}}))
    again = subprocess.run([*starts, config], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert again.stdout == "please look\n", "the order was too slow"
    assert "did not happen" not in again.stderr


HANGS = """
import subprocess, time
print(os.getpid(), flush=True)
subprocess.Popen([sys.executable, "-S", "-c", "import os, time; os.setsid(); time.sleep(300)"])
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("agent", "options", "why"),
    [
        (HANGS, ("--time-limit", "1"), "not ended within 1 s"),
        ("sys.exit('no model')", (), "exit code 1: no model"),
        ("os.kill(os.getpid(), 9)", (), "killed by SIGKILL"),
        (
            'call("shop_look", 1)',
            (),
            'the first that it did not get: shop_look {"item":"hat"}',
        ),
        ("pass", (), "Does it use $GREENROOM_MCP_URL or $GREENROOM_MCP_CONFIG, and not"),
    ],
)
def test_an_agent_that_is_not_that_of_the_tape_is_told_apart(
    tape: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    agent: str,
    options: Sequence[str],
    why: str,
) -> None:
    (tmp_path / "agent.py").write_text(SPEAKS + agent)
    command = [sys.executable, "-S", os.fspath(tmp_path / "agent.py")]
    assert run(["explore", os.fspath(tape), *options, "--", *command]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_exploration_that_is_told_to_end_leaves_no_files(
    tape: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "agent.py").write_text(SPEAKS + HANGS)
    place = tmp_path / "files"
    place.mkdir()
    words = ["explore", os.fspath(tape), "--", sys.executable, "-S", os.fspath(tmp_path / "agent.py")]
    process = popen_forked(
        [*GREENROOM, *words],
        env={**os.environ, "TMPDIR": os.fspath(place)},
        stderr=subprocess.DEVNULL,
    )
    outputs: list[Path] = []

    def has_begun() -> bool:
        outputs[:] = place.glob("*/0/output")
        return any(output.read_text().endswith("\n") for output in outputs)

    until(has_begun)
    agent = int(outputs[0].read_text())
    process.send_signal(number)
    assert process.wait(PATIENCE) == 143
    assert list(place.iterdir()) == []
    until(lambda: not _lives(agent))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_of_the_agent_outlives_the_exploration(
    tape: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "agent.py").write_text(SPEAKS + HANGS)
    kept = tmp_path / "kept"
    words = ["explore", os.fspath(tape), "--keep", os.fspath(kept), "--"]
    process = popen_forked(
        [*GREENROOM, *words, sys.executable, "-S", os.fspath(tmp_path / "agent.py")],
        stderr=subprocess.DEVNULL,
    )
    output = kept / "0" / "output"
    until(lambda: output.exists() and output.read_text().endswith("\n"))
    agent = int(output.read_text())
    process.send_signal(number)
    assert process.wait(PATIENCE) == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    until(lambda: not _lives(agent))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_cannot_be_explored_is_said(
    tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, why in (
        (["--", "there-is-no-such-agent"], "there-is-no-such-agent cannot be started"),
        (["--keep", os.fspath(tape), "--", "true"], "is a file. --keep wants a folder"),
        (["--only", "shp", "--", "true"], 'no server "shp" on the tape. Did you mean "shop"?'),
        (["--keep", os.fspath(tmp_path), "--", "true"], "is not empty"),
    ):
        assert run(["explore", os.fspath(tape), *words]) == 2
        assert why in capsys.readouterr().err
