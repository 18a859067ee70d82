"""docs/coming-from says what the keys of others mean here: each row of its tables is read by our reader, both sides.

A row has what stands in their file, and what it means in ours: other keys, `the same`, or a dash if it has no
effect. What has no effect must be told, unless it only describes the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from tests.config.test_config_files import Place

from greenroom.config.foreign_keys import DESCRIBE
from greenroom.config.model import Config

PAGES = Path(__file__).parents[2] / "docs" / "coming-from"
OWN = "home/.config/greenroom/mcp.json"
# Where the file of a program is, and as what it is imported; the others are named with --config.
IMPORTED = {
    "pi-mcp-adapter": ("pi", "home/.pi/agent/mcp.json"),
    "claude-code": ("claude-code", "home/.claude.json"),
}
TABLE = re.compile(
    r"^\| key (of a server|of its adapter|of its settings) +\| here +\|.*\n\|[-|]+\n((?:\|.*\n)+)",
    re.MULTILINE,
)
STDIO, HTTP = {"command": "server"}, {"url": "https://server.example/mcp"}
ENVIRON = {"TOKEN": "a-token-of-the-test", "HOST": "server.example"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    return Place(tmp_path)


@attrs.frozen
class Row:
    page: str
    where: str  # "of a server", "setting", "of its adapter"
    theirs: str
    ours: str

    @property
    def id(self) -> str:
        return f"{self.page}: {self.theirs}"


def rows() -> Iterator[Row]:
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for where, table in TABLE.findall(text):
            for line in table.splitlines():
                theirs, ours = re.split(r" *\| ", line.strip("| "), maxsplit=2)[:2]
                yield Row(page.stem, where, theirs.strip("` "), ours.strip("` |"))


ROWS = list(rows())


def members(text: str) -> dict[str, Any]:
    return json.loads("{" + text.replace(r"\|", "|") + "}")


def document(row: Row, given: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """A file with these members at the place of the row. `like` decides which kind of server has them."""
    if row.where != "of a server":
        return {"mcpServers": {"s": STDIO}, "settings": given}
    base = {} if {"command", "url", "socket", "baseUrl"} & like.keys() else HTTP if _is_http(like) else STDIO
    return {"mcpServers": {"s": {**base, **given}}}


def _is_http(keys: Mapping[str, Any]) -> bool:
    words = ("header", "bearer", "oauth", "auth", "http", "sse", "terminate")
    return any(word in key.lower() for key in keys for word in words) or keys.get("transport") == "sse"


def read(place: Place, row: Row, given: Mapping[str, Any], like: Mapping[str, Any], *, ours: bool) -> Config:
    content = document(row, given, like)
    if ours:
        place.write(OWN, content)
        return place.load(**ENVIRON)
    if row.page == "mcp-gateway":
        file = {"adapter": content.get("settings", {}), "servers": content["mcpServers"]}
        return place.load(place.write("adapter.json", file), **ENVIRON)
    if (imported := IMPORTED.get(row.page)) is None:
        return place.load(place.write("theirs.json", content), **ENVIRON)
    kind, file = imported
    place.write(file, content)
    place.write(OWN, {"imports": [kind]})
    return place.load(**ENVIRON)


def means(config: Config, row: Row) -> Any:
    if row.where != "of a server":
        return config.settings
    assert not config.broken, config.broken
    return msgspec.structs.replace(config.servers["s"], extra={}, sources={})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_key_means_what_the_page_says(place: Place, row: Row) -> None:
    theirs = members(row.theirs)
    config = read(place, row, theirs, theirs, ours=False)
    told = [str(each) for each in config.problems if any(key in str(each) for key in theirs)]
    ours = {} if row.ours == "–" else theirs if row.ours == "the same" else members(row.ours)
    if row.where == "of its adapter" and "isolation" not in ours:
        ours = {**ours, "isolation": "per_session"}  # without a word there, as its page says
    expected = read(place, row, ours, theirs, ours=True)
    assert means(config, row) == means(expected, row)
    if row.ours == "–":
        assert told or theirs.keys() <= DESCRIBE, "a key without effect is told"
    else:
        assert not told, told


def test_every_page_has_rows() -> None:
    assert {row.page for row in ROWS} == {page.stem for page in PAGES.glob("*.md")}
