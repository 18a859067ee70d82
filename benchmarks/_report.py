"""The one table: on the terminal, as JSON with its machine, and in README between two marks."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._figures import Figure, Verdict, number
from ._machine import in_words

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN = "<!-- benchmarks: written by `make bench-readme`, from the newest file in benchmarks/results -->"
END = "<!-- end of benchmarks -->"
_LEAST_WIDTH = 150


class NothingToReport(Exception):
    """There is no result, or no place to put it; the message says what to do."""


def print_table(figures: Iterable[Figure]) -> None:
    """For people, on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table("row", "measure", "result", "low … high", "must (aim)", "", "seen", box=None)
    for figure in figures:
        table.add_row(
            figure.row,
            figure.what,
            amount(figure.value, figure.unit),
            f"{number(figure.low)} … {number(figure.high)}",
            str(figure.bound or ""),
            figure.verdict.value,
            "; ".join(filter(None, (seen(figure), figure.note))),
        )
    Console(width=max(_LEAST_WIDTH, Console().width)).print(table)


def amount(value: float, unit: str) -> str:
    return f"{number(value)} {unit}"


def seen(figure: Figure) -> str:
    return ", ".join(f"{name} {number(value)} {figure.seen_unit}" for name, value in figure.seen.items())


def write_results(figures: Sequence[Figure], machine: Mapping[str, str]) -> Path:
    """One file a day, the last run wins."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = RESULTS / f"{today}.json"
    record = {"date": today, "machine": machine, "figures": [figure.as_record() for figure in figures]}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def newest_results() -> dict[str, Any]:
    """Raises `NothingToReport`."""
    files = sorted(RESULTS.glob("*.json"))
    if not files:
        raise NothingToReport("There is nothing in benchmarks/results yet: run `make bench` first.")
    return json.loads(files[-1].read_text(encoding="utf-8"))


def write_pages(pages: Mapping[Path, Callable[[Mapping[str, Any]], str]]) -> None:
    """Put the newest results between the marks of each page, as its function says them. Raises `NothingToReport`."""
    results = newest_results()
    for page, say in pages.items():
        text = page.read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise NothingToReport(
                f"{page.name} has no place for the table: put back the two marks, {BEGIN!r} and {END!r}."
            )
        page.write_text(f"{before}{BEGIN}\n\n{say(results)}\n{END}{after}", encoding="utf-8")


def markdown(results: Mapping[str, Any]) -> str:
    """The figures that something is asked of, and the machine under them."""
    lines = ["| row | measure | result | must (aim) | |", "|---|---|---|---|---|"]
    for figure in map(Figure.from_record, results["figures"]):
        if figure.bound is not None:
            cells = (
                figure.row,
                figure.what,
                amount(figure.value, figure.unit),
                str(figure.bound),
                _mark(figure),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _measured(results), ""])


def markdown_in_full(results: Mapping[str, Any]) -> str:
    """Every figure, with its spread and what it was made of."""
    lines = ["| row | measure | result | lowest … highest | seen | |", "|---|---|---|---|---|---|"]
    for figure in map(Figure.from_record, results["figures"]):
        spread = f"{number(figure.low)} … {number(figure.high)}"
        words = "; ".join(filter(None, (seen(figure), figure.note)))
        cells = (figure.row, figure.what, amount(figure.value, figure.unit), spread, words, _mark(figure))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _measured(results), ""])


def _mark(figure: Figure) -> str:
    return {Verdict.MISSED: "missed", Verdict.SHOWN: ""}.get(figure.verdict, "✓")


def _measured(results: Mapping[str, Any]) -> str:
    return f"Measured {results['date']} on {in_words(results['machine'])}."
