"""Why a server is as it is, in sentences: what it does now, why, and what happens next (`greenroom explain`).

Pure: a row of the status, the definition and the settings in, reasons out. The row says what is the case, and the two
others what comes next. If somebody has to do something before the server can be used, the reason comes with a command.

* *What is wrong* with the set-up is not said here: `_checks` finds that, and the command shows it below.
* *The order* is that of the questions: what does it do, since when and until when; what went wrong last; when is it
  tried again; what is known of its tools.
* Without a gateway nothing runs. Then the row is the cache's, which knows the tools and nothing else.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from ...protocol.config import Isolation, Lifecycle, RestartPolicy, ServerDefinition, Settings
from ...protocol.effective import idle_time, restart_policy
from ...protocol.lifecycle import State
from ...protocol.start import Place
from ...protocol.status import ServerStatus

_AFTER_A_LOSS: Final = {
    RestartPolicy.NEVER: "If its process is lost it stays down until somebody connects it (restartPolicy).",
    RestartPolicy.ON_DEMAND: "If its process is lost the next call starts it again (restartPolicy).",
    RestartPolicy.ALWAYS: "If its process is lost it is started again at once (restartPolicy).",
}
_NO_GATEWAY: Final = "greenroom serve, or greenroom init CLIENT and a start of that client"


@attrs.frozen
class Reason:
    """One sentence about a server. `step`: a command, or what to do; None: nobody has to do anything."""

    what: str
    step: str | None = None


def reasons(
    row: ServerStatus, definition: ServerDefinition | None, settings: Settings, *, runs: bool
) -> list[Reason]:
    """Why the server of this row is as it is. `definition`: None when it cannot be used. `runs`: whether a gateway
    does; else nothing can run."""
    name = shlex.quote(row.server)
    if row.untrusted:
        return [Reason("Its file belongs to this project, and nobody has trusted it yet.", "greenroom trust")]
    if row.broken is not None or definition is None:
        return [
            Reason(f"It cannot be used: {row.broken}", f"correct its entry, or: greenroom disable {name}")
        ]
    if row.disabled:
        where = f" in {source}" if (source := definition.sources.get("disabled")) else ""
        return [Reason(f"It is disabled{where}.", f"greenroom enable {name}")]
    if not runs:
        said = [Reason("It does not run: there is no gateway of this configuration.", _NO_GATEWAY)]
        return [*said, *_of_tools(row, name)]
    return [
        *_of_state(row, definition, settings),
        *_of_wait(row, settings),
        *_of_trouble(row, name),
        *_of_tools(row, name),
    ]


def of_sessions(rows: Iterable[ServerStatus]) -> Iterator[Reason]:
    """What its further addresses do: one for each session, or for each call."""
    for row in rows:
        pid = f", process {row.pid}" if row.pid is not None else ""
        yield Reason(f"For {row.scope} it is {row.state.value}{pid}; {_calls(row)}.")


# ---- what it does ----------------------------------------------------------------------------------------------------


def _of_state(row: ServerStatus, definition: ServerDefinition, settings: Settings) -> Iterator[Reason]:
    match row.state:
        case State.CONNECTED:
            pid = f", process {row.pid}" if row.pid is not None else ""
            yield Reason(f"It is connected{pid}; {_calls(row)}.")
            yield Reason(f"{_until(definition, settings)} {_AFTER_A_LOSS[_policy(definition, settings)]}")
        case State.CONNECTING:
            yield _connecting(row, definition, settings)
        case State.DRAINING:
            yield Reason(
                f"It is being stopped: its calls in flight ({row.in_flight}) may finish. Then its process is ended."
            )
        case State.IDLE | State.CLOSED:
            yield _resting(row, definition, settings)


def _connecting(row: ServerStatus, definition: ServerDefinition, settings: Settings) -> Reason:
    since = "" if row.waiting is None else f" for {row.waiting:.0f} s"
    line = f" Its last line: {row.last_line}" if row.last_line else ""
    if row.waiting_for == "install":
        most = definition.install_timeout or settings.install_timeout
        return Reason(f"Its program is being installed{since}, at most {most:g} s (installTimeoutMs).{line}")
    most = definition.connect_timeout or settings.connect_timeout
    return Reason(f"It has been connecting{since}, at most {most:g} s (connectTimeoutMs).{line}")


def _resting(row: ServerStatus, definition: ServerDefinition, settings: Settings) -> Reason:
    name = shlex.quote(row.server)
    if row.down is not None:
        return Reason(f"It is down: {row.down}", f"greenroom reconnect {name}")
    if row.needs_auth:
        return Reason("It refuses every request until somebody logs in.", f"greenroom auth {name}")
    if row.session_variables:
        names = ", ".join(row.session_variables)
        return Reason(f"It runs only for sessions that give it what its entry asks for: {names}.")
    own = definition.isolation or settings.isolation or Isolation.PERSISTENT
    if own is Isolation.PER_SESSION:
        return Reason("It does not run for everybody: each session has its own process (isolation).")
    if own is Isolation.PER_CALL:
        return Reason("It does not run between calls: each call has its own process (isolation).")
    if definition.lifecycle is Lifecycle.LAZY:
        idle = idle_time(definition, settings)
        rest = (
            ""
            if idle == math.inf
            else f" It is stopped when nobody has called it for {_time(idle)} (idleTimeout)."
        )
        return Reason(
            f"It does not run, because it is lazy: the next call of one of its tools starts it.{rest}"
        )
    word = definition.lifecycle.value
    return Reason(
        f"It does not run now, although its lifecycle is {word}. The next call starts it at the latest."
    )


def _until(definition: ServerDefinition, settings: Settings) -> str:
    if definition.lifecycle is Lifecycle.KEEP_ALIVE:
        return "It is kept alive: it is never stopped because nobody calls it (lifecycle)."
    idle = idle_time(definition, settings)
    if idle == math.inf:
        return "It is never stopped because nobody calls it (idleTimeout)."
    return f"It is stopped when nobody has called it for {_time(idle)} (idleTimeout)."


def _policy(definition: ServerDefinition, settings: Settings) -> RestartPolicy:
    return restart_policy(definition, settings.restart_policy)


# ---- what it waits for, and what went wrong --------------------------------------------------------------------------


def _of_wait(row: ServerStatus, settings: Settings) -> Iterator[Reason]:
    """A start that waits for its turn."""
    since = "" if row.waiting is None else f" It has waited for {row.waiting:.0f} s."
    match row.waiting_for:
        case Place.SLOT.value:
            most = settings.max_connections
            what = f"A start waits for a slot: all {most} of the pool are taken (maxConnections).{since}"
            yield Reason(what, "wait until another server is idle, or raise maxConnections")
        case Place.PERMIT.value:
            most = settings.start_permits
            yield Reason(f"A start waits for its turn: {most} servers start at a time (startPermits).{since}")
        case Place.INSTALL_TURN.value | Place.TURN.value:
            most = settings.install_turns
            yield Reason(
                f"Its first start waits for its turn: {most} may install at a time (installTurns).{since}"
            )
        case Place.GATE.value:
            yield Reason(f"A start waits until its gate opens.{since}")
        case _:  # for nothing, or for its install, which is said above
            pass


def _of_trouble(row: ServerStatus, name: str) -> Iterator[Reason]:
    if row.failure is not None:
        ago = "" if row.failed_ago is None else f" {_time(row.failed_ago)} ago"
        yield Reason(f"It last failed{ago}: {row.failure}")
    if row.retry_in is not None:
        what = f"Its gate is shut after that: calls are refused for {math.ceil(row.retry_in)} s more."
        yield Reason(what, f"wait, or try it now: greenroom reconnect {name}")


def _of_tools(row: ServerStatus, name: str) -> Iterator[Reason]:
    if row.tool_count is None:
        is_on_its_way = row.waiting is not None
        yield Reason(
            "Nothing is known of its tools yet.", None if is_on_its_way else f"greenroom refresh {name}"
        )
    else:
        are = "1 tool is" if row.tool_count == 1 else f"{row.tool_count} tools are"
        yield Reason(f"{are} known.")
    for problem in row.problems:
        yield Reason(f"Its lists are not whole: {problem}")


def _calls(row: ServerStatus) -> str:
    return f"calls: {row.in_flight} in flight, {row.queued} queued"


def _time(seconds: float) -> str:
    """A span of time in the largest unit in which it is two or more."""
    for size, unit in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
