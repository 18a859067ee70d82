"""The room context: what all actors of one room share.

It is the room's plumbing (loop backend, timers, events, tally, the way to start an owner task). What the actors of one
server share, and what they may ask, is the `Supervisor` of `server`.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from anyio.abc import TaskGroup

from ..config.known_secrets import KnownSecrets
from ..config.model import Settings
from ..protocol.address import Address
from ..protocol.events import Note, NoteCode
from ..protocol.trace_context import TraceContext
from .backend import Backend, Waiter, context_of_room
from .call import Call, Tally
from .event_stream import EventStream
from .host import Host, NoHost
from .peer import ConnectorFactory
from .timers import Timers
from .watchers import Watchers

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
    revisions: int = 0
    queued_bytes: int = 0  # parameters of all calls that wait
    stop_by: float = math.inf  # the room's own deadline, once it is closing
    watchers: Watchers = msgspec.field(default_factory=Watchers)
    stamp_trace: Callable[[Call], TraceContext | None] | None = None  # with which trace a request is sent

    def next_revision(self) -> int:
        self.revisions += 1
        return self.revisions

    def note_raised(self, what: str, error: Exception, address: Address | None) -> None:
        """Somebody else's code raised, such as a callback of the embedding program."""
        words = f"{what} raised\n{''.join(traceback.format_exception(error))}"
        self.events.emit(Note, address, code=NoteCode.CALLBACK, words=words)

    def spawn(self, body: Body) -> None:
        """Start an owner task, within the next turn of the loop."""
        self.spawner.spawn(body)
