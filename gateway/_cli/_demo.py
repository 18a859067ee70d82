"""`greenroom demo`, as a command."""

from __future__ import annotations

import click


@click.command("demo")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, when it is over.")
def demo_command(as_json: bool) -> int:
    """See it work: bundled servers called, evicted, crashed and recovered, in a few seconds."""
    from .demo import run_demo

    return run_demo(as_json=as_json)
