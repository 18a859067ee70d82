"""Why a server is as it is, in sentences: what it does now, why, and what happens next (`greenroom explain`).

Pure: rows of the status and a configuration in, reasons out. The rows say what is the case, and the configuration what
comes next. If somebody has to do something before the server can be used, the reason comes with a step.

* *The gateway explains its own servers* (`explained`, over the control socket). What is read where the command runs may
  be another configuration: its settings were given as options, its variables by the client that started it. Without a
  gateway nothing runs. Then the row is the cache's, which knows the tools and nothing else.
* *What is wrong* with the set-up is not said here: `cli.checks` finds that, and the command shows it below.
* *The order* is that of the questions: what does it do, since when and until when; what went wrong last; when is it
  tried again; what is known of its tools. No two reasons contradict each other: when a start waits, or calls are
  refused, the first one only says that it does not run.
* *Steps* are commands for this configuration (`Commands`), or a few words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from ..config.model import (
    Config,
    Isolation,
    Lifecycle,
    RestartPolicy,
    ServerDefinition,
    Settings,
    idle_time,
    restart_policy,
)
from ..config.references import isolation_of
from ..protocol.address import DISCOVERY
from ..protocol.events import Place
from ..protocol.lifecycle import State
from ..protocol.status import ServerStatus, about, status_from
from .next_steps import Commands

_SIZES: Final = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))
_AFTER_A_LOSS: Final = {
    RestartPolicy.NEVER: "it stays down until somebody connects it (restartPolicy).",
    RestartPolicy.ON_DEMAND: "the next call starts it again (restartPolicy).",
    RestartPolicy.ALWAYS: "it is started again by itself (restartPolicy).",
}


@attrs.frozen
class Reason:
    """One sentence about a server. `step`: a command, or what to do; None: nobody has to do anything."""

    what: str
    step: str | None = None


@attrs.frozen
class _Of:
    """What the reasons are made of. `is_discovery`: the row shows a discovery, which only asks for its lists."""

    row: ServerStatus
    definition: ServerDefinition
    settings: Settings
    commands: Commands
    is_discovery: bool = False

    @property
    def name(self) -> str:
        return self.row.server

    @property
    def process(self) -> str:
        return f", process {self.row.pid}" if self.row.pid is not None else ""

    @property
    def thing(self) -> str:
        """What it has while it is connected."""
        return "process" if self.definition.command is not None else "connection"


def explained(
    view: Mapping[str, Any], config: Config, server: str, commands: Commands, *, runs: bool
) -> dict[str, Any]:
    """Why this server of a status (`status_view`) is as it is, as plain JSON. `runs`: whether a gateway does. Without
    a row the status does not know the server."""
    row = next((row for row in view["servers"] if row["name"] == server), None)
    if row is None:
        return {"reasons": []}
    others = [one for one in view.get("addresses", ()) if one["name"] == server]
    found = reasons(
        status_from(row),
        config.servers.get(server),
        config.settings,
        commands,
        runs=runs,
        others=[status_from(one) for one in others],
    )
    return {"reasons": [attrs.asdict(one) for one in found], "status": row, "addresses": others}


def reasons(
    row: ServerStatus,
    definition: ServerDefinition | None,
    settings: Settings,
    commands: Commands,
    *,
    runs: bool,
    others: Iterable[ServerStatus] = (),
) -> list[Reason]:
    """Why the server of this row is as it is. `definition`: None when it cannot be used. `others`: the rows of its
    further addresses, one for each session or call. `runs`: whether a gateway does; else nothing can run."""
    name = row.server
    if row.untrusted:
        what = "Its file belongs to this project, and nobody has trusted it yet."
        return [Reason(what, commands.about("trust"))]
    if row.broken is not None or definition is None:
        what = f"It cannot be used: {row.broken or 'its entry is not valid.'}"
        return [Reason(what, f"correct its entry, or: {commands.about('disable', name)}")]
    if row.disabled:
        where = f" in {source}" if (source := definition.sources.get("disabled")) else ""
        return [Reason(f"It is disabled{where}.", commands.about("enable", name))]
    others = list(others)
    of = _Of(row, definition, settings, commands, is_discovery=any(one.scope == DISCOVERY for one in others))
    if not runs:
        step = commands.about("serve", options=("--background",))
        said = [Reason("It does not run: there is no gateway of this configuration.", step)]
        login = [_of_login(of)] if row.needs_auth else []
        return [*said, *login, *_of_trouble(of), *_of_tools(of)]
    sessions = [one for other in others if other.scope != DISCOVERY for one in _of_session(of, other)]
    return [*_of_state(of), *_of_wait(row, settings), *_of_trouble(of), *sessions, *_of_tools(of)]


def _of_session(of: _Of, row: ServerStatus) -> Iterator[Reason]:
    """What one of its further addresses does, waits for and failed with."""
    theirs, before = attrs.evolve(of, row=row), f"For {row.scope}: "
    yield Reason(f"For {row.scope} it is {row.state.value}{theirs.process}; {_calls(row)}.")
    if row.replaced is not None:
        ended = f"its {of.thing} before was ended ({row.replaced}), and what that kept is gone."
        yield Reason(before + ended)
    for one in (*_of_wait(row, of.settings), *_of_trouble(theirs)):
        yield Reason(before + one.what, one.step)


# ---- what it does ----------------------------------------------------------------------------------------------------
def _of_state(of: _Of) -> Iterator[Reason]:
    match of.row.state:
        case State.CONNECTED if of.is_discovery:
            yield Reason(f"It is asked for its lists now{of.process}, and is stopped after that.")
        case State.CONNECTED:
            policy = restart_policy(of.definition, of.settings.restart_policy)
            yield Reason(f"It is connected{of.process}; {_calls(of.row)}.")
            yield Reason(f"{_until(of)} If its {of.thing} is lost, {_AFTER_A_LOSS[policy]}")
        case State.CONNECTING:
            yield _connecting(of)
        case State.DRAINING:
            may = f"its calls in flight ({of.row.in_flight}) may finish (drainTimeoutMs)"
            yield Reason(f"It is being stopped: {may}. Then its {of.thing} is ended.")
        case State.IDLE | State.CLOSED:
            yield _idle(of)


def _connecting(of: _Of) -> Reason:
    row = of.row
    since = "" if row.waiting is None else f" for {row.waiting:.0f} s"
    line = f" Its last line: {row.last_line}" if row.last_line else ""
    if row.waiting_for == "install":
        most = _span(of.definition.install_timeout or of.settings.install_timeout)
        return Reason(
            f"It has been installing its program{since}; the limit is {most} (installTimeoutMs).{line}"
        )
    most = _span(of.definition.connect_timeout or of.settings.connect_timeout)
    return Reason(f"It has been connecting{since}; the limit is {most} (connectTimeoutMs).{line}")


def _idle(of: _Of) -> Reason:
    row, definition = of.row, of.definition
    if row.needs_auth:
        return _of_login(of)
    if row.down is not None:
        return Reason(f"It is down: {row.down}", of.commands.live("reconnect", of.name))
    if row.session_variables:
        names = ", ".join(row.session_variables)
        return Reason(f"It runs only for sessions that give it what its entry asks for: {names}.")
    own = isolation_of(definition, of.settings)
    if own is Isolation.PER_SESSION:
        return Reason(f"It does not run for everybody: each session has its own {of.thing} (isolation).")
    if own is Isolation.PER_CALL:
        return Reason(f"It does not run between calls: each call has its own {of.thing} (isolation).")
    if row.waiting_for is not None or row.retry_in is not None:
        return Reason("It does not run.")
    if definition.lifecycle is Lifecycle.LAZY:
        until = "" if idle_time(definition, of.settings) == math.inf else f" {_until(of)}"
        what = "It does not run, because it is lazy: the next call of one of its tools starts it (lifecycle)."
        return Reason(f"{what}{until}")
    word = definition.lifecycle.value
    what = f"It does not run now, although its lifecycle is {word}. The next call starts it at the latest."
    return Reason(what)


def _of_login(of: _Of) -> Reason:
    return Reason("It refuses every request until somebody logs in.", of.commands.about("auth", of.name))


def _until(of: _Of) -> str:
    if of.definition.lifecycle is Lifecycle.KEEP_ALIVE:
        return "It is kept alive: it is never stopped because nobody calls it (lifecycle)."
    idle = idle_time(of.definition, of.settings)
    if idle == math.inf:
        return "It is never stopped because nobody calls it (idleTimeout)."
    return f"It is stopped when nobody has called it for {_span(idle)} (idleTimeout)."


# ---- what it waits for, and what went wrong --------------------------------------------------------------------------
def _of_wait(row: ServerStatus, settings: Settings) -> Iterator[Reason]:
    """A start that waits for its turn."""
    since = "" if row.waiting is None else f" It has waited for {row.waiting:.0f} s."
    match row.waiting_for:
        case Place.SLOT.value if row.scope.startswith("session:"):
            most = settings.max_session_connections
            what = f"A start waits for a slot: all {most} for children of sessions are taken and were called"
            what = f"{what} within the last minute (maxSessionConnections).{since}"
            yield Reason(
                what, "wait until one has not been called for a minute, or raise maxSessionConnections"
            )
        case Place.SLOT.value:
            most = settings.max_connections
            what = f"A start waits for a slot: all {most} of the pool are taken (maxConnections).{since}"
            yield Reason(what, "wait until another server is idle, or raise maxConnections")
        case Place.PERMIT.value:
            most = settings.start_permits
            start = "1 server starts" if most == 1 else f"{most} servers start"
            yield Reason(f"A start waits for its turn: {start} at a time (startPermits).{since}")
        case Place.TURN.value:
            what = f"A look at its tools waits until fewer servers start (startPermits: {settings.start_permits})."
            yield Reason(f"{what}{since}")
        case Place.INSTALL_TURN.value:
            most = settings.install_turns
            what = f"Its first start waits for its turn: {most} may install at a time (installTurns)."
            yield Reason(f"{what}{since}")
        case Place.BREAKER.value:
            yield Reason(f"A start waits until its circuit breaker lets it pass.{since}")
        case _:  # for nothing, or for its install, which is said above
            pass


def _of_trouble(of: _Of) -> Iterator[Reason]:
    row = of.row
    if row.failure is not None:
        ago = "" if row.failed_ago is None else f" {about(row.failed_ago)} ago"
        often = f" ({row.failed_starts} starts in a row)" if row.failed_starts > 1 else ""
        is_ours = of.definition.command is not None  # a program that we start
        step = of.commands.about("logs", of.name) if is_ours else None
        yield Reason(f"It last failed{ago}{often}: {row.failure}", step)
    if row.quarantined is not None:
        until = "until it answers a call again (restartIntensity, restartPeriodMs)"
        yield Reason(f"It is quarantined, because it was restarted too often ({row.quarantined}), {until}.")
    for at, each in enumerate(row.limited, 1):
        step = "wait: the error of a call says how long; or raise it where it stands"
        yield Reason(f"A limit refuses calls of it: {each}.", step if at == len(row.limited) else None)
    if row.retry_in is not None:
        refuses = f"Its circuit breaker refuses calls for {math.ceil(row.retry_in)} s more"
        step = f"wait, or try it now: {of.commands.live('reconnect', of.name)}"
        yield Reason(f"{refuses} (restartBackoff, cooldownMs).", step)


def _of_tools(of: _Of) -> Iterator[Reason]:
    row = of.row
    if row.tool_count is None:
        has_other_step = row.needs_auth or row.down is not None or row.retry_in is not None
        refresh = of.commands.live("refresh", of.name)
        yield Reason(
            "Nothing is known of its tools yet.",
            None if row.waiting is not None or has_other_step else refresh,
        )
    else:
        are = "1 tool is" if row.tool_count == 1 else f"{row.tool_count} tools are"
        yield Reason(f"{are} known.")
    for problem in row.problems:
        yield Reason(f"Its lists are not whole: {problem}")


def _calls(row: ServerStatus) -> str:
    return f"calls: {row.in_flight} in flight, {row.queued} queued"


def _span(seconds: float) -> str:
    """A time that somebody has set, exactly: in the largest unit of which it is two or more whole ones."""
    for size, unit in _SIZES:
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.12g} s"
