"""`greenroom demo`: the main features, on servers that come with the package.

It is one story in scenes, and uses only the public API: you can do everything shown here with five lines of
your own. Everything is real: the servers are child processes, the crash is a crash, and the times are
measured. The catalogue is kept in memory, so each run is a first run.

A watcher task reads the room's event stream and gives every transition to the screen. The story waits for
events of the same stream and never sleeps. It knows how each call must end: a call that ends differently
stops the demo with exit code 1.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

import anyio
import attrs
import click
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from ..actors.timers import at_most
from ..protocol.errors import CallError, GreenroomError
from ..protocol.events import Event, Lagged, Transition
from ..protocol.lifecycle import Cause, State
from ..protocol.status import DrainReport, ServerStatus
from ..supervisor.room import Greenroom
from .exit_codes import INTERRUPTED
from .interruption import run_to_end
from .json_shapes import DrainReportJson, Object, Shape, says
from .printing import show_json
from .tables import aligned

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table


class SceneJson(Shape, kw_only=True):
    """A scene of the demo."""

    scene: Annotated[str, says("its title")]
    steps: Annotated[list[StepJson], says("what happened, in order")]


class StepJson(Shape, kw_only=True):
    """One thing that happened: each has only the fields of its kind."""

    said: Annotated[str | UnsetType, says("a sentence about it", when="it is one")] = UNSET
    call: Annotated[str | UnsetType, says("the tool that was called", when="it is a call")] = UNSET
    args: Annotated[Object | UnsetType, says("its arguments", when="it is a call")] = UNSET
    outcome: Annotated[str | UnsetType, says("what came of it", when="it is a call")] = UNSET
    milliseconds: Annotated[float | UnsetType, says("how long it took", "ms", when="it is a call")] = UNSET
    transition: Annotated[str | UnsetType, says("a transition, in words", when="it is one")] = UNSET
    servers: Annotated[
        list[dict[str, str]] | UnsetType, says("the table, each row with its cells", when="it is shown")
    ] = UNSET


class DemoJson(Shape, kw_only=True):
    """What the demo did."""

    mode: Annotated[Literal["demo"], says("what was asked for")]
    scenes: Annotated[list[SceneJson], says("in order")]
    drain_report: Annotated[DrainReportJson, says("what became of the calls")]
    processes_started: Annotated[int, says("by its room", "processes")]
    left_running: Annotated[int, says("of them, at the end", "processes")]
    seconds: Annotated[float, says("how long it took", "s")]


BUNDLED: Final = ("clock", "notes", "flaky")  # the servers, each a module `demo_NAME`


@click.command("demo")
@click.argument("server", type=click.Choice(BUNDLED), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, when it is over.")
def demo_command(server: str | None, as_json: bool) -> int:
    """See it work in a few seconds: servers that come with Greenroom are called, stopped, killed and started again.

    With the name of one of these servers, only that server runs, on standard input and output. So you can add it:
    greenroom add notes -- greenroom demo notes
    """
    if server is not None:
        entry = _bundled(server)
        os.execv(entry["command"], [entry["command"], *entry["args"]])  # noqa: S606  (our own Python)
    return run_demo(as_json=as_json)


IDLE = 0.8  # seconds until an idle server is stopped: long enough to read, short enough to wait for
PATIENCE = 30.0  # seconds until the demo gives up on something it expects
RESULT, TOOL_ERROR = "result", "tool error"  # how a call may end, besides with the code of an error


class UnexpectedScene(GreenroomError):
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
            **{name: _bundled(name) for name in BUNDLED},
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
    assert room.drain_report is not None  # the room has closed
    screen.summary(Summary(room.drain_report, len(watch.pids), len(left), time.perf_counter() - began))
    if stopped_by is not None:
        print(f"The demo stopped: {stopped_by}", file=sys.stderr)
    return 1 if left or stopped_by is not None else 0


async def _perform(room: Greenroom, screen: Screen, watch: _DemoWatch) -> Exception | None:
    """Play every scene. Returns the exception that stopped the story, if any; it is caught here, before a
    task group wraps it."""
    try:
        for scene in _DemoStory(room, screen, watch).scenes:
            await scene()
            await watch.settle()
            await anyio.sleep(screen.pause)
    except (GreenroomError, TimeoutError) as error:
        return error
    return None


class _DemoStory:
    """The scenes, in order. Each says what will happen, does it, and shows the result."""

    def __init__(self, room: Greenroom, screen: Screen, watch: _DemoWatch) -> None:
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
        await self._watch.until(self._all_known, "the discovery in the background")
        self._screen.say(
            "Three were started once, in the background, to read their tools, and stopped again:"
        )
        self._screen.table(self._room.status())
        self._watch.tells = True

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
        """Make one call and show it. Raises `UnexpectedScene` unless it ends as `expected`."""
        began = time.perf_counter()
        ended, text = await self._outcome(tool, arguments)
        took = (time.perf_counter() - began) * 1000
        await self._watch.settle()
        self._screen.call(tool, dict(arguments), text if ended == RESULT else f"{ended}: {text}", took)
        if ended != expected:
            raise UnexpectedScene(f"the call of {tool} should have ended in {expected}, not in {ended}")

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


class _DemoWatch:
    """Follows the room's events: informs the screen, remembers processes and endings, and wakes tasks that
    wait."""

    def __init__(self, room: Greenroom, screen: Screen) -> None:
        self.pids: set[int] = set()
        self.endings: set[tuple[str, Cause]] = set()
        self.tells = False  # the steps of servers, beside the table
        self._room = room
        self._screen = screen
        self._changed = anyio.Event()

    async def follow(self, events: AsyncIterator[Event | Lagged]) -> None:
        async for event in events:
            rows = self._room.status()
            self.pids.update(row.pid for row in rows if row.pid is not None)
            if isinstance(event, Transition):
                self._screen.transition(event, rows, step_of(event) if self.tells else None)
                if event.after is State.CLOSED and event.address and event.cause:
                    self.endings.add((event.address.server, event.cause))
            self._changed.set()
            self._changed = anyio.Event()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until `condition` holds; it is checked at every event. Raises `TimeoutError` that names
        `what`."""
        async with at_most(PATIENCE):
            while not condition():
                await self._changed.wait()
            await self.settle()
            return
        raise TimeoutError(f"waited {PATIENCE:g} s for {what}")

    async def settle(self) -> None:
        """Wait until everything that has happened so far is shown."""
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def _watching(room: Greenroom, screen: Screen) -> AsyncGenerator[_DemoWatch]:
    watch = _DemoWatch(room, screen)
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


