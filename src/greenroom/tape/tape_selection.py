"""A part of a tape: of some servers or sessions, from a moment on, or what failed. It is a tape as well, so whatever
shows one shows a part of it.

What a call or a start has waited for, and how long, is reckoned from events that may not be in the part. Moves of
starts are in every part, for nothing shows them alone; the other events before its beginning are kept beside it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import attrs

from ..protocol.lifecycle import Cause, Means
from .tape_events import has_failed
from .tape_lines import EventLine
from .tape_reader import Tape, check_names

FAILURES: Final = frozenset(cause.value for cause in Cause if Means.FAILED in cause.means)


def selected(
    tape: Tape,
    *,
    servers: Collection[str] = (),
    sessions: Collection[str] = (),
    failed: bool = False,
    since: float | None = None,
) -> Tape:
    """The part of the tape with these servers and these sessions (none: with all). A session has, beside its calls,
    what happened to the servers that it called. `failed`: only calls that failed, crashes, and what circuit breakers
    did about them. `since`: from this second on; if negative, counted from the end. Raises `UsageError` for a name
    that is not on the tape."""
    check_names(servers, tape.servers, "server")
    check_names(
        sessions, sorted({call.session for call in tape.calls if call.session is not None}), "session"
    )
    calls = [call for call in tape.calls if not sessions or call.session in sessions]
    shown = set(servers)
    if sessions:
        called = {call.server for call in calls}
        shown = shown & called if shown else called
    begin = _begin(tape, since)

    def is_shown(server: object) -> bool:
        return server in shown if servers or sessions else True

    return attrs.evolve(
        tape,
        calls=tuple(
            call
            for call in calls
            if is_shown(call.server) and call.ended >= begin and (not failed or has_failed(call))
        ),
        events=tuple(
            line
            for line in tape.events
            if is_shown(line.event.get("server"))
            and (_is_move(line) or (line.t >= begin and (not failed or is_failure(line))))
        ),
        before=tuple(
            line
            for line in tape.events
            if is_shown(line.event.get("server")) and line.t < begin and not _is_move(line)
        ),
        listed=()
        if failed
        else tuple(line for line in tape.listed if is_shown(line.server) and line.t >= begin),
        notices=()
        if failed
        else tuple(line for line in tape.notices if is_shown(line.server) and line.t >= begin),
    )


def is_failure(line: EventLine) -> bool:
    """Whether it is a crash, a failed start, a circuit breaker that refuses, or a call that was refused."""
    event = line.event
    if event.get("event") == "Transition":
        return event.get("cause") in FAILURES
    if event.get("event") == "Refusal":
        return True
    return event.get("event") == "BreakerDecision" and event.get("cause") in FAILURES


def _is_move(line: EventLine) -> bool:
    return line.event.get("event") == "StartMoved"


def end_of(tape: Tape) -> float:
    """When the last thing on it happened."""
    times = (
        max((line.t for line in (*tape.events, *tape.listed, *tape.notices)), default=0.0),
        max((call.ended for call in tape.calls), default=0.0),
    )
    return max(times)


def _begin(tape: Tape, since: float | None) -> float:
    if since is None:
        return float("-inf")
    return since if since >= 0 else end_of(tape) + since
