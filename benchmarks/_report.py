"""What was measured: on the terminal, as JSON with its machine, and in four pages between two marks."""

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
_ABSENT = "not measured"  # a note with these words is about the row, and said once
_HEAD = ("| measure | result | lowest … highest | must (aim) | seen | |", "|---|---|---|---|---|---|")
TITLES: Mapping[str, str] = {
    "B1": "One call after another",
    "B2": "Calls a second",
    "B3": "A call through the gateway",
    "B4": "The start of the gateway",
    "B5": "Connect, list, call, close",
    "B6": "Fifty first callers",
    "B7": "The actors alone",
    "B8": "Memory",
    "B9": "At rest",
    "B10": "Search and names among 10,000 tools",
    "B11": "A large answer beside other calls",
    "B12": "Fifty servers at once",
    "B13": "From ten to ten thousand",
    "B15": "The gateway over HTTP",
    "B16": "A client that is attached",
    "B17": "Sessions over HTTP",
    "B18": "Calm servers beside attacks",
    "B19": "Finding a tool",
    "B20": "Traces",
    "B21": "In the process of a FastMCP client",
    "B22": "A cluster",
    "B23": "Tapes",
    "B24": "Rollouts",
    "B25": "Finished tasks",
}


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
            figure.result,
            figure.spread,
            str(figure.bound or ""),
            figure.verdict.value,
            "; ".join(filter(None, (seen(figure), figure.note))),
        )
    Console(width=max(_LEAST_WIDTH, Console().width)).print(table)


