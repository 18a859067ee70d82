"""The results of earlier runs, each with its date and with what was played: so the table can be played in parts."""

from __future__ import annotations

import json
import time
from typing import Any

import attrs

from ..world._install import HOME
from ._peers import PEERS, Peer
from ._rows import ROWS, Result, Row
from ._table import PeerResults

FILE = HOME / "peers.json"


def keep(played: PeerResults) -> None:
    """Add the results of a run, and why a peer could not be played."""
    kept = _read()
    date = time.strftime("%Y-%m-%d", time.gmtime())
    for peer in played.peers:
        if peer.name in played.missing:
            kept[peer.name] = {"missing": played.missing[peer.name], "date": date, "of": _of(peer)}
    for (row, name), result in played.results.items():
        peer = next(peer for peer in played.peers if peer.name == name)
        entry = {"result": attrs.asdict(result), "date": date, "of": _of(peer, _named(row))}
        kept[f"{name}/{row}"] = entry
        kept.pop(name, None)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(kept, indent=1), encoding="utf-8")


def all_kept() -> PeerResults | str:
    """Every row of every peer as it was last played; or what is missing, where not all were played as they are now."""
    kept = _read()
    played = PeerResults(PEERS, ROWS)
    for peer in PEERS:
        entry = kept.get(peer.name)
        if entry and entry["of"] == _of(peer):
            played.missing[peer.name] = entry["missing"]
            played.dates[peer.name] = entry["date"]
            continue
        for row in ROWS:
            entry = kept.get(f"{peer.name}/{row.name}")
            if entry is None or entry["of"] != _of(peer, row):
                return f"{peer.name} has not been played in the row {row.name} as these are now"
            played.results[row.name, peer.name] = Result(**entry["result"])
            played.dates[peer.name] = min(entry["date"], played.dates.get(peer.name, entry["date"]))
    return played


def _read() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


def _of(peer: Peer, row: Row | None = None) -> str:
    """What was played, as far as the page says it."""
    return " / ".join((*peer.pins, peer.settings, *((row.what, row.holds, row.seconds) if row else ())))


def _named(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)
