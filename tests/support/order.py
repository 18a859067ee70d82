"""`GREENROOM_TEST_ORDER=<n>` shuffles the tests; the same number gives the same order. Off without it.

Each test must be able to run alone and after any other. The workers of pytest-xdist each collect the tests and must
agree, so the order follows only from the number and the tests' names.
"""

from __future__ import annotations

import os
import random

import pytest

VARIABLE = "GREENROOM_TEST_ORDER"


def pytest_report_header() -> str | None:
    given = os.environ.get(VARIABLE)
    return f"order: {VARIABLE}={given}" if given else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    given = os.environ.get(VARIABLE)
    if given:
        shuffle(items, given)


def shuffle(items: list[pytest.Item], seed: str) -> None:
    """Shuffle the list in place."""
    items.sort(key=lambda item: item.nodeid)
    random.Random(seed).shuffle(items)
