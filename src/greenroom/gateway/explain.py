"""Why a server is as it is, in sentences: what it does now, why, and what happens next (`greenroom explain`).

Pure: rows of the status and a configuration in, reasons out. The rows say what is the case, and the configuration what
comes next. If somebody has to do something before the server can be used, the reason comes with a step.

* *The gateway explains its own servers* (`explained`, over the control socket). What is read where the command runs may
  be another configuration: its settings were given as options, its variables by the client that started it. Without a
  gateway nothing runs. Then the row is the cache's, which knows the tools and nothing else.
* *What is wrong* with the set-up is not said here: `cli.doctor_checks` finds that, and the command shows it below.
* *The order* is that of the questions: why does it do what its state says; what happens next, and when; what is known
  of its past and of its tools. If it does not run since it failed, that is the reason, so it comes first. The state
  itself, and since when, stands above the reasons (`since`), so no reason says it again.
* *Steps* are commands for this configuration (`Commands`), or a few words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from ..config.model import (
    SERVER_KEY,
    SETTING_KEY,
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
from ..protocol.address import DISCOVERY, HANDSHAKE
from ..protocol.errors import FailureKind
from ..protocol.events import CallAccepted, Event, Place, Transition
from ..protocol.lifecycle import Cause, State
from ..protocol.safe_text import counted, tools_in_words
from ..protocol.status import (
    ServerStatus,
    about,
    scope_in_words,
    silence_in_words,
    status_from,
)
from ..protocol.tree import TreeDeadline
from .next_steps import Commands

RECENT: Final = 600.0  # seconds of the past that a running gateway tells of
_TIMES: Final = 5  # of failures, and callers, that are named
_OTHERS: Final = 2  # other reasons of failures, that are said
_SIZES: Final = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))
_AFTER_A_LOSS: Final = {
    RestartPolicy.NEVER: "it stays down until somebody connects it (restartPolicy).",
    RestartPolicy.ON_DEMAND: "the next call starts it again (restartPolicy).",
    RestartPolicy.ALWAYS: "it is started again by itself (restartPolicy).",
}


@attrs.frozen
class Explanation:
    """One sentence about a server. `step`: a command, or what to do; None: nobody has to do anything. `about`: the
    question that it answers."""

    what: str
    step: str | None = None
    about: str = "state"


@attrs.frozen
class Past:
    """What has happened to a server of late, and what time alone will do to it."""

    failures: Sequence[tuple[float, str]] = ()  # the last first: seconds ago, and why
    callers: Mapping[str, tuple[int, float]] = attrs.field(factory=dict[str, tuple[int, float]])
    # of each caller how many calls, and seconds since the last one
    next: TreeDeadline | None = None
    # Seconds since the last transition of its shared address; None: longer than is known.
    since: float | None = None

    def seconds_left(self, what: str) -> float | None:
        """How long it is until then; None: something else comes first."""
        return self.next.seconds if self.next is not None and self.next.what == what else None

    def told(self) -> Iterator[Explanation]:
        """The failures before the last one, and who has called it."""
        if len(self.failures) > 1:
            *some, last = [about(ago) for ago, _ in self.failures[:_TIMES]]
            times = f"{len(self.failures)} times in the last {_span(RECENT)}"
            latest = f"; the last {_TIMES} times" if len(self.failures) > _TIMES else ""
            when = f"{', '.join(some)} and {last} ago"
            yield Explanation(f"It failed {times}{latest}: {when}.", about="history")
        said = {self.failures[0][1].translate(_NO_DIGITS)} if self.failures else set[str]()
        for ago, why in self.failures:
            if (reason := why.translate(_NO_DIGITS)) not in said and len(said) <= _OTHERS:
                said.add(reason)
                yield Explanation(f"Before, {about(ago)} ago, it failed otherwise: {why}", about="history")
        if self.callers:
            first = sorted(self.callers.items(), key=lambda each: each[1][1])[:_TIMES]
            who = [
                f"{name} ({counted(calls, 'call')}, the last {about(ago)} ago)"
                for name, (calls, ago) in first
            ]
            more = f" and {len(self.callers) - _TIMES} more" if len(self.callers) > _TIMES else ""
            yield Explanation(
                f"Called in the last {_span(RECENT)} by {', '.join(who)}{more}.", about="history"
            )


def past_of(server: str, events: Iterable[Event], now: float, next: TreeDeadline | None) -> Past:
    """The past of this server, from the last events of its room."""
    failures: list[tuple[float, str]] = []
    callers: dict[str, tuple[int, float]] = {}
    since: float | None = None
    for event in events:
        if event.server != server:
            continue
        if isinstance(event, Transition) and event.address is not None and event.address.is_shared:
            since = now - event.at
        if isinstance(event, CallAccepted):
            name = event.client or "the program itself"
            name = "the command line" if name.startswith("command-") else name
            callers[name] = callers.get(name, (0, 0.0))[0] + 1, now - event.at
        elif isinstance(event, Transition) and event.after is State.DRAINING and event.cause in _FAILURES:
            failures.append((now - event.at, event.detail))
    return Past(failures[::-1], callers, next, since)


_FAILURES: Final = (Cause.CONNECT_FAILED, Cause.LOST)
_NO_DIGITS: Final = str.maketrans("", "", "0123456789.")  # how long it took is no other reason
# Where a start waits.
_PLACES: Final = (Place.SLOT, Place.PERMIT, Place.TURN, Place.INSTALL_TURN, Place.BREAKER)
_FAILED: Final = ("failed", "lost")  # states that say when


@attrs.frozen
class _Subject:
    """What the reasons are made of. `is_discovery`: the row shows a discovery, which only asks for its lists."""

    row: ServerStatus
    definition: ServerDefinition
    settings: Settings
    commands: Commands
    is_discovery: bool = False
    past: Past = Past()

    @property
    def name(self) -> str:
        return self.row.server

    @property
    def process(self) -> str:
        return f", process {self.row.pid}" if self.row.pid is not None else ""

    @property
    def follows(self) -> str:
        """What starts it, after a failure, when nothing refuses that any more."""
        if self.definition.lifecycle is Lifecycle.KEEP_ALIVE:
            return "it is started again by itself (lifecycle: keep-alive)"
        return "the next call of one of its tools tries to start it again"

    @property
    def thing(self) -> str:
        """What it has while it is connected."""
        return "process" if self.definition.command is not None else "connection"

    @property
    def failed_last(self) -> bool:
        """Whether it does not run, or connects again, because it failed. If it is down, that says why."""
        row = self.row
        is_up = row.state in (State.CONNECTED, State.DRAINING)
        return row.failure is not None and not (is_up or row.needs_auth or row.down is not None)

    @property
    def needs_program(self) -> bool:
        """Whether its program cannot be run. Until somebody mends that, each new try fails, too."""
        return self.failed_last and self.row.failure_kind == FailureKind.PROGRAM

    def session(self, row: ServerStatus) -> Iterator[Explanation]:
        """What one of its further addresses does, waits for and failed with."""
        whom = scope_in_words(row.scope)
        theirs, before = attrs.evolve(self, row=row), f"For {whom}: "
        yield Explanation(f"For {whom} it is {row.state.value}{theirs.process}; {_calls(row)}.")
        if row.replaced is not None:
            ended = f"its {self.thing} before was ended ({row.replaced}), and what that kept is gone."
            yield Explanation(before + ended)
        for one in (
            *theirs.silence(),
            *theirs.failure(),
            *theirs.quarantine(),
            *theirs.wait(),
            *theirs.trouble(),
        ):
            yield Explanation(before + one.what, one.step)

    def state(self) -> Iterator[Explanation]:
        match self.row.state:
            case State.CONNECTED if self.is_discovery:
                yield Explanation(f"It is asked for its lists now{self.process}, and is stopped after that.")
            case State.CONNECTED:
                policy = restart_policy(self.definition, self.settings.restart_policy)
                runs = f"It runs as process {self.row.pid}" if self.row.pid is not None else "It is connected"
                yield Explanation(f"{runs}; {_calls(self.row)}.")
                yield Explanation(f"{self._until()} If its {self.thing} is lost, {_AFTER_A_LOSS[policy]}")
            case State.CONNECTING:
                yield self._connecting()
            case State.DRAINING:
                calls = counted(self.row.in_flight, "call")
                first = f"{calls} in flight may finish (drainTimeoutMs), then " if self.row.in_flight else ""
                yield Explanation(f"It is being stopped: {first}its {self.thing} is ended.")
            case State.IDLE | State.CLOSED if not self._waits:
                yield self._idle()
            case State.IDLE | State.CLOSED:  # what it waits for is said
                pass

    @property
    def _waits(self) -> bool:
        return self.row.waiting_for in {place.value for place in _PLACES}

    def _connecting(self) -> Explanation:
        row = self.row
        line = f" Its last line: {row.last_line}" if row.last_line else ""
        if row.waiting_for == "install":
            most = _span(self.definition.install_timeout or self.settings.install_timeout)
            return Explanation(
                f"Its command installs the program first; the limit is {most} (installTimeoutMs).{line}"
            )
        usual = self.definition.connect_timeout or self.settings.connect_timeout
        most, left = f"{_span(usual)} (connectTimeoutMs)", self.past.seconds_left("connect timeout")
        more = "" if left is None else f"This try may take {_span(math.ceil(left))} more"
        if (row.waiting or 0.0) + (left or 0.0) > usual + 1.0:
            patient = f"one in the background has more time than {most}"
            return Explanation(f"{more or 'This try goes on'}: {patient}.{line}")
        limit = f"{more} (connectTimeoutMs)" if more else f"This try may take {most}"
        return Explanation(f"{limit}.{line}")

    def _idle(self) -> Explanation:
        row, definition = self.row, self.definition
        if row.needs_auth:
            return self.login()
        if row.down is not None:
            return Explanation(row.down, self.commands.live("reconnect", self.name))
        if row.retry_in is not None:
            return self._refuses()
        if row.session_variables:
            names = ", ".join(row.session_variables)
            return Explanation(f"It runs only for sessions that give it what its entry asks for: {names}.")
        own = isolation_of(definition, self.settings)
        if own is Isolation.PER_SESSION:
            return Explanation(f"It has no shared {self.thing}: each session has its own (isolation).")
        if own is Isolation.PER_CALL:
            return Explanation(
                f"It does not run between calls: each call has its own {self.thing} (isolation)."
            )
        if row.next_try is not None:
            return Explanation(f"It is tried again by a call, or by itself in {about(row.next_try)}.")
        if self._waits_for_change:
            return Explanation("It is tried again when its entry, its command or its files change.")
        if self.failed_last:
            return Explanation(f"{self.follows[0].upper()}{self.follows[1:]}.")
        if definition.lifecycle is Lifecycle.LAZY:
            what = "It does not run, because it is lazy (lifecycle): the next call of one of its tools starts it."
            idle = idle_time(definition, self.settings)
            if idle == math.inf:
                return Explanation(what)
            return Explanation(
                f"{what} It is stopped again when nobody has called it for {_span(idle)} (idleTimeout)."
            )
        word = definition.lifecycle.value
        what = (
            f"It does not run now, although its lifecycle is {word}. The next call starts it at the latest."
        )
        return Explanation(what)

    @property
    def _waits_for_change(self) -> bool:
        """Whether its discovery has failed for a reason that no second try can mend."""
        is_tried = self.definition.bootstrap and self.settings.bootstrap
        is_lasting = self.row.failure_kind == FailureKind.PROGRAM
        return is_lasting and is_tried and self.row.tool_count is None

    def login(self) -> Explanation:
        what = 'It refuses every request until somebody logs in, or its entry has its token ("bearerToken").'
        return Explanation(what, self.commands.about("auth", self.name))

    def _until(self) -> str:
        if self.definition.lifecycle is Lifecycle.KEEP_ALIVE:
            return "It is kept alive: it is never stopped because nobody calls it (lifecycle)."
        idle = idle_time(self.definition, self.settings)
        if idle == math.inf:
            return "It is never stopped because nobody calls it (idleTimeout)."
        if left := self.past.seconds_left("idle eviction"):
            # Mostly it was started for its lists alone, and ends sooner than its idle time.
            if self.past.since is not None and not self.past.callers:
                soon = about(math.ceil(left))
                return f"Nobody has called it since it started; it is stopped in {soon} unless somebody does."
            return f"It is stopped in {about(math.ceil(left))} unless somebody calls it (idleTimeout)."
        return f"It is stopped when nobody has called it for {_span(idle)} (idleTimeout)."

    def wait(self) -> Iterator[Explanation]:
        """A start that waits for its turn."""
        row, settings = self.row, self.settings
        is_said = row.waiting is None or row.word == "waiting"  # above the reasons
        since = "" if is_said else f" It has waited for {row.waiting:.0f} s."
        match row.waiting_for:
            case Place.SLOT.value if row.scope.startswith("session:"):
                most = settings.max_session_connections
                what = (
                    f"A start waits for a slot: all {most} for children of sessions are taken and were called"
                )
                what = f"{what} within the last minute (maxSessionConnections).{since}"
                yield Explanation(
                    what, "wait until one has not been called for a minute, or raise maxSessionConnections"
                )
            case Place.SLOT.value:
                most = settings.max_connections
                what = f"A start waits for a slot: all {most} of the pool are taken (maxConnections).{since}"
                yield Explanation(what, "wait until another server is idle, or raise maxConnections")
            case Place.PERMIT.value:
                most = settings.start_permits
                start = "1 server starts" if most == 1 else f"{most} servers start"
                yield Explanation(f"A start waits for its turn: {start} at a time (startPermits).{since}")
            case Place.TURN.value:
                what = f"A look at its tools waits until fewer servers start (startPermits: {settings.start_permits})."
                yield Explanation(f"{what}{since}")
            case Place.INSTALL_TURN.value:
                most = settings.install_turns
                what = f"Its first start waits for its turn: {most} may install at a time (installTurns)."
                yield Explanation(f"{what}{since}")
            case Place.BREAKER.value if row.retry_in is None:  # else that says it
                yield Explanation(f"A start waits until its circuit breaker lets it pass.{since}")
            case _:  # for nothing, or for its install, which is said above
                pass

    def failure(self) -> Iterator[Explanation]:
        """How it failed last, and when, if its state does not say that."""
        row = self.row
        if row.failure is not None and row.failure not in (row.down or ""):
            is_said = row.failed_ago is None or (row.scope == "shared" and row.word in _FAILED)
            ago = "" if is_said else f" {about(row.failed_ago or 0.0)} ago"
            often = f" ({row.failed_starts} in a row)" if row.failed_starts > 1 else ""
            lost = "It ended" if self.definition.command is not None else "Its connection was lost"
            last = f"Its last start failed{ago}{often}" if row.failed_starts else f"{lost} while it ran{ago}"
            step = None
            if self.needs_program:
                step = "install its program, or correct its entry"
            elif self.definition.command is not None:  # a program that we start
                step = self.commands.about("logs", self.name)
            yield Explanation(f"{last}: {row.failure}", step, "failure")

    def silence(self) -> Iterator[Explanation]:
        """That it runs, and does not answer: that is its state, before anything else."""
        if silence_in_words(self.row.silent_failures):
            most = f"After {self.settings.failure_threshold} failures in a row (failureThreshold)"
            then = f"{most} its {self.thing} is ended, and its circuit breaker refuses calls (cooldownMs)."
            what = f"Its last call timed out, and nothing else was heard of it. {then}"
            yield Explanation(what, self.commands.live("reconnect", self.name), "calls")

    def quarantine(self) -> Iterator[Explanation]:
        """Why it is kept out longer than a failure alone would do."""
        if self.row.quarantined is not None:
            until = "until it answers a call again (restartIntensity, restartPeriodMs)"
            what = f"It is quarantined, because it was restarted too often ({self.row.quarantined}), {until}."
            yield Explanation(what, about="calls")

    def trouble(self) -> Iterator[Explanation]:
        """What refuses its calls."""
        row = self.row
        for at, each in enumerate(row.limited, 1):
            step = "wait: the error of a call says how long; or raise it where it stands"
            yield Explanation(
                f"A limit refuses calls of it: {each}.", step if at == len(row.limited) else None, "calls"
            )
        rests = row.scope == "shared" and row.state in (State.IDLE, State.CLOSED) and not self._waits
        if row.retry_in is not None and not rests:  # else that is its state
            yield self._refuses()

    def _refuses(self) -> Explanation:
        """That its circuit breaker is open, and what comes then."""
        left, itself = math.ceil(self.row.retry_in or 0.0), self.row.next_try
        refuses = f"Its circuit breaker refuses calls for {about(left)} more (restartBackoff, cooldownMs)"
        if self._waits or (itself is not None and itself <= left + 1):
            then = "; then it is tried again by itself"
        elif itself is not None:
            then = f"; it is tried again by itself in {about(itself)}"
        else:
            then = f"; then {self.follows}" if self.failed_last else ""
        retry = f"when the cause is mended, do not wait: {self.commands.live('refresh', self.name)}"
        return Explanation(f"{refuses}{then}.", None if self.needs_program else retry, "calls")

    def tools(self) -> Iterator[Explanation]:
        row = self.row
        if row.tool_count is None:
            is_kept_back = row.needs_auth or row.down is not None or row.retry_in is not None
            has_other_step = is_kept_back or self.needs_program
            refresh = self.commands.live("refresh", self.name)
            refresh = f"try it now: {refresh}" if self.failed_last else refresh
            yield Explanation(
                "Its tools are not known yet.",
                None if row.waiting is not None or has_other_step else refresh,
                "tools",
            )
        else:
            yield Explanation(f"Known: {tools_in_words(row.tool_count, row.resource_count)}.", about="tools")
        for problem in row.problems:
            yield Explanation(f"Its lists are not whole: {problem}", about="tools")


def policies(definition: ServerDefinition, config: Config) -> list[dict[str, str]]:
    """The policies that the server follows: each by its key, its value, and the file that says so ("": none does)."""
    settings = config.settings
    idle = idle_time(definition, settings)
    found = [
        ("lifecycle", definition.lifecycle.value),
        ("isolation", isolation_of(definition, settings).value),
        ("restartPolicy", restart_policy(definition, settings.restart_policy).value),
        ("idleTimeout", "never" if idle == math.inf else _span(idle)),
        ("connectTimeoutMs", _span(definition.connect_timeout or settings.connect_timeout)),
        ("failureThreshold", str(settings.failure_threshold)),
        ("cooldownMs", _span(settings.cooldown)),
    ]
    return [
        {
            "key": key,
            "value": value,
            "file": definition.sources.get(SERVER_KEY[key].attribute if key in SERVER_KEY else "")
            or config.setting_sources.get(SETTING_KEY[key].attribute if key in SETTING_KEY else "", ""),
        }
        for key, value in found
    ]


def explained(
    view: Mapping[str, Any],
    config: Config,
    server: str,
    commands: Commands,
    *,
    runs: bool,
    past: Past | None = None,
) -> dict[str, Any]:
    """Why this server of a status (`status_view`) is as it is, as plain JSON. `runs`: whether a gateway does. Without
    a row the status does not know the server."""
    row = next((row for row in view["servers"] if row["name"] == server), None)
    if row is None:
        return {"reasons": []}
    others = [one for one in view.get("addresses", ()) if one["name"] == server]
    past = past or Past()
    found = reasons(
        status_from(row),
        config.servers.get(server),
        config.settings,
        commands,
        runs=runs,
        others=[status_from(one) for one in others],
        past=past,
    )
    definition = config.servers.get(server)
    follows = [] if definition is None or server in config.broken else policies(definition, config)
    said = {"reasons": [attrs.asdict(one) for one in found], "policies": follows}
    return {**said, "since": _since(row, past), "status": row, "addresses": others}


def _since(row: Mapping[str, Any], past: Past) -> float | None:
    """How long it has been in the state of this row."""
    if row["status"] in _FAILED:
        return row["failedAgo"]
    if row["state"] == State.CONNECTED.value:
        return past.since
    return row["waiting"] if row["status"] in ("connecting", "installing", "waiting") else None


def reasons(
    row: ServerStatus,
    definition: ServerDefinition | None,
    settings: Settings,
    commands: Commands,
    *,
    runs: bool,
    others: Iterable[ServerStatus] = (),
    past: Past = Past(),
) -> list[Explanation]:
    """Why the server of this row is as it is. `definition`: None when it cannot be used. `others`: the rows of its
    further addresses, one for each session or call. `runs`: whether a gateway does; else nothing can run."""
    name = row.server
    if row.untrusted:
        what = "Its file belongs to this project, and nobody has trusted it yet."
        return [Explanation(what, commands.about("trust"))]
    if row.broken is not None or definition is None:
        what = f"It cannot be used: {row.broken or 'its entry is not valid.'}"
        return [Explanation(what, f"correct its entry, or: {commands.about('disable', name)}")]
    if row.disabled:
        where = f" in {source}" if (source := definition.sources.get("disabled")) else ""
        return [Explanation(f"It is disabled{where}.", commands.about("enable", name))]
    others = list(others)
    is_discovery = any(one.scope == DISCOVERY for one in others)
    subject = _Subject(row, definition, settings, commands, is_discovery=is_discovery, past=past)
    if runs:
        # What only older clients use stands beside the shared address, which rests then.
        resting = (State.IDLE, State.CLOSED)
        is_up = any(one.scope == HANDSHAKE and one.state not in resting for one in others)
        here = [*subject.wait()] if is_up and row.state in resting else [*subject.state(), *subject.wait()]
        sessions = [one for other in others if other.scope != DISCOVERY for one in subject.session(other)]
    else:
        what = "It does not run, because no gateway of this configuration does."
        idle = Explanation(what, commands.about("serve", options=("--background",)))
        here = [] if subject.failed_last else [idle]  # else its failure is the reason
        here, sessions = [*here, *([subject.login()] if row.needs_auth else [])], []
    here = [*subject.silence(), *subject.quarantine(), *here]
    first, then = (subject.failure(), here) if subject.failed_last else (here, subject.failure())
    return [*first, *then, *subject.trouble(), *past.told(), *sessions, *subject.tools()]


def _calls(row: ServerStatus) -> str:
    if not row.in_flight and not row.queued:
        return "no calls now"
    return f"calls: {row.in_flight} in flight, {row.queued} queued"


def _span(seconds: float) -> str:
    """A time that somebody has set, exactly: in the largest unit of which it is two or more whole ones."""
    for size, unit in _SIZES:
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.12g} s"
