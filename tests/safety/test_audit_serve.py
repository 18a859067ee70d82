"""The audit file of real gateways: killed and started again, over HTTP, in the background, two at once."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

from tests.gateway.test_http_serve import call, served
from tests.support.attached import background
from tests.support.forked import run_forked
from tests.support.gateway import GREENROOM, PATIENCE, faulty, serve

from greenroom.safety import audit


def verify(path: Path, *options: str) -> dict[str, Any]:
    done = run_forked(
        [*GREENROOM, "audit", "verify", os.fspath(path), "--json", *options],
        env={"PATH": os.environ["PATH"], "HOME": os.fspath(path.parent)},
        cwd=path.parent,
        text=True,
    )
    said = json.loads(done.stdout)
    assert done.returncode == (0 if said["whole"] else 1), done.stderr
    return said


def calls(path: Path, *keys: str) -> list[tuple[Any, ...]]:
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [tuple(record.get(key) for key in keys) for record in records if record["kind"] == "call"]


def test_a_killed_gateway_has_told_every_answer_and_the_next_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    servers = {
        "s": {**faulty(tmp_path, "s"), "env": {"PLANTED": "pl4nted-secret"}},
        "t": faulty(tmp_path, "t"),
    }
    options = ("--audit", os.fspath(path), "--expose", "direct")
    with serve(tmp_path, servers, *options) as gateway:
        gateway.initialize()
        for arguments in ({"text": "pl4nted-secret"}, {"text": "2"}):
            gateway.answer(gateway.send("tools/call", {"name": "s_echo", "arguments": arguments}))
        gateway.answer(gateway.send("tools/call", {"name": "nothing", "arguments": {}}))
        gateway.send("tools/call", {"name": "t_sleep", "arguments": {"seconds": 60}})
        gateway.answer(gateway.send("tools/call", {"name": "s_echo", "arguments": {"text": "3"}}))
        gateway.end(signal.SIGKILL)
    assert calls(path, "tool", "outcome") == [
        ("s_echo", "result"),
        ("s_echo", "result"),
        ("nothing", "tool_not_found"),
        ("s_echo", "result"),
    ]
    killed = verify(path)
    assert (killed["whole"], killed["calls"], killed["ended"]) == (True, 4, False)
    path.write_bytes(
        path.read_bytes() + b'{"v":1,"seq":6,"ti'
    )  # as a kill in the middle of a write leaves it
    torn = verify(path)["bad"]
    assert (torn["line"], torn["torn"]) == (6, True)
    with serve(tmp_path, servers, *options) as gateway:
        gateway.initialize()
        gateway.answer(gateway.send("tools/call", {"name": "s_echo", "arguments": {}}))
        second = run_forked(
            [*GREENROOM, "serve", "--config", os.fspath(tmp_path / "mcp.json"), *options],
            env={"PATH": os.environ["PATH"], "HOME": os.fspath(tmp_path)},
            cwd=tmp_path,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert second.returncode == 2
        assert "is written by another gateway now. Each needs a file of its own" in second.stderr
        assert gateway.end() == 0
    report = verify(path, "--expect", killed["lastHash"])
    assert (report["whole"], report["calls"], report["ended"], report["expectedAt"]) == (True, 5, True, 5)
    assert len(report["remarks"]) == 1
    assert report["remarks"][0].startswith("Line 6 is torn")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "pl4nted" not in path.read_text()


def test_a_line_says_by_which_door_it_came_and_for_whom(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with served(tmp_path, {"s": faulty(tmp_path, "s")}, "--audit", os.fspath(path)) as one:
        session = one.session()
        assert one.post(call("s_echo", text="hi"), **session).status_code == 200
        done = run_forked(
            [*GREENROOM, "call", "s_echo", "text=hi", "--config", os.fspath(tmp_path / "mcp.json")],
            env={
                "PATH": os.environ["PATH"],
                "HOME": os.fspath(tmp_path),
                "XDG_CACHE_HOME": os.fspath(tmp_path / "cache"),
                "XDG_RUNTIME_DIR": os.fspath(tmp_path),
            },
            cwd=tmp_path,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(PATIENCE) == 0
    assert calls(path, "door", "subject", "session", "outcome") == [
        ("http", "tests", "http-1", "result"),
        ("command line", None, "command-1", "result"),
    ]
    ((client,), _) = calls(path, "client")
    assert client["name"]
    assert verify(path)["ended"]


def test_a_background_gateway_keeps_one_for_all_that_attach(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with background(tmp_path, {"s": faulty(tmp_path, "s")}) as room:
        started = room.command("serve", "--background", "--audit", os.fspath(path), "--expose", "direct")
        assert started.returncode == 0, started.stderr
        again = room.command("serve", "--background", "--audit", os.fspath(path), "--expose", "direct")
        assert again.returncode == 0, again.stderr
        other = room.command("serve", "--background", "--audit", os.fspath(tmp_path / "other.jsonl"))
        assert other.returncode == 2
        assert "does not keep the audit file" in other.stderr
        with room.attach() as client:
            client.initialize()
            client.answer(client.send("tools/call", {"name": "s_echo", "arguments": {}}))
            assert client.end() == 0
        room.stop()
    assert calls(path, "door", "outcome") == [("attach", "result")]
    with path.open("rb") as lines:
        assert audit.check(lines).bad is None
