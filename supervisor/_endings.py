"""What follows an ending: the rules that come before the table of `_restart`, and the errors that calls get.

A closing room starts nothing any more. A visit goes on until it has learned what its server has. A call's own
child ends with its call. If a server was taken down and somebody then asked for it by name, it gets the next
connection. The table decides everything else.
"""

from __future__ import annotations

from ..actors import Decision, Next, ServerActor
from ..protocol.config import RestartPolicy
from ..protocol.errors import CallError, RoomClosed
from ..protocol.lifecycle import Cause, Ending, Means
from ._availability import Availability, call_is_over, down_after, down_with, needs_login, on_its_way_out
from ._records import ServerRecord, record_of
from ._restart import after


def refusal_on_the_way_out(actor: ServerActor) -> CallError | None:
    """Why a call may not wait for the next incarnation of an actor that is being stopped; None when it may."""
    ending = actor.life.ending
    if ending is None or not _as_it_stands(record_of(actor), ending.cause).has(Means.FINAL):
        return None
    if actor.is_asked_for_by_name:
        return None
    return on_its_way_out(actor.address.server, actor.life.state, ending)


def what_follows(
    actor: ServerActor, ending: Ending, general: RestartPolicy | None, *, is_closing: bool
) -> Decision:
    """What follows this ending of the actor's incarnation. Afterwards the actor's record says why it is down,
    if it is.

    `general`: the restart policy of the settings; `is_closing`: the room closes.
    """
    record, server = record_of(actor), actor.address.server
    if is_closing or ending.cause is Cause.SHUTDOWN:
        return Decision(Next.GONE, RoomClosed("The room has closed; the call was not sent.", server=server))
    if record.visit is actor and record.available.is_usable and ending.cause.has(Means.KEEPS_VISITS):
        failed = ending.cause is Cause.CONNECT_FAILED
        return Decision(Next.CONNECT, _down(actor, ending).refusal if failed else None)
    if actor.address.is_call:
        if ending.cause is Cause.NEEDS_AUTH:
            record.available = record.available.unless_defined(needs_login(server, ending.detail))
        return Decision(Next.GONE, actor.failure or call_is_over(server))
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
    if ending.cause in (Cause.CONNECT_FAILED, Cause.BUG) and actor.failure is not None:
        return down_with(actor.failure)
    return down_after(server, ending) if record.available.is_usable else record.available


def _as_it_stands(record: ServerRecord, cause: Cause) -> Cause:
    """The cause of an ending as it counts now. If a server was taken down, and brought back while it drained,
    this incarnation only makes way for the next one, as after a reload."""
    return Cause.RELOAD if cause.has(Means.TAKEN_DOWN) and record.refusal is None else cause
