"""`greenroom tape`: what is on a tape, as a story, as data or as a timeline."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..protocol.errors import UsageError
from ..protocol.safe_text import counted
from .common import commands_typed, say, show, show_json, tell
from .wrapping import columns_of, on_terminal

if TYPE_CHECKING:
    from ..tape.reading import Tape
    from . import json_shapes as shapes


@click.command("tape")
@click.argument("tape", type=click.Path(path_type=Path))
@click.option("--server", "servers", multiple=True, metavar="S", help="Only of this server; repeatable.")
@click.option("--session", "sessions", multiple=True, metavar="S", help="Only of this session; repeatable.")
@click.option("--failed", is_flag=True, help="Only calls that failed, and crashes.")
@click.option(
    "--since",
    type=float,
    metavar="SECONDS",
    help="Only from this second of the tape on; --since=-60: its last minute.",
)
@click.option(
    "--perfetto",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a timeline for https://ui.perfetto.dev instead.",
)
@click.option(
    "--otlp",
    metavar="URL|FILE",
    help="Send the calls as spans to this collector instead, or write them to a file.",
)
@click.option("--all", "is_all", is_flag=True, help="Tell all of a long tape.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def tape_command(
    tape: Path,
    servers: tuple[str, ...],
    sessions: tuple[str, ...],
    failed: bool,
    since: float | None,
    perfetto: Path | None,
    otlp: str | None,
    is_all: bool,
    is_json: bool,
) -> None:
    """Tell what is on TAPE: what servers did, what they were asked, and what they answered."""
    from ..tape.reading import read_tape
    from ..tape.selection import selected
    from ..tape.story import MOST, WIDTH, as_json, told

    if perfetto is not None and otlp is not None:
        raise UsageError("--perfetto and --otlp are two answers. Ask for one of them at a time.")
    read = selected(read_tape(tape), servers=servers, sessions=sessions, failed=failed, since=since)
    if perfetto is not None:
        _write_timeline(read, perfetto, is_json)
        return
    if otlp is not None:
        _send_spans(read, otlp, is_json)
        return
    if is_json:
        show_json({"tape": os.path.abspath(tape), **as_json(read)})
        return
    width = columns_of(sys.stdout) if on_terminal() else WIDTH
    for line in told(read, width, None if is_all else MOST):
        is_bad = "✗" in line and not os.environ.get("NO_COLOR")
        click.echo(click.style(line, fg="red") if is_bad and on_terminal() else line)
    tell(f"To replay it: {commands_typed().about('replay', os.fspath(tape))}")


def _write_timeline(tape: Tape, file: Path, is_json: bool) -> None:
    from ..gateway.timeline import trace_of_records
    from ..tape.records import records_of
    from .trace_command import write_timeline

    trace = trace_of_records(records_of(tape))
    write_timeline(file, trace, "--perfetto")
    said: shapes.Traced = {"output": os.fspath(file), "events": len(trace.events), "skipped": trace.skipped}
    show(
        f"{file} has {counted(len(trace.events), 'event')}. Open it at https://ui.perfetto.dev", said, is_json
    )


def _send_spans(tape: Tape, to: str, is_json: bool) -> None:
    from ..gateway.otlp import send_tape
    from ..tape.lines import OPEN

    ended = sum(call.outcome != OPEN for call in tape.calls)
    said: shapes.SpansSent = {"otlp": to, "spans": send_tape(tape, to), "calls": ended}
    if ended and not said["spans"]:
        say("OTEL_SDK_DISABLED or OTEL_TRACES_SAMPLER left all of them out.")
    show(f"{counted(said['spans'], 'span')} of {counted(said['calls'], 'call')} went to {to}", said, is_json)
