"""The two pages of results, which are also their record: who holds what, and each row with its numbers.

What was played is written into them, and the rest of them stays, so the table can be played in parts. A result in them
counts as long as its peer is run as the pages say.
"""

from __future__ import annotations

import platform
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from ._peers import PEERS, Peer
from ._rows import ROWS, Row
from ._trial import Result

PEERS_PAGE = Path("docs/peers.md")
ROWS_PAGE = Path("docs/results/peers.md")
_MARK = "<!-- peers -->"
_NOT_PLAYED = "not tested: "
_DOORS = {"stdio": "stdio", "http": "Streamable HTTP", "sse": "HTTP with SSE", "rest": "REST"}


@attrs.define
class Results:
    """Of each peer and row its result; of each peer that could not be installed, why; of each, when it was played (of
    several days, the first). `system`: where."""

    results: dict[tuple[str, str], Result] = attrs.field(factory=dict[tuple[str, str], Result])
    missing: dict[str, str] = attrs.field(factory=dict[str, str])
    dates: dict[str, str] = attrs.field(factory=dict[str, str])
    system: str = ""

    def add(self, peer: Peer, row: Row, result: Result) -> None:
        self.results[peer.name, row.name] = attrs.evolve(result, what=_cell(result.what))
        self.dates[peer.name] = _today()

    def miss(self, peer: Peer, why: str) -> None:
        self.missing[peer.name], self.dates[peer.name] = _cell(why), _today()

    def failed(self, peer: Peer) -> list[Row]:
        """The rows that it was played in, and does not hold."""
        found = ((row, self.results.get((peer.name, row.name))) for row in ROWS)
        return [row for row, result in found if result is not None and not result.holds]


def record(root: Path, played: Results) -> str:
    """Write what was played into the pages. Returns why not, if a result is missing then."""
    known = read(root)
    for name, today in played.dates.items():
        is_whole = name in played.missing or all((name, row.name) in played.results for row in ROWS)
        known.dates[name] = today if is_whole else known.dates.get(name, today)
        known.missing.pop(name, None)
    known.missing |= played.missing
    known.results |= played.results
    for peer in PEERS:
        absent = [row.name for row in ROWS if (peer.name, row.name) not in known.results]
        if absent and peer.name not in known.missing:
            return f"{peer.name} has not been played in the row {absent[0]}, as it is run now"
    known.system = f"With Python {platform.python_version()} and node {_node()}, on {platform.system()}."
    write(root, known)
    return ""


def read(root: Path) -> Results:
    """What the pages say, of the peers that are run as these say, and of the rows that are still there."""
    known = Results()
    page = _between(root / PEERS_PAGE)
    known.system = next(line for line in page.splitlines() if line.startswith("With Python"))
    tables = _tables(page)
    peers = {peer.name: peer for peer in PEERS}
    for name, version, date, _, how in tables[-1]:
        if name in peers and version == _version(peers[name]):
            known.dates[name] = date
            if how.startswith(_NOT_PLAYED):
                known.missing[name] = how.removeprefix(_NOT_PLAYED)
            elif how != peers[name].settings:
                del known.dates[name]
    sections = dict(each.split("\n", 1) for each in _between(root / ROWS_PAGE).split("## ")[1:])
    for row in ROWS:
        for name, held, what, seconds, lost, left in _tables(sections.get(row.title, ""))[0]:
            if name in known.dates:
                known.results[name, row.name] = Result(
                    held == "yes",
                    what,
                    None if seconds == "–" else float(seconds),
                    None if left == "–" else int(left),
                    int(lost),
                )
    return known


def write(root: Path, known: Results) -> None:
    for page, lines in ((PEERS_PAGE, _peers_page(known)), (ROWS_PAGE, _rows_page(known))):
        before, _, after = (root / page).read_text(encoding="utf-8").partition(_MARK)
        _, _, after = after.partition(_MARK)
        text = "\n".join(lines).strip()
        (root / page).write_text(f"{before}{_MARK}\n\n{text}\n\n{_MARK}{after}", encoding="utf-8")


def _peers_page(known: Results) -> Iterable[str]:
    yield from _head("peer", "holds", "does not hold")
    for peer in PEERS:
        if peer.name not in known.missing:
            failed = known.failed(peer)
            titles = ", ".join(row.title for row in failed) or "–"
            yield _line(peer.name, f"{len(ROWS) - len(failed)} of {len(ROWS)}", titles)
    yield from ("", *_head("what is tried", ""))
    for row in ROWS:
        anchor = row.name.replace(",", "").replace(" ", "-")
        yield _line(f"[{row.title}]({ROWS_PAGE.relative_to('docs')}#{anchor})", row.what)
    yield from ("", known.system, "", *_head("peer", "version", "tested", "door", "how it was run"))
    for peer in PEERS:
        how = f"{_NOT_PLAYED}{known.missing[peer.name]}" if peer.name in known.missing else peer.settings
        yield _line(peer.name, _version(peer), known.dates[peer.name], _DOORS[peer.door], how)


def _rows_page(known: Results) -> Iterable[str]:
    for row in ROWS:
        seconds = f" Seconds: {row.seconds}." if row.seconds else ""
        yield from (f"## {row.title}", "", f"{row.what} {row.must}{seconds}", "")
        yield from _head("peer", "held", "what happened", "seconds", "calls lost", "processes left")
        for peer in PEERS:
            if (result := known.results.get((peer.name, row.name))) is not None:
                seconds = "–" if result.seconds is None else f"{result.seconds:.2f}"
                left = "–" if result.left is None else str(result.left)
                held = "yes" if result.holds else "no"
                yield _line(peer.name, held, result.what, seconds, str(result.lost), left)
        yield ""


def _head(*names: str) -> tuple[str, str]:
    return _line(*names).replace("  ", " "), "|" + "---|" * len(names)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _tables(text: str) -> list[list[Sequence[str]]]:
    """Of each table its lines, without the two of its head; each line as its cells."""
    tables = re.findall(r"(?:^\|.*\n?)+", text, re.M)
    return [[_cells(line) for line in table.splitlines()[2:]] for table in tables] or [[]]


def _cells(line: str) -> Sequence[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _between(page: Path) -> str:
    return page.read_text(encoding="utf-8").split(_MARK)[1]


def _version(peer: Peer) -> str:
    return " ".join(f"`{pin}`" for pin in peer.pins) or "this checkout"


def _cell(text: str) -> str:
    """What others have said must not end a cell, nor name the paths of this machine."""
    text = re.sub(r"(?<![\w.])/(?:[\w.@=+-]+/)+", "…/", text)
    return " ".join(text.replace("|", "\\|").split())


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _node() -> str:
    try:
        said = subprocess.run(("node", "--version"), capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return "–"
    return said.strip()
