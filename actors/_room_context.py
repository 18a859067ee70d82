"""The room context: what all actors of one room share, and what an actor may ask its supervisor.

`RoomContext` is the room's plumbing (loop backend, timers, events, tally, the way to start an owner task).
`Supervisor` is the seam to the supervisor. An actor never decides whether it may connect, how long it may idle, or
what follows its end. It asks, and is answered in the same step. Nothing in a `Supervisor` waits. `Record` is what
the actors of one server have in common, whatever their scope: its bounds, and whether its gate needs every answer
reported.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from anyio.abc import TaskGroup

from ..protocol.config import ServerDefinition, Settings
from ..protocol.errors import CallError
from ..protocol.lifecycle import Ending
from ..protocol.secrets import KnownSecrets
from ._backend import Backend, Waiter
from ._call import Tally
from ._connection import ConnectorFactory, Handshake, Listing
from ._host import Greeting, Host, NoHost
from ._stream import EventStream
from ._timers import Timers

if TYPE_CHECKING:
    from ._call import Call
    from ._server import ServerActor
    from ._waiting_calls import WaitingCalls


@attrs.define(eq=False)
class Load:
    """The calls of one server, over all its scopes, counted against its bounds."""

    in_flight: int = 0
    queued: int = 0
    held: dict[WaitingCalls, None] = attrs.field(factory=dict["WaitingCalls", None])  # longest first


@attrs.define(eq=False)
class Record:
    """What the actors of one server have in common. A session's actor has its own record, with its server's load."""

    definition: ServerDefinition
    load: Load = attrs.field(factory=Load)
    era_hint: str | None = None  # the protocol version the server chose last: saves the probe
    log_level: str | None = None  # the least level it shall log
    guarded: bool = (
        False  # the gate has something to decide, or tools are in quarantine: ask before each call
    )
    # The tools that have changed and must not be called, by the server's own names, with what has changed.
    quarantined: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict[str, tuple[str, ...]])
    odd: str | None = None  # the first odd thing that the latest incarnation did, in words

    def remark(self, words: str | None) -> None:
        """It did something odd, or (None) an incarnation begins."""
        if words is None or self.odd is None:
            self.odd = words

    def most_in_flight(self, settings: Settings) -> int:
        """How many calls this server may have in flight, over all its scopes."""
        return self.definition.max_in_flight or settings.max_in_flight


class Next(enum.Enum):
    """What follows a closed incarnation."""

    IDLE = "idle"  # the next incarnation waits for a reason to connect; a queued call is one
    CONNECT = "connect"  # it connects without such a reason
    DOWN = "down"  # queued calls fail; only an explicit connect, restart or reload brings it back
    GONE = "gone"  # the address is gone


@attrs.frozen
class Decision:
    then: Next
    error: CallError | None = None  # for queued calls, when they are to fail


class Supervisor(Protocol):
    """The questions of an actor to its supervisor, and its reports. Plain functions; called from inside an actor's
    step."""

    def refusal(self, actor: ServerActor, call: Call) -> CallError | None:
        """Why this call may not be accepted now, or None. May mark the call as the gate's probe."""
        ...

    def request_start(self, actor: ServerActor) -> None:
        """The idle actor has a reason to connect. Ends in `actor.steps.connect()`, at once or later, or in
        `withdraw_start`. May be called again."""
        ...

    def withdraw_start(self, actor: ServerActor) -> None:
        """A reason is gone (its last waiting call left). With the last one its start leaves every queue."""
        ...

    def ready(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None: ...

    def listed(self, actor: ServerActor, handshake: Handshake, listing: Listing, revision: int) -> None:
        """The server said that its lists changed, and they have been read again."""
        ...

    def answered(self, actor: ServerActor, call: Call) -> None: ...

    def greeting(self, actor: ServerActor, call: Call) -> Greeting:
        """What the client of this call would be greeted for: what it can answer, and in which era."""
        ...

    def log_level(self, actor: ServerActor, call: Call) -> str | None:
        """The least level of logs that the request of this call asks for (2026-07-28). None: no logs."""
        ...

    def may_send(self, actor: ServerActor, call: Call) -> bool:
        """Whether a call that was queued may be sent now. May make it the gate's probe."""
        ...

    def silent(self, actor: ServerActor) -> bool:
        """Calls got no answer in time, and nothing at all was heard meanwhile. True: the server hangs."""
        ...

    def call_unanswered(self, actor: ServerActor, call: Call) -> None:
        """The gate's probe has ended without an answer: it was cancelled, or never sent."""
        ...

    def stopped_for_bug(self, actor: ServerActor) -> None:
        """A step of the actor raised. From here on its calls are refused with `bug`."""
        ...

    def failed(self, actor: ServerActor, ending: Ending) -> None:
        """An attempt to connect has failed, or the connection is lost; what is left of it must still be stopped."""
        ...

    def closed(self, actor: ServerActor, ending: Ending) -> Decision:
        """Nothing is left of this incarnation. Returns what follows."""
        ...

    def rested(self, actor: ServerActor) -> None:
        """The actor has begun to rest. Called only while it is not `is_listed`."""
        ...

    def leaving(self, actor: ServerActor) -> None:
        """The actor begins to stop, or has been told to. Harmless when it was told before."""
        ...

    def may_expire(self, actor: ServerActor) -> bool:
        """Whether the actor may stop, now that its idle time is over. If not, it is told to stop once it may."""
        ...

    def health_interval(self, actor: ServerActor) -> float:
        """Seconds of silence after which the server's health is checked; `inf` for never."""
        ...

    def idle_timeout(self, actor: ServerActor) -> float:
        """Seconds without a call after which the actor may stop; `inf` for never."""
        ...


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
        """Ends by cancellation. Each task gets an empty context: it belongs to the room, not to the caller that
        came first."""
        while True:
            await self._bell.wait()
            self._bell = self._backend.waiter()
            while self._bodies:
                Context().run(self._tasks.start_soon, self._bodies.popleft())


@attrs.define(eq=False)
class RoomContext:
    backend: Backend
    timers: Timers
    events: EventStream
    settings: Settings
    connect: ConnectorFactory
    spawner: Spawner
    client_info: dict[str, Any]
    host: Host = attrs.field(factory=NoHost)
    secrets: KnownSecrets = attrs.field(factory=KnownSecrets)  # secrets that no text about a server may show
    tally: Tally = attrs.field(factory=Tally)
    calls: int = 0
    revisions: int = 0
    queued_bytes: int = 0  # parameters of all calls that wait in a mailbox
    stop_by: float = math.inf  # the room's own deadline, once it is closing

    def next_revision(self) -> int:
        self.revisions += 1
        return self.revisions

    def spawn(self, body: Body) -> None:
        """Start an owner task, within the next turn of the loop."""
        self.spawner.spawn(body)
