"""The script behind `make peers`, with the one peer that needs no installing; and the page that it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE
from tools.peers._peers import PEERS
from tools.peers._rows import ROWS, Result
from tools.peers._table import MARK, Played, lines_of, write

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_is_played_and_nothing_is_left() -> None:
    """A server is killed in the middle of a call. The script fails when Greenroom does not hold the row."""
    command = (sys.executable, "-m", "tools.peers", "--only", "Greenroom", "--row", "killed")
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Greenroom, killed: held, error, then works" in done.stdout
    assert "Processes that were still there at the end, and are not now: 0." in done.stdout


def test_the_words_of_a_peer_do_not_break_the_table_and_name_no_path(tmp_path: Path) -> None:
    played = Played(PEERS[:2], ROWS[:1], missing={PEERS[1].name: "npm does not have it"})
    played.results[ROWS[0].name, PEERS[0].name] = Result(False, "a | b\nin /somebody/else/file.py", 1.0, 2, 3)
    page = tmp_path / "peers.md"
    page.write_text(f"before\n\n{MARK}\n\na former table\n\n{MARK}\n\nafter\n", encoding="utf-8")

    write(page, lines_of(played))

    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "a former table" not in text
    assert f"| {PEERS[0].name} | no | a \\| b in …/file.py | 1.00 | 3 | 2 |\n" in text
    assert "not played: npm does not have it" in text
