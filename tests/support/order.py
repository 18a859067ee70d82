"""`GREENROOM_TEST_ORDER=<n>`: every test in another order, the same for the same number. Off without it.

Each test must be able to run alone and after any other. The workers of pytest-xdist collect each for itself and must
agree, so the order follows from the number and the tests' names alone.
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
    """In place."""
    items.sort(key=lambda item: item.nodeid)
    random.Random(seed).shuffle(items)
