"""Real servers and real clients, as a person has them: `python -m tools.world [--core] [--only NAME] [--write]`.

`_table` says what is tried: a row for each server, client, framework, API or suite, with what is installed, how it is
started, what it is asked and what must come back. Each is installed from its package index into an environment of its
own under `.build/world/` (`installing`), and tried with this checkout. A kind of rows (`KINDS`) has the head of its
table and a player, which has only what differs from kind to kind: it gives a `RowResult` for a row, the cells of its
line and what is wrong. The tables are made here, from these, and all of them in the same way.

`--core` tries only what CI tries. `--write` writes the tables, and of which run they are, to `docs/world.md` (not of a
run of some), and what frameworks tell of faults to `docs/frameworks/what-a-model-is-told.md`. The run fails when there
is any problem.

Rejected: to ask with an SDK or with our own client, which both drop or add what the comparison is about. To run rows at
the same time: there are two cores, and each row starts programs of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from ._adapters import play_adapter
from ._apis import play_api
from ._clients import play_client
from ._servers import RequestFailed, play_servers
from ._suites import play_models, play_scheduler, play_suite
from ._table import (
    ADAPTERS,
    APIS,
    CLIENTS,
    MODELS,
    SCHEDULERS,
    SERVERS,
    SUITES,
    RowResult,
    WorldRow,
    WorldRun,
)
from .installing import ROOT, InstallFailed, ScriptFailed, node_is_there

PAGE = ROOT / "docs" / "world.md"
MARK = "<!-- world -->"
R = TypeVar("R", bound=WorldRow)


def each(
    play: Callable[[R, WorldRun], Iterable[RowResult]],
) -> Callable[[Sequence[R], WorldRun], list[RowResult]]:
    """A player of one row as a player of many, one after the other."""

    def play_all(rows: Sequence[R], run: WorldRun) -> list[RowResult]:
        results: list[RowResult] = []
        for row in rows:
            try:
                results += play(row, run)
            except InstallFailed as error:
                results.append(RowResult([row.name], [f"not installed: {error}"]))
            except (RequestFailed, ScriptFailed) as error:
                results.append(RowResult([row.name], [str(error)]))
        return results

    return play_all


@attrs.frozen
class RowKind:
    """Rows that are played in the same way. `head`: of their table, whose last cell has what is wrong, or that it is
    `good`. `before`: what stands above it."""

    rows: Sequence[WorldRow]
    play: Callable[[Any, WorldRun], list[RowResult]]
    head: str
    good: str
    before: str = ""

    def lines(self, results: Sequence[RowResult]) -> list[str]:
        if not results:
            return []
        columns = self.head.count("|")
        lines = ["", f"| {self.head} |", "|---" * (columns + 1) + "|"]
        for result in results:
            cells = [*result.cells, *["–"] * (columns - len(result.cells))]
            lines.append(
                f"| {' | '.join(cells)} | {'; '.join(result.problems) or result.good or self.good} |"
            )
        notes = [line for result in results if result.note for line in ("", result.note)]
        return [*(["", self.before] if self.before else []), *lines, *notes]


_MODELS = ", ".join(f"`{pin}`" for pin in MODELS[0].pins.split())
KINDS = (
    RowKind(
        SERVERS,
        play_servers,
        "server | version | tools | called | compared with the server alone",
        "the same",
    ),
    RowKind(CLIENTS, each(play_client), "client | version | who calls | at both doors", "works"),
    RowKind(
        ADAPTERS,
        each(play_adapter),
        "framework, with its adapter | version | calls that a tape answered the same | result",
        "works",
    ),
    RowKind(
        MODELS,
        each(play_models),
        "format of `tools_for` | definitions and answers | otherwise",
        "–",
        before=f"By the types of {_MODELS}:",
    ),
    RowKind(
        APIS,
        each(play_api),
        "document of an API | from | operations | reached by their calls | otherwise",
        "–",
    ),
    RowKind(
        SCHEDULERS, each(play_scheduler), "explorer of schedules | Python | the scenario of its page", "holds"
    ),
    RowKind(
        SUITES, each(play_suite), "a peer's own tests | passed | fail for a known reason | other", "none"
    ),
)


def main() -> int:
    wish = _arguments()
    if not node_is_there():
        print("The world run needs node and npm (version 20 or newer) on PATH.", file=sys.stderr)
        return 1
    began = time.monotonic()
    tables: list[str] = []
    counts: list[int] = []
    is_good = True
    with tempfile.TemporaryDirectory(prefix="greenroom-world-") as name:
        run = WorldRun(Path(name), wish.write)
        for kind in KINDS:
            rows = [
                row
                for row in kind.rows
                if (row.name in wish.only if wish.only else row.core or not wish.core)
            ]
            results = kind.play(rows, run)
            counts.append(len(rows))
            tables += kind.lines(results)
            is_good = is_good and not any(result.problems for result in results)
    what = "some" if wish.only else "--core" if wish.core else "all"
    tried = f"{counts[0]} servers and {counts[1]} clients"
    lines = [f"A run of {what}: {tried}, {time.strftime('%Y-%m-%d', time.gmtime())}.", *tables]
    print("\n".join(lines))
    print(f"\n{tried} in {time.monotonic() - began:.0f} s")
    if wish.write and not wish.only:
        head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
        PAGE.write_text(head + MARK + "\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return 0 if is_good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.world", description=(__doc__ or "").splitlines()[0]
    )
    names = [row.name for kind in KINDS for row in kind.rows]
    parser.add_argument("--core", action="store_true", help="what CI plays")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", choices=names, help="a row of the table"
    )
    parser.add_argument("--write", action="store_true", help="write the tables in docs/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
