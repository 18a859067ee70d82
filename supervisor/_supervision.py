"""Supervision: the decisions that a server actor may not make itself.

This is the `Supervisor` of every server actor. It is plain functions called from inside an actor's step, so a
decision is never out of date when the actor acts on it. The policies are pure objects in other modules
(`_gate`, `_restart`, `_pool`). Each question goes to the part that knows the answer. The gatekeeper decides
whether a call may be accepted, the starter when an actor may start, and `_endings` what follows an ending.
`_visiting` is told when a server has given its lists.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from ..actors import Call, Decision, Greeting, Handshake, Listing, Next, RoomContext, ServerActor
from ..protocol.catalogue import LastFailure
from ..protocol.config import Lifecycle
from ..protocol.effective import idle_time
from ..protocol.errors import CallError
from ..protocol.events import EndDecision
from ..protocol.lifecycle import Ending, Means, State
from ..protocol.start import Place
from ._availability import Use
from ._directory import Directory
from ._endings import refusal_on_the_way_out, what_follows
from ._gatekeeper import keeper_of
from ._login_watch import LoginWatch
from ._quarantine import in_quarantine
from ._records import record_of
from ._starter import Starter, made_out_to
from ._visiting import Visiting


class Learner(Protocol):
    """Takes the lists that a server has given."""

    def __call__(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None: ...


# Called when a server has failed, and when it works (None).
Failing = Callable[[str, LastFailure | None], None]


class Supervision:
    def __init__(
        self,
        context: RoomContext,
        directory: Directory,
        learn: Learner,
        visited: Callable[[str], None],
        failing: Failing,
    ) -> None:
        self.starter = Starter(context, directory)
        self.visiting = Visiting(directory, self.starter, visited)
        self._context = context
        self._directory = directory
        self._learn = learn
        self._failing = failing
        self._on_closed: dict[ServerActor, list[Callable[[], None]]] = {}
        self.logins = LoginWatch(context, directory, self._logged_in)

    # ---- what the room asks -----------------------------------------------------------------------------------------

    def look_in(self, server: str, session: str | None, over: Callable[[ServerActor], None]) -> ServerActor:
        """Start a server without a shared address once, for a caller who wants to know what it has, out of this
        session or out of none; then call `over(actor)`. Raises the error that a call would be refused with."""
        actor = self.visiting.apart(server, session)
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
        return in_quarantine(actor, call) or record.gatekeeper.refuses(actor, call)

    def may_send(self, actor: ServerActor, call: Call) -> bool:
        return keeper_of(actor).may_send(call)

    def answered(self, actor: ServerActor, call: Call) -> None:
        keeper_of(actor).answered(self._context.backend.now() - actor.connected_at)

    def greeting(self, actor: ServerActor, call: Call) -> Greeting:
        return self._directory.sessions.greeting(call.client, actor.address)

    def log_level(self, actor: ServerActor, call: Call) -> str | None:
        wanted = self._directory.log_levels.least(call.client, actor.address.server)
        return wanted or self.greeting(actor, call).log_level

    def silent(self, actor: ServerActor) -> bool:
        return keeper_of(actor).timed_out()

    def call_unanswered(self, actor: ServerActor, call: Call) -> None:
        keeper_of(actor).call_unanswered(actor, call)

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
        for one in (record, record.server):
            one.note_success()
        record.gatekeeper.connected(actor)
        self._learn(actor, handshake, listing, revision)
        self.visiting.learned(actor)

    def listed(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        record_of(actor).failure = record_of(actor).server.failure = None
        self._learn(actor, handshake, listing, revision)

    # ---- an idle connection -----------------------------------------------------------------------------------------

    def rested(self, actor: ServerActor) -> None:
        self.starter.admission.rested(actor)

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
        """A failure counts at once, so the gate is shut while the old tree is being stopped."""
        if not ending.cause.has(Means.FAILED):
            return  # it is being stopped already, for a stronger cause
        record, now = record_of(actor), self._context.backend.now()
        if not actor.address.is_call:
            actor.start.after_failure = True
        failed_starts = record.server.failed_starts + ending.cause.has(Means.NO_START)
        for one in (record, record.server):
            one.note_failure(ending.detail, now, failed_starts)
        self._failing(actor.address.server, LastFailure(time.time(), ending.detail, failed_starts))
        record.gatekeeper.failed(ending, actor.loss)

    def stopped_for_bug(self, actor: ServerActor) -> None:
        self.visiting.tried(actor, is_over=True)
        actor.start.by_policy = False
        if actor.life.state is State.IDLE:
            self.starter.admission.move(actor, Place.OUT)
        elif actor.start.place is Place.STARTING:
            # Its permit is free now; its slot is free when its tree is gone.
            self.starter.admission.move(actor, Place.LEAVING)
        keeper_of(actor).probe_left(actor)

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
            keeper_of(actor).probe_left(actor)
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
            self.visiting.tried(actor, is_over=is_over)
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
        """Somebody has logged in at a server that was parked for it: connect it, as a person would by name."""
        self._directory.bring_back(server)
        if self._directory.has_standing_address(server, None):
            self.starter.request_by_policy(self._directory.actor(server))
