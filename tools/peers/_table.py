"""The results as two pages: who holds what, and each row with its numbers."""

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
class PeerResults:
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


def held_lines(played: PeerResults) -> list[str]:
    """Who was played, and what each holds and does not."""
    lines = [f"With Python {platform.python_version()} and node {_node()}, on {platform.system()}.", ""]
    return [*_held(played), "", *_faults(played), "", *lines, *_peers(played)]


def row_lines(played: PeerResults) -> list[str]:
    """Each row, with what happened to whom."""
    return [line for row in played.rows for line in (*_row(row, played), "")][:-1]


def write(page: Path, lines: Sequence[str]) -> None:
    before, _, after = page.read_text(encoding="utf-8").partition(MARK)
    _, _, after = after.partition(MARK)
    page.write_text(f"{before}{MARK}\n\n" + "\n".join(lines) + f"\n\n{MARK}{after}", encoding="utf-8")


def _peers(played: PeerResults) -> list[str]:
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


def _held(played: PeerResults) -> list[str]:
    lines = ["| peer | holds | does not hold |", "|---|---|---|"]
    for peer in played.there:
        failed = [row for row in played.rows if not played.results[row.name, peer.name].holds]
        held = len(played.rows) - len(failed)
        lines.append(
            f"| {peer.name} | {held} of {len(played.rows)} | {', '.join(map(_name, failed)) or '–'} |"
        )
    return lines


def _faults(played: PeerResults) -> list[str]:
    return [
        "| what is tried | |",
        "|---|---|",
        *(f"| [{_name(row)}](results/peers.md#{_anchor(row)}) | {row.what} |" for row in played.rows),
    ]


def _name(row: Row) -> str:
    """One that may stand between commas."""
    name, _, more = row.name.partition(", ")
    return f"{name} ({more})" if more else name


def _anchor(row: Row) -> str:
    return row.name.replace(",", "").replace(" ", "-")


def _row(row: Row, played: PeerResults) -> list[str]:
    seconds = "" if row.seconds == "–" else f" Seconds: {row.seconds}."
    lines = [f"## {_name(row)}", "", f"{row.what} It holds when {row.holds}.{seconds}", ""]
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
