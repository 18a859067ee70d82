"""`greenroom demo`, as a command."""

from __future__ import annotations

import click


@click.command("demo")
def demo_command() -> int:
    """See it work: bundled servers called, evicted, crashed and recovered, in a few seconds."""
    from .demo import run_demo

    return run_demo()
