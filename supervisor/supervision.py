"""Supervision: the decisions that a server actor may not make itself.

This is the `Supervisor` of every server actor. It is plain functions called from inside an actor's step, so a
decision is never out of date when the actor acts on it. The policies are pure objects in modules of their own
(`circuit_breaker`, `pool`); the table of endings, `AFTERMATH`, is below. The circuit breaker decides whether a call may
be accepted, the starter when an actor may start, and `what_follows` what happens after an ending. `discovery` is told
when a server has given its lists.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from ..actors.call import Call
from ..actors.event_stream import EventStream
from ..actors.host import Declaration
from ..actors.peer import Handshake, Listing
from ..actors.room_context import RoomContext
from ..actors.server import Decision, Next, ServerActor
from ..catalogue.entries import NOT_PINNED, LastFailure, ServerEntry
from ..catalogue.fingerprints import changed_in_words, flapping_in_words, kind_of
from ..catalogue.quarantine import NOTHING, Quarantine
from ..config.model import (
    Config,
    Lifecycle,
    Pinning,
    RestartPolicy,
    ServerDefinition,
    idle_time,
    restart_policy,
)
from ..protocol.address import Address
from ..protocol.errors import CallError, RoomClosed
from ..protocol.events import EndDecision, Note, NoteCode, Place
from ..protocol.lifecycle import Cause, Ending, Means, State
from ..safety.pinning import in_quarantine
from .admission import Starter, made_out_to
from .circuit_breaker import breaker_of
from .discovery import Discovery
from .login_watch import LoginWatch
from .records import (
    Availability,
    Directory,
    ServerRecord,
    Use,
    call_is_over,
    down_after,
    down_with,
    needs_login,
    on_its_way_out,
    quarantine,
    record_of,
)


# ---- what follows --------------------------------------------------------------------------------------------------
def heed_changes(
    events: EventStream, root: Directory, config: Config, before: ServerEntry | None, entry: ServerEntry
) -> None:
    """Refuse whatever would use what has changed, waiting calls too. Report what was not known `before` to have
    changed."""
    definition, changed = config.servers.get(entry.server), entry.pinned.changed
    pinning = (definition.pinning if definition is not None else None) or config.settings.pinning
    keep_out = Quarantine(changed, entry) if pinning is Pinning.QUARANTINE else NOTHING
    record = root.records.get(entry.server)
    if record is None or (not changed and not record.quarantined):
        return
    known = before.pinned if before is not None else NOT_PINNED
    new = [pin for pin in changed if pin not in known.changed]
    if new and pinning is not Pinning.OFF:
        use = "callable" if all(kind_of(pin) == "tool" for pin in new) else "usable"
        words = f"{changed_in_words(entry.server, new)}: {'not' if keep_out else 'still'} {use}"
        events.emit(Note, Address(entry.server), code=NoteCode.CHANGED, words=words)
    flaps = sorted(entry.pinned.flapping - known.flapping)
    if flaps and pinning is Pinning.QUARANTINE:
        words = flapping_in_words(entry.server, flaps)
        events.emit(Note, Address(entry.server), code=NoteCode.CHANGED, words=words)
    quarantine(record, keep_out)
    for each in root.actors_of(entry.server):
        quarantine(record_of(each), keep_out)
        each.calls.waiting.refuse_each(partial(in_quarantine, each))


class After(msgspec.Struct, frozen=True):
    then: Next
    fails_queued: bool  # queued calls fail now; else they wait


_LAZY, _EAGER, _KEEP = Lifecycle.LAZY, Lifecycle.EAGER, Lifecycle.KEEP_ALIVE


def _same(after: After) -> Mapping[Lifecycle, After]:
    return MappingProxyType(dict.fromkeys(Lifecycle, after))


_IDLE = _same(After(Next.IDLE, fails_queued=False))
_DOWN = _same(After(Next.DOWN, fails_queued=True))
_GONE = _same(After(Next.GONE, fails_queued=True))
_RENEW = MappingProxyType(
    {
        _LAZY: After(Next.IDLE, fails_queued=False),
        _EAGER: After(Next.CONNECT, fails_queued=False),
        _KEEP: After(Next.CONNECT, fails_queued=False),
    }
)
AFTERMATH: Final[Mapping[Cause, Mapping[Lifecycle, After]]] = MappingProxyType(
    {
        Cause.IDLE_TIMEOUT: _IDLE,
        Cause.EVICTED: _IDLE,
        Cause.CONNECT_FAILED: MappingProxyType(
            {
                _LAZY: After(Next.IDLE, fails_queued=True),
                _EAGER: After(Next.IDLE, fails_queued=True),
                _KEEP: After(Next.CONNECT, fails_queued=True),
            }
        ),
        Cause.LOST: _IDLE,  # refined by the restart policy, as
        Cause.BUG: _IDLE,
        Cause.MOVED: _RENEW,
        Cause.RESTART: _RENEW,
        Cause.RELOAD: _RENEW,
        Cause.NEEDS_AUTH: _DOWN,
        Cause.DRAINED: _DOWN,
        Cause.DISABLED: _DOWN,
        Cause.REMOVED: _GONE,
        Cause.SCOPE_ENDED: _GONE,
        Cause.SHUTDOWN: _DOWN,
    }
)
_LOST: Final = {
    RestartPolicy.NEVER: After(Next.DOWN, fails_queued=True),
    RestartPolicy.ON_DEMAND: After(Next.IDLE, fails_queued=False),
    RestartPolicy.ALWAYS: After(Next.CONNECT, fails_queued=False),
}


def after(cause: Cause, definition: ServerDefinition, general: RestartPolicy | None = None) -> After:
    """What happens after this ending of a shared or session address. (`call:` addresses never restart.)"""
    if cause in (Cause.LOST, Cause.BUG):
        return _LOST[restart_policy(definition, general)]
    return AFTERMATH[cause][definition.lifecycle]


# Takes the lists that a server has given, with their revision.
Learner = Callable[[ServerActor, Handshake, Listing, int], None]
# Called when a server has failed, and when it works (None).
Failing = Callable[[str, LastFailure | None], None]


class Supervision:
    def __init__(
        self,
        context: RoomContext,
        directory: Directory,
        learn: Learner,
        discovered: Callable[[str], None],
        failing: Failing,
    ) -> None:
        self.starter: Starter = Starter(context, directory)
        self.discovery: Discovery = Discovery(directory, self.starter, discovered)
        self._context = context
        self._directory = directory
        self._learn = learn
        self._failing = failing
        self._on_closed: dict[ServerActor, list[Callable[[], None]]] = {}
        self.logins: LoginWatch = LoginWatch(context, directory, self._logged_in)

    # ---- what the room asks -----------------------------------------------------------------------------------------

    def discover_apart(
        self, server: str, session: str | None, over: Callable[[ServerActor], None]
    ) -> ServerActor:
        """Start a server without a shared address once, for a caller in this session (or in none) who wants to know
        what it has. Calls `over(actor)` at the end. Raises the error that would refuse a call."""
        actor = self.discovery.apart(server, session)
        self.on_closed(actor, lambda: over(actor))
        self.starter.request_by_policy(actor)
        return actor

    def on_closed(self, actor: ServerActor, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the actor's incarnation has closed."""
        self._on_closed.setdefault(actor, []).append(callback)

    def release(self) -> None:
        """The room has ended: release everybody who still waits for an actor to close."""
        waiting, self._on_closed = self._on_closed, {}
        for callbacks in waiting.values():
            for callback in callbacks:
                callback()

    # ---- calls ------------------------------------------------------------------------------------------------------

    def refusal(self, actor: ServerActor, call: Call) -> CallError | None:
        record = record_of(actor)
        standing = self._directory.closing or record.refusal or refusal_on_the_way_out(actor)
        if standing is not None:
            return made_out_to(actor.address.server, standing)
        return in_quarantine(actor, call) or record.breaker.refuses(actor, call)

    def may_send(self, actor: ServerActor, call: Call) -> bool:
        return breaker_of(actor).may_send(call)

    def answered(self, actor: ServerActor, call: Call) -> None:
        breaker_of(actor).answered(self._context.backend.now() - actor.connected_at)

    def declaration(self, actor: ServerActor, call: Call) -> Declaration:
        return self._directory.sessions.declaration(call.client, actor.address)

    def log_level(self, actor: ServerActor, call: Call) -> str | None:
        wanted = self._directory.log_levels.least(call.client, actor.address.server)
        return wanted or self.declaration(actor, call).log_level

    def silent(self, actor: ServerActor) -> bool:
        return breaker_of(actor).timed_out()

    def call_unanswered(self, actor: ServerActor, call: Call) -> None:
        breaker_of(actor).call_unanswered(actor, call)

    # ---- the start of an incarnation --------------------------------------------------------------------------------

    def request_start(self, actor: ServerActor) -> None:
        self.starter.request(actor)

    def withdraw_start(self, actor: ServerActor) -> None:
        self.starter.withdraw(actor)

    def ready(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        record = record_of(actor)
        holds_none = handshake.is_stateless and record.definition.url is not None
        record.start_took = record.server.start_took = actor.connected_at - actor.start.since
        self.starter.admission.move(actor, Place.OUT if holds_none else Place.LIVE)
        actor.start.by_policy = False
        if handshake.is_its_choice:
            record.server.era_hint = handshake.protocol_version
        self._failing(actor.address.server, None)
        record.note_success()
        record.breaker.connected(actor)
        self._learn(actor, handshake, listing, revision)
        self.discovery.learned(actor)

    def listed(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        record_of(actor).note_success()
        self._learn(actor, handshake, listing, revision)

    # ---- an idle connection -----------------------------------------------------------------------------------------

    def became_idle(self, actor: ServerActor) -> None:
        self.starter.admission.became_idle(actor)

    def leaving(self, actor: ServerActor) -> None:
        if actor.start.place is Place.LIVE:
            self.starter.admission.starts.move(actor, Place.LEAVING)

    def may_expire(self, actor: ServerActor) -> bool:
        return self.starter.admission.may_expire(actor)

    def health_interval(self, actor: ServerActor) -> float:
        keeps = actor.record.definition.lifecycle is Lifecycle.KEEP_ALIVE and actor.address.is_shared
        return (self._context.settings.health_interval or math.inf) if keeps else math.inf

    def idle_timeout(self, actor: ServerActor) -> float:
        if actor.subscriptions.uris:
            return math.inf
        if not actor.address.is_shared:
            return math.inf  # a session's child ends with its session, a call's child with its call
        return idle_time(actor.record.definition, self._context.settings)

    # ---- the end of an incarnation ----------------------------------------------------------------------------------

    def failed(self, actor: ServerActor, ending: Ending) -> None:
        """Count the failure at once, so that calls are refused while the old process tree is being stopped."""
        if not ending.cause.has(Means.FAILED):
            return  # it is being stopped already, for a stronger cause
        record, now = record_of(actor), self._context.backend.now()
        if not actor.address.is_call:
            actor.start.after_failure = True
        failed_starts = record.server.failed_starts + ending.cause.has(Means.NO_START)
        record.note_failure(ending.detail, now, failed_starts)
        self._failing(actor.address.server, LastFailure(time.time(), ending.detail, failed_starts))
        record.breaker.failed(ending)

    def stopped_for_bug(self, actor: ServerActor) -> None:
        self.discovery.tried(actor, is_over=True)
        actor.start.by_policy = False
        if actor.life.state is State.IDLE:
            self.starter.admission.move(actor, Place.OUT)
        elif actor.start.place is Place.STARTING:
            # Its permit is free now; its slot is free when its tree is gone.
            self.starter.admission.move(actor, Place.LEAVING)
        breaker_of(actor).probe_left(actor)

    def closed(self, actor: ServerActor, ending: Ending) -> Decision:
        try:
            return self._after(actor, ending)
        finally:
            for callback in self._on_closed.pop(actor, ()):
                callback()

    def _after(self, actor: ServerActor, ending: Ending) -> Decision:
        actor.start.by_policy = False
        if not ending.cause.has(Means.FAILED):
            # Before its place goes to the next actor, which may be of the same server.
            breaker_of(actor).probe_left(actor)
        self.starter.admission.move(actor, Place.OUT)
        is_closing = self._directory.closing is not None
        general = self._context.settings.restart_policy
        decision = what_follows(actor, ending, general, is_closing=is_closing)
        if record_of(actor).available.use is Use.NEEDS_LOGIN:
            self.logins.parked(actor.address.server)
            self._failing(actor.address.server, LastFailure(time.time(), ending.detail, needs_login=True))
        if decision.then is Next.GONE and not is_closing:
            self._directory.forget(actor)
        actor.start.by_policy = decision.then is Next.CONNECT
        is_over = decision.then is not Next.CONNECT
        if is_over or ending.cause.has(Means.NO_START):  # an incarnation that only made way was not a try
            self.discovery.tried(actor, is_over=is_over)
        if decision.then in (Next.CONNECT, Next.DOWN):
            self._context.events.emit(
                EndDecision,
                actor.address,
                actor.life.incarnation,
                cause=ending.cause,
                then=decision.then.value,
            )
        return decision

    def _logged_in(self, server: str) -> None:
        """Somebody has logged in at a server that waited for a login: connect it, as by name."""
        self._directory.bring_back(server)
        if self._directory.has_standing_address(server, None):
            self.starter.request_by_policy(self._directory.actor(server))


# --------------------------------------------------------------------------------------------------------------
#
#
# What follows an ending: the rules that come before the table `AFTERMATH`, and the errors that calls get.
#
# A closing room starts nothing any more. A discovery goes on until it has learned what its server has. A call's own
# child ends with its call; if it has moved while the call waits, it is connected to again. If a server was taken down
# and somebody then asked for it by name, it gets the next connection. The table decides everything else.


def refusal_on_the_way_out(actor: ServerActor) -> CallError | None:
    """Why a call may not wait for the next incarnation of an actor that is being stopped; None: it may."""
    ending = actor.life.ending
    if ending is None or not _as_it_stands(record_of(actor), ending.cause).has(Means.FINAL):
        return None
    if actor.is_asked_for_by_name:
        return None
    return on_its_way_out(actor.address.server, actor.life.state, ending)


def what_follows(
    actor: ServerActor, ending: Ending, general: RestartPolicy | None, *, is_closing: bool
) -> Decision:
    """What happens after this ending of the actor's incarnation. If the server is down then, its record says why.

    `general`: the restart policy of the settings. `is_closing`: the room closes.
    """
    record, server = record_of(actor), actor.address.server
    if is_closing or ending.cause is Cause.SHUTDOWN:
        return Decision(Next.GONE, RoomClosed("The room has closed; the call was not sent.", server=server))
    if record.discovery is actor and record.available.is_usable and ending.cause.has(Means.KEEPS_DISCOVERIES):
        failed = ending.cause is Cause.CONNECT_FAILED
        return Decision(Next.CONNECT, _down(actor, ending).refusal if failed else None)
    if actor.address.is_call and not (ending.cause is Cause.MOVED and actor.is_awaited):
        if ending.cause is Cause.NEEDS_AUTH:
            record.available = record.available.unless_defined(needs_login(server, ending.detail))
        return Decision(Next.GONE, ending.error or call_is_over(server))
    if actor.is_asked_for_by_name and ending.cause.has(Means.KEEPS_NAMES):
        return Decision(Next.CONNECT)
    if actor.is_asked_for_by_name and ending.cause.has(Means.NO_START):  # asked for since the attempt failed
        return Decision(Next.CONNECT, _down(actor, ending).refusal)
    what = after(_as_it_stands(record, ending.cause), record.definition, general)
    error = _down(actor, ending).refusal if what.fails_queued else None
    if what.then is Next.DOWN:
        record.available = record.available.unless_defined(_down(actor, ending))
    return Decision(what.then, error)


def _down(actor: ServerActor, ending: Ending) -> Availability:
    """Why the server is down after this ending; None if it is not down."""
    record, server = record_of(actor), actor.address.server
    if ending.cause is Cause.NEEDS_AUTH:
        return needs_login(server, ending.detail)
    if ending.cause in (Cause.CONNECT_FAILED, Cause.BUG) and ending.error is not None:
        return down_with(ending.error)
    return down_after(server, ending) if record.available.is_usable else record.available


def _as_it_stands(record: ServerRecord, cause: Cause) -> Cause:
    """The cause of an ending as it counts now. A server that was taken down, and brought back while it drained, is only
    to be replaced by its next incarnation, as after a reload."""
    return Cause.RELOAD if cause.has(Means.TAKEN_DOWN) and record.refusal is None else cause
