"""Real servers and real clients, as a person has them: `python -m tools.world [--core] [--only NAME] [--write]`.

Servers and clients are installed from the package indexes, each into an environment of its own under `.build/world/`,
and played against this checkout. `--core` plays what CI plays. `--write` writes the tables to `docs/world.md`. The run
fails when anything that was played has a problem.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ._clients import ClientRow, play_clients
from ._install import ROOT, node_is_there
from ._servers import Gathered, play_servers
from ._table import CLIENTS, SERVERS, Client, Server

PAGE = ROOT / "docs" / "world.md"
T = TypeVar("T", Server, Client)


def main() -> int:
    wish = _arguments()
    if not node_is_there():
        print("The world run needs node and npm (version 20 or newer) on PATH.", file=sys.stderr)
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="greenroom-world-") as name:
        folder = Path(name)
        servers, clients = _wanted(SERVERS, wish), _wanted(CLIENTS, wish)
        gathered = asyncio.run(play_servers(servers, folder))
        met = asyncio.run(play_clients(clients, folder))
    lines = [*_server_lines(gathered), "", *_client_lines(met)]
    print("\n".join(lines))
    print(f"\n{len(servers)} servers and {len(clients)} clients in {time.monotonic() - began:.0f} s")
    if wish.write:
        _write(lines)
    problems = [row for row in (*gathered.rows, *met) if row.problems]
    bad_end = bool(servers) and (gathered.exit_code != 0 or gathered.left)
    return 1 if problems or bad_end else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.world", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--core", action="store_true", help="what CI plays")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a server or client by name"
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


def _wanted(table: Sequence[T], wish: argparse.Namespace) -> list[T]:
    chosen: Callable[[T], bool] = lambda row: (
        row.name in wish.only if wish.only else row.core or not wish.core
    )  # noqa: E731
    return [row for row in table if chosen(row)]


def _server_lines(gathered: Gathered) -> list[str]:
    lines = ["| server | version | tools | a call | |", "|---|---|---|---|---|"]
    for row in gathered.rows:
        verdict = "; ".join(row.problems) or "the same as without us"
        lines.append(
            f"| {row.name} | `{row.pin}` | {row.tools} | {'yes' if row.called else '–'} | {verdict} |"
        )
    if gathered.rows:
        lines.append("")
        lines.append(
            f"All known {gathered.known_after:.1f} s after a start on an empty cache. On stdin's end the gateway "
            f"left with exit code {gathered.exit_code} after {gathered.exit_seconds:.2f} s; processes left: "
            f"{gathered.left}."
        )
    return lines


def _client_lines(rows: Sequence[ClientRow]) -> list[str]:
    lines = ["| client | version | |", "|---|---|---|"]
    return lines + [f"| {row.name} | `{row.pins}` | {'; '.join(row.problems) or 'works'} |" for row in rows]


def _write(lines: Sequence[str]) -> None:
    head = PAGE.read_text(encoding="utf-8").partition("<!-- world -->")[0]
    PAGE.write_text(head + "<!-- world -->\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
