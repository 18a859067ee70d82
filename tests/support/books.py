"""After every room and every session of it, in every test: nothing of what has ended is still counted or listed.

What ends is counted in many places: calls in flight and queued, their bytes, places, slots, turns, requests, waits,
sessions. A place that is forgotten harms nobody at once, so the tests of what ended do not see it. The books are
looked at here, when a room has closed (each number is back at nothing) and when a session has ended (nothing knows
its name any more). It costs two milliseconds for each test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import wraps
from itertools import chain
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support.kept import paths_to

from greenroom.supervisor.runtime import Runtime

_MOST_LOOKED_AT = 2  # sessions of one test; each takes some milliseconds
_TURNS = 5


_wrong: list[str] = []  # of the test that runs
_looked = 0

_close, _end_session = Runtime._close, Runtime.end_session


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "changes_the_books: it changes numbers of a room itself")
    setattr(Runtime, "_close", _closing)  # noqa: B010 (a type checker sees through the other way to say it)
    setattr(Runtime, "end_session", _ending)  # noqa: B010


def pytest_unconfigure() -> None:
    setattr(Runtime, "_close", _close)  # noqa: B010
    setattr(Runtime, "end_session", _end_session)  # noqa: B010


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    global _looked
    _wrong.clear()
    _looked = 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    is_wrong = item.get_closest_marker("changes_the_books") is None
    try:
        yield
    except BaseException as error:
        if _wrong and is_wrong:
            if isinstance(error, pytest.fail.Exception):  # it may be shown without its notes
                pytest.fail(f"{error.msg}; {_unbalanced()}", pytrace=False)
            error.add_note(_unbalanced())
        raise
    if _wrong and is_wrong:
        pytest.fail(_unbalanced(), pytrace=False)


def _unbalanced() -> str:
    return "not everything was let go of: " + "; ".join(dict.fromkeys(_wrong))


@wraps(_close)
def _closing(self: Runtime) -> None:
    was_running = self.is_running
    _close(self)
    if was_running:
        _wrong.extend(_not_at_nothing(self))


@wraps(_end_session)
async def _ending(self: Runtime, name: str) -> None:
    global _looked
    await _end_session(self, name)
    _looked += 1
    with anyio.CancelScope(shield=True):
        for _ in range(_TURNS):  # what was cancelled has to notice it
            await anyio.lowlevel.checkpoint()
    if self.is_running and _looked <= _MOST_LOOKED_AT and name not in self.sessions._open:
        _wrong.extend(
            f"session {name!r} has ended, and is in {path}" for path in _ways_to_session(self, name)
        )


def _not_at_nothing(runtime: Any) -> Iterator[str]:
    listed, context = runtime.servers, runtime.context
    numbers: dict[str, Callable[[], object]] = {
        "bytes queued": lambda: context.queued_bytes,
        "slots held": lambda: len(listed.starts.places.holders()),
        "slots counted": lambda: sum(listed.starts.places.held(of_sessions=kind) for kind in (False, True)),
        "children started ahead": lambda: (
            [*chain(*(line.children for line in listed.starts.warm.lines.values()))]
            if listed.starts.warm
            else []
        ),
        "calls held for a yes": lambda: listed.approvals._held,
        "questions about a call": lambda: listed.approvals._asked,
    }
    for name, record in listed.records.items():
        numbers |= {
            f"in flight at {name}": lambda load=record.load: load.in_flight,
            f"queued at {name}": lambda load=record.load: load.queued,
            f"waiting for a place at {name}": lambda load=record.load: load.held,
        }
    for actor in listed.all_actors():
        numbers |= {
            f"open calls of {actor.address}": lambda actor=actor: actor.calls.open,
            f"waiting calls of {actor.address}": lambda actor=actor: actor.calls.waiting,
            f"leases of {actor.address}": lambda actor=actor: actor.leases,
        }
    for what, number in numbers.items():
        if found := number():
            yield f"{what}: {found if isinstance(found, int) else len(found)}"  # pyright: ignore[reportArgumentType]


def _ways_to_session(runtime: Any, name: str) -> list[str]:
    listed = runtime.servers
    if any(actor.address.owner == name for actor in listed.all_actors()) or any(
        key[0] == name for key in listed.approvals._asked
    ):
        return []  # the child of one of its calls is still being stopped, or somebody still thinks about a question
    aside = (
        runtime.router,
        runtime.writer,
        runtime.events,
        runtime.config,
        runtime.store,
        runtime.guard,
        runtime.recent,  # what has happened, up to a bound
        listed.context.timers,
    )
    told = (f"session:{name}", *([name] if len(name) > 2 else ()))  # other things are called "1"
    ways = paths_to(*told, within=(runtime,), without=(*aside, listed.context.timers))
    return [way for way in ways if not any(said in way for said in (".words", ".sources", "._handshake"))]
