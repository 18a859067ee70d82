"""One printed seed decides every schedule.

When Hypothesis is installed, trio shuffles each batch of runnable tasks. That is good fuzzing, but a failure could not
be reproduced. So before each test, trio's random generator and the `random` module are seeded from the session's seed
and the test's name. `GREENROOM_TEST_SEED=<n>` reproduces a failure, even when only that test is run. Workers of
pytest-xdist take the seed of the run that they belong to.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Generator
from typing import Any

import pytest

from greenroom.testing.virtual_time import seed_schedule

VARIABLE = "GREENROOM_TEST_SEED"
SEED = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", {}).get(VARIABLE) or os.environ.get(VARIABLE)
    config.stash[SEED] = int(given or random.SystemRandom().randrange(2**32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A hook of pytest-xdist: a worker is about to be started."""
    node.workerinput[VARIABLE] = node.config.stash[SEED]


def pytest_report_header(config: pytest.Config) -> str:
    return f"schedules: {VARIABLE}={config.stash[SEED]}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seed_schedule(item.config.stash[SEED] ^ zlib.crc32(item.nodeid.encode()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(
            ("schedule", f"{VARIABLE}={item.config.stash[SEED]} reproduces this order of tasks")
        )
    return report
