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
    "tests.support.whole_run",
    "tests.support.forked",
    "tests.support.homes",
    "tests.support.order",
)

collect_ignore = ["page"]  # in a browser: `make page-test`


LOOPS = ("trio", "asyncio")


# Their tests start processes or speak HTTP, and what they show does not depend on the loop: each runs on one of the
# two, by the name of the test. What does depend on it is shown on both by tests in virtual time, and with real
# processes and real HTTP by `test_stdio_connection`, `test_line_peer`, `test_guard` and `test_http_session`.
ON_ONE_LOOP = frozenset(
    {
        *("test_cgroups", "test_departed", "test_eras", "test_http_bodies", "test_http_faults"),
        *(
            "test_http_hostile",
            "test_http_login",
            "test_http_servers",
            "test_installs",
            "test_login",
            "test_npx",
        ),
        *("test_sse_legacy", "test_stderr_tail", "test_unix_socket"),
        *("test_catalogue_file", "test_clients_refuse", "test_kept_search", "test_known_everywhere"),
        *("test_unhiding", "test_churn", "test_event_log", "test_logs"),
        *("test_asked_values", "test_env_file", "test_request_headers", "test_secret_commands"),
        *("test_mcp_tool_modes", "test_meta_execute", "test_meta_registry", "test_direct_requests"),
        *("test_programs", "test_call_cost", "test_company_machine", "test_other_users", "test_sdk_contract"),
    }
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that asks for a `backend` runs once on trio and once on asyncio, or on one of them."""
    if "backend" not in metafunc.fixturenames:
        return
    if any("backend" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        return  # it says itself which
    name = metafunc.function.__name__
    alone = metafunc.definition.path.stem in ON_ONE_LOOP or metafunc.definition.get_closest_marker("one_loop")
    metafunc.parametrize("backend", [_one_of(name)] if alone else LOOPS, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The loop of a test, by `pytest_generate_tests`."""
    return request.param


def _one_of(name: str) -> str:
    return LOOPS[zlib.crc32(name.encode()) % 2]
