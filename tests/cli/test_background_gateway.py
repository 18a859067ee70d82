"""`serve --background`, `attach`, `status` and `stop` mean the same background gateway, whatever becomes of the
files of a configuration that was found."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import GREENROOM, popen_forked, run_forked
from tests.support.gateway import alive, gone_within, started
from tests.support.patience import PATIENCE, until

GOOD = '{"mcpServers": {"a": {"command": "cat", "disabled": true}}}'
HALF = '{"mcpServers": {'
OWN, SECOND, PROJECT = ".config/greenroom/mcp.json", ".config/mcp/mcp.json", "work/.mcp.json"
Files = Mapping[str, str | None]  # what stands in each; None: there is none


def environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}


def greenroom(home: Path, *words: str, folder: str = "work") -> subprocess.CompletedProcess[str]:
    done = run_forked([*GREENROOM, *words], cwd=home / folder, env=environment(home), text=True)
    assert done.returncode == 0, done
    return done


def shown(home: Path, folder: str = "work") -> int | None:
    """The background gateway that `status` shows."""
    said = json.loads(greenroom(home, "status", "--json", folder=folder).stdout)
    return said["background"]["pid"] if "background" in said else None


def clients(home: Path, folder: str) -> list[int]:
    """Who is attached to the room that `status` shows."""
    said = json.loads(greenroom(home, "status", "--json", folder=folder).stdout)
    return [each["pid"] for each in said.get("background", {}).get("clients", ())]


def running(pids: set[int | None]) -> set[int | None]:
    return {pid for pid in pids if alive({pid or 0})}


def write(home: Path, files: Files) -> None:
    for name, text in files.items():
        file = home / name
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {OWN: GOOD}),
        ({}, {PROJECT: GOOD}),
        ({OWN: GOOD}, {OWN: HALF}),
        ({OWN: HALF}, {OWN: GOOD}),
        ({OWN: GOOD, SECOND: GOOD}, {OWN: None}),
    ],
    ids=["a first file", "a project's file", "a file breaks", "a file is mended", "a file goes"],
)
def test_attach_status_and_stop_mean_one_gateway_also_when_the_files_change(
    home: Path, before: Files, after: Files
) -> None:
    write(home, before)
    greenroom(home, "serve", "--background")
    pid = shown(home)
    try:
        assert pid is not None
        write(home, after)
        until(lambda: shown(home) == pid, "that status finds the room")
        with started(*GREENROOM, "attach", env=environment(home), cwd=home / "work") as client:
            client.initialize()
            assert shown(home) == pid
            assert client.end() == 0
        again = greenroom(home, "serve", "--background").stderr
        assert "runs already" in again
        (log,) = re.findall("Its log: (.*)", again)
        assert Path(log).exists()
    finally:
        ended = greenroom(home, "stop").stderr
        assert not gone_within({pid or 0})
    assert f"(pid {pid}) has ended" in ended
    assert "no background gateway runs" in greenroom(home, "stop").stderr
    assert not [*home.rglob("*.sock")]


STRANGE = '{"mcpServers": {"evil": {"command": "touch", "args": ["it-ran"]}}}'


def test_a_project_s_file_that_nobody_trusts_hides_no_room(home: Path) -> None:
    """The room that was started elsewhere serves this folder, too, whatever a stranger's file in it says, until its
    owner trusts it: then the folder has a room of its own."""
    (home / "other").mkdir()
    write(home, {OWN: GOOD})
    greenroom(home, "serve", "--background", folder="other")
    pid = shown(home, "other")
    assert pid is not None
    try:
        for text in (STRANGE, HALF, "[]"):
            write(home, {PROJECT: text})
            assert shown(home) == pid, text
            greenroom(home, "approve")  # which fails where it finds no room
            tools = greenroom(home, "tools").stderr
            assert "of another configuration" not in tools
            with started(*GREENROOM, "attach", env=environment(home), cwd=home / "work") as client:
                client.initialize()
                assert clients(home, "other") == [client.process.pid], "of this room, and no second one"
                assert client.end() == 0
        write(home, {PROJECT: STRANGE})
        greenroom(home, "trust", "--yes")
        assert shown(home) is None
        write(home, {PROJECT: HALF})
        assert shown(home) is None, "its servers are still meant"
        greenroom(home, "trust", "--revoke")
        assert f"(pid {pid}) has ended" in greenroom(home, "stop").stderr
        assert not gone_within({pid})
    finally:
        greenroom(home, "stop", folder="other")
        assert not (home / "work" / "it-ran").exists()


def test_of_two_rooms_that_come_to_have_the_same_files_one_gives_way_with_its_clients(home: Path) -> None:
    (home / "other").mkdir()
    greenroom(home, "serve", "--background")
    greenroom(home, "serve", "--background", folder="other")
    rooms = {shown(home), shown(home, "other")}
    assert len(rooms) == 2
    try:
        with started(*GREENROOM, "attach", env=environment(home), cwd=home / "work") as client:
            client.initialize()
            write(home, {OWN: GOOD})
            until(lambda: len(running(rooms)) == 1, "that one gives way")
            until(lambda: clients(home, "other") == [client.process.pid], "that the client goes on")
            assert {shown(home), shown(home, "other")} == running(rooms)
            assert client.answer(client.send("ping"))["result"] == {}
            assert client.end() == 0
    finally:
        greenroom(home, "stop")
        assert not gone_within({pid for pid in rooms if pid})


def test_who_ends_a_gateway_waits_for_one_that_starts(home: Path) -> None:
    write(home, {OWN: GOOD})
    greenroom(home, "serve", "--background")
    greenroom(home, "stop")  # there is its lock now
    (file,) = home.rglob("room-*.lock")
    how: dict[str, Any] = {"cwd": home / "work", "env": environment(home), "text": True}
    with file.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as whoever starts one
        stop = popen_forked([*GREENROOM, "stop"], stderr=subprocess.PIPE, **how)
        assert stop.stderr is not None
        assert "is just starting; waiting for it" in stop.stderr.readline()
    assert "no background gateway runs" in stop.communicate(timeout=PATIENCE)[1], "that start has failed"


def test_a_start_that_is_under_way_is_waited_for_before_it_is_ended(home: Path) -> None:
    """It was not found, and stayed."""
    write(home, {OWN: GOOD})
    how: dict[str, Any] = {"cwd": home / "work", "env": environment(home), "text": True}
    start = popen_forked([*GREENROOM, "serve", "--background"], stderr=subprocess.PIPE, **how)
    assert until(lambda: any(map(_is_held, home.rglob("room-*.lock"))) or start.poll() is not None)
    assert "has ended" in greenroom(home, "stop").stderr
    start.communicate(timeout=PATIENCE)
    assert shown(home) is None


def _is_held(file: Path) -> bool:
    with file.open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
