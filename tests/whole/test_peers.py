"""The script behind `make peers`, with the one peer that needs no installing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_is_played_and_nothing_is_left() -> None:
    """A server is killed in the middle of a call. The script fails when Greenroom does not hold the row."""
    command = (sys.executable, "-m", "tools.peers", "--only", "Greenroom", "--row", "killed")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Greenroom, killed: held, error, then works" in done.stdout
    assert "Processes that were still there at the end, and are not now: 0." in done.stdout
