"""`greenroom trace`: an event log as a timeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..._own_files import open_own
from ...protocol.errors import UsageError
from ...protocol.plain_text import counted
from ._common import say, show_json

if TYPE_CHECKING:
    from . import _shapes as shapes


@click.command("trace")
@click.argument("events", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead of stdout.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: the timeline, or with --output what was written."
)
def trace_command(events: Path, output: Path | None, as_json: bool) -> int:
    """Turn EVENTS, the log of `serve --events`, into a Chrome or Perfetto trace.

    Open the result at https://ui.perfetto.dev or chrome://tracing.
    """
    from .._trace import trace_of

    with events.open(encoding="utf-8", errors="replace") as lines:
        trace = trace_of(lines)
    if trace.skipped:
        are = ("is not an event", "was") if trace.skipped == 1 else ("are not events", "were")
        say(f"{counted(trace.skipped, 'line')} of {events} {are[0]} and {are[1]} left out.")
    if output is None:
        click.echo(trace.to_json())
    else:
        _write(output, trace.to_json() + "\n")
        if as_json:
            said: shapes.Traced = {
                "output": str(output),
                "events": len(trace.events),
                "skipped": trace.skipped,
            }
            show_json(said)
    return 0


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read (0600), because it names calls."""
    try:
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, is_named=True), "wb") as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        text = f"--output {path}: {error.strerror}. Name a file that can be written."
        raise UsageError(text) from None
