"""`GREENROOM_TEST_ORDER=<n>` shuffles the tests; the same number gives the same order. Off without it.

Each test must be able to run alone and after any other. The workers of pytest-xdist each collect the tests and must
agree, so the order follows only from the number and the tests' names.
"""

from __future__ import annotations

import os
import random

import pytest

VARIABLE = "GREENROOM_TEST_ORDER"
LONGEST = (  # how their names begin; from five seconds on, the longest first
    "tests/whole/test_pages.py::test_a_page_does_what_it_says[docs/tutorial.md]",
    "tests/soak/test_chaos.py::",
    "tests/observe/test_otlp.py::test_whoever_stops_exporting_",
    "tests/cli/test_explore_command.py::test_an_agent_that_asks_",
    "tests/torture/test_torture_large.py::test_t35_a_message_of_very_many_values_",
    "tests/cli/test_next_steps.py::test_each_printed_step_",
    "tests/whole/test_project_demo.py::test_on_a_terminal_",
    "tests/testing/test_fault_parity.py::test_the_executable",
    "tests/hostile/test_hostile.py::test_the_neighbours_",
    "tests/cluster/test_fronts.py::test_a_call_for_which_no_host_",
    "tests/cluster/test_hosts.py::",
    "tests/whole/test_lifecycle_search.py::TestRooms",
)


def pytest_report_header() -> str | None:
    given = os.environ.get(VARIABLE)
    return f"order: {VARIABLE}={given}" if given else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    given = os.environ.get(VARIABLE)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if given:
        shuffle(items, given)
    elif workers > 1:
        items[:] = longest_first(items, workers)


def shuffle(items: list[pytest.Item], seed: str) -> None:
    """Shuffle the list in place."""
    items.sort(key=lambda item: item.nodeid)
    random.Random(seed).shuffle(items)


def longest_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The same items. Each worker's share, as large as the next or one smaller, begins with its part of `LONGEST`."""
    long = sorted((item for item in items if item.nodeid.startswith(LONGEST)), key=_place)
    others = [item for item in items if not item.nodeid.startswith(LONGEST)]
    dealt = list[pytest.Item]()
    for worker in range(workers):
        head = long[worker::workers]
        size = (len(items) - len(dealt)) // (workers - worker)
        dealt += head + others[: max(0, size - len(head))]
        del others[: max(0, size - len(head))]
    return dealt


def _place(item: pytest.Item) -> int:
    return next(place for place, begin in enumerate(LONGEST) if item.nodeid.startswith(begin))
