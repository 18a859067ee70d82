"""`python -m benchmarks [B1 B3 …]`: measure, print the table, keep the results."""

from __future__ import annotations

import argparse
import sys

from ._machine import describe_machine
from ._report import (
    ROOT,
    NothingToReport,
    costs_of_choices,
    markdown,
    numbers_in_brief,
    print_table,
    summary,
    write_pages,
    write_results,
)
from ._rounds import Size
from ._run import ROWS, RowFailed, run_all


def main() -> int:
    """0: everything was measured, whatever came out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="B1 … B25; none: all of them, and the results are kept"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny counts: see that it works; nothing is kept"
    )
    parser.add_argument(
        "--readme", action="store_true", help="measure nothing; write the newest results into the pages"
    )
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"there is no row {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    try:
        if options.readme:
            docs = ROOT / "docs"
            write_pages(
                {
                    ROOT / "README.md": numbers_in_brief,
                    docs / "benchmarks.md": summary,
                    docs / "results" / "benchmarks.md": markdown,
                    docs / "choosing.md": costs_of_choices,
                }
            )
        else:
            _measure(options.rows, Size(options.quick))
    except (RowFailed, NothingToReport) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _measure(rows: list[str], size: Size) -> None:
    machine = describe_machine()
    figures = run_all(rows or list(ROWS), size, lambda text: print(text, file=sys.stderr, flush=True))
    print_table(figures)
    if not rows and not size.quick:
        print(f"kept in {write_results(figures, machine)}")


if __name__ == "__main__":
    sys.exit(main())
