"""The rows of a room's status, read off its servers and their actors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..actors.last_minutes import RecentCall, RecentHistory
from ..catalogue.index import Counts
from ..config.references import session_variables
from ..protocol.address import Address
from ..protocol.errors import UNTRUSTED
from ..protocol.events import Event, Place, Transition
from ..protocol.lifecycle import State
from ..protocol.status import ServerStatus
from .policy.availability import Availability, AvailabilityState
from .servers import ServerList, ServerRecord

if TYPE_CHECKING:
    from ..actors.server import ServerActor


def addresses(servers: ServerList, server: str | None = None) -> Iterator[Address]:
    """The addresses that have a row: each configured server's, in order, then each further live one.
    `server`: only its own. Servers may be added and removed meanwhile."""
    for name in [*servers.records] if server is None else [server]:
        yield Address(name)
    actors = servers.all_actors() if server is None else servers.actors_of(server)
    yield from sorted(actor.address for actor in actors if not actor.address.is_shared)


def status_row(servers: ServerList, address: Address, now: float, counts: Counts | None) -> ServerStatus:
    server = servers.records[address.server]
    actor = server.actors.get(address.scope) or (server.discovery if address.is_shared else None)
    record = server if actor is None else server.at(actor.address.scope)
    # A session's child is behind two circuit breakers: its own and its server's. The row shows the one that refuses
    # longer.
    breaker, behind = record.breaker.state, server.breaker.state
    breaker = behind if breaker.refuses_until <= behind.refuses_until else breaker
    use = record.available
    if use.is_usable:
        use = _lacks_login(server) if address.is_shared else None
        use = use or server.available
    return ServerStatus(
        server=address.server,
        scope=address.scope,
        lifecycle=server.definition.lifecycle.value,
        state=actor.life.state if actor is not None else State.IDLE,
        incarnation=actor.life.incarnation if actor is not None else 1,
        in_flight=actor.in_flight if actor is not None else 0,
        queued=actor.queued if actor is not None else 0,
        waiting_for=_waiting_for(actor),
        waiting=_waiting(actor, now),
        last_line=actor.last_line or None if actor is not None and _is_connecting(actor) else None,
        tool_count=counts.tools if counts is not None else None,
        resource_count=counts.resources if counts is not None else 0,
        changed=counts.changed if counts is not None else (),
        flapping=counts.flapping if counts is not None else (),
        hidden=counts.hidden if counts is not None else (),
        pid=actor.pid if actor is not None else None,
        failure=record.failure,
        failure_kind=record.failure_kind if record.failure is not None else None,
        failed_ago=now - record.failed_at if record.failure is not None else None,
        failed_starts=record.failed_starts,
        silent_failures=record.breaker.failed_in_silence(actor) if actor is not None else 0,
        start_took=record.start_took,
        warm=servers.starts.warm_count(address.server) if address.is_shared else 0,
        reused=servers.starts.reused_count(address.server) if address.is_shared else 0,
        replaced=_replaced(actor),
        odd=record.odd,
        odd_code=record.odd_code.value if record.odd is not None else None,
        quarantined=record.breaker.state.too_often or behind.too_often or None,
        retry_in=breaker.retry_in(now) if breaker.refuses_until > now else None,
        next_try=_next_try(servers, record, actor, now) if address.is_shared else None,
        needs_auth=use.state is AvailabilityState.NEEDS_LOGIN,
        disabled=server.definition.disabled,
        session_variables=tuple(sorted(session_variables(server.definition))),
        broken=str(use.refusal) if use.state is AvailabilityState.BROKEN else None,
        untrusted=use.refusal is not None and use.refusal.code == UNTRUSTED,
        limited=servers.rates.told(address.server) if address.is_shared and servers.rates.is_needed else (),
        down=None if use.refusal is None or use.state is AvailabilityState.BROKEN else str(use.refusal),
    )


def _next_try(
    servers: ServerList, record: ServerRecord, actor: ServerActor | None, now: float
) -> float | None:
    """Seconds until a server that has failed is started again by itself."""
    at = servers.discovery.retry_at(record.address.server)
    if actor is not None and actor.start.place is Place.BREAKER:
        at = now
    return max(at, record.breaker.refusal[0], now) - now if at < math.inf else None


def _lacks_login(server: ServerRecord) -> Availability | None:
    """Why no session can use this server: its sessions share one login, so what one of them lacks, they all lack."""
    definition = server.definition
    if definition.url is None or not server.available.is_usable or session_variables(definition):
        return None
    found = (one.available for one in server.with_children())
    return next((one for one in found if one.state is AvailabilityState.NEEDS_LOGIN), None)


def _replaced(actor: ServerActor | None) -> str | None:
    replacement = None if actor is None else actor.calls.replacement
    return None if replacement is None else str(replacement.ending)


def _is_connecting(actor: ServerActor) -> bool:
    return actor.life.state is State.CONNECTING


def _waiting_for(actor: ServerActor | None) -> str | None:
    if actor is None:
        return None
    return "install" if actor.is_installing else actor.start.waiting_for


def _waiting(actor: ServerActor | None, now: float) -> float | None:
    """Seconds since the actor began its present wait: for its turn to start, or for its connection."""
    if actor is None or (actor.start.waiting_for is None and not _is_connecting(actor)):
        return None
    return now - actor.start.waits_since


def still_there(servers: ServerList, kept: RecentHistory) -> tuple[list[Event], list[RecentCall]]:
    """The last events and calls, with the connections and the calls that are there now. The beginning of a connection
    may be forgotten by now."""
    events, calls = list(kept.events), kept.ended_calls()
    known = {
        (event.address, event.incarnation)
        for event in events
        if isinstance(event, Transition) and event.after is State.CONNECTED
    }
    for actor in servers.all_actors():
        address, incarnation = actor.address, actor.life.incarnation
        if actor.is_connected and (address, incarnation) not in known:
            steps = State.CONNECTING, State.CONNECTED
            events.append(
                Transition(0, actor.connected_at, address, incarnation, before=steps[0], after=steps[1])
            )
        for call in (*actor.calls.open, *actor.calls.waiting):
            calls.append(kept.open_call(call, address, incarnation))
    return events, calls
