"""The steps of a server actor: what each system message does to its life.

Only `lifecycle.step` moves the life. The effects that it returns are performed here, at once. The owner task and
the pumps only *send messages*: `Ready`, `Failed`, `Lost`, `Gone`, each with its incarnation's number. So a late
message of incarnation n never touches n + 1.

An exception in a step is a bug of ours: it ends this incarnation as `failed: bug`, all its calls with it, and the
other servers go on. What follows is what follows any other loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..protocol.errors import Bug, CallError, ConnectFailed, NeedsAuth, Reach
from ..protocol.events import Transition
from ..protocol.jsonrpc import MODERN_VERSIONS
from ..protocol.lifecycle import (
    Cause,
    Effect,
    Ending,
    Life,
    Means,
    Reason,
    State,
    Trigger,
    is_late,
    settle,
    step,
)
from ..protocol.secrets import in_words
from . import _call_endings as endings
from . import _call_errors as errors
from ._condition import is_outdated
from ._incarnation import Incarnation
from ._inputs import answer_inputs
from ._messages import (
    Failed,
    Gone,
    Listed,
    Lost,
    Message,
    Ready,
    Stop,
    connect_failed,
    describe,
    login_needed,
)
from ._peer import LostReason
from ._room_context import Next

if TYPE_CHECKING:
    from ._call import Call
    from ._server import ServerActor


class Steps:
    __slots__ = ("_actor", "_stepping")

    def __init__(self, actor: ServerActor) -> None:
        self._actor = actor
        self._stepping = False

    # ---- messages ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The bell of the mailbox: handle the messages of the system lane, one step after the other."""
        if self._stepping:
            return
        self._stepping = True
        system = self._actor.mailbox.system
        try:
            while system:
                message = system.popleft()
                try:
                    self._handle(message)
                except Exception as error:
                    self.stop_for_bug(error)
        finally:
            self._stepping = False

    def _handle(self, message: Message) -> None:
        actor = self._actor
        if isinstance(message, Stop):
            self._on_stop(message)
            return
        if message.incarnation != actor.life.incarnation:
            return  # of an earlier incarnation
        match message:
            case Ready():
                self._on_ready(message)
            case Failed():
                self._on_failed(message)
            case Lost():
                self._on_lost(message.reason)
            case Gone():
                self._on_gone()
            case Listed() if actor.life.state is State.CONNECTED:
                actor.supervisor.listed(actor, message.handshake, message.listing, message.revision)
            case Listed():
                pass

    def _on_ready(self, message: Ready) -> None:
        actor = self._actor
        if is_late(actor.life, Trigger.READY):
            return
        assert actor.incarnation is not None
        peer = actor.peer = actor.incarnation.peer
        speaks_newer = peer.protocol_version in MODERN_VERSIONS or peer.beside is not None
        actor.calls.introduces = speaks_newer
        actor.calls.logs_by_request = speaks_newer and "logging" in message.handshake.capabilities
        actor.connected_at = actor.context.backend.now()
        actor.failure = None
        actor.loss = Reason.DIED
        actor.idling.ask_time()
        actor.supervisor.ready(actor, message.handshake, message.listing, message.revision)
        if is_outdated(actor, actor.context.host.greeting(actor.address)):
            # The host's capabilities changed while it started. Its lists are known; its calls wait for the next
            # incarnation.
            self.move(Trigger.STOP, Ending(Cause.RESTART, reason=Reason.NEW_ANSWERS))
            return
        self.move(Trigger.READY)
        actor.waits.tell(None)
        if actor.is_resting:
            # Not a later look at the clock: idle since then is never called.
            actor.idling.rest(actor.connected_at)

    def _on_failed(self, message: Failed) -> None:
        actor = self._actor
        if is_late(actor.life, Trigger.FAILED):
            return
        if isinstance(message.error, Bug):
            self._stop_for(message.error)
            return
        if actor.life.state is State.CONNECTED:  # the owner task itself broke: treated as a lost connection
            self._on_lost(LostReason(str(message.error)))
            return
        self._remember(message.error)
        self.move(Trigger.FAILED, Ending(_cause_of(message.error), _reason_of(message.error)))

    def _on_lost(self, reason: LostReason) -> None:
        actor, server = self._actor, self._actor.address.server
        life, actor.loss = actor.life, reason.loss
        wants_login = reason.loss is Reason.NEEDS_AUTH
        if life.state is State.CONNECTING:
            error = login_needed(server, reason.text) if wants_login else connect_failed(server, reason)
            self._remember(error)
            ending = Ending(Cause.CONNECT_FAILED, _reason_of(error))
            login = Ending(Cause.NEEDS_AUTH, reason.text, reason.loss)
            self.move(Trigger.FAILED, login if wants_login else ending)
        elif life.state is State.CONNECTED or (life.state is State.DRAINING and not life.stopping):
            cause = Cause.NEEDS_AUTH if wants_login else Cause.LOST
            self._remember(errors.lost(server, reason, Reach.NOT_SENT))
            self.move(Trigger.LOST, Ending(cause, describe(reason), reason.loss))
        # Otherwise we are stopping it, and this end is expected.

    def _on_stop(self, message: Stop) -> None:
        actor = self._actor
        state = actor.life.state
        if state is State.CLOSED:
            return
        if state in (State.IDLE, State.CONNECTING) or message.patience <= 0:
            self.move(Trigger.STOP, message.ending)
        else:
            self.move(Trigger.DRAIN, message.ending, actor.context.backend.now() + message.patience)
        if actor.incarnation is not None:
            actor.incarnation.hurry()

    def _on_gone(self) -> None:
        """The owner task has ended. It said why before, unless it was cancelled from outside; in that case say it
        here."""
        actor = self._actor
        try:
            if actor.life.state is State.CONNECTING:
                self.move(
                    Trigger.FAILED,
                    Ending(Cause.CONNECT_FAILED, "the attempt was cancelled", Reason.CANCELLED),
                )
            elif actor.life.state is State.CONNECTED:
                self.move(Trigger.LOST, Ending(Cause.LOST, "its owner task was cancelled", Reason.CANCELLED))
            endings.lose_all(actor.calls, LostReason("the connection is gone"))
        finally:
            actor.incarnation = None
            actor.peer = None
        self.move(Trigger.GONE)

    def _remember(self, error: CallError) -> None:
        self._actor.failure = error
        self._actor.failed_at = self._actor.context.backend.now()

    # ---- what others bring about ------------------------------------------------------------------------------------

    def connect(self) -> None:
        """The supervisor grants the start: it has passed the gate and holds slot and permit. Joins an attempt that
        is already running."""
        if self._actor.life.state is State.IDLE:
            try:
                self.move(Trigger.CONNECT)
            except (
                Exception
            ) as error:  # caught here, or it would count as a bug of the actor that freed the permit
                self.stop_for_bug(error)

    def settle(self) -> None:
        """The actor drains, and its last call is over."""
        actor = self._actor
        actor.life, effects = settle(actor.life)
        self._perform(effects)

    def declare_hung(self) -> None:
        """The supervisor says that its server hangs."""
        actor = self._actor
        assert actor.incarnation is not None
        reason = actor.incarnation.give_up("unresponsive", Reason.UNRESPONSIVE)
        actor.tell(Lost(actor.life.incarnation, reason))

    def find_input(self, call: Call, result: dict[str, Any]) -> None:
        """The server needs more input before it can answer; ends in `CallTable.send_again` or `give_up`."""
        actor = self._actor
        assert actor.incarnation is not None
        questions = actor.incarnation.questions

        async def find() -> None:
            try:
                await answer_inputs(actor.calls, call, result, questions)
            except Exception as error:
                self.stop_for_bug(error)

        actor.context.spawn(find)

    def abort(self, error: CallError) -> None:
        """The room has ended under the actor: whatever is still open fails, at once. Nothing is sent."""
        actor = self._actor
        actor.calls.waiting.fail(error)  # first: they must not get a place that is freed below
        try:
            endings.fail_all(actor.calls, error)
        finally:
            actor.waits.tell(error)

    def stop_for_bug(self, error: Exception) -> Bug:
        """A bug of ours. This incarnation stops here; the event carries the traceback. Returns the error of its
        calls."""
        actor = self._actor
        server = actor.address.server
        try:
            actor.note_bug(error)
            what = actor.hidden(in_words(error))
        except Exception:  # not even that can be told
            what = type(error).__name__
        bug = Bug(f'Server "{server}" was stopped by an error in Greenroom itself: {what}', server=server)
        self._stop_for(bug)
        return bug

    def _stop_for(self, bug: Bug) -> None:
        """Release everything that waits here, whatever else is broken, and stop the tree."""
        actor = self._actor
        self._remember(bug)
        actor.loss = Reason.DIED
        self._try(partial(actor.supervisor.stopped_for_bug, actor))
        self._try(partial(self.abort, bug))
        if actor.life.state is State.CLOSED:  # what follows its end is broken: once more
            actor.life = Life(incarnation=actor.life.incarnation + 1)
        self._try(partial(self.move, Trigger.STOP, Ending(Cause.BUG, str(bug))))
        if actor.life.state is not State.DRAINING:
            return
        if actor.incarnation is not None:  # what raised may have kept it from being told
            actor.incarnation.cancel()
        else:  # its owner task has ended, or never began
            self._try(partial(self.move, Trigger.GONE))

    def _try(self, act: Callable[[], object]) -> None:
        """One part of the way out after a bug. What is broken in it must not keep the others from being done."""
        actor = self._actor
        try:
            act()
        except Exception as error:
            actor.note_bug(error)
            if actor.life.state is State.CLOSED:
                actor.life = Life(incarnation=actor.life.incarnation + 1)

    # ---- time -------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """The actor has drained or idled for all its time."""
        if self._actor.life.state is not State.DRAINING:
            self._actor.idling.expire(now)
        elif now >= self.next_deadline(now):
            self.move(Trigger.DEADLINE)

    def next_deadline(self, now: float) -> float:
        """When the drain time or the idle time ends. Once the idle time is over, the pool decides."""
        actor, life = self._actor, self._actor.life
        if life.state is State.CONNECTED:
            if actor.is_resting and actor.idling.until > now:
                return actor.idling.until
        elif life.state is State.DRAINING and not life.stopping and life.deadline is not None:
            return life.deadline
        return math.inf

    # ---- moves and their effects ------------------------------------------------------------------------------------

    def move(self, trigger: Trigger, ending: Ending | None = None, deadline: float | None = None) -> None:
        """Take one step of the lifecycle table, and perform its effects."""
        actor, before = self._actor, self._actor.life
        actor.life, effects = step(
            before, trigger, ending=ending, deadline=deadline, in_flight=actor.in_flight
        )
        if actor.life.state is not before.state:
            self._tell_transition(before.state)
            if actor.life.state is State.DRAINING:
                actor.supervisor.leaving(actor)
        is_counted = before.ending is not None and before.ending.cause.has(Means.FAILED)
        is_bug = ending is not None and ending.cause is Cause.BUG and not is_counted
        if is_bug or trigger in (Trigger.FAILED, Trigger.LOST):
            # Before its calls are told: a caller that tries again at once must see the gate as it is now.
            assert actor.life.ending is not None
            actor.supervisor.failed(actor, actor.life.ending)
        self._perform(effects)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        actor = self._actor
        for effect in effects:
            match effect:
                case Effect.OPEN:
                    actor.record.remark(None)
                    incarnation = Incarnation(actor, actor.life.incarnation)
                    actor.context.spawn(incarnation.run)
                    actor.incarnation = incarnation
                case Effect.SERVE:
                    actor.calls.waiting.serve()
                case Effect.ARM_DEADLINE:
                    assert actor.life.deadline is not None
                    actor.alarm.wake_by(actor.life.deadline)
                case Effect.LOSE_CALLS:
                    lost = actor.incarnation.lost if actor.incarnation is not None else None
                    endings.lose_all(actor.calls, lost or LostReason("the connection was lost"))
                case Effect.EXPIRE_CALLS:
                    endings.expire_drained(actor.calls)
                case Effect.STOP_TREE:
                    if actor.incarnation is not None:
                        actor.incarnation.cancel()
                case Effect.ANNOUNCE:
                    self._announce()

    def _announce(self) -> None:
        """The incarnation is closed. The supervisor says what follows; calls that may not wait for it fail now."""
        actor = self._actor
        closed, ending = actor.life.incarnation, actor.life.ending
        assert ending is not None
        decision = actor.supervisor.closed(actor, ending)
        if decision.then is not Next.GONE:
            actor.life = Life(incarnation=actor.life.incarnation + 1)
            self._tell_transition(State.CLOSED)
        if decision.error is not None:
            actor.calls.waiting.fail(decision.error)
            # Those who came during the clean-up wait for the next incarnation, if there will be one.
            actor.waits.tell(decision.error, up_to=closed if decision.then is Next.CONNECT else math.inf)
        if decision.then is Next.CONNECT or (decision.then is Next.IDLE and actor.is_awaited):
            actor.request_start()

    def _tell_transition(self, before: State) -> None:
        actor, life = self._actor, self._actor.life
        ending = life.ending
        actor.context.events.emit(
            Transition,
            actor.address,
            life.incarnation,
            before=before,
            after=life.state,
            cause=ending.cause if ending is not None else None,
            reason=ending.reason if ending is not None else None,
            seconds=ending.seconds if ending is not None else None,
            words=ending.words if ending is not None else "",
            in_flight=actor.in_flight,
            queued=actor.queued,
        )


def _reason_of(error: CallError) -> str:
    """The reason, for readers who already say that a connect failed, and of which server."""
    return error.reason if isinstance(error, ConnectFailed) else str(error)


def _cause_of(error: CallError) -> Cause:
    """The ending of an attempt that failed with this error."""
    match error:
        case Bug():
            return Cause.BUG
        case NeedsAuth():
            return Cause.NEEDS_AUTH
        case _:
            return Cause.CONNECT_FAILED
