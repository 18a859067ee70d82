"""The demo as a person sees it: a real run in a pipe and one on a terminal, both leaving nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import xml.etree.ElementTree
from pathlib import Path

from tests.cli.test_every_command import too_wide
from tests.support.forked import GREENROOM, popen_forked, run_forked
from tests.support.patience import PATIENCE
from tests.support.shapes import conforms

ROOT = Path(__file__).resolve().parents[2]
DEMO = [*GREENROOM, "demo"]
WINDOW = (40, 80)  # rows and columns
SCENES = 7


def test_the_demo_tells_its_story_in_plain_lines() -> None:
    done = run_forked(DEMO, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    story = done.stdout
    assert len(re.findall(r"^== .+ ==$", story, re.MULTILINE)) == SCENES + 1
    assert "\x1b" not in story
    assert "Traceback" not in story
    assert "clock #2 is connected" in story
    assert "idle timeout" in story
    assert "clock #3 is connected" in story
    assert "flaky #2 ends (lost" in story
    assert "connecting" not in story, "the story has no state between"
    assert story.count("\n    . ") <= 12
    assert re.search(r"call flaky_divide .*\n.*-> 3\.14286", story)
    assert re.search(r'-> tool_not_found: Tool "clock_nwo" not found\. .*clock_now', story)
    assert re.search(r'Server "ghost" not available \(failed \d s ago\)', story)
    assert re.search(r'server_not_connected: Server "notes" .* \[not_sent\]', story)
    assert "left running: 0" in story
    _assert_adds_up(story)

    for line in map(_masked, pictured()):
        assert line in _masked(story)


def pictured() -> list[str]:
    """What the picture in README shows of the demo, but for the steps of servers, whose order varies."""
    picture = xml.etree.ElementTree.parse(ROOT / "docs" / "demo.svg")
    lines = [text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert len(lines) > 10
    return [line for line in lines if not line.startswith(". ")]


def _masked(text: str) -> str:
    """Without times and numbers."""
    return re.sub(r"\d+(\.\d+)?|[A-Z][a-z]+day", "#", text)


def _assert_adds_up(story: str) -> None:
    report = re.search(
        r"Drain report: (\d+) calls accepted: (\d+) completed, (\d+) failed, (\d+) cancelled", story
    )
    assert report, story
    accepted, *outcomes = map(int, report.groups())
    assert accepted == sum(outcomes)
    assert accepted > 0


def test_the_demo_as_json_is_one_document() -> None:
    done = run_forked([*DEMO, "--json"], text=True)

    assert done.returncode == 0, done.stderr
    told = conforms("demo", json.loads(done.stdout))
    assert len(told["scenes"]) == SCENES + 1
    steps = [step for scene in told["scenes"] for step in scene["steps"]]
    assert {"clock #2: idle -> connecting"} <= {step.get("transition") for step in steps}
    assert {"call": "flaky_divide", "args": {"dividend": 22, "divisor": 7}, "outcome": "3.14286"}.items() <= (
        next(step for step in steps if step.get("args", {}).get("dividend") == 22).items()
    )
    report = told["drainReport"]
    assert report["completed"] + report["failed"] + report["cancelled"] == report["accepted"] > 0
    assert told["leftRunning"] == 0


def test_a_reader_that_has_seen_enough_ends_the_demo_in_silence() -> None:
    """`greenroom demo | head -2`."""
    demo = popen_forked(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert demo.stdout is not None
    assert demo.stderr is not None
    demo.stdout.readline()
    demo.stdout.close()

    with demo.stderr:
        assert demo.stderr.read() == b""
    assert demo.wait(timeout=PATIENCE) == 0


def test_on_a_terminal_the_demo_shows_a_table() -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", *WINDOW, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color"}
    process = popen_forked(DEMO, stdin=follower, stdout=follower, stderr=follower, env=environ)
    os.close(follower)

    shown = _read_all(leader)
    os.close(leader)

    assert process.wait(timeout=PATIENCE) == 0, shown
    assert "\x1b[" in shown
    assert "incarnation" in shown
    assert "Summary" in shown
    assert list(too_wide(shown, WINDOW[1])) == []


def test_a_demo_that_goes_otherwise_says_so_and_fails() -> None:
    """With a server that crashes where the story has it answer."""
    sabotage = (
        "import sys; from greenroom.cli import demo_command as demo; whole = demo.demo_config;"
        "config = whole(); config['mcpServers']['clock']['command'] = 'no-such-program';"
        "demo.demo_config = lambda: config; demo.PATIENCE = 1.0; sys.exit(demo.run_demo())"
    )

    done = subprocess.run([sys.executable, "-c", sabotage], capture_output=True, text=True, timeout=PATIENCE)

    assert done.returncode == 1
    assert done.stderr == "The demo stopped: waited 1 s for the discovery in the background\n"


def _read_all(leader: int) -> str:
    chunks: list[bytes] = []
    try:
        while chunk := os.read(leader, 65536):
            chunks.append(chunk)
    except OSError:  # Linux says EIO when the last writer is gone
        pass
    return b"".join(chunks).decode(errors="replace")
