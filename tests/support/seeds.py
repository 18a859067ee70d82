"""One printed seed decides every schedule.

With Hypothesis installed trio shuffles each batch of runnable tasks, which is good fuzzing and would be an
irreproducible failure. So before each test trio's own source of chance (and the `random` module) is seeded from the
session's seed and the test's name: `GREENROOM_TEST_SEED=<n>` brings a failure back, also when only that test is run.

trio keeps that source private (`trio._core._run._r`). This is the one place that touches it; `tests/test_support.py`
fails when it goes.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Generator
from typing import Any

import pytest
import trio._core._run as trio_run

VARIABLE = "GREENROOM_TEST_SEED"
SESSION_SEED = int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(2**32))


def seed_schedule(seed: int) -> None:
    """From here on, trio's order of runnable tasks and the `random` module follow from `seed` alone."""
    internals: Any = trio_run
    assert isinstance(internals._ALLOW_DETERMINISTIC_SCHEDULING, bool), "trio no longer has the switch we set"
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    internals._r.seed(seed)
    random.seed(seed)


def pytest_report_header() -> str:
    return f"schedules: {VARIABLE}={SESSION_SEED}"


@pytest.fixture(autouse=True)
def schedule_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test's schedule, already in force."""
    seed = SESSION_SEED ^ zlib.crc32(request.node.nodeid.encode())
    seed_schedule(seed)
    return seed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("schedule", f"{VARIABLE}={SESSION_SEED} brings this order of tasks back"))
    return report