# ---- The output of the demo ------------------------------------------------------------------------------------------
#
# On a terminal a live table of states below the text, otherwise plain lines, or JSON.
#
# The story calls the same methods on each. Only a terminal gets colour and movement. A pipe gets text that reads well
# in a file, and a program gets one JSON document at the end.

HEAD = ("server", "state", "incarnation", "tools", "pid", "waits for")
COLOURS = {
    State.IDLE: "dim",
    State.CONNECTING: "yellow",
    State.CONNECTED: "green",
    State.DRAINING: "magenta",
    State.CLOSED: "dim",
}


@attrs.frozen
class Summary:
    """What is shown at the end. `seconds`: the time of the whole demo."""

    report: DrainReport
    started: int  # processes
    left: int  # how many of them still run
    seconds: float

    def lines(self) -> tuple[str, ...]:
        return (
            f"Drain report: {self.report}.",
            f"Processes started: {self.started}; left running: {self.left}.",
            f"{self.seconds:.1f} s in all.",
        )


class Screen(Protocol):
    """Where the demo is shown."""

    pause: float  # seconds after each scene, for a person to read it

    def scene(self, title: str) -> None: ...

    def say(self, text: str) -> None: ...

    def call(self, tool: str, arguments: dict[str, Any], outcome: str, took: float) -> None:
        """One call and its outcome; `took` in milliseconds."""
        ...

    def transition(self, event: Transition, rows: Sequence[ServerStatus], step: str | None) -> None:
        """One transition; `rows` is the status of all servers after it. `step`: what it means to the story, if
        anything."""
        ...

    def table(self, rows: Sequence[ServerStatus]) -> None: ...

    def summary(self, summary: Summary) -> None: ...


@contextmanager
def choose_screen(*, as_json: bool = False) -> Generator[Screen]:
    """The screen that fits stdout."""
    if as_json:
        screen = JsonScreen()
        yield screen
        assert screen.document is not None  # the story has a summary, however it ends
        show_json(screen.document)
        return
    if not sys.stdout.isatty():
        yield PlainScreen()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    # When it ends, the room has closed, and the last states are no longer true.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveScreen(console, live)


