"""Ends or repeats the calls in flight when no answer comes: the connection is lost or drained, or their time is up.

Ending a call may run its owner's callback, which may do anything. So each loop goes over a copy, and checks that a
call is still open before it ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.errors import CallError, Reach
from ..protocol.jsonrpc import RpcError
from ..protocol.lifecycle import Means, Reason, State
from . import _call_errors as errors
from ._messages import login_needed
from ._peer import LostReason

if TYPE_CHECKING:
    from ._call import Call
    from ._call_table import CallTable


def lose_all(table: CallTable, reason: LostReason) -> None:
    """The connection is gone."""
    # The youngest first: a call that is queued again goes to the head, so the old order remains.
    for call in reversed(tuple(table.open)):
        if call in table.open:
            _lose(table, call, reason)
    table.share_places()


def _lose(table: CallTable, call: Call, reason: LostReason) -> None:
    """Send the call again, once, if it cannot have run or may run twice; otherwise it fails."""
    server, ending = table.actor.address.server, table.actor.life.ending
    if _may_replay(call) and ending is not None and ending.cause.has(Means.REQUEUES):
        table.take_off(call)
        call.back_to_queue()
        table.waiting.add(call, first=True)
        return
    if reason.loss is Reason.NEEDS_AUTH and call.reach is Reach.NOT_SENT:
        error: CallError = login_needed(server, reason.text)
    else:
        error = errors.lost(server, reason, call.reach)
    table.take_off(call)
    table.end(call, error)


def broke(table: CallTable, call: Call, error: RpcError) -> None:
    """The call's exchange broke, and the connection lives on: send the call once more if that is harmless;
    otherwise it fails."""
    if _may_replay(call) and table.actor.life.state is State.CONNECTED:
        table.take_off(call)
        call.back_to_queue()
        table.waiting.add(call, first=True)
    else:
        reason = LostReason(error.message)
        lost = errors.lost(table.actor.address.server, reason, call.reach, "gave no answer")
        table.take_off(call)
        table.end(call, lost)
    table.call_over()


def _may_replay(call: Call) -> bool:
    """True once for a call that did not run, or that may run twice."""
    return not call.lost_before and (call.reach is Reach.NOT_SENT or call.replayable)


def expire_drained(table: CallTable) -> None:
    """The drain deadline: the time of all calls in flight is up."""
    server, ending = table.actor.address.server, table.actor.life.ending
    for call in tuple(table.open):
        if call in table.open:
            error = errors.drained(server, call, ending)
            table.abandon(call, ending.cause.value if ending else "drained")
            table.end(call, error)
    table.share_places()


def fail_all(table: CallTable, error: CallError) -> None:
    """No answer can come any more for any of these calls."""
    for call in tuple(table.open):
        if call in table.open:
            own = error.copy(call.reach)
            table.take_off(call)
            table.end(call, own)
    table.share_places()


def expire_sent(table: CallTable, now: float) -> None:
    """Calls whose time is up. However many there are, a server that was silent meanwhile counts as having failed
    once."""
    expired = [call for call in table.open if call.deadline <= now and not _may_wait(table, call, now)]
    if not expired:
        return
    actor = table.actor
    assert actor.peer is not None
    heard = actor.peer.last_heard
    silent = any(heard <= call.sent_at for call in expired)
    # The gate first, then the calls: a caller that tries again at once must see the gate as it is now.
    hung = silent and table.supervisor.silent(actor)
    for call in expired:
        if call in table.open:
            error = errors.timed_out(actor.address.server, call, table.context.settings.queue_timeout)
            table.abandon(call, "timed out")
            table.end(call, error)
    if hung:
        actor.steps.declare_hung()
    table.call_over()


def _may_wait(table: CallTable, call: Call, now: float) -> bool:
    """While the server waits for its client, its calls do not time out: people take their time."""
    if call.timeout is None or now >= call.total_deadline or not table.actor.is_asking:
        return False
    call.deadline = min(now + call.timeout, call.total_deadline)
    return True
