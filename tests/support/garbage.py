"""What was collected is no garbage: thousands of tests and all they import. A full collection would walk through it.

While it is collected the collector rests, and then it is frozen: a collection looks at what the tests themselves make,
and not as often as the interpreter would. Tests of garbage collect by themselves.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        found = yield
        gc.freeze()
        gc.set_threshold(10_000)
    finally:
        if was_on:
            gc.enable()
    return found