class PlainScreen:
    """Lines on stdout, as fast as they come."""

    pause: float = 0.0

    def scene(self, title: str) -> None:
        self._print(f"\n== {title} ==")

    def say(self, text: str) -> None:
        self._print(f"  {text}")

    def call(self, tool: str, arguments: dict[str, Any], outcome: str, took: float) -> None:
        self._print(f"  call {tool} {json.dumps(arguments)}  [{took:.1f} ms]", "cyan")
        self._print(f"    -> {outcome}")

    def transition(self, event: Transition, rows: Sequence[ServerStatus], step: str | None) -> None:
        if step is not None:
            self._print(f"    . {step}", "dim")

    def table(self, rows: Sequence[ServerStatus]) -> None:
        for line in aligned([HEAD, *map(cells, rows)]):
            self.say(line)

    def summary(self, summary: Summary) -> None:
        for line in summary.lines():
            self.say(line)

    def _print(self, text: str, style: str = "") -> None:
        print(text, flush=True)


class LiveScreen(PlainScreen):
    """A terminal: the text runs above, the table of states stays below it and moves."""

    pause: float = 0.6

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live

    def scene(self, title: str) -> None:
        self._print(f"\n{title}", "bold")

    def transition(self, event: Transition, rows: Sequence[ServerStatus], step: str | None) -> None:
        super().transition(event, rows, step)
        self.table(rows)

    def table(self, rows: Sequence[ServerStatus]) -> None:
        self._live.update(_rich_table(rows), refresh=True)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False)


class JsonScreen:
    """Everything as data: scenes, each with its steps in order, and the summary."""

    pause: float = 0.0

    def __init__(self) -> None:
        self._scenes: list[SceneJson] = []
        self.document: DemoJson | None = None  # at the end

    def scene(self, title: str) -> None:
        self._scenes.append(SceneJson(scene=title, steps=[]))

    def say(self, text: str) -> None:
        self._add(StepJson(said=text))

    def call(self, tool: str, arguments: dict[str, Any], outcome: str, took: float) -> None:
        self._add(StepJson(call=tool, args=arguments, outcome=outcome, milliseconds=round(took, 1)))

    def transition(self, event: Transition, rows: Sequence[ServerStatus], step: str | None) -> None:
        self._add(StepJson(transition=told(event)))

    def table(self, rows: Sequence[ServerStatus]) -> None:
        self._add(StepJson(servers=[dict(zip(HEAD, cells(row), strict=True)) for row in rows]))

    def summary(self, summary: Summary) -> None:
        self.document = DemoJson(
            mode="demo",
            scenes=self._scenes,
            drain_report=DrainReportJson(**asdict(summary.report)),
            processes_started=summary.started,
            left_running=summary.left,
            seconds=round(summary.seconds, 1),
        )

    def _add(self, step: StepJson) -> None:
        """Steps before the first scene are left out: there the servers only become idle."""
        if self._scenes:
            self._scenes[-1].steps.append(step)


def step_of(event: Transition) -> str | None:
    """What a transition means to the story: that a server runs, or ends and why. None: nothing, or the call that waited
    for the server says it."""
    who = f"{event.address} #{event.incarnation}"
    if event.after is State.CONNECTED:
        return f"{who} is connected"
    if event.after is not State.DRAINING or event.cause in (None, Cause.CONNECT_FAILED):
        return None
    return f"{who} ends {_why(event)}"


def told(event: Transition) -> str:
    """One transition as a line: `flaky #1: connected -> draining (lost: exited with code 70)`."""
    line = f"{event.address} #{event.incarnation}: {event.before.value} -> {event.after.value}"
    # The reason is told once, when the server begins to end.
    return f"{line} {_why(event)}" if event.after is State.DRAINING and event.cause else line


def _why(event: Transition) -> str:
    assert event.cause is not None
    return f"({event.cause.value}{': ' if event.detail else ''}{event.detail})"


def cells(row: ServerStatus) -> tuple[str, ...]:
    """One row of the table, as text under `HEAD`."""
    name = row.server if row.scope == "shared" else f"{row.server} ({row.scope})"
    tools = "?" if row.tool_count is None else str(row.tool_count)
    return (
        name,
        row.word.replace("-", " "),
        str(row.incarnation),
        tools,
        str(row.pid or ""),
        row.waiting_for or row.down or "",
    )


def _rich_table(rows: Sequence[ServerStatus]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(*HEAD, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*cells(row), style=COLOURS[row.state])
    return table
