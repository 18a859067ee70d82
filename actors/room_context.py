"""The room context: what all actors of one room share, and what an actor may ask its supervisor.

`RoomContext` is the room's plumbing (loop backend, timers, events, tally, the way to start an owner task).
`Supervisor` is the seam to the supervisor. An actor never decides whether it may connect, how long it may idle, or
what follows its end. It asks, and is answered in the same step. Nothing in a `Supervisor` waits. `Record` is what
the actors of one server have in common, whatever their scope: its bounds, and whether its circuit breaker needs
every answer reported.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec
from anyio.abc import TaskGroup

from ..config.model import Settings
from ..config.secrets import KnownSecrets
from ..protocol.address import Address
from .backend import Backend, Waiter, context_of_room
from .call import Call, Tally
from .event_stream import EventStream
from .host import Host, NoHost
from .peer import ConnectorFactory, Handshake, Listing
from .recent import Recent
from .timers import Timers

Body = Callable[[], Coroutine[Any, Any, object]]


class Spawner:
    """Starts tasks for steps, also where a step runs in no task at all.

    On asyncio an answer is handled in a loop callback. There its owner's callback may call a server that is idle,
    which needs an owner task. A task group can only be used from a task, so this is that task.
    """

    def __init__(self, backend: Backend, tasks: TaskGroup) -> None:
        self._backend = backend
        self._tasks = tasks
        self._bodies: deque[Body] = deque()
        self._bell: Waiter = backend.waiter()

    def spawn(self, body: Body) -> None:
        self._bodies.append(body)
        self._bell.set()

    async def run(self) -> None:
        """Start the spawned tasks, as tasks of the room and not of the caller that needed one first. Ends by
        cancellation."""
        while True:
            await self._bell.wait()
            self._bell = self._backend.waiter()
            while self._bodies:
                context_of_room().run(self._tasks.start_soon, self._bodies.popleft())


class Recording(Protocol):
    """Is told what is asked of servers, in the steps in which it happens. Must not block or raise."""

    def progressed(self, call: Call, params: Mapping[str, Any]) -> None: ...

    def ended(self, call: Call, address: Address, incarnation: int) -> None: ...

    def listed(
        self,
        address: Address,
        incarnation: int,
        handshake: Handshake,
        listing: Listing,
        offers: Mapping[str, Any],
    ) -> None:
        """`offers`: the capabilities of its client that the server was told."""
        ...


class RoomContext(msgspec.Struct, eq=False):
    backend: Backend
    timers: Timers
    events: EventStream
    settings: Settings
    connect: ConnectorFactory
    spawner: Spawner
    client_info: dict[str, Any]
    host: Host = msgspec.field(default_factory=NoHost)
    secrets: KnownSecrets = msgspec.field(
        default_factory=KnownSecrets
    )  # secrets that no text about a server may show
    tally: Tally = msgspec.field(default_factory=Tally)
    calls: int = 0
    sent: int = 0  # calls that were sent; one that was sent again counts again
    revisions: int = 0
    queued_bytes: int = 0  # parameters of all calls that wait in a mailbox
    stop_by: float = math.inf  # the room's own deadline, once it is closing
    recent: Recent = msgspec.field(default_factory=Recent)
    recording: Recording | None = None  # None: nothing is recorded

    def next_revision(self) -> int:
        self.revisions += 1
        return self.revisions

    def spawn(self, body: Body) -> None:
        """Start an owner task, within the next turn of the loop."""
        self.spawner.spawn(body)
