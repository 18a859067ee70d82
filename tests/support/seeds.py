"""One printed seed decides every schedule.

With Hypothesis installed trio shuffles each batch of runnable tasks, which is good fuzzing and would be an
irreproducible failure. So before each test trio's own source of chance (and the `random` module) is seeded from the
session's seed and the test's name: `GREENROOM_TEST_SEED=<n>` brings a failure back, also when only that test is run.

"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Generator

import pytest

from greenroom.testing._schedule import seed_schedule

VARIABLE = "GREENROOM_TEST_SEED"
SESSION_SEED = int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(2**32))


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
