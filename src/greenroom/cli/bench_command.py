"""`greenroom bench churn`: connect, list, call and close a server over and over. Measures the cost by phase, and looks
for leaks.

It uses an ordinary room, so it measures what a user of this server pays. Each worker has a clone of the
server's definition under its own name. It connects the clone, calls one tool and takes the clone down, again
and again. The times of the phases come from the room's event stream, so they follow the room's clock.

Leaks are looked for while the room is still open, because its end kills everything. Processes, descriptors
and memory after all cycles are compared with those after one warm-up cycle of each worker. By then everything
that is started only once exists (the guard, imports, caches).

At a terminal each phase has a row of bars, over one logarithmic axis of milliseconds. So a phase with two humps (a
cold cache, a slow second attempt) shows both.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import attrs
import click
from msgspec.structs import replace

from ..catalogue.namespace import Target
from ..config.model import Config, Isolation, Lifecycle, ServerDefinition
from ..gateway.event_log import follow
from ..protocol.errors import CallError, GreenroomError, UnknownServer, UnknownTool
from ..protocol.events import CallAccepted, CallEnded, Event, Kind, Lagged, Step, Transition
from ..protocol.lifecycle import State
from ..protocol.safe_text import counted
from .completion import complete_servers
from .config_reading import read_config
from .interruption import run_to_end
from .json_shapes import Shape, says
from .missing_servers import check_usable
from .printing import show
from .shared_options import config_option, json_option
from .subcommands import Subcommands
from .text_wrapping import columns_of, on_terminal

if TYPE_CHECKING:
    from ..supervisor.room import Greenroom


class SpreadJson(Shape, kw_only=True):
    """How long a phase took."""

    p50: Annotated[float, says("half of the cycles took at most this", "ms")]
    p90: Annotated[float, says("nine in ten", "ms")]
    p99: Annotated[float, says("99 in a hundred", "ms")]
    max: Annotated[float, says("the slowest", "ms")]


class LeaksJson(Shape, kw_only=True):
    """What was left behind."""

    processes: Annotated[list[str], says("processes, by their commands")]
    descriptors: Annotated[int | None, says("open descriptors; null: this system does not tell")]
    bytes_per_cycle: Annotated[int | None, says("memory; null: this system does not tell", "bytes")]


class ChurnJson(Shape, kw_only=True):
    """What it costs to connect a server again and again."""

    cycles: Annotated[int, says("that succeeded", "cycles")]
    concurrency: Annotated[int, says("how many at a time", "cycles")]
    tool: Annotated[str | None, says("the tool that was called; null: none")]
    cycles_per_second: Annotated[float, says("over all", "1/s")]
    milliseconds: Annotated[dict[str, SpreadJson], says("by phase")]
    failures: Annotated[list[str], says("why cycles failed")]
    leaks: Annotated[LeaksJson, says("what was left behind")]


_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = 48
_NUMBERS: Final = 49  # columns of a line before the axis


@click.group("bench", cls=Subcommands)
def bench_command() -> None:
    """Measure a server."""


@bench_command.command("churn", short_help="Connect a server again and again.")
@click.argument("server", shell_complete=complete_servers)
@click.option(
    "--cycles",
    "-n",
    type=click.IntRange(1),
    metavar="NUMBER",
    default=50,
    show_default=True,
    help="How many in all.",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 256),
    metavar="NUMBER",
    default=1,
    show_default=True,
    help="How many at a time.",
)
@click.option("--tool", help="Call this tool in each cycle. Give the server's own name for it.")
@click.option("--args", "args_json", metavar="JSON", help="Its arguments.")
@json_option
@config_option
def churn_command(
    server: str,
    cycles: int,
    concurrency: int,
    tool: str | None,
    args_json: str | None,
    as_json: bool,
    config_path: Path | None,
) -> int:
    """Connect SERVER, list its tools, call one, close it, again and again.

    Without --tool, a tool is called that only reads and needs no arguments, if the server has one. The exit
    code is 1 when cycles failed or something was left behind.
    """
    from ..supervisor.room import Greenroom

    plan = BenchPlan(cycles, concurrency, tool, _arguments(args_json))
    config = read_config(config_path)
    check_usable(config, server)
    open_room = partial(Greenroom.open, bootstrap=False, cache_path=":memory:")
    with _progress(cycles, shown=not as_json) as tell:
        churned = run_to_end(partial(churn, config, server, plan, open_room, tell))
    columns = min(_COLUMNS, max(10, columns_of(sys.stdout) - _NUMBERS)) if on_terminal() else _COLUMNS
    show("\n".join(report(server, churned, columns)), churned.as_json(), as_json)
    return int(bool(churned.failures) or churned.leaks.found)


def _arguments(text: str | None) -> Mapping[str, Any]:
    from .call_command import given_args

    return given_args(text) or {}


@contextmanager
def _progress(cycles: int, *, shown: bool) -> Generator[Callable[[int], object]]:
    """A bar on stderr, where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as bars:
        bar = bars.add_task("cycles", total=cycles)
        yield lambda done: bars.update(bar, completed=done)


