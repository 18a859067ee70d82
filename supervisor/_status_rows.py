"""The rows of a room's status, read off its servers and their actors."""

from __future__ import annotations

from collections.abc import Iterator

from ..actors import ServerActor, last_line, pid_of
from ..protocol.address import Address
from ..protocol.errors import UNTRUSTED
from ..protocol.index import Counts
from ..protocol.interpolate import session_variables
from ..protocol.lifecycle import State
from ..protocol.status import ServerStatus
from ._availability import Availability, Use
from ._directory import Directory
from ._records import ServerRecord, record_of


def addresses(directory: Directory, server: str | None = None) -> Iterator[Address]:
    """The addresses that have a row: each configured server's, in order, then each further live one.
    `server`: only its own. Servers may be added and removed meanwhile."""
    for name in [*directory.records] if server is None else [server]:
        yield Address(name)
    yield from sorted(one for one in directory.actors if not one.is_shared and server in (None, one.server))


def status_row(directory: Directory, address: Address, now: float, counts: Counts | None) -> ServerStatus:
    server = directory.records[address.server]
    actor = directory.actors.get(address) or (server.visit if address.is_shared else None)
    record = server if actor is None else record_of(actor)
    # A session's child is behind two gates: its own and its server's. The row shows the one that is shut longer.
    gate, behind = record.gatekeeper.gate, server.gatekeeper.gate
    gate = behind if gate.shut_until <= behind.shut_until else gate
    use = record.available
    if use.is_usable:
        use = _lacks_login(directory, server) if address.is_shared else None
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
        last_line=last_line(actor) or None if actor is not None and _is_connecting(actor) else None,
        tool_count=counts.callable if counts is not None else None,
        changed=counts.changed if counts is not None else (),
        flapping=counts.flapping if counts is not None else (),
        hidden=counts.hidden if counts is not None else (),
        pid=pid_of(actor) if actor is not None else None,
        failure=record.failure,
        failed_ago=now - record.failed_at if record.failure is not None else None,
        failed_starts=record.failed_starts,
        start_took=record.start_took,
        odd=record.odd,
        quarantined=record.gatekeeper.gate.too_often or behind.too_often or None,
        retry_in=gate.retry_in(now) if gate.shut_until > now else None,
        needs_auth=use.use is Use.NEEDS_LOGIN,
        disabled=server.definition.disabled,
        session_variables=tuple(sorted(session_variables(server.definition))),
        broken=str(use.refusal) if use.use is Use.BROKEN else None,
        untrusted=use.refusal is not None and use.refusal.code == UNTRUSTED,
        down=None if use.refusal is None or use.use is Use.BROKEN else str(use.refusal),
    )


def _lacks_login(directory: Directory, server: ServerRecord) -> Availability | None:
    """Why no session can use this server: its sessions share one login, so what one of them lacks, they all lack."""
    definition = server.definition
    if definition.url is None or not server.available.is_usable or session_variables(definition):
        return None
    found = (record_of(actor) for at, actor in directory.actors.items() if at.server == definition.name)
    return next((one.available for one in found if one.available.use is Use.NEEDS_LOGIN), None)


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
