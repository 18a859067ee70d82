"""What a whole run must have done besides passing.

* With `CI=true` no test may be skipped: CI has everything that a newcomer's machine may lack.
* With `--every-torture-row`, each row of `torture_rows.txt` must have a test `test_tNN_…` that ran and passed.

A worker of pytest-xdist has run only its share, so it reports nothing; the run that it reports to sees every test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROWS = Path(__file__).resolve().parents[1] / "torture_rows.txt"
_ROW = re.compile(r"\btest_(t\d\d)_")

_skipped: list[str] = []
_passed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-torture-row",
        action="store_true",
        help="fail unless every row of torture_rows.txt had a test that ran",
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _skipped.append(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed.update(rows_of(report.nodeid))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and complaints(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in complaints(config):
        terminalreporter.write_line(line, red=True)


def complaints(config: pytest.Config) -> list[str]:
    """The reasons why this run does not count, one line each."""
    found: list[str] = []
    if hasattr(config, "workerinput"):
        return found
    if _skipped and os.environ.get("CI", "").lower() in ("1", "true"):
        found += [f"skipped, and CI allows no skip: {nodeid}" for nodeid in _skipped]
    if config.getoption("--every-torture-row"):
        found += [f"torture row {row} had no test that ran" for row in missing_rows(_passed)]
    return found


def rows_of(nodeid: str) -> list[str]:
    """The torture rows a test is named after: `T05` for `test_t05_…`."""
    return [row.upper() for row in _ROW.findall(nodeid)]


def missing_rows(passed: Iterable[str]) -> list[str]:
    """Rows that are listed as implemented and not among `passed`."""
    return sorted(set(ROWS.read_text(encoding="utf-8").split()) - set(passed))
