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
    "tests/whole/test_lifecycle_search.py::TestRooms",
    "tests/gateway/test_exits.py::test_t51_a_gateway_that_is_stopped_",
    "tests/whole/test_project_docs.py::test_the_testing_examples_",
    "tests/soak/test_chaos.py::",
    "tests/torture/test_torture_large.py::test_t35_a_message_of_very_many_values_",
    "tests/whole/test_project_demo.py::test_on_a_terminal_",
    "tests/hostile/test_hostile.py::test_the_neighbours_",
    "tests/actors/test_fork.py::test_a_forked_copy_",
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
