"""The benchmark harness: what a figure says, how sides take turns, what is written where.

The rows themselves are run by `make bench-smoke`, which has the peers installed; nothing here needs them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import _report as reporting
from benchmarks._far_end import COMMAND, TEXT
from benchmarks._figures import Figure, Verdict, at_least, at_most, number, quantity, ratio
from benchmarks._pictures import curve
from benchmarks._report import (
    BEGIN,
    END,
    TITLES,
    NothingToReport,
    costs_of_choices,
    markdown,
    numbers_in_brief,
    write_pages,
)
from benchmarks._rounds import take_turns
from benchmarks._run import ROWS
from benchmarks._wire_client import WireClient

RATIO = ratio(
    "B1", "call", ("ours", [1.0, 2.0, 3.0]), ("theirs", [10.0, 10.0, 10.0]), "µs", at_most(0.4, 0.25)
)
MACHINE = dict.fromkeys(
    ("processor", "cores", "memory", "system", "python", "load", "mcp", "fastmcp", "pykka", "trio"), "x"
)


def test_a_ratio_is_the_median_over_the_rounds() -> None:
    assert (RATIO.value, RATIO.low, RATIO.high) == (0.2, 0.1, 0.3)
    assert RATIO.seen == {"ours": 2, "theirs": 10}


@pytest.mark.parametrize(
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


def test_a_figure_survives_being_kept() -> None:
    kept = json.loads(json.dumps(RATIO.as_record()))
    assert Figure.from_record(kept) == RATIO
    assert Figure.from_record(quantity("B8", "memory", [3.0], "KiB").as_record()).bound is None


def test_numbers_have_the_digits_that_say_something() -> None:
    assert [number(value) for value in (0, 0.0312, 0.2, 1.55, 12.34, 345.6, 12345.6)] == [
        "0", "0.031", "0.2", "1.55", "12.3", "346", "12,346",
    ]  # fmt: skip


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []
    sides = [lambda: turns.append("a") or 1.0, lambda: turns.append("b") or 2.0]
    assert take_turns(sides, 2) == [[1.0, 1.0], [2.0, 2.0]]
    assert turns == ["a", "b"] * 3


def test_every_row_has_its_file() -> None:
    assert list(ROWS) == [f"B{number}" for number in (*range(1, 14), *range(15, 24), 25)]
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
    assert "### One call after another (B1)" in text
    assert "| call | 0.2 × | 0.1 … 0.3 | ≤ 0.4 (0.25) | ours 2 µs, theirs 10 µs | ✓ |" in text
    assert "2026-01-02" in text


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "RESULTS", tmp_path)
    (tmp_path / "2026-01-01.json").write_text(json.dumps({"date": "x", "machine": MACHINE, "figures": []}))
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(NothingToReport, match="two marks"):
        write_pages({page: markdown})
    assert page.read_text() == "nothing here"


def test_a_missed_figure_is_shown_as_missed() -> None:
    missed = ratio("B1", "call", ("ours", [9.0]), ("theirs", [10.0]), "µs", at_most(0.4))
    row = "| call | 0.9 × | 0.9 … 0.9 | ≤ 0.4 | ours 9 µs, theirs 10 µs | missed |"
    assert row in markdown({"date": "d", "machine": MACHINE, "figures": [missed.as_record()]})


def test_the_pages_have_the_numbers_of_the_newest_results() -> None:
    results = reporting.newest_results()
    for page, written in (
        ("README.md", numbers_in_brief),
        ("docs/benchmarks.md", markdown),
        ("docs/choosing.md", costs_of_choices),
    ):
        text = (reporting.ROOT / page).read_text(encoding="utf-8")
        assert written(results) in text, f"{page}: run `make bench-readme`"


def test_numbers_that_were_not_measured_are_not_written() -> None:
    with pytest.raises(NothingToReport, match="which README needs"):
        numbers_in_brief({"date": "d", "machine": MACHINE, "figures": [RATIO.as_record()]})


def test_every_row_has_a_title_in_words() -> None:
    assert list(TITLES) == list(ROWS)


def test_a_curve_has_a_dot_for_every_point() -> None:
    picture = curve("cost", {10: 1.0, 100: 1.1, 1000: 0.9})
    assert picture.count("<circle") == 3
    assert ">1,000<" in picture


def test_the_bare_client_calls_the_echo_server() -> None:
    with WireClient(COMMAND, "echo", TEXT) as client:
        client.initialize()
        client.check_call("hello")
        assert client.latency(2) > 0
        assert client.throughput(100, in_flight=8) > 0
        with pytest.raises(RuntimeError, match="refused"):
            client.ask("nothing/like/it", {})
