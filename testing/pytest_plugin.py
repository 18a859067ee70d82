"""The plugin for pytest: rooms of fake servers as fixtures, and a look for orphans after each test.

A line in `conftest.py` loads it: `pytest_plugins = ["greenroom.testing.pytest_plugin"]`. It has no entry point, because
pytest would then rewrite the assertions of all of Greenroom in whatever tests run beside it. It imports nothing heavy
until a test wants it.

The fixture `room` gives a function and not an open room. A room lives in the task that opens it, and the plugins that
run async tests differ in which task sets up a fixture. `async with room() as …` in the test works under all of them,
with a loop of one's own and in virtual time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..supervisor.room import Greenroom
    from .fake_servers import FakeServer

_OPTION = "greenroom_orphans"
_LOADED = "greenroom.supervisor.runtime"  # without it there is no room


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "After each test, look for processes that a closed room has left behind (default: true)."
    parser.addini(_OPTION, text, type="bool", default=True)


class FakeServers:
    """The fixture `fake_server`: makes the fake servers of a test."""

    def __init__(self) -> None:
        self.made: dict[str, FakeServer] = {}
        self.entries: dict[str, Mapping[str, Any]] = {}

    def __call__(
        self, name: str = "fake", *, entry: Mapping[str, Any] | None = None, **attributes: Any
    ) -> FakeServer:
        """A server of this name, which the rooms that are opened from now on have. `entry`: further keys of its entry
        in `mcpServers`; `attributes`: those of `FakeServer`."""
        from .fake_servers import FakeServer

        self.made[name] = server = FakeServer(**attributes)
        self.entries[name] = entry or {}
        return server


class Rooms:
    """The fixture `room`: makes the rooms of a test."""

    def __init__(self, servers: FakeServers) -> None:
        self._servers = servers
        self.made: list[Greenroom] = []

    def __call__(
        self, config: Any = None, *, settings: Mapping[str, Any] | None = None, **options: Any
    ) -> Greenroom:
        """A room, to be entered: `async with room() as …`. It has the servers that `fake_server` has made, or only one,
        `fake`, if there are none; `settings` are the room's. With a `config` it is a room of that, whose servers are
        real. `options`: those of `Greenroom.open`. Nothing is read from or written to this user's cache."""
        from .fake_servers import fake_room

        if config is not None:
            from ..supervisor.room import Greenroom

            given: dict[str, Any] = {"cache_path": ":memory:", "bootstrap": False, **options}
            if settings is not None:
                raise TypeError("settings are for rooms of fake servers: write them into the config")
            room = Greenroom.open(config, **given)
        else:
            servers = self._servers
            if not servers.made:
                servers()
            made, entries = dict(servers.made), dict(servers.entries)
            room = fake_room(made, entries=entries, settings=settings, **options)
        self.made.append(room)
        return room


@pytest.fixture
def fake_server() -> FakeServers:
    """Makes fake servers: `shop = fake_server("shop", tools=[…])`. See `greenroom.testing.FakeServer`."""
    return FakeServers()


@pytest.fixture
def room(fake_server: FakeServers) -> Iterator[Rooms]:
    """Opens rooms of the fake servers: `async with room() as opened`. After the test each of them must be closed, and
    each call must have ended exactly once."""
    from .assertions import assert_one_outcome_each

    rooms = Rooms(fake_server)
    yield rooms
    for made in rooms.made:
        if made.drain_report is not None:  # it has been entered
            assert_one_outcome_each(made)


@pytest.fixture(autouse=True)
def greenroom_orphans(pytestconfig: pytest.Config) -> Iterator[None]:
    """After each test no process may be left that a room has started and that was not there before, unless its room is
    still open. Turned off by `greenroom_orphans = false`."""
    is_wanted = pytestconfig.getini(_OPTION) and sys.platform == "linux"
    before = _processes() if is_wanted else set[int]()
    yield
    if is_wanted and _LOADED in sys.modules:
        from .assertions import WITHIN, refuse_orphans

        refuse_orphans(lambda: _left() - before, WITHIN)


def _processes() -> set[int]:
    if _LOADED not in sys.modules:
        return set()
    from .assertions import of_this_process

    return of_this_process()


def _left() -> set[int]:
    """The processes of rooms of this process that are open no more. Zombies do not say whose they are."""
    found = _processes()
    if not found:
        return found
    from ..supervisor.runtime import open_runs
    from .assertions import run_ids

    is_open = {run.encode() for run in open_runs()}
    return {pid for pid in found if (of := run_ids(pid)) and is_open.isdisjoint(of)}
