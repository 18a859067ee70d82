"""`greenroom refresh`, and what the other commands and the `mcp` tool say of servers that nobody has asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
from tests.support.door_rooms import FakeRoom
from tests.support.gateway import faulty, logged_pids, serve
from tests.support.installs import SPEAKS, logged, npx

from greenroom.gateway._cli._act import patient
from greenroom.gateway._mcp_tool import FOR_PEOPLE, Answer, Librarian, parse_request
from greenroom.gateway._mcp_tool._unknown import waits
from greenroom.gateway._room import PlainRow
from greenroom.protocol.config import Config, Settings
from greenroom.protocol.lifecycle import State


def greenroom(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One command on the configuration of `folder`, with the cache and the sockets that `serve` uses there."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(folder),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
    }
    command = [sys.executable, "-m", "greenroom", *words, "--config", os.fspath(folder / "mcp.json")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def configure(folder: Path, **servers: Any) -> None:
    settings = {"connectTimeoutMs": 2_000}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers, "settings": settings}))


def test_t47_with_an_empty_cache_commands_name_who_was_never_asked_and_what_to_do(tmp_path: Path) -> None:
    configure(tmp_path, quick=faulty(tmp_path, "quick"), other={"command": "other"})
    told = "Not known yet: quick (not asked yet), other (not asked yet). Use greenroom refresh"
    for words in (["tools"], ["search", "echo"]):
        done = greenroom(tmp_path, *words)
        assert (done.returncode, told in done.stdout) == (0, True), done.stdout + done.stderr
    for words in (["describe", "quick_echo"], ["tools", "quick"]):
        done = greenroom(tmp_path, *words)
        assert done.returncode == 1
        assert "Not known yet: quick (not asked yet). Use greenroom refresh" in done.stderr
        assert "not found" not in done.stderr
    assert not logged_pids(tmp_path), "looking starts nothing"


def test_t47_refresh_alone_asks_them_once_and_shows_how_it_goes(tmp_path: Path) -> None:
    slow = npx(tmp_path, "slow", SPEAKS)
    configure(tmp_path, quick=faulty(tmp_path, "quick"), slow=slow, bad={"command": "/no/such"})
    done = greenroom(tmp_path, "refresh")
    assert done.returncode == 1
    quick, installed, bad = done.stdout.splitlines()
    assert quick.startswith("✓ quick: ")
    assert installed.startswith("✓ slow: ")
    assert bad.startswith('✗ bad: Server "bad" could not be started')
    assert "greenroom: slow: installing for " in done.stderr
    assert "fetched " in done.stderr
    again = greenroom(tmp_path, "refresh", "quick", "--json")
    rows = json.loads(again.stdout)["servers"]
    assert [(row["name"], row["state"]) for row in rows] == [("quick", "known")]
    assert len(logged(tmp_path, "start")) == 3, "asked for by name, it is asked again"
    assert "quick_echo" in greenroom(tmp_path, "tools").stdout


def test_t47_refresh_reaches_a_running_gateway(tmp_path: Path) -> None:
    with serve(tmp_path, {"slow": npx(tmp_path, "slow", SPEAKS)}) as gateway:
        gateway.greet()
        refresh = subprocess.Popen(
            [sys.executable, "-m", "greenroom", "refresh", "--config", os.fspath(tmp_path / "mcp.json")],
            env={**os.environ, "HOME": os.fspath(tmp_path), "XDG_CACHE_HOME": os.fspath(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            text=True,
        )
        until = time.monotonic() + 10.0
        while not logged(tmp_path, "npx"):
            assert time.monotonic() < until
            time.sleep(0.02)
        looks = [gateway.mcp(search="echo"), gateway.mcp(server="slow"), gateway.mcp()]
        texts = [look["content"][0]["text"] for look in looks]
        assert "Not known yet: slow (installing for " in texts[0]
        assert "is not known yet (installing for " in texts[1]
        assert "slow (not known yet, installing for " in texts[2]
        assert refresh.communicate(timeout=20)[0].startswith("✓ slow: ")
        assert "slow_echo" in gateway.mcp(search="echo")["content"][0]["text"]
        gateway.end()
    assert len(logged(tmp_path, "npx")) == 1


def test_t47_a_call_alone_waits_for_the_install_that_ends_with_it(tmp_path: Path) -> None:
    configure(tmp_path, slow=npx(tmp_path, "slow", SPEAKS))
    done = greenroom(tmp_path, "call", "slow_echo", "text=hi")
    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr
    assert patient(Config()).settings.queue_timeout == Settings().install_timeout == 600.0
    said = Config(settings=Settings(queue_timeout=3.0), setting_sources={"queue_timeout": "mcp.json"})
    assert patient(said).settings.queue_timeout == 3.0


def answer(room: FakeRoom, **request: Any) -> Answer:
    found = Librarian(room, hints=FOR_PEOPLE).answer(parse_request(request))
    assert found is not None
    return found


def test_what_a_server_waits_for_is_said_in_words() -> None:
    def row(**facts: Any) -> PlainRow:
        return PlainRow("a", "lazy", **facts)

    installing = row(state=State.CONNECTING, waiting_for="install", waiting=12.3, last_line="added 3")
    assert waits(installing) == "installing for 12 s"
    assert waits(row(state=State.CONNECTING, waiting=3.0)) == "connecting for 3 s"
    assert waits(row(waiting_for="slot", waiting=1.0)) == "waiting for slot for 1 s"
    assert (
        waits(row(waiting_for="gate", failed_ago=5.0, retry_in=3.0)) == "failed 5 s ago, tried again in 3 s"
    )
    assert waits(row(failed_ago=5.0)) == "failed 5 s ago"
    assert waits(row(needs_auth=True, down="login")) == "needs a login"
    assert waits(row(down="drained")) == "down"
    assert waits(row()) == "not asked yet"


def test_the_mcp_tool_does_not_say_not_found_of_a_server_that_was_never_asked() -> None:
    room = FakeRoom()
    asked = answer(room, describe="fresh_thing")
    assert asked.details["error"] == "not_known_yet"
    assert 'Nothing is known of "fresh" yet, nor whether it has "fresh_thing".' in asked.text
    elsewhere = answer(room, describe="zebra")
    assert elsewhere.details["error"] == "tool_not_found"
    assert "Not known yet: fresh (not asked yet)." in elsewhere.text
    assert elsewhere.details["unknownServers"] == [{"name": "fresh", "waitsFor": "not asked yet"}]
    room.learn("fresh", {"name": "other", "inputSchema": {}})
    known = answer(room, describe="fresh_thing")
    assert known.details["error"] == "tool_not_found"
    assert "Not known yet" not in known.text


def test_a_server_that_is_shown_has_what_it_waits_for_in_the_overview() -> None:
    room = FakeRoom()
    room.rows["fresh"] = attrs.asdict(
        PlainRow("fresh", "lazy", state=State.CONNECTING, waiting_for="install", waiting=7.0, last_line="x"),
        recurse=False,
    )
    assert "○ fresh (not known yet, installing for 7 s: x)" in Librarian(room).status().text
