"""`greenroom trace`: a timeline of the last minutes of a gateway, or of the event log that `serve --events` wrote
(`gateway.timeline`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config.private_files import open_own
from ..gateway.timeline import trace_of
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted
from .common import common_options, read_config, running_gateway, say, show_json

if TYPE_CHECKING:
    from ..gateway.timeline import Trace
    from . import json_shapes as shapes


@click.command("trace")
@click.argument("events", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="Of a running gateway: the last so many.  [default: 10]",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead of stdout.",
)
@common_options
def trace_command(
    events: Path | None,
    minutes: float | None,
    output: Path | None,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Make a timeline of the last minutes of the running gateway, or of EVENTS, the log of `serve --events`.

    Open the result at https://ui.perfetto.dev or chrome://tracing.
    """
    if events is None:
        gateway = running_gateway(read_config(config_path), pid)
        if gateway is None:
            text = "No gateway runs for this configuration. Name one with --pid, or the log of: serve --events FILE"
            raise UsageError(text)
        seconds = 60 * (minutes or 10)
        trace = trace_of(gateway.ask("recent", seconds=seconds)["lines"].splitlines())
    else:
        if minutes is not None or pid is not None:
            raise UsageError("--minutes and --pid are for a running gateway. Leave them out, or the log.")
        with events.open(encoding="utf-8", errors="replace") as lines:
            trace = trace_of(lines)
    if trace.skipped:
        are = ("is not an event", "was") if trace.skipped == 1 else ("are not events", "were")
        say(f"{counted(trace.skipped, 'line')} of {events} {are[0]} and {are[1]} left out.")
    if output is None:
        click.echo(trace.to_json())
    else:
        write_timeline(output, trace, "--output")
        if as_json:
            said: shapes.Traced = {
                "output": str(output),
                "events": len(trace.events),
                "skipped": trace.skipped,
            }
            show_json(said)
    return 0


def write_timeline(path: Path, trace: Trace, option: str) -> None:
    """Write a file that only its owner can read (0600), because it names calls. `option`: by which it was named. Raises
    `UsageError`."""
    try:
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, is_named=True), "wb") as file:
            file.write(f"{trace.to_json()}\n".encode("utf-8", "replace"))
    except OSError as error:
        text = f"{option} {path}: {error.strerror}. Name a file that can be written."
        raise UsageError(text) from None
