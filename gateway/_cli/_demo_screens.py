"""The output of the demo: on a terminal a live table of states below the text, otherwise plain lines, or JSON.

The story calls the same methods on each. Only a terminal gets colour and movement. A pipe gets text that reads well in
a file, and a program gets one JSON document at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ...protocol.events import Transition
from ...protocol.lifecycle import State
from ...protocol.status import ServerStatus
from ...supervisor import DrainReport
from ._common import show_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

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

    def transition(self, event: Transition, rows: Sequence[ServerStatus]) -> None:
        """One step of one incarnation; `rows` is the status of all servers after it."""
        ...

    def table(self, rows: Sequence[ServerStatus]) -> None: ...

    def summary(self, summary: Summary) -> None: ...


@contextmanager
def choose_screen(*, as_json: bool = False) -> Generator[Screen]:
    """The screen that fits stdout."""
    if as_json:
        screen = JsonScreen()
        yield screen
        show_json(screen.document)
        return
    if not sys.stdout.isatty():
        yield PlainScreen()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        yield LiveScreen(console, live)


class PlainScreen:
    """Lines on stdout, as fast as they come."""

    pause = 0.0

    def scene(self, title: str) -> None:
        print(f"\n== {title} ==", flush=True)

    def say(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def call(self, tool: str, arguments: dict[str, Any], outcome: str, took: float) -> None:
        print(f"  call {tool} {json.dumps(arguments)}  [{took:.1f} ms]\n    -> {outcome}", flush=True)

    def transition(self, event: Transition, rows: Sequence[ServerStatus]) -> None:
        print(f"    . {told(event)}", flush=True)

    def table(self, rows: Sequence[ServerStatus]) -> None:
        lines = [HEAD, *(cells(row) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print(
                "  "
                + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
            )

    def summary(self, summary: Summary) -> None:
        for line in summary.lines():
            self.say(line)


class JsonScreen:
    """Everything as data: `scenes`, each with its `steps` in order, and the summary."""

    pause = 0.0

    def __init__(self) -> None:
        self._scenes: list[dict[str, Any]] = []
        self.document: dict[str, Any] = {"mode": "demo", "scenes": self._scenes}

    def scene(self, title: str) -> None:
        self._scenes.append({"scene": title, "steps": []})

    def say(self, text: str) -> None:
        self._step(said=text)

    def call(self, tool: str, arguments: dict[str, Any], outcome: str, took: float) -> None:
        self._step(call=tool, args=arguments, outcome=outcome, milliseconds=round(took, 1))

    def transition(self, event: Transition, rows: Sequence[ServerStatus]) -> None:
        self._step(transition=told(event))

    def table(self, rows: Sequence[ServerStatus]) -> None:
        self._step(servers=[dict(zip(HEAD, cells(row), strict=True)) for row in rows])

    def summary(self, summary: Summary) -> None:
        report = attrs.asdict(summary.report)
        report["isFinal"] = report.pop("is_final")
        self.document |= {"drainReport": report, "processesStarted": summary.started}
        self.document |= {"leftRunning": summary.left, "seconds": round(summary.seconds, 1)}

    def _step(self, **step: Any) -> None:
        """Steps before the first scene are left out: there the servers only become idle."""
        if self._scenes:
            self._scenes[-1]["steps"].append(step)


class LiveScreen:
    """A terminal: the text runs above, the table of states stays below it and moves."""

    pause = 0.6

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live

    def scene(self, title: str) -> None:
        self._console.print(f"\n{title}", style="bold", markup=False)

    def say(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False)

    def call(self, tool: str, arguments: dict[str, Any], outcome: str, took: float) -> None:
        self._console.print(
            f"  call {tool} {json.dumps(arguments)}  [{took:.1f} ms]", style="cyan", markup=False
        )
        self._console.print(f"    -> {outcome}", markup=False)

    def transition(self, event: Transition, rows: Sequence[ServerStatus]) -> None:
        self._console.print(f"    . {told(event)}", style="dim", markup=False)
        self.table(rows)

    def table(self, rows: Sequence[ServerStatus]) -> None:
        self._live.update(_rich_table(rows), refresh=True)

    def summary(self, summary: Summary) -> None:
        for line in summary.lines():
            self.say(line)


def told(event: Transition) -> str:
    """One transition as a line: `flaky #1: connected -> draining (lost: exited with code 70)`."""
    line = f"{event.address} #{event.incarnation}: {_name(event.before)} -> {_name(event.after)}"
    if event.after is not State.DRAINING or event.cause is None:
        return line  # the reason is told once, when the server begins to end
    return f"{line} ({event.cause.value}{': ' if event.detail else ''}{event.detail})"


def _name(state: State | None) -> str:
    return state.value if state else "?"


def cells(row: ServerStatus) -> tuple[str, ...]:
    """One row of the table, as text under `HEAD`."""
    name = row.server if row.scope == "shared" else f"{row.server} ({row.scope})"
    tools = "?" if row.tool_count is None else str(row.tool_count)
    return (
        name,
        row.state.value,
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
