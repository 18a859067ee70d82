"""The same torture for Greenroom and its peers: `python -m tools.peers [--only PEER] [--row ROW] [--write]`.

Each peer is installed from its package index into an environment of its own, and started over the same servers,
ordinary and hostile ones. One client asks all of them the same, with the same patience, and says what became of each
call, how long it took, and which processes are left. With `--write`, results are kept under `.build/`, and all that are
kept are written to `docs/peers.md` and `docs/results/peers.md`, once every peer was played in every row. The run fails
when Greenroom does not hold a row.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from ..world._install import ROOT, InstallFailed
from . import _processes
from ._kept import all_kept, keep
from ._peers import PEERS, Peer
from ._rows import ROWS, Result, Row
from ._stage import NoDoor, Stage
from ._table import PeerResults, held_lines, row_lines, write

PAGES = {ROOT / "docs" / "peers.md": held_lines, ROOT / "docs" / "results" / "peers.md": row_lines}
LONGEST = 240.0  # seconds for one row of one peer


def main() -> int:
    wish = _arguments()
    _processes.adopt_orphans()
    signal.signal(signal.SIGTERM, _exit)
    peers = [peer for peer in PEERS if not wish.only or peer.name in wish.only]
    rows = [row for row in ROWS if not wish.row or row.name in wish.row]
    played = PeerResults(peers, rows)
    try:
        asyncio.run(_play(played))
    finally:
        ended = _processes.end_all(set())
    print("\n" + "\n".join([*held_lines(played), "", *row_lines(played)]))
    print(f"\nProcesses that were still there at the end, and are not now: {ended}.")
    if wish.write:
        keep(played)
        everything = all_kept()
        if isinstance(everything, PeerResults):
            for page, lines_of in PAGES.items():
                write(page, lines_of(everything))
        else:
            print(f"The pages are not written: {everything}.")
    ours = [
        key for key, result in played.results.items() if key[1].startswith("Greenroom") and not result.holds
    ]
    return 1 if ours else 0


def _exit(*_: object) -> None:
    """On SIGTERM, too, what was started is ended."""
    sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.peers", description=(__doc__ or "").splitlines()[0]
    )
    names = [peer.name for peer in PEERS], [row.name for row in ROWS]
    parser.add_argument("--only", action="append", default=[], metavar="PEER", choices=names[0])
    parser.add_argument("--row", action="append", default=[], metavar="ROW", choices=names[1])
    parser.add_argument("--write", action="store_true", help="keep the results, and write the pages")
    return parser.parse_args()


async def _play(played: PeerResults) -> None:
    for peer in played.peers:
        try:
            command = peer.installed()
        except (InstallFailed, FileNotFoundError) as error:
            played.missing[peer.name] = _why(peer, error)
            print(f"{peer.name}: {played.missing[peer.name]}", flush=True)
            continue
        for row in played.rows:
            result = await _one(peer, command, row)
            played.results[row.name, peer.name] = result
            print(f"{peer.name}, {row.name}: {_line(result)}", flush=True)


def _why(peer: Peer, error: Exception) -> str:
    """Why it is not installed, without addresses and paths."""
    if "404" in str(error):
        return f"{peer.index} does not have it"
    if isinstance(error, FileNotFoundError):
        return f"no {peer.index} here, or it did not bring the program"
    return re.sub(r"\S*/\S*", "…", str(error))[:150]


async def _one(peer: Peer, command: Sequence[str], row: Row) -> Result:
    with tempfile.TemporaryDirectory(prefix="greenroom-peers-", ignore_cleanup_errors=True) as name:
        async with Stage(peer, command, Path(name)) as stage:
            try:
                async with asyncio.timeout(LONGEST):
                    result = await row.play(stage)
            except NoDoor as error:
                result = Result(False, str(error).replace(name, ""))
            except TimeoutError:
                result = Result(False, f"not over after {LONGEST:g} s")
            lost = sum(call.kind == "lost" for call in stage.calls)
            return attrs.evolve(result, lost=lost)


def _line(result: Result) -> str:
    parts = ["held" if result.holds else "NOT held", result.what]
    parts += [f"{result.seconds:.2f} s"] if result.seconds is not None else []
    parts += [f"{result.lost} lost"] if result.lost else []
    parts += [f"{result.left} left"] if result.left is not None else []
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
