"""Outcomes: how a call may end, and what must have happened to its server, or to the room, to explain it.

A table maps (code, reach) to a check. An outcome that is not in the table is a violation. One that is in it must be
explained by what the trace checker saw and the world did while the call was open. The search depends on this: an oracle
that accepts any error finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.address import Address
from ..protocol.config import Isolation, RestartPolicy, ServerDefinition
from ..protocol.errors import CallError, GreenroomError, Reach
from ..protocol.lifecycle import Cause, Means
from ._lives import EPS, Life
from ._world import OneCall, World

# The last one: a session that was opened again while the children of its predecessor are still being stopped.
_TAKEN_DOWN = tuple(cause for cause in Cause if cause.has(Means.FINAL) and cause is not Cause.SHUTDOWN)


def outcomes_have_reasons(world: World) -> None:
    """Each call has at most one outcome, and the faults so far explain it."""
    for call in world.calls:
        assert len(call.outcomes) <= 1, f"{call} ended {len(call.outcomes)} times: {call.outcomes}"
        if call.outcomes and call.ended is not None and not call.is_judged:
            call.is_judged = True
            why = _why_not(world, call, call.outcomes[0], call.ended)
            assert why is None, (
                f"{call}, begun at {call.began:g}, ended at {call.ended:g} as {call.outcomes[0]!r}: {why}"
            )


def _why_not(world: World, call: OneCall, outcome: str | GreenroomError, ended: float) -> str | None:
    if outcome == "cancelled":
        return None if call.asked_to_leave else "nobody cancelled it"
    if isinstance(outcome, str):
        return None if f'"n": {call.number},' in outcome else "somebody else's answer"
    reach = outcome.reach if isinstance(outcome, CallError) else Reach.NOT_SENT
    return _REASONS.get((outcome.code, reach), _never)(world, call, ended)


def _never(world: World, call: OneCall, ended: float) -> str | None:
    return "nothing here can end so"


def _lives(world: World, call: OneCall) -> list[Life]:
    scope = f"session:{call.session}" if call.session else None
    return [
        life
        for address, life in world.checker.lives.all.items()
        if address.server == call.server and (scope is None or address.scope in (scope, "shared"))
    ]


def _ended_as(*causes: Cause) -> Callable[[World, OneCall, float], str | None]:
    def check(world: World, call: OneCall, ended: float) -> str | None:
        lives = _lives(world, call)
        if any(life.ended_as(cause, call.began) for life in lives for cause in causes):
            return None
        return f"its server was not {' or '.join(cause.value for cause in causes)} meanwhile"

    return check


def _lost(world: World, call: OneCall, ended: float) -> str | None:
    """This is also right if the server was already ending for a weaker cause."""
    if world.truth.was("lost", call.server, call.began):
        return None
    return _ended_as(Cause.LOST)(world, call, ended)


def _unavailable(world: World, call: OneCall, ended: float) -> str | None:
    addresses = [life.address for life in _lives(world, call)] or [Address(call.server)]
    gates = [world.checker.lives.gate(address) for address in [*addresses, Address(call.server)]]
    return None if any(gate.may_be_shut(call.began) for gate in gates) else "its gate is open"


def _not_connected(world: World, call: OneCall, ended: float) -> str | None:
    """It was taken down. Somebody may have asked for it by name since then, and left before it had drained: that does
    not bring it back."""
    if (
        world.is_closed
        or world.truth.asked("shutdown", "", call.began)
        or world.truth.is_down(call.server)
        or call.was_down
    ):
        return None
    if any(world.truth.asked(what, call.server, call.began) for what in ("drained", "disabled", "removed")):
        return None
    down = (*_TAKEN_DOWN, Cause.LOST) if _stays_down(world, call) else _TAKEN_DOWN
    if any(life.leaves and life.leaves[-1].cause in down for life in _lives(world, call)):
        return None
    # A new session may have the same name while the child of the old one is still being stopped.
    if any(life.ended_as(Cause.SCOPE_ENDED, call.began) for life in _lives(world, call)):
        return None
    scope = f"{call.server}[session:{call.session}]"
    return None if world.truth.asked("scope ended", scope, call.began) else "it was not taken down"


def _stays_down(world: World, call: OneCall) -> bool:
    """Its connection was lost."""
    own = call.definition.restart_policy if call.definition is not None else None
    return (own or world.config.settings.restart_policy) is RestartPolicy.NEVER


def _unknown(world: World, call: OneCall, ended: float) -> str | None:
    """The index has nothing of a server that is disabled or not configured."""
    if call.definition is None or call.definition.disabled:
        return None
    was_changed = any(world.truth.asked(what, call.server, call.began) for what in ("removed", "disabled"))
    return None if was_changed else "its server is configured, and known"


def _session_is_over(world: World, call: OneCall, ended: float) -> str | None:
    scope = f"{call.server}[session:{call.session}]"
    return None if world.truth.asked("scope ended", scope, call.began) else "its session is open"


def _busy(world: World, call: OneCall, ended: float) -> str | None:
    definition = call.definition
    bound = (definition.max_queued if definition is not None else None) or world.config.settings.max_queued
    others = [
        other
        for other in world.calls
        if other.server == call.server
        and other.began <= call.began
        and (ended if other.ended is None else other.ended) >= call.began
    ]
    return None if len(others) > bound else f"only {len(others)} calls were open"


def _waited(world: World, call: OneCall, ended: float) -> str | None:
    """It waited as long as a call may wait, and was not sent."""
    limit = world.config.settings.queue_timeout
    if ended - call.began < min(limit, world.config.settings.acquire_timeout) - EPS:
        return f"it had waited {ended - call.began:g}s of {limit:g}s"
    return None if _something_held_it(world, call) else "nothing kept it from being sent"


def _something_held_it(world: World, call: OneCall) -> bool:
    faults = ("failing", "hung", "slow", "late", "lost", "full pipe")
    if any(world.truth.was(fault, call.server, call.began) for fault in faults):
        return True
    crowded = world.config.settings.max_connections < len(world.servers) + len(world.sessions) + 1
    definition = call.definition
    isolation = (definition and definition.isolation) or world.config.settings.isolation
    apart = isolation not in (None, Isolation.PERSISTENT)
    # Earlier failures have shut its gate, or other starts hold the permits or slots.
    return (
        crowded
        or apart
        or any(life.leaves for life in _lives(world, call))
        or any(world.truth.was("failing", name, call.began) for name in world.servers)
        or _is_bounded(definition)
    )


def _is_bounded(definition: ServerDefinition | None) -> bool:
    return definition is not None and definition.max_in_flight is not None


def _timed_out(world: World, call: OneCall, ended: float) -> str | None:
    definition = call.definition
    limit = (
        definition.call_timeout if definition is not None else None
    ) or world.config.settings.call_timeout
    if ended - call.began < limit - EPS:
        return f"it had had {ended - call.began:g}s of {limit:g}s"
    return None if world.truth.was("slow", call.server, call.began) else "its server was not slow"


_drained = _ended_as(
    Cause.DRAINED,
    Cause.RESTART,
    Cause.RELOAD,
    Cause.DISABLED,
    Cause.REMOVED,
    Cause.SHUTDOWN,
    Cause.SCOPE_ENDED,
)
_REASONS: dict[tuple[str, Reach], Callable[[World, OneCall, float], str | None]] = {
    ("connect_failed", Reach.NOT_SENT): _ended_as(Cause.CONNECT_FAILED),
    ("server_unavailable", Reach.NOT_SENT): _unavailable,
    ("server_not_connected", Reach.NOT_SENT): _not_connected,
    ("server_disabled", Reach.NOT_SENT): _not_connected,
    ("tool_not_found", Reach.NOT_SENT): _unknown,
    ("server_not_found", Reach.NOT_SENT): _unknown,
    ("invalid_request", Reach.NOT_SENT): _session_is_over,
    ("server_busy", Reach.NOT_SENT): _busy,
    ("timeout", Reach.NOT_SENT): _waited,
    ("timeout", Reach.SENT): _timed_out,
    ("call_failed", Reach.NOT_SENT): _lost,
    ("call_failed", Reach.SENT): _lost,
    ("drained", Reach.SENT): _drained,
    ("drained", Reach.NOT_SENT): _drained,
}
