"""`greenroom trace`: an event log as a timeline."""

from __future__ import annotations

from pathlib import Path

import click

from ._common import say


@click.command("trace")
@click.argument("events", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Instead of stdout.")
def trace_command(events: Path, output: Path | None) -> int:
    """Turn EVENTS, the log of `serve --events`, into a Chrome or Perfetto trace.

    Open the result at https://ui.perfetto.dev or chrome://tracing.
    """
    from .._trace import trace_of

    with events.open(encoding="utf-8", errors="replace") as lines:
        trace = trace_of(lines)
    if trace.skipped:
        say(f"{trace.skipped} lines of {events} are no events and were left out.")
    if output is None:
        click.echo(trace.to_json())
    else:
        output.write_text(trace.to_json() + "\n", encoding="utf-8")
    return 0