# ---- words ----------------------------------------------------------------------------------------------------------
def report(server: str, churned: BenchResult, columns: int = _COLUMNS) -> Iterator[str]:
    """The lines to print. `columns`: of the axis."""
    done, plan = len(churned.samples[CYCLE]), churned.plan
    calling = (
        f"calling {churned.tool}"
        if churned.tool
        else "calling nothing (it has no tool that is safe to call; see --tool)"
    )
    times = f"{counted(done, 'cycle')}, {plan.concurrency} at a time"
    yield f"{server}: {times}, {calling}: {churned.per_second:.1f} a second"
    yield ""
    scale = Scale.of(churned.samples, columns)
    yield f"{'ms':<10} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8}   {scale.axis()}"
    for phase, samples in churned.samples.items():
        if samples:
            numbers = " ".join(f"{1000 * percentile(samples, percent):8.2f}" for percent in _PERCENTS)
            yield f"{phase:<10} {numbers}   {scale.bars(samples)}"
    yield ""
    yield from _left(churned)
    for failure in dict.fromkeys(churned.failures):
        yield f"failed {churned.failures.count(failure)} ×: {failure}"


def _left(churned: BenchResult) -> Iterator[str]:
    leaks = churned.leaks
    for process in leaks.processes:
        yield f"left behind: process {process}"
    if leaks.descriptors:
        yield f"left behind: {counted(leaks.descriptors, 'descriptor')}"
    if not leaks.found:
        yield (
            "left behind: nothing"
            if leaks.descriptors is not None
            else "left behind: unknown (this system has no /proc)"
        )
    if leaks.memory_per_cycle is not None:
        yield f"memory: {leaks.memory_per_cycle / 1024:+.1f} KiB a cycle"


# ---- the picture ----------------------------------------------------------------------------------------------------
class Scale:
    """A logarithmic axis from the quickest to the slowest of all samples, in `columns` columns."""

    def __init__(self, low: float, high: float, columns: int = _COLUMNS) -> None:
        self.low: float = low
        self.high: float = high
        self.columns: int = columns
        self._width = math.log(high / low) or 1.0

    @classmethod
    def of(cls, samples: Mapping[str, Sequence[float]], columns: int = _COLUMNS) -> Scale:
        everything = [max(sample, 1e-6) for found in samples.values() for sample in found] or [1e-3]
        return cls(min(everything), max(everything), columns)

    def column(self, seconds: float) -> int:
        at = math.log(max(seconds, self.low) / self.low) / self._width
        return min(self.columns - 1, int(at * self.columns))

    def counts(self, samples: Sequence[float]) -> list[int]:
        found = [0] * self.columns
        for sample in samples:
            found[self.column(sample)] += 1
        return found

    def bars(self, samples: Sequence[float]) -> str:
        """One character per column. The highest bar is the fullest column, and a single sample is visible."""
        counts = self.counts(samples)
        most = max(counts)
        return "".join(_BARS[math.ceil(count / most * (len(_BARS) - 1))] for count in counts).rstrip()

    def axis(self) -> str:
        low, high = f"{1000 * self.low:.2f}", f"{1000 * self.high:.1f} ms"
        return f"{low}{high:>{max(1, self.columns - len(low))}}"


PHASES: Final = ("spawn", "handshake", "list", "call", "close")
CYCLE: Final = "cycle"  # all of a cycle's phases together
_PERCENTS: Final = (50, 90, 99, 100)
_KINDS: Final = (Kind.TRANSITION, Kind.STEP, Kind.CALL)
OpenRoom = Callable[[Config], "Greenroom"]  # a room that keeps nothing on disk and starts nothing by itself


@attrs.frozen
class BenchPlan:
    """What to do: `cycles` in all, `concurrency` at a time. `tool` is the server's own name of the tool to
    call. None: a tool that declares that it only reads, and that needs no arguments. If there is none, no
    call is made."""

    cycles: int = 50
    concurrency: int = 1
    tool: str | None = None
    arguments: Mapping[str, Any] = attrs.field(factory=dict[str, Any])


