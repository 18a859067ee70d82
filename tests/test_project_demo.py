"""The demo as a person sees it: a real run in a pipe and one on a terminal, both leaving nothing behind."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from greenroom.gateway._cli.demo import run_demo; sys.exit(run_demo())",
]
SCENES = 7


def test_the_demo_tells_its_story_in_plain_lines() -> None:
    began = time.monotonic()

    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    story = done.stdout
    assert time.monotonic() - began < 15
    assert len(re.findall(r"^== .+ ==$", story, re.MULTILINE)) == SCENES + 1
    assert "\x1b" not in story
    assert "Traceback" not in story
    assert "clock #1: idle -> connecting" in story
    assert "idle timeout" in story
    assert "clock #2: connecting -> connected" in story
    assert "flaky #1: connected -> draining (lost" in story
    assert re.search(r"call flaky_divide .*\n.*-> 3\.14286", story)
    assert re.search(r'-> tool_not_found: Tool "clock_nwo" not found\. .*clock_now', story)
    assert 'Server "ghost" not available (failed 0s ago)' in story
    assert re.search(r'server_not_connected \(not_sent\): Server "notes"', story)
    assert "left running: 0" in story
    _assert_adds_up(story)


def _assert_adds_up(story: str) -> None:
    report = re.search(
        r"Drain report: (\d+) calls accepted: (\d+) completed, (\d+) failed, (\d+) cancelled", story
    )
    assert report, story
    accepted, *outcomes = map(int, report.groups())
    assert accepted == sum(outcomes)
    assert accepted > 0


def test_on_a_terminal_the_demo_shows_a_table() -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        COMMAND,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(follower)

    shown = _read_all(leader)
    os.close(leader)

    assert process.wait(timeout=30) == 0, shown
    assert "\x1b[" in shown
    assert "incarnation" in shown
    assert "Curtain" in shown


def _read_all(leader: int) -> str:
    chunks: list[bytes] = []
    try:
        while chunk := os.read(leader, 65536):
            chunks.append(chunk)
    except OSError:  # Linux says EIO when the last writer is gone
        pass
    return b"".join(chunks).decode(errors="replace")
