"""What servers were told of their clients, when it is no longer true.

Before 2026-07-28, what a client can answer is told to a server only once, at its greeting. A server that lacks
something is greeted again if nobody has used it yet: then nothing is lost. One that was used is told when it starts the
next time, for whatever reason. That roots have changed can be told at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..actors import ServerActor, declared_to, is_outdated
from ..protocol.lifecycle import Cause, Ending, Reason, State
from ._directory import shared_actors

if TYPE_CHECKING:
    from ._runtime import Runtime


def restart_outdated(runtime: Runtime, session: str | None) -> None:
    """Restart those unused ones that this session (None: the room) concerns: its own children, and shared servers that
    lack something it can answer. What others can answer, those servers have been told already; so it is enough to look
    at this session, however many there are."""
    root, sessions = runtime.root, runtime.sessions
    actors = (
        tuple(root.actors.values())
        if session is None
        else (*root.in_reach(session), *_seen(runtime, session))
    )
    for actor in actors:
        address = actor.address
        is_met = actor.life.state in (State.CONNECTING, State.CONNECTED)
        if not is_met or root.supervision.visiting.is_first_start(actor):
            continue
        whose = address.session if address.session is not None else session
        if is_outdated(actor, sessions.greeting(whose, address)):
            actor.stop(Ending(Cause.RESTART, reason=Reason.NEW_ANSWERS))


def _seen(runtime: Runtime, session: str) -> list[ServerActor]:
    """The shared actors that exist for a session."""
    sees = runtime.sessions.sees
    return [actor for actor in shared_actors(runtime.root) if sees(session, actor.address.server)]


def tell_roots_changed(runtime: Runtime, session: str | None) -> None:
    """Tell the servers that were told of roots that these have changed. A shared server is told for a session only if
    nobody else could answer what the roots are: otherwise it would ask, and be refused."""
    root, able = runtime.root, runtime.room_host.routing.able
    actors = root.in_reach(session)
    if session is not None:
        actors += [one for one in _seen(runtime, session) if able(one.address, "roots/list") == [session]]
    for actor in actors:
        if actor.is_connected and actor.peer is not None and "roots" in (declared_to(actor) or {}):
            actor.peer.notify("notifications/roots/list_changed")
