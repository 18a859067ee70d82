"""The same torture for Greenroom and its peers: `python -m tools.peers [--only PEER] [--row ROW] [--write]`.

| module | job |
|---|---|
| `_peers` | the table of peers: how each is installed and started over servers of ours, and which door it opens |
| `_rows` | the table of rows: servers with their faults, steps, what must come of them; the steps, and the player |
| `_trial` | one peer in one row: its processes, its servers, its clients, and what was found |
| `_client` | one client for every door, which mends no fault |
| `_processes` | what has been started, as the kernel tells it; everything is ended by its id |
| `_pages` | the results, in `docs/peers.md` and `docs/results/peers.md`, which are their only record |
| `doors` | programs that open a door for a library; each runs in an environment of its own |

With `--write`, what was played is written into the pages, once every peer was played in every row. The run fails when
Greenroom does not hold a row.
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

from ..world.installing import ROOT, InstallFailed
from . import _pages, _processes
from ._peers import PEERS, Peer
from ._rows import ROWS, Row, play
from ._trial import Result, Trial


def main() -> int:
    wish = _arguments()
    _processes.adopt_orphans()
    signal.signal(signal.SIGTERM, _exit)
    played = _pages.Results()
    peers = [peer for peer in PEERS if not wish.only or peer.name in wish.only]
    try:
        asyncio.run(_play(peers, [row for row in ROWS if not wish.row or row.name in wish.row], played))
    finally:
        ended = _processes.end_all(set())
    print(f"Processes that were still there at the end, and are not now: {ended}.")
    for peer in peers:
        if failed := played.failed(peer):
            print(f"{peer.name} does not hold: {', '.join(row.title for row in failed)}")
    if wish.write and (missing := _pages.record(ROOT, played)):
        print(f"The pages are not written: {missing}.")
    return 1 if any(peer.index == "ours" and played.failed(peer) for peer in peers) else 0


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
    parser.add_argument("--write", action="store_true", help="write the results into the pages")
    return parser.parse_args()


async def _play(peers: Sequence[Peer], rows: Sequence[Row], played: _pages.Results) -> None:
    for peer in peers:
        try:
            command = peer.installed()
        except (InstallFailed, FileNotFoundError) as error:
            played.miss(peer, _why(peer, error))
            print(f"{peer.name}: {played.missing[peer.name]}", flush=True)
            continue
        for row in rows:
            with tempfile.TemporaryDirectory(prefix="greenroom-peers-", ignore_cleanup_errors=True) as folder:
                result = await play(row, Trial(peer, command, row.servers, Path(folder)))
            played.add(peer, row, result)
            print(f"{peer.name}, {row.name}: {_line(result)}", flush=True)


def _why(peer: Peer, error: Exception) -> str:
    """Why it is not installed, without addresses and paths."""
    if "404" in str(error):
        return f"{peer.index} does not have it"
    if isinstance(error, FileNotFoundError):
        return f"no {peer.index} here, or it did not bring the program"
    return re.sub(r"\S*/\S*", "…", str(error))[:150]


def _line(result: Result) -> str:
    parts = ["held" if result.holds else "NOT held", result.what]
    parts += [f"{result.seconds:.2f} s"] if result.seconds is not None else []
    parts += [f"{result.lost} lost"] if result.lost else []
    parts += [f"{result.left} left"] if result.left is not None else []
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
