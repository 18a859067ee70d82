"""The plugin for pytest: rooms of fake servers as fixtures, tests over tapes, and a look for orphans after each test.

A line in `conftest.py` loads it: `pytest_plugins = ["greenroom.testing.pytest_plugin"]`. It has no entry point, because
pytest would then rewrite the assertions of all of Greenroom in whatever tests run beside it. It imports nothing heavy
until a test wants it.

The fixture `room` gives a function and not an open room. A room lives in the task that opens it, and the plugins that
run async tests differ in which task sets up a fixture. `async with room() as …` in the test works under all of them,
with a loop of one's own and in virtual time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from ..supervisor.room import Greenroom
    from ..tape.tape_run import TapeRun
    from .fake_servers import FakeServer
    from .tape_fixture import TapedTest

_OPTION = "greenroom_orphans"
_US = __name__.partition(".")[0]
_RECORD = "--record-tapes"
_MODES = ("none", "new", "all")
_TAPED = pytest.StashKey["TapedTest"]()
_LOADED = "greenroom.supervisor.runtime"  # without it there is no room


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "After each test, look for processes that a closed room has left behind (default: true)."
    parser.addini(_OPTION, text, type="bool", default=True)
    parser.getgroup("greenroom").addoption(
        _RECORD,
        nargs="?",
        const="all",
        default="none",
        type=_mode,
        metavar="all|new|none",
        help="Record the tapes of tests that are marked with `tape`, with their real servers: all of them, or only new "
        "ones that are not there yet. Only a test that passes replaces its tape.",
    )


def _mode(text: str) -> str:
    if text not in _MODES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {', '.join(_MODES)}. Before a path write {_RECORD}=all"
        )
    return text


def pytest_configure(config: pytest.Config) -> None:
    text = (
        "tape(file, *, config, redact, strict, ignore, by_order, nearest, pace, faults): the room of this test answers "
        f"from this tape; with {_RECORD} it is recorded. `file` and `config` are relative to the test's file."
    )
    config.addinivalue_line("markers", text)


def _is_taped(item: pytest.Item) -> bool:
    """Whether a mark of it names a tape. One that names none says what tests of a class or module have in common."""
    return any(mark.args or "file" in mark.kwargs for mark in item.iter_markers("tape"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A call that is not on the tape fails the test, even if the agent does not mind."""
    if not _is_taped(item):
        return (yield)
    taped = item.stash.get(_TAPED, None)
    if taped is None:
        pytest.fail(
            "A test that is marked with `tape` takes the fixture `room`, which opens it.", pytrace=False
        )
    try:
        result = yield
    except (Exception, pytest.fail.Exception) as error:
        if not item.config.option.fulltrace:
            _end_where_we_begin(error)
        if told := taped.failed():
            error.add_note(told)
        raise
    if told := taped.check():
        pytest.fail(told, pytrace=False)
    taped.passed()
    return result


def _end_where_we_begin(error: BaseException) -> None:
    """Let the traceback of each error that a room tells end at the line that called the room: nothing of what is below
    is about the test. Pytest hides frames by a variable in them, and any of ours may raise. A bug of ours keeps all."""
    from ..protocol.errors import Bug, GreenroomError

    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            waiting += cast("tuple[BaseException, ...]", one.exceptions)
        if isinstance(one, GreenroomError) and not isinstance(one, Bug):
            one.__traceback__ = _without_ours(one.__traceback__)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames at its end; all of it when there are no others."""
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept = len(frames)
    while kept and _is_ours(frames[kept - 1].tb_frame):
        kept -= 1
    ended: TracebackType | None = None
    for each in reversed(frames[:kept] or frames):
        ended = TracebackType(ended, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return ended


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _US


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

    def __init__(self, servers: FakeServers, taped: TapedTest | None = None) -> None:
        self._servers = servers
        self._taped = taped
        self.made: list[Greenroom] = []

    def __call__(
        self, config: Any = None, *, settings: Mapping[str, Any] | None = None, **options: Any
    ) -> Greenroom:
        """A room, to be entered: `async with room() as …`. It has the servers that `fake_server` has made, or only one,
        `fake`, if there are none; `settings` are the room's. With a `config` it is a room of that, whose servers are
        real. `options`: those of `Greenroom.open`. Nothing is read from or written to this user's cache.

        In a test that is marked with `tape` it is a replay of the tape, or records it."""
        if config is not None and settings is not None:
            raise TypeError("settings are for rooms of fake servers: write them into the config")
        if self._taped is not None:
            room = self._taped.room(config, lambda config: self._recorded(config, settings, options), options)
        elif config is not None:
            room = self._real(config, options)
        else:
            if not self._servers.made:
                self._servers()
            room = self._fake(settings, options)
        self.made.append(room)
        return room

    def _recorded(
        self, config: Any, settings: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> Greenroom | None:
        options = {
            "bootstrap": None,
            **options,
        }  # as configured: an agent sees the tools that it sees in life
        if config is not None:
            return self._real(config, options)
        return self._fake(settings, options) if self._servers.made else None

    def _real(self, config: Any, options: Mapping[str, Any]) -> Greenroom:
        from ..supervisor.room import Greenroom

        given: dict[str, Any] = {"cache_path": ":memory:", "bootstrap": False, **options}
        return Greenroom.open(config, **given)

    def _fake(self, settings: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Greenroom:
        from .fake_servers import fake_room

        servers = self._servers
        return fake_room(dict(servers.made), entries=dict(servers.entries), settings=settings, **options)


@pytest.fixture
def fake_server() -> FakeServers:
    """Makes fake servers: `shop = fake_server("shop", tools=[…])`. See `greenroom.testing.FakeServer`."""
    return FakeServers()


@pytest.fixture
def _taped(request: pytest.FixtureRequest) -> Iterator[TapedTest | None]:
    """The tape of this test, if it is marked with one."""
    if not _is_taped(request.node):
        yield None
        return
    from ..protocol.errors import UsageError
    from .tape_fixture import RecordedTapes, TapedTest

    folders: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    of_run = folders.getbasetemp()
    if hasattr(
        request.config, "workerinput"
    ):  # one of several processes of pytest-xdist, in a folder of its own
        of_run = of_run.parent
    recorded, mode = RecordedTapes(of_run / "recorded-tapes"), str(request.config.getoption(_RECORD))
    with ExitStack() as stack:
        try:
            taped = TapedTest(request.node, mode, recorded, partial(folders.mktemp, "tape"), stack)
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)
        request.node.stash[_TAPED] = taped
        yield taped
        taped.end()


@pytest.fixture
def tape(_taped: TapedTest | None) -> TapeRun:
    """What the agent calls in this test, and assertions about it: `tape.calls("shop_order") == [{"item": "hat"}]`. See
    `greenroom.testing.TapeRun`."""
    if _taped is None:
        pytest.fail('Say which tape this is: @pytest.mark.tape("….tape")', pytrace=False)
    return _taped.run


@pytest.fixture
def room(fake_server: FakeServers, _taped: TapedTest | None) -> Iterator[Rooms]:
    """Opens rooms of the fake servers: `async with room() as opened`. After the test each of them must be closed, and
    each call must have ended exactly once."""
    from .assertions import assert_one_outcome_each

    rooms = Rooms(fake_server, _taped)
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
    from .assertions import run_ids
    from .room_inside import open_runs

    is_open = {run.encode() for run in open_runs()}
    return {pid for pid in found if (of := run_ids(pid)) and is_open.isdisjoint(of)}