def amount(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".strip()


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


def numbers_in_brief(results: Mapping[str, Any]) -> str:
    """The five sentences of README. Raises `NothingToReport` when a figure that they need was not measured."""
    of = _figures_of(results, "README")
    boot, children = of("B4", "boot to tools/list, 50 lazy servers"), of("B4", "children of it by then")
    call, proxy = of("B3", "direct: latency ÷ FastMCP proxy"), of("B3", "proxy: latency ÷ no gateway")
    memory, wakes = of("B8", "memory per idle server, of 1,000"), of("B9", "wake-ups at rest, trio")
    starts = of("B6", "starts for 50 first callers")
    found = of("B19", "of 169 queries, answered by the first 5 of 980 tools")
    numbers = {
        _seen(boot, "greenroom serve"): (
            f"from the start of `greenroom serve` with fifty servers to the list of its tools, with"
            f" {number(children.value) if children.value else 'none'} of the servers running."
            f" FastMCP's proxy, with one server: {_seen(boot, 'FastMCP proxy')}."
        ),
        _seen(call, "greenroom serve --expose direct"): (
            "for a tool call through `greenroom serve --expose direct`, and"
            f" {_seen(proxy, 'greenroom serve --expose proxy')} through the `mcp` tool, the default."
            f" FastMCP's proxy: {_seen(call, 'FastMCP proxy')}."
        ),
        amount(memory.value, memory.unit): (
            f"of memory for a server that nobody uses, and {number(wakes.value)} wake-ups of the processor a second for"
            " a thousand of them."
        ),
        f"{number(starts.value)} process": "for fifty callers that need the same server at the same moment.",
        f"{number(found.value)} %": (
            "of the test searches find the right tool, out of 980, among the first five results. With a standard"
            f" ranking (BM25), {number(found.seen['BM25'])} % do."
        ),
    }
    machine = results["machine"]
    measured_on = f"Measured {results['date']} on {machine['cores']} cores ({machine['processor']})."
    return "\n".join([*(f"- **{bold}** {rest}" for bold, rest in numbers.items()), "", measured_on, ""])


def costs_of_choices(results: Mapping[str, Any]) -> str:
    """The table of docs/choosing.md. Raises `NothingToReport` like `numbers_in_brief`."""
    of = _figures_of(results, "docs/choosing.md")
    idle, session = of("B8", "memory per idle server, of 1,000"), of("B17", "memory of an idle session")
    gateway = of("B3", "direct: latency ÷ no gateway"), of("B3", "proxy: latency ÷ no gateway")
    costs = {
        "a server that is configured and does not run": amount(idle.value, idle.unit),
        "the first call of a server that does not run, if its program starts at once": _seen(
            of("B6", "p99 of 50 first callers ÷ one cold call"), "one caller"
        ),
        "starting, calling and stopping a process for one call": amount(
            1000 / of("B5", "cycles/s, one after another, trio").seen["Greenroom"], "ms"
        ),
        "an HTTP session that is open": amount(session.value, session.unit),
        "a gateway, whatever is configured": _seen(
            of("B8", "gateway's memory ÷ FastMCP proxy"), "greenroom serve"
        ),
        "a call in a program": _seen(of("B1", "call, trio"), "Greenroom"),
        "a call through `serve --expose direct`": _seen(gateway[0], "greenroom serve --expose direct"),
        "a call through `serve` (`proxy`)": _seen(gateway[1], "greenroom serve --expose proxy"),
        "a call through `attach`": _seen(of("B16", "direct: latency ÷ serve"), "greenroom attach"),
        "a call through `serve --http`": _seen(
            of("B15", "latency ÷ FastMCP proxy over HTTP"), "greenroom serve --http"
        ),
    }
    rows = [f"| {what} | {cost} |" for what, cost in costs.items()]
    return "\n".join(["| what | costs |", "|---|---|", *rows, "", _measured(results), ""])


def _figures_of(results: Mapping[str, Any], page: str) -> Callable[[str, str], Figure]:
    """Finds a figure by its row and what it measures; `page` is who needs it."""
    measured = {(figure.row, figure.what): figure for figure in map(Figure.from_record, results["figures"])}

    def of(row: str, what: str) -> Figure:
        try:
            return measured[row, what]
        except KeyError:
            raise NothingToReport(
                f"{results['date']} has no figure {row}, {what!r}, which {page} needs."
            ) from None

    return of


def _seen(figure: Figure, side: str) -> str:
    return amount(figure.seen[side], figure.seen_unit)


def summary(results: Mapping[str, Any]) -> str:
    """Of each row its first figure, and how many targets it reached; then each target that was missed."""
    lines = ["| | first of its figures | targets reached |", "|---|---|---|"]
    missed = ["| missed | result | must (aim) |", "|---|---|---|"]
    for row, figures in _rows(results):
        bound = [figure for figure in figures if figure.bound]
        shown = (bound or figures)[0]
        reached = sum(figure.verdict is not Verdict.MISSED for figure in bound)
        link = f"[{TITLES.get(row, row)}](results/benchmarks.md#{_anchor(row)})"
        sides = f" ({seen(shown)})" if shown.seen else ""
        first = f"{shown.what}: {shown.result}{sides}"
        lines.append(f"| {link} | {first} | {reached} of {len(bound)} |")
        missed += [
            f"| {TITLES.get(row, row)}: {figure.what} | {figure.result} | {figure.bound} |"
            for figure in bound
            if figure.verdict is Verdict.MISSED
        ]
    return "\n".join([_measured(results), "", *lines, "", *missed, ""])


def markdown(results: Mapping[str, Any]) -> str:
    """Every figure, with its spread, what is asked of it and what it was made of: a table for each row."""
    lines = [_measured(results)]
    for row, figures in _rows(results):
        lines += ["", f"## {TITLES.get(row, row)} ({row})", ""]
        absent = dict.fromkeys(figure.note for figure in figures if _ABSENT in figure.note)
        lines += [line for note in absent for line in (f"{note}.", "")] + [*_HEAD]
        for figure in figures:
            words = "; ".join(filter(None, (seen(figure), "" if figure.note in absent else figure.note)))
            cells = (
                figure.what,
                figure.result,
                figure.spread,
                str(figure.bound or ""),
                words,
                _mark(figure),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _rows(results: Mapping[str, Any]) -> list[tuple[str, list[Figure]]]:
    found: dict[str, list[Figure]] = {}
    for figure in map(Figure.from_record, results["figures"]):
        found.setdefault(figure.row, []).append(figure)
    return list(found.items())


def _anchor(row: str) -> str:
    title = f"{TITLES.get(row, row)} ({row})".lower()
    return "".join(letter for letter in title if letter.isalnum() or letter in " -").replace(" ", "-")


def _mark(figure: Figure) -> str:
    return {Verdict.MISSED: "missed", Verdict.SHOWN: ""}.get(figure.verdict, "✓")


def _measured(results: Mapping[str, Any]) -> str:
    return f"Measured {results['date']} on {in_words(results['machine'])}."
