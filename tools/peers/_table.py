"""The results as a page: who holds what, then each row with its numbers."""

from __future__ import annotations

import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from ._peers import Peer
from ._rows import Result, Row

MARK = "<!-- peers -->"


@attrs.define
class Played:
    """Of each row and peer its result; of each peer that could not be installed, why; of each, when it was played (of
    several days, the first)."""

    peers: Sequence[Peer]
    rows: Sequence[Row]
    results: dict[tuple[str, str], Result] = attrs.field(factory=dict[tuple[str, str], Result])
    missing: dict[str, str] = attrs.field(factory=dict[str, str])
    dates: dict[str, str] = attrs.field(factory=dict[str, str])

    @property
    def there(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.name not in self.missing]


def lines_of(played: Played) -> list[str]:
    lines = [f"With Python {platform.python_version()} and node {_node()}, on {platform.system()}.", ""]
    lines += [*_peers(played), "", *_summary(played)]
    for row in played.rows:
        lines += ["", *_row(row, played)]
    return lines


def write(page: Path, lines: Sequence[str]) -> None:
    before, _, after = page.read_text(encoding="utf-8").partition(MARK)
    _, _, after = after.partition(MARK)
    page.write_text(f"{before}{MARK}\n\n" + "\n".join(lines) + f"\n\n{MARK}{after}", encoding="utf-8")


def _peers(played: Played) -> list[str]:
    lines = ["| peer | version | played | door | how it was run |", "|---|---|---|---|---|"]
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for peer in played.peers:
        how = (
            f"not played: {_cell(played.missing[peer.name])}"
            if peer.name in played.missing
            else peer.settings
        )
        version = " ".join(f"`{pin}`" for pin in peer.pins) or "this checkout"
        date = played.dates.get(peer.name, today)
        lines.append(f"| {peer.name} | {version} | {date} | {_DOORS[peer.door]} | {how} |")
    return lines


def _summary(played: Played) -> list[str]:
    """A row of the table for each peer, a column for each row: there are fewer of these in a line."""
    rows = played.rows
    lines = ["| | " + " | ".join(row.name for row in rows) + " | held |"]
    lines.append("|---" * (len(rows) + 2) + "|")
    for peer in played.there:
        results = [played.results[row.name, peer.name] for row in rows]
        held = sum(result.holds for result in results)
        lines.append(
            f"| {peer.name} | "
            + " | ".join(_mark(result) for result in results)
            + f" | {held} of {len(rows)} |"
        )
    return lines


def _row(row: Row, played: Played) -> list[str]:
    lines = [f"### {row.name}", "", f"{row.what} It holds when {row.holds}. Seconds: {row.seconds}.", ""]
    lines += [
        "| peer | held | what happened | seconds | calls lost | processes left |",
        "|---|---|---|---|---|---|",
    ]
    for peer in played.there:
        result = played.results[row.name, peer.name]
        seconds = "–" if result.seconds is None else f"{result.seconds:.2f}"
        left = "–" if result.left is None else str(result.left)
        held = _mark(result)
        lines.append(f"| {peer.name} | {held} | {_cell(result.what)} | {seconds} | {result.lost} | {left} |")
    return lines


def _mark(result: Result) -> str:
    return "–" if not result.offered else "yes" if result.holds else "no"


def _node() -> str:
    try:
        said = subprocess.run(("node", "--version"), capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return "–"
    return said.strip()


def _cell(text: str) -> str:
    """What others have said must not end a cell, nor name the paths of this machine."""
    text = re.sub(r"(?<![\w.])/(?:[\w.@=+-]+/)+", "…/", text)
    return " ".join(text.replace("|", "\\|").split())


_DOORS: Mapping[str, str] = {
    "stdio": "stdio",
    "http": "Streamable HTTP",
    "sse": "HTTP with SSE",
    "rest": "REST",
}
