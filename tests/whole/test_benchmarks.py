"""The benchmark harness: what a figure says, how sides take turns, what is written where.

The rows themselves are run by `make bench-smoke`, which has the peers installed; nothing here needs them.
"""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from benchmarks import _report as reporting
from benchmarks._figures import Figure, Verdict, at_least, at_most, ratio
from benchmarks._report import (
    BEGIN,
    END,
    TITLES,
    NothingToReport,
    costs_of_choices,
    markdown,
    numbers_in_brief,
    summary,
    write_pages,
)
from benchmarks._rounds import take_turns
from benchmarks._run import ROWS
from tests.support.rows import for_each

RATIO = ratio(
    "B1", "call", ("ours", [1.0, 2.0, 3.0]), ("theirs", [10.0, 10.0, 10.0]), "µs", at_most(0.4, 0.25)
)
MACHINE = dict.fromkeys(
    ("processor", "cores", "memory", "system", "python", "load", "mcp", "fastmcp", "pykka", "trio"), "x"
)


def test_a_ratio_is_the_median_over_the_rounds() -> None:
    assert (RATIO.value, RATIO.low, RATIO.high) == (0.2, 0.1, 0.3)
    assert RATIO.seen == {"ours": 2, "theirs": 10}


@for_each(
    ("value", "bound", "verdict"),
    [
        (0.2, at_most(0.4, 0.25), Verdict.REACHED),
        (0.3, at_most(0.4, 0.25), Verdict.HELD),
        (0.41, at_most(0.4, 0.25), Verdict.MISSED),
        (13, at_least(8, 12), Verdict.REACHED),
        (8, at_least(8, 12), Verdict.HELD),
        (7.9, at_least(8), Verdict.MISSED),
        (1, None, Verdict.SHOWN),
    ],
)
def test_a_figure_is_judged_by_its_bound(value: float, bound: object, verdict: Verdict) -> None:
    assert Figure("B0", "x", value, value, value, bound=bound).verdict is verdict  # type: ignore[arg-type]


def test_a_figure_that_just_missed_does_not_read_as_its_bound() -> None:
    just_over = Figure("B0", "x", 0.502, 0.5004, 0.52, bound=at_most(0.5))

    assert (just_over.result, just_over.spread) == ("0.502 ×", "0.5004 … 0.52")
    assert Figure("B0", "x", 0.498, 0.49, 0.502, bound=at_most(0.5)).result == "0.5 ×"


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []
    sides = [lambda: turns.append("a") or 1.0, lambda: turns.append("b") or 2.0]
    assert take_turns(sides, 2) == [[1.0, 1.0], [2.0, 2.0]]
    assert turns == ["a", "b"] * 3


def test_every_row_has_its_file() -> None:
    assert list(ROWS) == [f"B{number}" for number in (*range(1, 14), *range(15, 26))]
    assert all((reporting.ROOT / "benchmarks" / f"{module}.py").is_file() for module in ROWS.values())


def test_the_pages_get_the_newest_results_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    with pytest.raises(NothingToReport, match="make bench"):
        write_pages({page: markdown})
    for date, figures in (("2026-01-01", []), ("2026-01-02", [RATIO.as_record()])):
        record = {"date": date, "machine": MACHINE, "figures": figures}
        (tmp_path / f"{date}.json").write_text(json.dumps(record))
    write_pages({page: markdown})
    text = page.read_text()
    assert text.startswith(f"above\n{BEGIN}\n")
    assert text.endswith(f"{END}\nbelow\n")
    assert "old" not in text
    assert "## One call after another (B1)" in text
    assert "| call | 0.2 × | 0.1 … 0.3 | ≤ 0.4 (0.25) | ours 2 µs, theirs 10 µs | ✓ |" in text
    assert "2026-01-02" in text


def test_a_missed_figure_is_shown_as_missed() -> None:
    missed = ratio("B1", "call", ("ours", [9.0]), ("theirs", [10.0]), "µs", at_most(0.4))
    row = "| call | 0.9 × | 0.9 … 0.9 | ≤ 0.4 | ours 9 µs, theirs 10 µs | missed |"
    results = {"date": "d", "machine": MACHINE, "figures": [missed.as_record()]}
    assert row in markdown(results)
    assert "| One call after another: call | 0.9 × | ≤ 0.4 |" in summary(results)


def test_that_a_side_was_not_measured_is_said_once_for_its_row() -> None:
    note = "MetaMCP not measured: npm has no such package here"
    figures = [attrs.evolve(RATIO, what=what, note=note).as_record() for what in ("call", "calls")]
    assert markdown({"date": "d", "machine": MACHINE, "figures": figures}).count(note) == 1


def test_the_pages_have_the_numbers_of_the_newest_results() -> None:
    results = reporting.newest_results()
    for page, written in (
        ("README.md", numbers_in_brief),
        ("docs/benchmarks.md", summary),
        ("docs/results/benchmarks.md", markdown),
        ("docs/choosing.md", costs_of_choices),
    ):
        text = (reporting.ROOT / page).read_text(encoding="utf-8")
        assert written(results) in text, f"{page}: run `make bench-readme`"


def test_numbers_that_were_not_measured_are_not_written() -> None:
    with pytest.raises(NothingToReport, match="which README needs"):
        numbers_in_brief({"date": "d", "machine": MACHINE, "figures": [RATIO.as_record()]})


def test_every_row_has_a_title_in_words() -> None:
    assert list(TITLES) == list(ROWS)
