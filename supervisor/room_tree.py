"""The tree of a room (`protocol.tree`), read off its servers, their actors and their circuit breakers.

Nothing is stored for it: each deadline is read where it is kept (a timer of the start, the breaker, the idle time).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from functools import partial
from typing import TYPE_CHECKING, Final

from ..actors.workers import in_turns
from ..config.references import warm_of
from ..protocol.address import Address
from ..protocol.events import Place
from ..protocol.lifecycle import State
from ..protocol.status import word_of, word_with
from ..protocol.tree import NodeKind, TreeBound, TreeDeadline, TreeNode, above
from .status_rows import addresses, status_row

if TYPE_CHECKING:
    from ..actors.server import ServerActor
    from .servers import ServerList, ServerRecord

_NODES: Final = 100  # that are made in one go: two or three milliseconds


def tree_of(servers: ServerList, name: str, unknown: Set[str]) -> TreeNode:
    """The whole tree. `name`: of the room. `unknown`: the servers whose tools are not known yet."""
    there = [*addresses(servers)]
    return _whole(servers, name, there, map(partial(_node, servers, unknown), there))


async def surveyed_tree_of(servers: ServerList, name: str, unknown: Set[str]) -> TreeNode:
    """The whole tree, as `tree_of` has it; others have their turns while it is made."""
    there = [*addresses(servers)]
    return _whole(servers, name, there, await in_turns(there, partial(_node, servers, unknown), _NODES))


def _node(servers: ServerList, unknown: Set[str], address: Address) -> TreeNode | None:
    """The node of an address alone. None: it is gone."""
    server = servers.records.get(address.server)
    if server is None:
        return None
    actor = server.actors.get(address.scope)
    if actor is None and not address.is_shared:
        return None
    now, record = servers.context.backend.now(), server.at(address.scope)
    row = status_row(servers, address, now, None)
    since = math.inf if actor is None else actor.awaited_since
    return TreeNode(
        kind=_kind_of(address),
        name=address.server if address.is_shared else address.scope.partition(":")[2] or address.scope,
        state=word_of(row, is_known=address.server not in unknown),
        incarnation=row.incarnation,
        in_flight=row.in_flight,
        queued=row.queued,
        oldest_wait=_rounded(now - since) if since < math.inf else None,
        waits_for=row.waiting_for,
        breaker=record.breaker.in_words(now),
        restarts_left=None if address.is_call else record.breaker.restarts_left(now),
        next=_next(record, actor, now),
        bounds=tuple(_bounds(servers, server)) if address.is_shared else (),
    )


def _kind_of(address: Address) -> NodeKind:
    if address.is_shared:
        return "server"
    if address.is_session:
        return "session"
    return "call" if address.is_call else "connection"


def _whole(
    servers: ServerList, name: str, there: Iterable[Address], nodes: Iterable[TreeNode | None]
) -> TreeNode:
    """The tree of these nodes, each of the address at its place."""
    owns: dict[str, TreeNode] = {}
    further: dict[str, list[TreeNode]] = {}
    for node, address in zip(nodes, there, strict=True):
        if node is None:
            continue
        if address.is_shared:
            owns[address.server] = node
        else:
            further.setdefault(address.server, []).append(node)
    below = [_with_children(node, further.get(server, [])) for server, node in owns.items()]
    state = "open" if servers.closing is None else "closing"
    return above("room", name, state, [_supervisor(servers, below, state)])


_OWN: Final = (
    "incarnation",
    "in_flight",
    "queued",
    "oldest_wait",
    "waits_for",
    "breaker",
    "restarts_left",
    "next",
    "bounds",
)


def _with_children(node: TreeNode, children: list[TreeNode]) -> TreeNode:
    if not children:
        return node
    own = {field: getattr(node, field) for field in _OWN}
    state = word_with(node.state, (each.state for each in children))
    return above(node.kind, node.name, state, children, **own)


def _supervisor(servers: ServerList, below: list[TreeNode], state: str) -> TreeNode:
    settings, places = servers.context.settings, servers.starts.places
    now, at = servers.context.backend.now(), servers.starts.decides_at
    bounds = (
        TreeBound("maxConnections", places.held(of_sessions=False), settings.max_connections),
        TreeBound("maxSessionConnections", places.held(of_sessions=True), settings.max_session_connections),
        TreeBound("startPermits", places.count(Place.STARTING), settings.start_permits),
    )
    next_ = None if at is None else TreeDeadline("the pool decides again", _left(at, now))
    return above("supervisor", "", state, below, bounds=bounds, next=next_)


def _bounds(servers: ServerList, server: ServerRecord) -> Iterator[TreeBound]:
    settings, definition = servers.context.settings, server.definition
    yield TreeBound("maxInFlight", server.load.in_flight, server.most_in_flight(settings))
    if most := warm_of(definition, settings):
        yield TreeBound("warm", servers.starts.warm_count(definition.name), most)


def _next(record: ServerRecord, actor: ServerActor | None, now: float) -> TreeDeadline | None:
    """The first of all that time alone will do here."""
    found = [(at, what) for at, what in _deadlines(record, actor, now) if at < math.inf]
    if not found:
        return None
    at, what = min(found)
    return TreeDeadline(what, _left(at, now))


def _deadlines(record: ServerRecord, actor: ServerActor | None, now: float) -> Iterator[tuple[float, str]]:
    until, tripped = record.breaker.refusal
    if until > now:
        yield until, "half-open" if tripped else "backoff over"
    if record.address.is_shared:
        yield max(record.servers.discovery.retry_at(record.address.server), until), "next try"
    if actor is None:
        return
    if actor.start.deadline is not None:
        yield actor.start.deadline.when, "slot wait over"
    calls = actor.calls
    yield min((call.deadline for call in calls.waiting), default=math.inf), "queue timeout"
    yield min((call.deadline for call in calls.open), default=math.inf), "call timeout"
    match actor.life.state:
        case State.CONNECTING if actor.incarnation is not None:
            yield actor.incarnation.connect_by, "connect timeout"
        case State.CONNECTED if actor.has_nothing_to_do and actor.stops_idle_at > now:
            yield actor.stops_idle_at, "idle eviction"
        case State.DRAINING if actor.life.deadline is not None and not actor.life.stopping:
            yield actor.life.deadline, "drain over"
        case _:
            pass


def _left(at: float, now: float) -> float:
    return _rounded(max(0.0, at - now))


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
