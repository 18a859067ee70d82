"""The pages of `make peers` are the record of its results: they say what its tables say, and are played in parts."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from tools.peers import _pages
from tools.peers._peers import PEERS
from tools.peers._rows import ROWS
from tools.peers._trial import Result

ROOT = Path(__file__).resolve().parents[2]
PAGES = (_pages.PEERS_PAGE, _pages.ROWS_PAGE)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_bytes((ROOT / page).read_bytes())
    return tmp_path


def test_the_pages_say_of_peers_and_rows_what_the_tables_say(copy: Path) -> None:
    _pages.write(copy, _pages.read(copy))
    for page in PAGES:
        assert (copy / page).read_text() == (ROOT / page).read_text()


def test_one_row_that_is_played_again_changes_its_line_alone(copy: Path) -> None:
    peer, row, played = PEERS[0], ROWS[1], _pages.Results()
    before = _pages.read(copy).results
    result = Result(holds=False, what="a | b", seconds=1.5, left=3, lost=2)
    played.add(peer, row, result)
    assert _pages.record(copy, played) == ""
    after = _pages.read(copy).results
    assert {key for key in after if after[key] != before[key]} == {(peer.name, row.name)}
    assert after[peer.name, row.name] == attrs.evolve(result, what="a \\| b")
    lines = (copy / _pages.PEERS_PAGE).read_text().splitlines()
    assert f"| {peer.name} | {len(ROWS) - 1} of {len(ROWS)} | {row.title} |" in lines


def test_a_peer_of_another_version_has_to_be_played_in_every_row(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = attrs.evolve(PEERS[2], pins=("fastmcp==99",))
    monkeypatch.setattr(_pages, "PEERS", (*PEERS[:2], newer, *PEERS[3:]))
    played = _pages.Results()
    played.add(newer, ROWS[0], Result(holds=True, what="answered"))
    assert newer.name in _pages.record(copy, played)
    assert (copy / PAGES[0]).read_text() == (ROOT / PAGES[0]).read_text()
