"""Fixtures every test gets."""

from __future__ import annotations

import os
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
    "tests.support.reports",
)

collect_ignore = ["page"]  # in a browser: `make page-test`
if "GREENROOM_HOWTO" not in os.environ:
    collect_ignore.append("howto")  # with packages of some readers: `make howto`


LOOPS = ("trio", "asyncio")


# What they show may depend on the loop: on how it cancels, wakes and closes, on its sockets, pipes and child processes;
# or they run inside of a program's own loop. So each of their tests runs on both. What stands above takes its turns and
# its time from these: each of its tests runs on one of the two, by its name, half of them on each.
ON_BOTH_LOOPS = frozenset(
    {
        *(
            "test_apart",
            "test_backend",
            "test_core_actor",
            "test_exchange_table",
            "test_guard",
            "test_http_peer",
        ),
        *(
            "test_http_streams",
            "test_in_process",
            "test_line_peer",
            "test_lines",
            "test_list_reader",
            "test_router",
        ),
        *(
            "test_server_actor",
            "test_server_reports",
            "test_stdio_connection",
            "test_stop_ladder",
            "test_stream",
        ),
        *("test_timers", "test_room", "test_room_embedding", "test_room_starts", "test_room_waits"),
        *("test_http_connection", "test_http_door", "test_http_door_sessions", "test_http_request"),
        *("test_in_process_door", "test_stdio_door", "test_asgi", "test_mcp_sdk"),
        *("test_explore", "test_fakes", "test_virtual_run"),
        *(
            "test_explored_rooms",
            "test_explored_tasks",
            "test_public_door",
            "test_suspended",
            "test_sync_door",
        ),
    }
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for a `backend` runs on trio and on asyncio, or on one of them: see `ON_BOTH_LOOPS`."""
    if "backend" not in metafunc.fixturenames:
        return
    if any("backend" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        return  # it says itself which
    name = metafunc.function.__name__
    file = metafunc.definition.path.stem
    is_of_loops = file in ON_BOTH_LOOPS or file.startswith("test_torture")
    alone = not is_of_loops or metafunc.definition.get_closest_marker("one_loop")
    metafunc.parametrize("backend", [_one_of(name)] if alone else LOOPS, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The loop of a test, by `pytest_generate_tests`."""
    return request.param


def _one_of(name: str) -> str:
    return LOOPS[zlib.crc32(name.encode()) % 2]
