"""What worlds, laws and the pytest plugin look at inside of a room: the one module here that knows how it is built.

A room has a port for its doors (`supervisor.port`), and this is the one for searches. They compare what was told
with what is: who holds a slot, who waits where, which calls are counted. No program may ask that. So it stands here,
one look a name, and a wall inside the supervisor or a server's actor can move without a law being rewritten.

A look is made anew each time and copies nothing: it shows what is there at the moment when it is read. It changes
nothing, but for `teach`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..actors.router import IndexRequest, LearnedEntry
from ..catalogue.entries import ServerEntry
from ..protocol.events import Place
from ..protocol.lifecycle import Cause
from ..supervisor.discovery import PATIENCE as PATIENCE
from ..supervisor.policy.pool import decide
from ..supervisor.room import Greenroom, port_of
from ..supervisor.runtime import open_runs as open_runs
from ..supervisor.start_places import SESSION_REST as SESSION_REST

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..actors.event_stream import EventStream
    from ..actors.server import ServerActor
    from ..config.model import ServerDefinition
    from ..protocol.address import Address
    from ..protocol.lifecycle import State
    from ..supervisor.breakers import ServerBreaker
    from ..supervisor.servers import ServerRecord
    from ..supervisor.warm_pool import WarmChild, WarmLine


class ActorLook:
    """One server actor. Two looks are equal if they are at the same actor."""

    __slots__ = ("_actor",)

    def __init__(self, actor: ServerActor) -> None:
        self._actor = actor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorLook) and other._actor is self._actor

    def __hash__(self) -> int:
        return id(self._actor)

    def __str__(self) -> str:
        return str(self._actor)

    # ---- its life ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> Address:
        return self._actor.address

    @property
    def definition(self) -> ServerDefinition:
        return self._actor.record.definition

    @property
    def state(self) -> State:
        return self._actor.life.state

    @property
    def incarnation(self) -> int:
        return self._actor.life.incarnation

    @property
    def is_lost(self) -> bool:
        """Whether it is ending because its connection was lost."""
        ending = self._actor.life.ending
        return ending is not None and ending.cause is Cause.LOST

    @property
    def has_listed(self) -> bool:
        """Whether its server has said what it has, so that no discovery is patient with it."""
        return self._actor.record.listing is not None

    @property
    def is_connected(self) -> bool:
        return self._actor.is_connected

    @property
    def connected_at(self) -> float:
        return self._actor.connected_at

    @property
    def breaker(self) -> ServerBreaker:
        """The circuit breaker that its starts and calls pass. Actors may share one."""
        record: Any = self._actor.record
        return record.breaker

    # ---- its calls --------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return self._actor.in_flight

    @property
    def queued(self) -> int:
        return self._actor.queued

    @property
    def open_calls(self) -> Sequence[Call]:
        """Those that were sent and have not ended."""
        return tuple(self._actor.calls.open)

    @property
    def waiting_calls(self) -> Sequence[Call]:
        """Those that wait for a connection or a place."""
        return tuple(self._actor.calls.waiting)

    @property
    def far_requests(self) -> Sequence[Any]:
        """What a fake server has of it: the exchanges that are open at its far end."""
        peer = self._actor.peer
        return tuple(getattr(getattr(peer, "_peer", peer), "_open", ()))  # behind what notes, or itself

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for it to be connected."""
        return self._actor.is_waited_for

    @property
    def is_listening(self) -> bool:
        """Whether somebody subscribes to one of its resources."""
        return bool(self._actor.subscriptions.uris)

    @property
    def has_nothing_to_do(self) -> bool:
        return self._actor.has_nothing_to_do

    @property
    def idle_since(self) -> float:
        return self._actor.idle_since

    # ---- its start --------------------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        return self._actor.start.place

    @property
    def waiting_for(self) -> str | None:
        """What its start waits for, in words; None: nothing."""
        return self._actor.start.waiting_for

    @property
    def is_wanted_by_policy(self) -> bool:
        """Whether its configuration wants it to be started, whoever asks."""
        return self._actor.start.by_policy

    @property
    def has_deadline(self) -> bool:
        """Whether its wait for a slot will end, come what may."""
        return self._actor.start.deadline is not None


class WarmLook:
    """One child that is started ahead, or that was and is in use."""

    __slots__ = ("_child",)

    def __init__(self, child: WarmChild) -> None:
        self._child = child

    def __repr__(self) -> str:
        return f"<WarmLook {self._child.address} {self.state}>"

    @property
    def state(self) -> str:
        """Its state: starting, ready, claimed, taken, returned, resetting or leaving."""
        return self._child.state.value

    @property
    def of_sessions(self) -> bool:
        return self._child.of_sessions

    @property
    def is_free(self) -> bool:
        """Whether nobody has claimed it, and it is not ending."""
        return self._child.is_unclaimed

    @property
    def may_come_back(self) -> bool:
        """Whether it is somebody's, and may be used again after that."""
        return self._child.may_come_back

    @property
    def uses(self) -> int:
        """How many have taken it over."""
        return self._child.uses

    @property
    def holds_slot(self) -> bool:
        """Whether it holds a slot itself, and nobody in its place."""
        return self._child.claimed_by is None


