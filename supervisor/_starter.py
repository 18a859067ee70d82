"""The starter: from a reason to connect to the connection.

An idle actor passes three steps in this order: its server's gate, a slot of the pool, and a start permit. The
gate makes it wait until it opens (an explicit connect goes around it, once a second). Admission
(`_admission`) grants the other two. Only the actor's `Start` says at which step it is; leaving every queue is
one move. The gate may shut while the actor waits, so it is asked once more when the permit comes.
"""

from __future__ import annotations

from collections.abc import Collection

from ..actors import RoomContext, ServerActor
from ..protocol.config import Lifecycle
from ..protocol.errors import CallError
from ..protocol.lifecycle import State
from ..protocol.start import TURNS, Place
from ._admission import Admission
from ._directory import Directory
from ._gatekeeper import Gates, keeper_of
from ._records import record_of


class Starter:
    def __init__(self, context: RoomContext, directory: Directory) -> None:
        self._directory = directory
        self.admission = Admission(context, self)
        self.gates = Gates(context, self.admission.starts, directory.actors.values, self._apply)

    # ---- reasons ----------------------------------------------------------------------------------------------------

    def request(self, actor: ServerActor) -> None:
        """The idle actor has a reason to connect: a call, a wait, its policy. May be called again."""
        place = actor.start.place
        if place is Place.OUT or (place in TURNS and not self.is_visit(actor)):
            self._apply(actor)

    def request_by_name(self, actor: ServerActor) -> None:
        """Connect the actor, whatever the gate says, and even if it was taken down. End this with `withdraw`."""
        self._directory.bring_back(actor.address.server)
        if actor.record.definition.lifecycle is Lifecycle.KEEP_ALIVE:
            actor.start.by_policy = True  # it is kept alive again, even if that caller stops waiting
        if actor.start.place is Place.GATE:  # bypass the gate
            self._apply(actor)
        else:
            actor.request_start()

    def request_as_called(self, actor: ServerActor) -> None:
        """Connect the actor as a call would: raises the error that a call would be refused with. End this
        with `withdraw`."""
        record = record_of(actor)
        standing = self._directory.closing or record.refusal
        if standing is not None:
            raise made_out_to(actor.address.server, standing)
        if actor.life.state in (State.IDLE, State.DRAINING):
            unavailable = record.gatekeeper.refuses_start()
            if unavailable is not None:
                raise unavailable
        actor.request_start()

    def request_by_policy(self, actor: ServerActor) -> None:
        """Connect the actor by policy. No caller can withdraw that."""
        actor.start.by_policy = True
        actor.request_start()

    def withdraw(self, actor: ServerActor) -> None:
        """A reason to connect is gone. With the last one the actor's start leaves every queue."""
        has_another_reason = actor.start.by_policy or actor.is_awaited
        if actor.life.state is State.IDLE and not has_another_reason:
            self.admission.move(actor, Place.OUT)
            keeper_of(actor).probe_left(actor)

    # ---- what admission asks ----------------------------------------------------------------------------------------

    def kept(self) -> Collection[str]:
        return self._directory.kept()

    def shared_actor(self, server: str) -> ServerActor | None:
        return self._directory.shared_actor(server)

    def is_visit(self, actor: ServerActor) -> bool:
        return record_of(actor).visit is actor and not actor.is_awaited

    def begin(self, actor: ServerActor) -> None:
        """The actor's turn has come: start it, or send it back to its gate."""
        gatekeeper, now = keeper_of(actor), self.gates.now()
        if not gatekeeper.lets_start(actor):  # the gate has shut while the actor waited
            self._wait_at_gate(actor, now)
            return
        if actor.start.after_failure:
            actor.start.after_failure = False
            if not gatekeeper.may_restart(by_name=actor.is_asked_for_by_name):
                self._wait_at_gate(actor, now)
                self._apply(actor)
                return
        gatekeeper.note_start()
        self.admission.starts.move(actor, Place.STARTING)
        actor.steps.connect()

    # ---- the gate ---------------------------------------------------------------------------------------------------

    def _apply(self, actor: ServerActor) -> None:
        """The actor is at the gate: pass, or wait for it."""
        now = self.gates.now()
        if keeper_of(actor).lets_start(actor):
            self.admission.enter(actor)
        else:
            self._wait_at_gate(actor, now)

    def _wait_at_gate(self, actor: ServerActor, now: float) -> None:
        self.admission.move(actor, Place.GATE)
        keeper_of(actor).set_timer(now)


def made_out_to(server: str, refusal: CallError) -> CallError:
    """A copy of a standing refusal, for one more caller. `server`: the server that was called."""
    refused = refusal.copy()
    refused.server = server
    return refused
