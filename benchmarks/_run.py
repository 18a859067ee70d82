"""Running rows: one alone in this process, or all of them, each in a process of its own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ._figures import Figure
from ._report import print_table
from ._rounds import Size

Measure = Callable[[Size], Iterable[Figure]]

ROWS: Mapping[str, str] = {
    "B1": "b01_call",
    "B2": "b02_throughput",
    "B3": "b03_gateway",
    "B4": "b04_boot",
    "B5": "b05_churn",
    "B6": "b06_cold_herd",
    "B7": "b07_actor",
    "B8": "b08_memory",
    "B9": "b09_rest",
    "B10": "b10_search",
    "B11": "b11_fat_answer",
    "B12": "b12_fan_out",
    "B13": "b13_growth",
    "B15": "b15_http",
    "B16": "b16_attach",
    "B17": "b17_sessions",
    "B18": "b18_hostile",
    "B19": "b19_finding",
    "B20": "b20_traces",
    "B21": "b21_in_process",
    "B22": "b22_cluster",
    "B23": "b23_tape",
    "B24": "b24_rollouts",
    "B25": "b25_tasks",
}


class RowFailed(Exception):
    """A row came to no result; the message says what it said."""


def run_alone(measure: Measure) -> None:
    """The `main` of a row: measure, print the table (or, for whoever runs all of them, `--json`)."""
    parser = argparse.ArgumentParser(description="Measure this row.")
    parser.add_argument("--quick", action="store_true", help="tiny counts: see that it works")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    figures = list(measure(Size(options.quick)))
    if options.json:
        print(json.dumps([figure.as_record() for figure in figures]))
    else:
        print_table(figures)


def run_all(rows: Sequence[str], size: Size, tell: Callable[[str], object]) -> list[Figure]:
    """Every row of `rows` in a process of its own. Raises `RowFailed`."""
    figures: list[Figure] = []
    for row in rows:
        start = time.monotonic()
        figures += run_apart(ROWS[row], size)
        tell(f"{row} took {time.monotonic() - start:.0f} s")
    return figures


def run_apart(module: str, size: Size) -> list[Figure]:
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json", *(["--quick"] if size.quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RowFailed(f"benchmarks.{module} ended with exit code {done.returncode}; what it said is above.")
    return [Figure.from_record(record) for record in json.loads(done.stdout)]
