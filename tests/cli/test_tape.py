"""`serve --record`, `tape` and `replay`, as processes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support import run as run_async
from tests.support.forked import GREENROOM, greenroom_in, popen_forked
from tests.support.gateway import HELLO, serve
from tests.support.line_client import LineClient
from tests.support.patience import PATIENCE
from tests.support.shapes import conforms
from tests.support.whole import whole

from greenroom import Greenroom, UsageError
from greenroom.cli import replay_command
from greenroom.cli.main import run
from greenroom.tape.tape_reader import read_tape
from greenroom.testing import FakeServer, fake_room, tool

CALLS = [("own_echo", {"text": "one"}), ("own_echo", {"text": "two"}), ("own_refuse", {})]


def talk(words: Sequence[str], calls: Sequence[tuple[str, Any]]) -> tuple[list[Any], str]:
    """The answers to these calls, one after another, and what was said at the end."""
    process = popen_forked(
        [*GREENROOM, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    client = LineClient(process)
    client.answer(client.send("initialize", HELLO))
    answers = [
        client.answer(client.send("tools/call", {"name": name, "arguments": arguments}))
        for name, arguments in calls
    ]
    client.close()
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return answers, said.decode()


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    config, folder = tmp_path / "mcp.json", tmp_path / "tapes"
    config.write_text(json.dumps({"mcpServers": {"own": whole("own")}}))
    options = ["--config", os.fspath(config), "--expose", "direct", "--record", os.fspath(folder)]
    _, said = talk(["serve", *options], CALLS)
    (found,) = folder.glob("*.tape")
    assert f"recording the tape {found}" in said
    return found


def test_a_client_of_a_replay_gets_what_it_got(tape: Path) -> None:
    answers, said = talk(["replay", "--expose", "direct", os.fspath(tape)], CALLS)
    assert [answer["result"]["content"][0]["text"] for answer in answers[:2]] == [
        '{"text": "one"}',
        '{"text": "two"}',
    ]
    assert "error" in answers[2]
    assert f"replaying {tape.name}: 3 recorded calls of own; nothing is started" in said
    assert "Not on the tape" not in said
    assert "were not made" not in said
    fifty_two = [("own_echo", {"text": "three"})] * 52
    others, said = talk(["replay", "--expose", "direct", os.fspath(tape)], fifty_two)
    assert "Not on the tape" in json.dumps(others)
    assert said.count("Not on the tape: own_echo") == 50
    assert "greenroom: and 2 more calls that are not on the tape" in said
    assert 'Not on the tape: own_echo with {"text":"three"}. The nearest recorded call is #' in " ".join(
        said.split()
    )
    assert "3 of the 3 calls on the tape were not made." in said


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ((), {}),
        (("--lenient",), {"strict": False}),
        (("--as-recorded",), {"pace": "recorded"}),
        (("--by-order", "--nearest", "0.5"), {"by_order": True, "nearest": 0.5}),
        (("--ignore", "at,id", "--call-timeout", "3"), {"ignore": ["at", "id"], "call_timeout": 3.0}),
        (("--fault", "own call 1: crash"), {"faults": ("own call 1: crash",)}),
    ],
)
def test_what_replay_was_told_reaches_the_room(
    words: tuple[str, ...], given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def replay(_tape: Path, **options: Any) -> Any:
        asked.append(options)
        raise UsageError("enough")

    monkeypatch.setattr(Greenroom, "replay", replay)
    assert run(["replay", os.fspath(tmp_path / "a.tape"), "--http", ":0", *words]) == 2
    (options,) = asked
    usual = {
        "strict": True, "pace": "at once", "by_order": False, "nearest": None, "ignore": [], "faults": (),
        "call_timeout": None, "live": (), "per_session": False,
    }  # fmt: skip
    assert {name: options[name] for name in usual} == usual | given


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The lines of a story."""
    assert run(["tape", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_tape_is_told(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = told(capsys, os.fspath(tape))
    assert story[1] == "3 calls of 1 server in 1 session, of which 1 failed."
    things = [line[11:] for line in story[3:-1]]
    assert things[0].startswith("own  was known before: ")
    assert any(thing.startswith("own  starts") for thing in things)  # "…, after 2 ms" on a busy machine
    assert any(thing.startswith("own  is connected after ") for thing in things)
    assert any('own_echo {"text":"two"} → {"text": "two"} (' in thing for thing in things)
    assert any("→ ✗ " in thing for thing in things)
    assert story[-1] == f"To replay it: greenroom replay {tape}"
    assert run(["tape", os.fspath(tape), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    conforms("tape", document)
    assert [call["tool"] for call in document["calls"]] == [name for name, _ in CALLS]
    failed = told(capsys, os.fspath(tape), "--failed")
    assert "own_refuse {} → ✗ " in failed[3]
    assert len(failed) == 5


def test_what_is_no_tape_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tape").write_text("{}\n")
    for command in ("tape", "replay"):
        assert run([command, os.fspath(tmp_path / "a.tape")]) == 2
        assert "a.tape is not a tape of Greenroom" in capsys.readouterr().err
        assert run([command, os.fspath(tmp_path / "none.tape")]) == 2
        assert "There is no tape" in capsys.readouterr().err


def test_a_live_server_runs_what_the_tape_lacks_and_runs_are_added_up(
    tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = os.fspath(tmp_path / "runs.jsonl")
    options = ["--expose", "direct", "--summary", runs, "--per-session"]
    live = ["--live", "own", "--config", os.fspath(tmp_path / "mcp.json")]
    calls = [CALLS[0], ("own_echo", {"text": "three"})]
    answers, said = talk(["replay", *options, *live, os.fspath(tape)], calls)
    assert [answer["result"]["content"][0]["text"] for answer in answers] == [
        '{"text": "one"}',
        '{"text": "three"}',
    ]
    assert "3 recorded calls of own; only own may be started" in said
    assert 'not on the tape, and run: own_echo with {"text":"three"} (1 time)' in " ".join(said.split())
    assert run(["tape", os.fspath(tape), "--summary", runs]) == 0
    assert "Run by a server, and not on the tape:" in capsys.readouterr().out
    talk(["replay", *options, os.fspath(tape)], calls)
    assert run(["tape", os.fspath(tape), "--summary", runs, "--json"]) == 1, "one call was refused"
    found = json.loads(capsys.readouterr().out)
    conforms("tape", found)
    assert (found["runs"], found["asked"]) == (2, 4)
    assert sum(found["met"].values()) + sum(found["ran"].values()) == 2
    assert found["refused"] == found["lacked"] == {'own_echo with {"text":"three"}': 1}
    assert run(["replay", "--live", "other", *live[2:], os.fspath(tape)]) == 2


def test_a_summary_that_cannot_be_written_is_noticed_before_the_run(
    tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "--summary", os.fspath(tmp_path / "none" / "runs.jsonl"), os.fspath(tape)]) == 2
    said = capsys.readouterr().err
    assert "The summary cannot be written" in said
    assert "replaying" not in said


@pytest.mark.parametrize("is_terminal", [True, False])
def test_who_types_a_replay_is_told_that_it_waits_for_a_client(
    tape: Path, is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay_command, "run_gateway", lambda *_: None)
    stdin = io.StringIO()
    monkeypatch.setattr(stdin, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(["replay", os.fspath(tape)]) == 0
    waits = "waiting for an MCP client on standard input. A client starts greenroom replay itself\nCtrl-C"
    assert (waits in capsys.readouterr().err) is is_terminal


def test_a_tape_of_a_room_without_servers_is_replayed(tmp_path: Path) -> None:
    config, folder = tmp_path / "mcp.json", tmp_path / "tapes"
    config.write_text("{}")
    talk(["serve", "--config", os.fspath(config), "--record", os.fspath(folder)], [])
    (empty,) = folder.glob("*.tape")
    _, said = talk(["replay", os.fspath(empty)], [])
    assert f"replaying {empty.name}: 0 recorded calls; nothing is started" in said


def test_of_a_replay_no_start_is_told_and_what_never_connected_is_named_once(tmp_path: Path) -> None:
    """Nothing is started, so no line says that something was."""
    config, folder = tmp_path / "mcp.json", tmp_path / "tapes"
    gone = {"command": os.fspath(tmp_path / "gone")}
    config.write_text(json.dumps({"mcpServers": {"own": whole("own"), "gone": gone, "lost": gone}}))
    options = ["--config", os.fspath(config), "--expose", "direct", "--record", os.fspath(folder)]
    _, recorded = talk(["serve", *options], CALLS)
    assert "own: connecting → connected" in recorded
    (tape,) = folder.glob("*.tape")
    answers, said = talk(["replay", "--expose", "direct", os.fspath(tape)], CALLS)
    assert answers[0]["result"]["content"][0]["text"] == '{"text": "one"}'
    assert said.splitlines() == [
        f"greenroom: replaying {tape.name}: 3 recorded calls of own; nothing is started",
        "greenroom: never connected on this tape: gone, lost",
    ]


def test_one_call_is_recorded_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, folder = tmp_path / "mcp.json", tmp_path / "tapes"
    config.write_text(json.dumps({"mcpServers": {"own": whole("own")}}))
    words = ["call", "own_echo", "text=hi", '{"pin": "between-us"}', "--config", os.fspath(config)]
    assert run([*words, "--record", os.fspath(folder), "--redact", "pin", "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    conforms("call", document)
    (tape,) = folder.glob("*.tape")
    assert document["tape"] == os.fspath(tape)
    assert f"greenroom tape {tape}" in said.err
    assert '"pin":"[REDACTED]"' in tape.read_text()
    arguments = {"text": "hi", "pin": "[REDACTED]"}
    answers, _ = talk(["replay", "--expose", "direct", os.fspath(tape)], [("own_echo", arguments)])
    assert "hi" in answers[0]["result"]["content"][0]["text"]
    missed = {"tool": "own_echo", "args": {"text": "ho", "pin": "[REDACTED]"}}
    (miss,), _ = talk(["replay", os.fspath(tape)], [("mcp", missed)])
    text = miss["result"]["content"][0]["text"]
    assert "Not on the tape: own_echo" in text
    assert "Expected parameters" not in text, "those are not what is wrong"
    assert run([*words, "--record", os.fspath(tape)]) == 2
    assert "No tape can be recorded" in capsys.readouterr().err
    assert run([*words, "--redact", "pin"]) == 2
    assert "--redact is for --record" in capsys.readouterr().err


def test_a_call_is_recorded_beside_a_running_gateway(tmp_path: Path) -> None:
    tape = tmp_path / "one.tape"
    with serve(tmp_path, {"own": whole("own")}) as gateway:
        gateway.initialize()
        words = ["call", "own_echo", "text=hi", "--json", "--record", os.fspath(tape)]
        done = greenroom_in(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["source"] == "room"
        assert "is passed over" in done.stderr
        assert "--background" not in done.stderr, "a room runs"
        assert '"text":"hi"' in tape.read_text()
        refused = greenroom_in(tmp_path, *words, "--pid", str(gateway.process.pid))
        assert (refused.returncode, "Leave one of them out" in refused.stderr) == (2, True)


def test_a_fault_happens_to_a_client_of_a_replay_and_one_that_did_not_is_told(
    tape: Path, tmp_path: Path
) -> None:
    faults = ["--fault", "own call 2: refuse text='sold out'", "--fault", "own call 3: crash"]
    record = ["--record", os.fspath(tmp_path / "again.tape")]
    answers, said = talk(
        ["replay", "--expose", "direct", *faults, *record, os.fspath(tape)], [*CALLS[:2], CALLS[1]]
    )
    texts = [json.dumps(answer) for answer in answers]
    assert "one" in texts[0]
    assert "sold out" in texts[1]
    assert "two" in texts[2], "the second attempt gets the recorded answer"
    assert "own: a fault as told: own call 2: refuse" in said
    assert "this fault did not happen: own call 3: crash" in said
    outcomes = [call.outcome for call in read_tape(tmp_path / "again.tape").calls]
    assert outcomes == ["result", "call_failed", "result"], "a replay can be recorded"
    assert run(["replay", "--fault", "own call 9: crash", os.fspath(tape)]) == 2


def test_a_replay_tells_at_its_end_what_was_read_too_early(tmp_path: Path) -> None:
    tape = tmp_path / "shop.tape"

    async def main() -> None:
        tools = [tool("find", annotations={"readOnlyHint": True}), tool("add")]
        async with fake_room({"shop": FakeServer(tools=tools)}, record=tape) as room:
            for name in ("find", "add", "find"):
                await room.call(f"shop_{name}", {})

    run_async("asyncio", main)
    finds = [("shop_find", {}), ("shop_find", {})]
    answers, said = talk(["replay", "--expose", "direct", os.fspath(tape)], finds)
    assert all("result" in answer for answer in answers)
    assert "Answered too early: shop_find with {}, with call #3." in " ".join(said.split())
