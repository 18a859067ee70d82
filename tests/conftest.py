"""Fixtures every test gets."""

from __future__ import annotations

import zlib

import pytest
from tests.support.profiles import register_profiles
from tests.support.signals import restore_ignored_signals

register_profiles()
restore_ignored_signals()
pytest_plugins = (
    "tests.support.garbage",
    "tests.support.leaks",
    "tests.support.books",
    "tests.support.seeds",
    "tests.support.gates",
    "tests.support.forked",
    "tests.support.homes",
    "tests.support.order",
)


@pytest.fixture(params=["trio", "asyncio"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each test that asks for it runs once on trio and once on asyncio."""
    return request.param


@pytest.fixture
def either_backend(request: pytest.FixtureRequest) -> str:
    """For tests whose servers are processes that take long to start, where the loop is shown by cheaper tests
    (`test_stdio_connection`, `test_server_actor`, `test_handshake`): one of the two, by the name of the test."""
    return ("trio", "asyncio")[zlib.crc32(request.node.name.encode()) % 2]