@attrs.frozen
class Holdings:
    """What this process and its descendants held at one moment. None: this system does not tell."""

    processes: Mapping[int, str]  # our descendants: pid -> command
    descriptors: int | None
    memory: int | None  # our own resident bytes

    @classmethod
    def now(cls) -> Holdings:
        return cls(_descendants(), _count_descriptors(), _resident())


@attrs.frozen
class Leaks:
    """What exists after the last cycle but did not after the warm-up."""

    processes: tuple[str, ...]  # by their commands
    descriptors: int | None
    memory_per_cycle: float | None  # bytes; allocators make it noisy: judge it over many cycles

    @classmethod
    def between(cls, before: Holdings, after: Holdings, cycles: int) -> Leaks:
        left = tuple(
            f"{command} ({pid})" for pid, command in after.processes.items() if pid not in before.processes
        )
        descriptors = _difference(before.descriptors, after.descriptors)
        memory = _difference(before.memory, after.memory)
        return cls(left, descriptors, None if memory is None else memory / max(1, cycles))

    @property
    def found(self) -> bool:
        """Whether something leaked: a process or a descriptor."""
        return bool(self.processes) or (self.descriptors or 0) > 0


@attrs.frozen
class BenchResult:
    """The result. `samples` are seconds, by phase; a phase that never happened has none."""

    plan: BenchPlan
    tool: str | None
    samples: Mapping[str, Sequence[float]]
    failures: Sequence[str]
    seconds: float  # for all measured cycles
    leaks: Leaks

    @property
    def per_second(self) -> float:
        return len(self.samples[CYCLE]) / self.seconds if self.seconds else 0.0

    def as_json(self) -> ChurnJson:
        memory = self.leaks.memory_per_cycle
        return ChurnJson(
            cycles=len(self.samples[CYCLE]),
            concurrency=self.plan.concurrency,
            tool=self.tool,
            cycles_per_second=round(self.per_second, 2),
            milliseconds={phase: _spread(found) for phase, found in self.samples.items() if found},
            failures=list(self.failures),
            leaks=LeaksJson(
                processes=list(self.leaks.processes),
                descriptors=self.leaks.descriptors,
                bytes_per_cycle=None if memory is None else round(memory),
            ),
        )


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; NaN of nothing."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else math.nan


async def churn(
    config: Config,
    server: str,
    plan: BenchPlan,
    open_room: OpenRoom,
    tell: Callable[[int], object] = lambda _done: None,
) -> BenchResult:
    """Carry out `plan`. After each measured cycle it calls `tell(n)`, where `n` is the number of cycles done.

    Raises `UnknownServer`, `UnknownTool`, and the `CallError` of a server that cannot be connected at all. A
    cycle that fails later is recorded in the result.
    """
    if server not in config.servers:
        raise UnknownServer(server, tuple(config.servers))
    clones = _config_of_clones(config, config.servers[server], plan.concurrency)
    watch = _CycleWatch()
    problem: GreenroomError | None = None
    run: _BenchRun | None = None
    async with anyio.create_task_group() as watching:  # ends with the room's stream, so every event is read
        try:
            async with open_room(clones) as room:
                await watching.start(partial(follow, room, [watch.take], kinds=_KINDS))
                run = _BenchRun(
                    room, plan, await _choose_tool(room, next(iter(clones.servers)), plan), watch, tell
                )
                await run.run(tuple(clones.servers))
        except GreenroomError as error:
            problem = error
    if problem is not None:
        raise problem
    assert run is not None
    return run.result()


# ---- the workers ----------------------------------------------------------------------------------------------------
@attrs.define(eq=False)
class _BenchRun:
    room: Greenroom
    plan: BenchPlan
    tool: str | None
    watch: _CycleWatch
    tell: Callable[[int], object]
    failures: list[str] = attrs.field(factory=list[str])
    left: int = 0
    done: int = 0
    seconds: float = 0.0
    leaks: Leaks = attrs.field(factory=lambda: Leaks((), None, None))

    async def run(self, clones: Sequence[str]) -> None:
        await self._work(clones, len(clones))  # the warm-up
        self.failures.clear()
        self.done = 0
        before, start = Holdings.now(), self.watch.begin()
        await self._work(clones, self.plan.cycles)
        self.seconds = anyio.current_time() - start
        self.leaks = Leaks.between(before, Holdings.now(), self.plan.cycles)

    def result(self) -> BenchResult:
        return BenchResult(self.plan, self.tool, self.watch.samples, self.failures, self.seconds, self.leaks)

    async def _work(self, clones: Sequence[str], cycles: int) -> None:
        self.left = cycles
        async with anyio.create_task_group() as workers:
            for clone in clones:
                workers.start_soon(self._worker, clone)

    async def _worker(self, clone: str) -> None:
        while self.left:
            self.left -= 1
            try:
                await self._cycle(clone)
            except CallError as error:
                self.failures.append(str(error))
            self.done += 1
            self.tell(self.done)

    async def _cycle(self, clone: str) -> None:
        try:
            await self.room.connect(clone)
            if self.tool is not None:
                target = _tool_of(self.room, clone, self.tool)
                await self.room.call(target.name, self.plan.arguments)
        finally:
            await self.room.drain(clone)


