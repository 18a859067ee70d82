"""One printed seed decides every schedule.

With Hypothesis installed trio shuffles each batch of runnable tasks, which is good fuzzing and would be an
irreproducible failure. So before each test trio's own source of chance (and the `random` module) is seeded from the
session's seed and the test's name: `GREENROOM_TEST_SEED=<n>` brings a failure back, also when only that test is run.
Workers of pytest-xdist take the seed of the run they belong to.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Generator
from typing import Any

import pytest

from greenroom.testing._schedule import seed_schedule

VARIABLE = "GREENROOM_TEST_SEED"
SEED = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", {}).get(VARIABLE) or os.environ.get(VARIABLE)
    config.stash[SEED] = int(given or random.SystemRandom().randrange(2**32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of pytest-xdist: a worker is about to be started."""
    node.workerinput[VARIABLE] = node.config.stash[SEED]


def pytest_report_header(config: pytest.Config) -> str:
    return f"schedules: {VARIABLE}={config.stash[SEED]}"


@pytest.fixture(autouse=True)
def schedule_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test's schedule, already in force."""
    seed = request.config.stash[SEED] ^ zlib.crc32(request.node.nodeid.encode())
    seed_schedule(seed)
    return seed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(
            ("schedule", f"{VARIABLE}={item.config.stash[SEED]} brings this order of tasks back")
        )
    return report
