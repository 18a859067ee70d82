"""The pages of `make peers` are the record of its results: they say of peers and rows what its tables say."""

from __future__ import annotations

from pathlib import Path

from tools.peers import _pages

ROOT = Path(__file__).resolve().parents[2]
PAGES = (_pages.PEERS_PAGE, _pages.ROWS_PAGE)


def test_the_pages_say_of_peers_and_rows_what_the_tables_say(tmp_path: Path) -> None:
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_bytes((ROOT / page).read_bytes())
    _pages.write(tmp_path, _pages.read(tmp_path))
    for page in PAGES:
        assert (tmp_path / page).read_text() == (ROOT / page).read_text()