async def _choose_tool(room: Greenroom, clone: str, plan: BenchPlan) -> str | None:
    await room.connect(clone)
    chosen = (
        _tool_of(room, clone, plan.tool).original if plan.tool is not None else _harmless_tool(room, clone)
    )
    await room.drain(clone)
    return chosen


def _tool_of(room: Greenroom, clone: str, original: str) -> Target:
    tools = [target for target in room.tools(clone) if target.kind == "tool"]
    found = next((target for target in tools if target.original == original), None)
    if found is None:
        names = ", ".join(target.original for target in tools)
        raise UnknownTool(
            original, message=f'The server has no tool "{original}". It has: {names or "none"}.'
        )
    return found


def _harmless_tool(room: Greenroom, clone: str) -> str | None:
    return next((target.original for target in room.tools(clone) if _is_harmless(target)), None)


def _is_harmless(target: Target) -> bool:
    """Whether the tool declares that it only reads, and requires no arguments."""
    hints: Any = target.record.get("annotations")
    reads = isinstance(hints, Mapping) and hints.get("readOnlyHint") is True  # pyright: ignore[reportUnknownMemberType]
    return target.kind == "tool" and reads and not (target.input_schema or {}).get("required")


def _config_of_clones(config: Config, definition: ServerDefinition, count: int) -> Config:
    """A configuration of `count` copies of one server, with room for all of them at once."""
    plain = replace(definition, lifecycle=Lifecycle.LAZY, isolation=Isolation.PERSISTENT, disabled=False)
    clones = {f"churn{number}": replace(plain, name=f"churn{number}") for number in range(count)}
    settings = replace(
        config.settings, max_connections=count, start_permits=count, min_connections=0, bootstrap=False
    )
    return replace(config, servers=clones, settings=settings, broken={}, problems=())


# ---- the phases, read off the events --------------------------------------------------------------------------------
class _CycleWatch:
    """Follows every incarnation through its events. A cycle counts if it connected, and began after `begin`."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {phase: [] for phase in (*PHASES, CYCLE)}
        self._since = math.inf
        self._marks: dict[str, dict[str, float]] = {}  # by server: when each point of the present cycle came

    def begin(self) -> float:
        """Count cycles from now on. Returns the time."""
        self._since = anyio.current_time()
        return self._since

    def take(self, event: Event | Lagged) -> None:
        if isinstance(event, Lagged) or event.address is None:
            return
        marks = self._marks.setdefault(event.address.server, {})
        point = _point_of(event)
        if point == State.CONNECTING.value:
            marks.clear()
        if point is not None:
            marks[point] = event.at
        if point == State.CLOSED.value:
            self._count(marks)
            marks.clear()

    def _count(self, marks: Mapping[str, float]) -> None:
        if "connected" not in marks or marks["connecting"] < self._since:
            return
        for phase, (begin, end) in _SPANS.items():
            if begin in marks and end in marks:
                self.samples[phase].append(marks[end] - marks[begin])


_SPANS: Final = {
    "spawn": ("connecting", "started"),
    "handshake": ("started", "greeted"),
    "list": ("greeted", "connected"),
    "call": ("accepted", "ended"),
    "close": ("draining", "closed"),
    CYCLE: ("connecting", "closed"),
}


def _point_of(event: Event) -> str | None:
    """The point of a cycle that this event marks."""
    match event:
        case Transition():
            return event.after.value
        case Step():
            return event.step.value
        case CallAccepted():
            return "accepted"
        case CallEnded():
            return "ended"
        case _:
            return None


# ---- what is held ---------------------------------------------------------------------------------------------------
def _descendants() -> dict[int, str]:
    """Our children, theirs, and so on. Empty where there is no /proc."""
    found: dict[int, str] = {}
    waiting = [os.getpid()]
    while waiting:
        for child in _children(waiting.pop()):
            found[child] = _command(child)
            waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # that thread has ended
            found += map(int, listing.read_text().split())
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "ended meanwhile"


def _count_descriptors() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def _resident() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _spread(samples: Sequence[float]) -> SpreadJson:
    p50, p90, p99, most = (round(1000 * percentile(samples, percent), 3) for percent in _PERCENTS)
    return SpreadJson(p50=p50, p90=p90, p99=p99, max=most)
