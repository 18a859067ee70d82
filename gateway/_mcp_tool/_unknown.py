"""The texts about servers of which nothing is known yet. Every look at the catalogue names them, and what
they wait for.

Pure. A server that was never asked may have what was searched for, so "not found" would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ...protocol.lifecycle import State
from ...protocol.status import about, next_try, wait_in_words

if TYPE_CHECKING:
    from ...protocol.status import ServerStatus
    from ._hints import Hints

_SHORT: Final = 160  # characters of a failure in a sentence
_MOST: Final = 20  # servers named in one sentence
_MOST_DETAILED: Final = 500


def is_unknown(row: ServerStatus) -> bool:
    """Whether the server's tools are unknown, although the server could be asked."""
    return row.tool_count is None and not row.disabled and row.broken is None


def waits(row: ServerStatus) -> str:
    """What the server waits for, and since when: `installing for 12 s`."""
    if row.waiting_for == "install":
        return wait_in_words(row.waiting_for, row.waiting, None)
    if row.state is State.CONNECTING:
        return "connecting" if row.waiting is None else f"connecting for {row.waiting:.0f} s"
    if row.needs_auth:
        return "needs a login"
    if row.failed_ago is not None:
        again = f", {next_try(row.retry_in)}" if row.waiting_for and row.retry_in else ""
        return f"failed {about(row.failed_ago)} ago{again}"
    if row.waiting_for is not None:
        return wait_in_words(row.waiting_for, row.waiting, row.retry_in)
    if row.down is not None:
        return "down"
    if row.session_variables:
        return f"asked when a session gives it {', '.join(row.session_variables)}"
    return "not asked yet"


def sentence(rows: Sequence[ServerStatus], hints: Hints) -> str:
    """`Not known yet: context7 (installing for 12 s), time (not asked yet).`, and what to do. Empty for no rows."""
    if not rows:
        return ""
    named = [f"{row.server} ({waits(row)}{_why(row)})" for row in rows[:_MOST]]
    if len(rows) > _MOST:
        named.append(f"and {len(rows) - _MOST} more")
    return hints.between.join((f"Not known yet: {', '.join(named)}.", *_steps(rows, hints)))


def _why(row: ServerStatus) -> str:
    """Why the server failed, shortly."""
    if row.failed_ago is None or not row.failure or row.needs_auth:
        return ""
    why = " ".join(row.failure.split())
    return f": {why if len(why) <= _SHORT else why[:_SHORT] + '…'}"


def _steps(rows: Sequence[ServerStatus], hints: Hints) -> list[str]:
    """What to do about these servers: to ask those that nobody has asked is another thing than to mend one."""
    shut = next((row for row in rows if row.needs_auth), None)
    failed = next((row for row in rows if row.failed_ago is not None and not row.needs_auth), None)
    steps = [] if shut is None else [hints.to_log_in(shut.server)]
    steps += [] if failed is None else [hints.to_mend(failed.server)]
    asked = any(not row.needs_auth and row.failed_ago is None for row in rows)
    return [*steps, hints.learn] if asked else steps


def details(rows: Iterable[ServerStatus]) -> list[dict[str, Any]]:
    """The same for programs. Of thousands of servers only the first 500 are named, because more would not fit
    beside an answer."""
    return [
        {"server": row.server, "name": row.server, "waitsFor": waits(row)}
        | ({"lastLine": row.last_line} if row.last_line else {})
        | ({"failure": row.failure} if row.failure else {})
        for row in islice(rows, _MOST_DETAILED)
    ]
