"""`greenroom demo`: the main features, on servers that come with the package.

It is one story in scenes, and uses only the public API: you can do everything shown here with five lines of
your own. Everything is real: the servers are child processes, the crash is a crash, and the times are
measured. The catalogue is kept in memory, so each run is a first run.

A watcher task reads the room's event stream and gives every transition to the screen. The story waits for
events of the same stream and never sleeps. It knows how each call must end: a call that ends differently
stops the demo with exit code 1.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from ...protocol.errors import CallError, GreenroomError
from ...protocol.events import Event, Lagged, Transition
from ...protocol.lifecycle import Cause, State
from ...supervisor import Greenroom
from ._codes import INTERRUPTED
from ._common import run_to_end
from ._demo_screens import Screen, Summary, choose_screen

IDLE = 0.8  # seconds until an idle server is stopped: long enough to read, short enough to wait for
PATIENCE = 30.0  # seconds until the demo gives up on something it expects
RESULT, TOOL_ERROR = "result", "tool error"  # how a call may end, besides with the code of an error


class Unexpected(GreenroomError):
    """Something happened that the story does not expect."""


def run_demo(*, as_json: bool = False) -> int:
    """Play the demo on stdout. Returns the exit code: 1 when something it expected did not happen, 130 for
    Ctrl-C."""
    code = 1
    try:
        with choose_screen(as_json=as_json) as screen:
            code = run_to_end(partial(_play, screen))
    except* KeyboardInterrupt:
        print("The demo was interrupted; everything it had started is gone.", file=sys.stderr)
        code = INTERRUPTED
    return code


def demo_config() -> dict[str, Any]:
    """The configuration of the demo, as one would write it to `mcp.json`."""
    return {
        "mcpServers": {
            **{name: _bundled(name) for name in ("clock", "notes", "flaky")},
            "ghost": {"command": "greenroom-demo-no-such-program", "bootstrap": False},
        },
        "settings": {"idleTimeout": IDLE / 60},
    }


def _bundled(name: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-m", f"greenroom.testing.servers.demo_{name}"]}


async def _play(screen: Screen) -> int:
    began = time.perf_counter()
    room = Greenroom.open(demo_config(), cache_path=":memory:")
    async with room, _watching(room, screen) as watch:
        stopped_by = await _perform(room, screen, watch)
    left = [pid for pid in sorted(watch.pids) if _is_alive(pid)]
    screen.scene("Summary")
    screen.table(room.status())
    assert room.drain_report is not None  # the room has closed
    screen.summary(Summary(room.drain_report, len(watch.pids), len(left), time.perf_counter() - began))
    if stopped_by is not None:
        print(f"The demo stopped: {stopped_by}", file=sys.stderr)
    return 1 if left or stopped_by is not None else 0


async def _perform(room: Greenroom, screen: Screen, watch: _Watch) -> Exception | None:
    """Play every scene. Returns the exception that stopped the story, if any; it is caught here, before a
    task group wraps it."""
    try:
        for scene in _Story(room, screen, watch).scenes:
            await scene()
            await watch.settle()
            await anyio.sleep(screen.pause)
    except (GreenroomError, TimeoutError) as error:
        return error
    return None


class _Story:
    """The scenes, in order. Each says what will happen, does it, and shows the result."""

    def __init__(self, room: Greenroom, screen: Screen, watch: _Watch) -> None:
        self._room = room
        self._screen = screen
        self._watch = watch

    @property
    def scenes(self) -> Sequence[Callable[[], Any]]:
        return (
            self.nobody_on_stage,
            self.search_without_running,
            self.first_call_starts,
            self.idle_goes_back,
            self.crash_and_recovery,
            self.refused_clearly,
            self.drain_and_bring_back,
        )

    async def nobody_on_stage(self) -> None:
        self._screen.scene("Four servers are configured, none is running")
        self._screen.table(self._room.status())
        self._screen.say("Each one is visited once, in the background, to learn what it has:")
        await self._watch.until(self._all_known, "the background visits to the servers")
        self._screen.say("From now on that is cached. Nobody stays on stage for it.")

    async def search_without_running(self) -> None:
        self._screen.scene("Search and describe, with nothing running")
        page = self._room.search("current time")
        for match in page.matches[:3]:
            self._screen.say(f"{match.target.name}: {match.target.description}")
        target = self._room.describe("clock_now")
        parameters = ", ".join((target.input_schema or {}).get("properties", {})) or "none"
        self._screen.say(f"describe {target.name} -> server {target.server}, parameters: {parameters}")
        self._screen.say(f"Running: {self._running()}.")

    async def first_call_starts(self) -> None:
        self._screen.scene("The first call starts a server, the next ones reuse it")
        await self._call("clock_now", {"utc_offset": 1})
        await self._call("clock_now", {"utc_offset": -5})
        await self._call("notes_add", {"text": "Nobody waits on stage"})
        await self._call("notes_find", {"word": "stage"})

    async def idle_goes_back(self) -> None:
        self._screen.scene(f"Idle for {IDLE:g} s: back to the green room")
        await self._watch.until(self._all_idled, "the idle servers to go back")
        self._screen.say(
            f"Running: {self._running()}. The next call brings one on again, as its next incarnation:"
        )
        await self._call("clock_now", {})

    async def crash_and_recovery(self) -> None:
        self._screen.scene("A crash, and recovery")
        await self._call("flaky_divide", {"dividend": 7, "divisor": 2})
        await self._call("flaky_crash", {}, "call_failed")
        self._screen.say("The next call does not have to know:")
        await self._call("flaky_divide", {"dividend": 22, "divisor": 7})

    async def refused_clearly(self) -> None:
        self._screen.scene("What cannot work is refused, with what to do about it")
        await self._call("clock_now", {"utc_offset": "noon"}, TOOL_ERROR)
        await self._call("clock_nwo", {}, "tool_not_found")
        await self._call("ghost_appear", {}, "connect_failed")
        await self._call("ghost_appear", {}, "server_unavailable")

    async def drain_and_bring_back(self) -> None:
        self._screen.scene("Asked to drain, a server stays down until it is asked back")
        await self._call("notes_add", {"text": "Written before the drain"})
        await self._room.drain("notes")
        await self._call("notes_find", {}, "server_not_connected")
        await self._room.connect("notes")
        await self._call("notes_find", {})
        self._screen.table(self._room.status())

    async def _call(self, tool: str, arguments: Mapping[str, Any], expected: str = RESULT) -> None:
        """Make one call and show it. Raises `Unexpected` unless it ends as `expected`."""
        began = time.perf_counter()
        ended, text = await self._outcome(tool, arguments)
        took = (time.perf_counter() - began) * 1000
        await self._watch.settle()
        self._screen.call(tool, dict(arguments), text if ended == RESULT else f"{ended}: {text}", took)
        if ended != expected:
            raise Unexpected(f"the call of {tool} should have ended in {expected}, not in {ended}")

    async def _outcome(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """How a call ended, in one word and as text."""
        try:
            result = await self._room.call(tool, arguments)
        except CallError as error:
            return error.code, f"{error.message} [{error.reach}]"
        except GreenroomError as error:
            return error.code, error.message
        return TOOL_ERROR if result.is_error else RESULT, result.text

    def _all_known(self) -> bool:
        known = {row.server for row in self._room.status() if row.tool_count is not None}
        return known >= {"clock", "notes", "flaky"} and self._running() == 0

    def _all_idled(self) -> bool:
        idled = {(server, Cause.IDLE_TIMEOUT) for server in ("clock", "notes")}
        return idled <= self._watch.endings and self._running() == 0

    def _running(self) -> int:
        return sum(row.state not in (State.IDLE, State.CLOSED) for row in self._room.status())


class _Watch:
    """Follows the room's events: informs the screen, remembers processes and endings, and wakes tasks that
    wait."""

    def __init__(self, room: Greenroom, screen: Screen) -> None:
        self.pids: set[int] = set()
        self.endings: set[tuple[str, Cause]] = set()
        self._room = room
        self._screen = screen
        self._changed = anyio.Event()

    async def follow(self, events: AsyncIterator[Event | Lagged]) -> None:
        async for event in events:
            rows = self._room.status()
            self.pids.update(row.pid for row in rows if row.pid is not None)
            if isinstance(event, Transition):
                self._screen.transition(event, rows)
                if event.after is State.CLOSED and event.address and event.cause:
                    self.endings.add((event.address.server, event.cause))
            self._changed.set()
            self._changed = anyio.Event()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until `condition` holds; it is checked at every event. Raises `TimeoutError` that names
        `what`."""
        with anyio.move_on_after(PATIENCE):
            while not condition():
                await self._changed.wait()
            await self.settle()
            return
        raise TimeoutError(f"waited {PATIENCE:g} s for {what}")

    async def settle(self) -> None:
        """Wait until everything that has happened so far is shown."""
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def _watching(room: Greenroom, screen: Screen) -> AsyncGenerator[_Watch]:
    watch = _Watch(room, screen)
    async with room.events() as events, anyio.create_task_group() as group:
        group.start_soon(watch.follow, events)
        yield watch
        group.cancel_scope.cancel()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
