"""`greenroom bench churn`: what it costs to connect a server over and over, by phase, and whether something
is left.

The picture consists of characters: one row of bars for each phase, over one logarithmic axis of milliseconds.
So a phase with two humps (a cold cache, a slow second attempt) shows both. `--picture` writes the same as an
SVG file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...protocol.errors import UsageError
from ...protocol.plain_text import counted
from ._common import check_usable, config_option, read_config, run_to_end
from ._complete import complete_servers

if TYPE_CHECKING:
    from .._churn import Churned

_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = 48


@click.group("bench")
def bench_command() -> None:
    """Measure a server."""


@bench_command.command("churn")
@click.argument("server", shell_complete=complete_servers)
@click.option(
    "--cycles", "-n", type=click.IntRange(1), default=50, show_default=True, help="How many in all."
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="How many at a time.",
)
@click.option("--tool", help="Call this tool in each cycle. Give the server's own name for it.")
@click.option("--args", "args_json", metavar="JSON", help="Its arguments.")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Write the picture here, as SVG."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
def churn_command(
    server: str,
    cycles: int,
    concurrency: int,
    tool: str | None,
    args_json: str | None,
    picture: Path | None,
    as_json: bool,
    config_path: Path | None,
) -> int:
    """Connect SERVER, list its tools, call one, close it, again and again.

    Without --tool, a tool is called that only reads and needs no arguments, if the server has one. The exit
    code is 1 when cycles failed or something was left behind.
    """

    from ... import Greenroom
    from .._churn import Plan, churn

    plan = Plan(cycles, concurrency, tool, _arguments(args_json))
    config = read_config(config_path)
    check_usable(config, server)
    open_room = partial(Greenroom.open, bootstrap=False, cache_path=":memory:")
    with _progress(cycles, shown=not as_json) as tell:
        churned = run_to_end(partial(churn, config, server, plan, open_room, tell))
    if picture is not None:
        _write(picture, svg(churned))
    click.echo(json.dumps(churned.as_record(), indent=2) if as_json else "\n".join(report(server, churned)))
    return int(bool(churned.failures) or churned.leaks.found)


def _arguments(text: str | None) -> Mapping[str, Any]:
    from ._act import given_args

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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--picture {path}: {error.strerror}. Name a file that can be written.") from None


# ---- words ----------------------------------------------------------------------------------------------------------


def report(server: str, churned: Churned) -> Iterator[str]:
    """The lines to print."""
    from .._churn import CYCLE, percentile

    done, plan = len(churned.samples[CYCLE]), churned.plan
    calling = (
        f"calling {churned.tool}"
        if churned.tool
        else "calling nothing (it has no tool that is safe to call; see --tool)"
    )
    times = f"{counted(done, 'cycle')}, {plan.concurrency} at a time"
    yield f"{server}: {times}, {calling}: {churned.per_second:.1f} a second"
    yield ""
    scale = Scale.of(churned.samples)
    yield f"{'ms':<10} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8}   {scale.axis()}"
    for phase, samples in churned.samples.items():
        if samples:
            numbers = " ".join(f"{1000 * percentile(samples, percent):8.2f}" for percent in (50, 90, 99, 100))
            yield f"{phase:<10} {numbers}   {scale.bars(samples)}"
    yield ""
    yield from _left(churned)
    for failure in dict.fromkeys(churned.failures):
        yield f"failed {churned.failures.count(failure)} ×: {failure}"


def _left(churned: Churned) -> Iterator[str]:
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
        self.low, self.high, self.columns = low, high, columns
        self._width = math.log(high / low) or 1.0

    @classmethod
    def of(cls, samples: Mapping[str, Sequence[float]]) -> Scale:
        everything = [max(sample, 1e-6) for found in samples.values() for sample in found] or [1e-3]
        return cls(min(everything), max(everything))

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


_SVG_ROW: Final = 34
_SVG_COLUMN: Final = 12
_SVG_LEFT: Final = 90


def svg(churned: Churned) -> str:
    """The same picture as an SVG document."""
    scale = Scale.of(churned.samples)
    rows = [(phase, scale.counts(samples)) for phase, samples in churned.samples.items() if samples]
    width, height = _SVG_LEFT + _SVG_COLUMN * scale.columns + 20, _SVG_ROW * (len(rows) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, (phase, counts) in enumerate(rows):
        parts += _svg_row(phase, counts, _SVG_ROW * (number + 1))
    bottom = height - 10
    parts.append(f'<text x="{_SVG_LEFT}" y="{bottom}">{1000 * scale.low:.2f} ms</text>')
    parts.append(f'<text x="{width - 20}" y="{bottom}" text-anchor="end">{1000 * scale.high:.1f} ms</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _svg_row(phase: str, counts: Sequence[int], bottom: int) -> Iterator[str]:
    most = max(counts)
    yield f'<text x="8" y="{bottom - 4}">{phase}</text>'
    for column, count in enumerate(counts):
        if count:
            height = (_SVG_ROW - 6) * count / most
            left = _SVG_LEFT + _SVG_COLUMN * column
            yield (
                f'<rect x="{left}" y="{bottom - height:.1f}" width="{_SVG_COLUMN - 2}" height="{height:.1f}" '
                f'fill="#3b6ea5"><title>{count}</title></rect>'
            )