class ServerLook:
    """One server of the configuration."""

    __slots__ = ("_record",)

    def __init__(self, record: ServerRecord) -> None:
        self._record = record

    @property
    def definition(self) -> ServerDefinition:
        return self._record.definition

    @property
    def is_usable(self) -> bool:
        return self._record.available.is_usable

    @property
    def in_flight(self) -> int:
        """The calls in flight that are counted, of all its actors."""
        return self._record.load.in_flight

    @property
    def queued(self) -> int:
        """The queued calls that are counted, of all its actors."""
        return self._record.load.queued


class RoomInside:
    """One room. It can be looked into once it is open."""

    def __init__(self, room: Greenroom) -> None:
        self._runtime: Any = port_of(room).runtime

    @property
    def machinery(self) -> Any:
        """What runs, for tests that plant faults there which no room has."""
        return self._runtime

    @property
    def events(self) -> EventStream:
        return self._runtime.events

    # ---- servers ----------------------------------------------------------------------------------------------------

    def actors(self, server: str | None = None) -> list[ActorLook]:
        """All actors, or those of a server."""
        found: list[ServerActor] = self._runtime.servers.all_actors()
        return [ActorLook(actor) for actor in found if server is None or actor.address.server == server]

    def actor(self, server: str) -> ActorLook:
        """The actor of a server that everybody shares. Raises `UnknownServer`."""
        return ActorLook(self._runtime.servers.actor(server))

    @property
    def servers(self) -> Mapping[str, ServerLook]:
        """Those that are configured, by name."""
        records: Mapping[str, ServerRecord] = self._runtime.servers.records
        return {name: ServerLook(record) for name, record in records.items()}

    def is_kept(self, actor: ActorLook) -> bool:
        """Whether a slot is set aside for it."""
        return actor.address.is_shared and actor.address.server in self._runtime.servers.starts.places.kept

    async def teach(self, server: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Put the server's tools into the index, as a cache would. Nothing is started."""
        await self.teach_all({server: tools})

    async def teach_all(self, tools: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Put the tools of many servers, by their names, into the index, as a cache would. Nothing is started."""
        router = self._runtime.router.ref
        for server, has in tools.items():
            router.tell(LearnedEntry(ServerEntry(server, "", tools=tuple(dict(tool) for tool in has))))
        await router.ask(IndexRequest)

    # ---- starts and slots -------------------------------------------------------------------------------------------

    def at(self, place: Place) -> list[ActorLook]:
        """The actors that are listed at a place of the way to a start, first come first."""
        return [ActorLook(actor) for actor in self._runtime.servers.starts.places.at(place)]

    def count(self, place: Place) -> int:
        """How many are counted there."""
        return self._runtime.servers.starts.places.count(place)

    def holders(self, *, of_sessions: bool | None = None) -> list[ActorLook]:
        """The actors that hold a slot: all of them, or those of sessions, or the others."""
        held = map(ActorLook, self._runtime.servers.starts.places.holders())
        return [actor for actor in held if of_sessions is None or actor.address.is_session is of_sessions]

    def slots_counted(self, *, of_sessions: bool) -> int:
        """How many slots are counted as held."""
        return self._runtime.servers.starts.places.held(of_sessions=of_sessions)

    def most_slots(self, *, of_sessions: bool) -> int:
        """How many slots may be held at most, the reserve included."""
        view = self._runtime.servers.starts.places
        return view.session_limits.slots if of_sessions else view.limits.slots + view.limits.reserve

    @property
    def free_for_all(self) -> int:
        """How many slots are set aside for nobody."""
        return self._runtime.servers.starts.places.capacity

    @property
    def fewest_slots(self) -> int:
        """How many connections stay, however long they are idle."""
        return self._runtime.servers.starts.places.limits.minimum

    def decide_again(self) -> None:
        """Have the pool decide once more. It may change nothing: for what a decision costs."""
        self._runtime.servers.starts.look()

    @property
    def next_look(self) -> float:
        """When the pool looks again by itself, if nothing happens; `math.inf`: it does not."""
        return decide(self._runtime.servers.starts.places.snapshot(-math.inf)).look_at

    # ---- what is started ahead --------------------------------------------------------------------------------------

    def warm(self, server: str | None = None) -> list[WarmLook]:
        """The children that were started ahead and are there, of all servers or of one."""
        warm = self._runtime.servers.starts.warm
        lines: Mapping[str, WarmLine] = {} if warm is None else warm.lines
        return [
            WarmLook(child)
            for name, line in lines.items()
            if server in (None, name)
            for child in line.children
        ]

    # ---- counts -----------------------------------------------------------------------------------------------------

    @property
    def open_calls(self) -> int:
        """How many accepted calls have no outcome, as the drain report counts."""
        return self._runtime.context.tally.open

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of parameters wait with their calls."""
        return self._runtime.context.queued_bytes

    @property
    def held_calls(self) -> int:
        """How many calls wait for a person's yes."""
        return len(self._runtime.servers.approvals)

    @property
    def timer_count(self) -> int:
        """How many timers are counted."""
        return len(self._runtime.context.timers)

    @property
    def lost_timers(self) -> int:
        """How many timers are counted and will never fire."""
        timers = self._runtime.context.timers
        return len(timers) - sum(timer.callback is not None for timer in timers._heap)
