"""A worker of pytest-xdist reports of each test what it came to, and not that it began, was set up and was torn down.

To report to the run that it belongs to costs a worker as much as to run a short test. So what nobody reads is not sent:
`--durations` of a run with workers is of the tests alone, without their fixtures.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True
