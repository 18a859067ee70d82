"""`greenroom doctor`: what is wrong with the set-up, and what mends it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...protocol.plain_text import counted
from ._common import commands_typed, config_option, load, run_to_end, say
from ._tables import show_lines

if TYPE_CHECKING:
    from .._setup._finding import Finding, Setup

_NAMED = 5
MARKS = {"error": "✗", "warning": "⚠", "note": "·"}


@click.command("doctor")
@click.option("--start", "starts", is_flag=True, help="Start every server once, and say what goes wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
def doctor_command(starts: bool, as_json: bool, config_path: Path | None) -> int:
    """Say what is wrong with the set-up, and what mends it.

    Nothing is started unless you say --start, and nothing is changed. What a running gateway, or else the cache, knows
    of its servers' starts and failures is used. The exit code is 1 when there is an error.
    """
    from .._setup._checks import examine
    from .._setup._finding import Setup, Severity

    config = load(config_path)
    setup = Setup(config, config_path, os.environ, commands_typed())
    found = examine(setup)
    if starts:
        from .._setup._running import FAILED
        from .._setup._trial import try_servers

        found = [one for one in found if one.check != FAILED]  # whether it still fails is seen now
        known = {one.about for one in found if one.severity is Severity.ERROR}
        found += run_to_end(lambda: try_servers(setup, known, say))
    counts = {each.value: sum(one.severity is each for one in found) for each in Severity}
    rows = [one.as_dict() for one in found]
    files = list(config.files)
    unseen = [] if starts else _not_seen(setup)
    show_lines(
        _lines(found, files, len(config.servers), unseen),
        {"findings": rows, "files": files, "notSeenStarting": unseen, **counts},
        as_json,
    )
    return int(counts["error"] > 0)


def _not_seen(setup: Setup) -> list[str]:
    """The servers of which nobody knows how they start."""
    return [server.name for server in setup.in_service() if server.name not in setup.seen_starting]


def _lines(
    found: Sequence[Finding], files: Sequence[str], servers: int, unseen: Sequence[str]
) -> Iterator[str]:
    for one in found:
        yield f"{MARKS[one.severity.value]} {one.about}: {one.what}"
        yield f"    → {one.mend}"
    if not found:
        yield "✓ Nothing is wrong that can be seen without starting a server."
    if unseen:
        names = ", ".join(unseen[:_NAMED]) + (", …" if len(unseen) > _NAMED else "")
        yield f"· How these start is not known here, and --start would look: {names}"
    yield f"{counted(servers, 'server')}, from {', '.join(files) or 'no file'}"
