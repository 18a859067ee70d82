"""Children that are started ahead, for servers whose sessions or calls have a child each (`warm`).

How many there are to be is decided in `policy.warm`; here is what is done about it. Each child has a task of its own,
which opens the server's usual connector under an address without an actor (`warm:<n>`), and stays to the end of the
connection. Its program is started, its stderr is read and logged, its exit is seen. Nothing is said to it, for what a
server is told of its client belongs to a session: so nothing of a session can be in it, and nothing of another one.

An actor that applies for a slot while its server has a warm child gets the child's slot (`claim`), ahead of all who
wait: nobody else could have had it without ending the child. Its connector then is a `WarmConnector`, which takes the
child over in place of a start. Each child is taken over once, by one incarnation, and ends with it.

Unless its server has a tool that resets it (`reset`). Then the incarnation whose session or call is over gives its
child back in place of stopping it, if the policy finds that nothing of it is left (`may_stay`); `reset_tool` notes what
is. The slot goes from the actor to the child when nothing else of the actor is left (`left`), and then the child's task
calls the tool. Who comes meanwhile may claim the child and waits for the answer. Whoever takes it over goes on with the
handshake that it has had. Wherever anything is not as it should be, the child ends as it would without the tool.

A child that ends before it has said anything is no failure of the session or call that was to have it, nor of its
server: whoever has claimed it waits until nothing of it is left, and has a start of its own. If it had been taken over
a moment before, the incarnation ends as one whose server is elsewhere (`Reason.MOVED`), and the calls wait for the
next.

There is no highest age. Who waits longest is taken over first, and of a lazy server none outlives the idle time without
use. But what a command or an `envFile` gives is asked for when a child starts, so it may be as old as that.

Rejected: a warm actor that moves to its session (it carries another address into events, secrets and slots); the
process alone, without its connection (only for programs of ours, with a second owner of pipes and exit); a handshake
ahead (what the client can answer is not known, and the era follows from it); no slot for a child that nobody uses (the
limit would be one on paper).
"""

from __future__ import annotations

import enum
import math
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import msgspec
from msgspec.structs import replace

from ..actors.peer import Connection, Connector, ConnectorFactory, Exchange, LostReason, PeerHooks
from ..config.installers import is_installer
from ..config.model import Isolation, Lifecycle, ServerDefinition, idle_time
from ..config.references import isolation_of, warm_of
from ..protocol.address import DISCOVERY, Address
from ..protocol.errors import CallError, ConnectFailed
from ..protocol.events import Note, NoteCode, Place, WarmChildMoved, WarmMove
from ..protocol.jsonrpc.terms import METHOD_NOT_FOUND, RpcError
from ..protocol.lifecycle import Cause, Reason
from ..protocol.safe_text import in_words, shortened, unhidden
from ..protocol.tasks import has_tasks
from .policy.availability import AvailabilityState
from .policy.breaker import UNTROUBLED, CircuitBreaker
from .policy.warm import (
    FreeChild,
    UsedChild,
    WarmServer,
    WarmSnapshot,
    choose,
    fill,
    in_the_way,
    is_passing_news,
    may_be_told_later,
    why_not_again,
)
from .reset_tool import RESET_WITHIN, NotedPeer, ReusableConnection, why_not_reset_by

if TYPE_CHECKING:
    from ..actors.room_context import RoomContext
    from ..actors.server import ServerActor
    from ..actors.timers import TimeLimit, Timer
    from .servers import ServerRecord
    from .starts import Starts

_LOOK: Final = 0.1  # seconds between two looks at a program that starts
_STARTS_FOR: Final = 5.0  # seconds after which a start counts as over, whatever the program does
_MOST_NOTES: Final = 8  # that are kept for whoever takes the child over
_AHEAD: Final = "a child that was started ahead ended before it was used"
_NOT_YET: Final = "Nobody has initialized this server yet."
_LEAST_STOP: Final = 0.1  # seconds
_SHORT: Final = 80  # characters of a name in a text


class WarmState(enum.Enum):
    """Where a child is. It never comes back to an earlier state, but from `CLAIMED` to `READY`, and by a reset."""

    STARTING = "starting"  # its program is being started, or works to start
    READY = "ready"  # it waits to be used
    CLAIMED = "claimed"  # an actor is about to take it over, and holds the slot
    TAKEN = "taken"  # it is somebody's connection
    RETURNED = "returned"  # it was given back, and whoever had it holds the slot still
    RESETTING = "resetting"  # its server's own tool resets it; somebody may have claimed it already
    LEAVING = "leaving"  # it is being stopped


_FREE: Final = (WarmState.STARTING, WarmState.READY, WarmState.RESETTING)
_IN_ORDER: Final = (Reason.SESSION_OVER, Reason.CALL_OVER)


class WarmChild:
    """One child that is started ahead, and the task that owns its connection. It is its peer's `PeerHooks`: what comes
    goes to the hooks of whoever has taken it over."""

    def __init__(self, pool: WarmPool, line: WarmLine, address: Address, *, of_sessions: bool) -> None:
        self.line: WarmLine = line
        self.address: Address = address
        self.of_sessions: bool = of_sessions
        self.state: WarmState = WarmState.STARTING
        self.claimed_by: ServerActor | None = None  # holds the slot in its place
        self.connection: Connection | None = None
        self.failure: Exception | None = None  # an error of ours that has ended it
        self.gone: anyio.Event = anyio.Event()  # nothing is left of it
        self.uses: int = 0  # how many have taken it over
        self.noted: NotedPeer | None = None  # what its user speaks through, if it may be used again
        self.is_current: bool = True  # nothing has happened that ends it with its user
        self._pool = pool
        self._hooks: PeerHooks | None = None
        self._notes: list[tuple[NoteCode, str]] = []
        self._news = pool.context.backend.waiter()  # its task has something to do
        self._resetting: anyio.CancelScope | None = None
        self._streams: list[Exchange] = []  # that its last user had, and that may not have ended yet
        self._reset_over = anyio.Event()
        self._opening: TimeLimit | None = None
        self._stopping: anyio.CancelScope | None = None
        self._stopped_by = -math.inf
        self._user: anyio.CancelScope | None = None  # of the task that has taken it over
        self._heard = -math.inf  # when it last said something before it was taken over
        self._signs: object = None
        self._rests_by = math.inf

    @property
    def is_leaving(self) -> bool:
        return self.state is WarmState.LEAVING

    @property
    def is_free(self) -> bool:
        """Whether an actor may claim it."""
        return self.is_unclaimed and self.connection is not None and not self.connection.has_ended

    @property
    def is_unclaimed(self) -> bool:
        """Whether nobody has claimed it, and it is not ending."""
        return self.state in _FREE and self.claimed_by is None

    @property
    def may_come_back(self) -> bool:
        """Whether it is somebody's, and may be used again after that."""
        if self.claimed_by is None or self.is_leaving or not self.is_current:
            return False
        return self.state is not WarmState.TAKEN or (self.noted is not None and self.noted.lasting is None)

    # ---- its task ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the connection from its opening to its end. Raises nothing."""
        pool, timers = self._pool, self._pool.context.timers
        limit = pool.context.settings.connect_timeout
        try:
            with timers.limited(pool.now() + limit) as self._opening:
                if self.is_leaving:
                    return
                async with pool.open_with(self.line.definition, self.address, 1).open(self) as connection:
                    self._opening.move(math.inf)
                    self._begin(connection)
                    await self._stay(connection)
                    if self._hooks is None:
                        await self._stop(connection)
            if self._opening.scope.cancelled_caught and not self.is_leaving:
                pool.lost(self, f"it could not be opened in {limit:g} s")
        except CallError as error:
            pool.lost(self, error.reason if isinstance(error, ConnectFailed) else str(error))
        except Exception as error:
            self.failure = error
            pool.broke(self, error)
        finally:
            pool.forget(self)
            self.gone.set()

    def _begin(self, connection: Connection) -> None:
        self.connection, self._signs = connection, connection.signs()
        self._rests_by = self._pool.now() + _STARTS_FOR
        if not self.is_leaving:
            self._look_again()
            self._pool.opened(self)

    async def _stay(self, connection: Connection) -> None:
        """Stay until it leaves, and reset it whenever somebody has given it back."""
        while not self.is_leaving:
            await self._news.wait()
            self._news = self._pool.context.backend.waiter()
            if self.state is WarmState.RESETTING:
                await self._reset(connection)

    async def _stop(self, connection: Connection) -> None:
        seconds = self._pool.stop_time(self.line.definition)
        self._stopped_by = self._pool.now() + seconds
        with anyio.CancelScope(shield=True) as self._stopping:
            await connection.stop(seconds)

    def _look_again(self) -> None:
        self._pool.context.timers.at(self._pool.now() + _LOOK, self._look)

    def _look(self) -> None:
        """See whether its program still works to start."""
        if self.state is not WarmState.STARTING or self.connection is None:
            return
        before, self._signs = self._signs, self.connection.signs()
        if self._signs == before or self._pool.now() >= self._rests_by:
            self.state = WarmState.READY
            self._pool.starts.look()
        else:
            self._look_again()

    def look_at_agreement(self) -> None:
        """Its user is connected: see whether what was agreed on lasts longer than a request."""
        agreed = self.connection.agreed if self.connection is not None else None
        if self.noted is None or agreed is None:
            return
        handshake = agreed.handshake
        if has_tasks(handshake.protocol_version, handshake.capabilities):
            self.noted.note("its server makes tasks, which may go on")
        if may_be_told_later(agreed.declaration.capabilities):
            self.noted.note("its client may be told later how a page ended")

    # ---- its end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop it; if somebody uses it, it ends with its user. Idempotent."""
        self.is_current = False
        if self.state in (WarmState.TAKEN, WarmState.LEAVING):
            return
        self.state = WarmState.LEAVING
        if self.connection is None and self._opening is not None:
            self._opening.scope.cancel()
        if self._resetting is not None:
            self._resetting.cancel()
        self._reset_over.set()
        self._news.set()

    def hurry(self) -> None:
        """The room closes: kill what is still being stopped, if less time is left than it was to have."""
        left = self._pool.stop_time(self.line.definition)
        if self._stopping is not None and self._pool.now() + left < self._stopped_by:
            self._stopping.cancel()

    def fail_user(self) -> None:
        """Its task has ended by an error of ours: end the task that uses it, too."""
        if self._user is not None:
            self._user.cancel()

    # ---- taking it over ---------------------------------------------------------------------------------------------

    def take(self, hooks: PeerHooks, user: anyio.CancelScope) -> Connection | None:
        """Take it over, in the task whose scope is `user`. None: it has ended, or is being stopped."""
        if self.state is not WarmState.CLAIMED or self.connection is None or self.claimed_by is None:
            return None
        if self.connection.has_ended:
            self._pool.lost(self, "it has ended")
            return None
        if self.uses:
            self.connection.forget_stderr()
            self.line.reused += 1
        self.uses += 1
        self.state, self._hooks, self._user = WarmState.TAKEN, hooks, user
        self._heard = self.connection.peer.last_heard
        self.noted = None
        for code, text in self._notes:
            hooks.on_note(code, text)
        if self.line.definition.reset is None:
            return self.connection
        self.noted = NotedPeer(self.connection.peer)
        if self._notes:
            self.noted.note(self._notes[0][1])
        # Its properties stand for attributes, which the checker does not allow.
        return cast("Connection", ReusableConnection(self.connection, self.noted, self._give_back))

    async def reset_over(self) -> None:
        """Wait until it is reset, or leaves."""
        await self._reset_over.wait()

    def release(self, user: anyio.CancelScope) -> bool:
        """Whoever had taken it over has stopped it; if not, it is killed now. Returns whether it ends: not if it was
        given back."""
        if self._user is not user:
            return False
        assert self.connection is not None
        self.connection.kill_now()
        self.state = WarmState.LEAVING
        self._news.set()
        return True

    # ---- using it again ---------------------------------------------------------------------------------------------

    def _give_back(self) -> bool:
        """Its user does not need it any more. Returns whether it stays; if not, its user stops it. Idempotent."""
        if self.is_current and self.state is WarmState.TAKEN and self._pool.may_stay(self):
            assert self.noted is not None
            self._streams = self.noted.close()
            self.state, self._hooks, self._user, self.noted = WarmState.RETURNED, None, None, None
            self._reset_over = anyio.Event()
        elif self.state is WarmState.TAKEN:
            self.is_current = False
        return self._user is None

    def begin_reset(self) -> None:
        """It holds a slot of its own: reset it."""
        self.state = WarmState.RESETTING
        self._news.set()

    async def _reset(self, connection: Connection) -> None:
        pool, tool = self._pool, self.line.definition.reset
        connection.hand_to(self.address, self.uses)
        why: str | None = "its entry names no tool any more"
        with anyio.CancelScope() as self._resetting:
            if tool is not None:
                within = min(RESET_WITHIN, pool.connect_time(self.line.definition) / 3)
                peer, backend, timers = connection.peer, pool.context.backend, pool.context.timers
                why = await why_not_reset_by(tool, peer, backend, timers, within, self._streams)
        self._resetting, self._streams = None, []
        if self.state is not WarmState.RESETTING:
            return
        if why is None:
            self.state = WarmState.READY if self.claimed_by is None else WarmState.CLAIMED
            self._reset_over.set()
            pool.was_reset(self)
        else:
            pool.not_reset(self, why)

    def _spoil(self, words: str) -> None:
        """It has said something that is neither an answer nor a line of the log."""
        if self.state is WarmState.TAKEN:
            if self.noted is not None:
                self.noted.note(words)
        elif self.uses and not self.is_leaving:
            self._pool.not_reset(self, words)

    # ---- what its peer reports --------------------------------------------------------------------------------------

    def on_lost(self, reason: LostReason) -> None:
        if self._hooks is None:
            if self.state in (WarmState.RETURNED, WarmState.RESETTING):
                self._pool.not_reset(self, reason.in_words())
            else:
                self._pool.lost(self, reason.in_words())
            return
        assert self.connection is not None
        if self.connection.peer.last_heard <= self._heard and self.claimed_by is not None:
            self._pool.died_unused(self, reason.in_words())
            self.claimed_by.start.may_take_over = False
            reason = replace(reason, text=f"{_AHEAD}: {reason.text}", loss=Reason.MOVED)
        self._hooks.on_lost(reason)

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        if self.uses and not is_passing_news(method):
            self._spoil(f"it has sent {shortened(unhidden(method), _SHORT)}")
        if self._hooks is not None:  # else it is nobody's, and there is nothing to be told
            self._hooks.on_notification(method, params)

    def on_request(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, during: Exchange | None = None
    ) -> None:
        if self.uses:
            self._spoil(f"it has asked its client for {shortened(unhidden(method), _SHORT)}")
        if self._hooks is not None:
            self._hooks.on_request(rpc_id, method, params, during)
        elif self.connection is not None:
            error = None if method == "ping" else RpcError(METHOD_NOT_FOUND, _NOT_YET)
            self.connection.peer.reply(rpc_id, {} if error is None else None, error)

    def on_late_answer(self, result: bytes) -> None:
        self._spoil("it has sent an answer that nobody waits for")
        if self._hooks is not None:
            self._hooks.on_late_answer(result)

    def on_gap(self) -> None:
        self._spoil("what it sent was interrupted")
        if self._hooks is not None:
            self._hooks.on_gap()

    def on_note(self, code: NoteCode, text: str) -> None:
        self._spoil(text)
        if self._hooks is not None:
            self._hooks.on_note(code, text)
        elif len(self._notes) < _MOST_NOTES:
            self._notes.append((code, text))


class WarmConnector(msgspec.Struct, frozen=True):
    """Takes over a child that is there, in place of a start. `fresh` makes the server's usual connector."""

    child: WarmChild
    address: Address
    incarnation: int
    fresh: Callable[[], Connector]

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
        child, user = self.child, anyio.CancelScope()
        if child.state is WarmState.RESETTING:
            await child.reset_over()
        connection = child.take(hooks, user)
        if connection is None:
            await child.gone.wait()  # it was to have our slot
            async with self.fresh().open(hooks) as connection:
                yield connection
            return
        connection.hand_to(self.address, self.incarnation)
        try:
            with user:
                yield connection
        finally:
            ends = child.release(user)
            if ends:
                with anyio.CancelScope(shield=True):
                    await child.gone.wait()
        if ends and child.failure is not None:
            raise child.failure


class WarmLine(msgspec.Struct, eq=False):
    """A server with warm children, and those that it has: also those that are taken over or end."""

    record: ServerRecord
    children: dict[WarmChild, None] = msgspec.field(default_factory=dict[WarmChild, None])  # the oldest first
    breaker: CircuitBreaker = UNTROUBLED
    used_at: float = -math.inf  # when somebody last needed a child of it
    reused: int = 0  # how often a child that had been reset was taken over
    is_told: bool = False  # that its tool does not reset it

    @property
    def definition(self) -> ServerDefinition:
        return self.record.definition

    @property
    def free(self) -> list[WarmChild]:
        """Those that nobody has claimed, and that are not ending; the oldest first."""
        return [child for child in self.children if child.is_unclaimed]

    @property
    def in_use(self) -> int:
        """How many are somebody's and may come back."""
        return sum(child.may_come_back for child in self.children) if self.definition.reset is not None else 0


class WarmPool:
    """The warm children of a room, which reaches its servers through here as long as it runs. `open_with` makes the
    connectors."""

    def __init__(self, context: RoomContext, starts: Starts) -> None:
        self.context = context
        self.starts = starts
        self.open_with: ConnectorFactory = context.connect
        context.connect = self.connector
        self.lines: dict[str, WarmLine] = {}  # by server: those that may have any, and those that have some
        self._claimed: dict[Address, WarmChild] = {}  # by who has claimed it, until nothing is left of it
        self._numbers = count(1)
        self._timer: Timer | None = None
        self._all_gone = anyio.Event()

    def now(self) -> float:
        return self.context.backend.now()

    def stop_time(self, definition: ServerDefinition) -> float:
        """Seconds that a process tree of this server has to end."""
        limit = definition.stop_timeout or self.context.settings.stop_timeout
        return max(_LEAST_STOP, min(limit, self.context.stop_by - self.now()))

    def connect_time(self, definition: ServerDefinition) -> float:
        """Seconds that an attempt to connect to this server has."""
        return definition.connect_timeout or self.context.settings.connect_timeout

    def count(self, server: str) -> int:
        """How many children of this server nobody has taken over, and are not ending."""
        line = self.lines.get(server)
        return 0 if line is None else len(line.free)

    def count_reused(self, server: str) -> int:
        """How often somebody has had a child of this server that its tool had reset."""
        line = self.lines.get(server)
        return 0 if line is None else line.reused

    # ---- servers ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The room is open: eager servers have their warm children from now on."""
        self.starts.look()

    def define(self, record: ServerRecord) -> None:
        """The server has another definition, or another policy."""
        name = record.definition.name
        line = self.lines.get(name)
        if line is not None:
            line.record = record
        elif record.definition.warm:
            self.lines[name] = line = WarmLine(record)
        if line is not None:
            self.starts.look()

    def end(self, server: str) -> None:
        """End all warm children of this server: they run what its definition said before, or it is taken down."""
        line = self.lines.get(server)
        if line is not None:
            line.breaker, line.is_told = UNTROUBLED, False
            for child in line.free:
                self.give_up(child)
            for child in tuple(line.children):  # those that are claimed, too
                child.end()
            self._forget_line(line)

    def _forget_line(self, line: WarmLine) -> None:
        is_over = not line.definition.warm or line.record.available.state is AvailabilityState.REMOVED
        if is_over and not line.children:
            self.lines.pop(line.definition.name, None)

    def close(self) -> None:
        """The room closes: end all. Once more: with less time."""
        for line in self.lines.values():
            for child in tuple(line.children):
                child.hurry()
                child.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait_gone(self) -> None:
        """Wait until no child is left, after `close`."""
        while any(line.children for line in self.lines.values()):
            self._all_gone = anyio.Event()
            await self._all_gone.wait()

    def connected(self, record: ServerRecord, actor: ServerActor) -> None:
        """A child of this server has connected: somebody needs the children of this server now."""
        line = self.lines.get(record.definition.name)
        if line is None or actor.address.scope == DISCOVERY or actor.address.is_common:
            return
        line.used_at = self.now()
        child = self._claimed.get(actor.address)
        if child is not None:  # one that was warm works
            line.breaker = UNTROUBLED
            child.look_at_agreement()

    # ---- taking one over --------------------------------------------------------------------------------------------

    def claim(self, actor: ServerActor) -> WarmChild | None:
        """Give the actor a warm child of its server, with its slot. None: there is none for it."""
        line = self.lines.get(actor.address.server)
        may_take_over, actor.start.may_take_over = actor.start.may_take_over, True
        if line is None or actor.address in self._claimed or not may_take_over:
            return None
        free = [
            child
            for child in line.children
            if child.is_free and child.of_sessions is actor.address.is_session
        ]
        known = [self._as_free(child, actor) for child in free]
        place = choose(known)
        if place is None:
            if (unfit := in_the_way(known)) is not None:
                self.give_up(free[unfit])
            return None
        child = free[place]
        child.claimed_by = actor
        if child.state is not WarmState.RESETTING:
            child.state = WarmState.CLAIMED
        self._claimed[actor.address] = child
        self.starts.places.release(child)
        self._tell(child, WarmMove.TAKEN, by=actor.address.scope)
        return child

    def _as_free(self, child: WarmChild, actor: ServerActor) -> FreeChild:
        agreed = child.connection.agreed if child.connection is not None else None
        is_ready = child.state is WarmState.READY
        if agreed is None:
            return FreeChild(is_ready)
        declaration = self.context.host.declaration(actor.address)
        return FreeChild(is_ready, is_used=True, fits=agreed.is_as(declaration, self.context.client_info))

    def left(self, actor: ServerActor) -> None:
        """The actor has given up its slot. What it had claimed and not taken over has one of its own again; what it
        has given back has one now, and is reset."""
        child = self._claimed.get(actor.address)
        if child is None or child.state is WarmState.TAKEN:
            return
        del self._claimed[actor.address]
        child.claimed_by = None
        self.starts.places.hold(child)
        if child.state is WarmState.RETURNED:
            child.begin_reset()
            self._tell(child, WarmMove.RESETTING)
        elif child.state is not WarmState.LEAVING:
            if child.state is WarmState.CLAIMED:
                child.state = WarmState.READY
            self._tell(child, WarmMove.RETURNED)

    def connector(self, definition: Any, address: Any, incarnation: int) -> Connector:
        """A `ConnectorFactory`: of the room's, for an actor that has claimed a child."""
        child = self._claimed.get(address)
        if child is None:
            return self.open_with(definition, address, incarnation)
        return WarmConnector(
            child, address, incarnation, partial(self.open_with, definition, address, incarnation)
        )

    # ---- starting and ending them -----------------------------------------------------------------------------------

    def fill(self) -> None:
        """Start and end as many as the policy says."""
        if self.starts.is_closing or not self.lines:
            return
        decision = fill(self._snapshot())
        for server, surplus in decision.surplus.items():
            for child in reversed(self.lines[server].free[-surplus:]):
                self.give_up(child)
        for server in decision.starts:
            self._start(self.lines[server])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if decision.look_at < math.inf:
            self._timer = self.context.timers.at(decision.look_at, self.starts.look)

    def _start(self, line: WarmLine) -> None:
        address = Address.of_warm(line.definition.name, next(self._numbers))
        child = WarmChild(self, line, address, of_sessions=self._is_of_sessions(line.definition))
        line.children[child] = None
        self.starts.places.hold(child)
        self.context.spawn(child.run)

    def give_up(self, child: WarmChild) -> None:
        """It makes room, or is not needed any more."""
        child.end()
        self._tell(child, WarmMove.ENDED)

    def opened(self, child: WarmChild) -> None:
        self._tell(child, WarmMove.STARTED)

    def lost(self, child: WarmChild, why: str) -> None:
        """It has ended by itself, or could not be started. Not for one that is being stopped."""
        if child.state in (WarmState.LEAVING, WarmState.TAKEN):
            return
        self.died_unused(child, why)
        child.end()

    def died_unused(self, child: WarmChild, why: str) -> None:
        """Count it, and tell why."""
        line, starts = child.line, self.starts
        count_it = line.breaker.connect_failed if child.connection is None else line.breaker.died
        line.breaker = count_it(starts.policy, self.now(), why, starts.chance.random())
        self._tell(child, WarmMove.LOST, words=self._hidden(child, why))

    def broke(self, child: WarmChild, error: Exception) -> None:
        """An error of ours has ended its task. Whoever uses it gets the error."""
        if child.state is WarmState.TAKEN:
            child.fail_user()
            return
        text = "".join(traceback.format_exception(error))
        words = f"a child that was started ahead failed in Greenroom itself\n{text}"
        self.context.events.emit(Note, child.address, code=NoteCode.BUG, words=words)
        self.lost(child, in_words(error))

    def forget(self, child: WarmChild) -> None:
        """Nothing of it is left."""
        line = child.line
        del line.children[child]
        if child.claimed_by is None:
            self.starts.places.release(child)
        else:
            self._claimed.pop(child.claimed_by.address, None)
        self._forget_line(line)
        self._all_gone.set()
        self.starts.look()

    # ---- using them again -------------------------------------------------------------------------------------------

    def may_stay(self, child: WarmChild) -> bool:
        """Whether a child whose user leaves may be reset. If not, and the user's session or call is over, that is
        told."""
        actor, line, connection = child.claimed_by, child.line, child.connection
        ending = actor.life.ending if actor is not None else None
        if ending is None or ending.cause is not Cause.SCOPE_ENDED or ending.reason not in _IN_ORDER:
            return False
        assert connection is not None
        definition, tool = line.definition, line.definition.reset
        server = self._as_it_is(definition.name, line)
        is_same = tool is not None and not self.starts.is_closing
        used = UsedChild(
            replace(server, in_use=server.in_use - child.may_come_back),
            is_over=connection.agreed is not None and not connection.has_ended,
            is_current=is_same and child.of_sessions is self._is_of_sessions(definition),
            is_changed=line.record.quarantined.pin_of("tools/call", {"name": tool}) is not None,
            lasting=child.noted.left if child.noted is not None else None,
            is_waited_for=self.starts.places.count_of(Place.SLOT, of_sessions=child.of_sessions) > 0,
        )
        why = why_not_again(used, self.now())
        if why is not None:
            self._tell(child, WarmMove.NOT_RESET, words=self._hidden(child, why))
        return why is None

    def was_reset(self, child: WarmChild) -> None:
        """Its tool has reset it."""
        self._tell(child, WarmMove.RESET)
        self.starts.look()

    def not_reset(self, child: WarmChild, why: str) -> None:
        """Its tool has not reset it, or it has said something since: it ends."""
        line, words = child.line, self._hidden(child, why)
        child.end()
        self._tell(child, WarmMove.NOT_RESET, words=words)
        if not line.is_told:
            line.is_told = True
            tool = shortened(unhidden(line.definition.reset or ""), _SHORT)
            text = f'its tool "{tool}" has not reset it, so it got a new process: {words}'
            self.context.events.emit(Note, Address(child.address.server), code=NoteCode.RESET, words=text)

    def _hidden(self, child: WarmChild, words: str) -> str:
        return self.context.secrets.of(Address(child.address.server)).without(unhidden(words))

    def _is_of_sessions(self, definition: ServerDefinition) -> bool:
        return isolation_of(definition, self.context.settings) is Isolation.PER_SESSION

    # ---- what the policy decides from -------------------------------------------------------------------------------

    def _snapshot(self) -> WarmSnapshot:
        places, settings = self.starts.places, self.context.settings
        starting = sum(
            child.state is WarmState.STARTING for line in self.lines.values() for child in line.children
        )
        is_waited_for = places.count(Place.PERMIT) > 0
        permits = settings.start_permits - places.count(Place.STARTING) - starting
        return WarmSnapshot(
            self.now(),
            [self._as_it_is(name, line) for name, line in self.lines.items()],
            {kind: places.free(of_sessions=kind) for kind in (False, True)},
            0 if is_waited_for else permits,
            places.limits.most_of_group,
        )

    def _as_it_is(self, name: str, line: WarmLine) -> WarmServer:
        record, definition, settings = line.record, line.definition, self.context.settings
        theirs = record.breaker.state
        may = record.available.is_usable and not theirs.tripped
        return WarmServer(
            name,
            warm_of(definition, settings) if may else 0,
            self._is_of_sessions(definition),
            held=len(line.free),
            in_use=line.in_use,
            in_group=self.starts.places.in_group(name),
            until=self._until(line),
            since=max(line.breaker.refuses_until, theirs.refuses_until),
            is_probed=line.breaker.tripped,
        )

    def _until(self, line: WarmLine) -> float:
        """Until when the server is to have warm children. An eager one that may have to be installed first has them
        from its first use on, as a lazy one has: it is not installed by many starts at once."""
        definition = line.definition
        if line.used_at > -math.inf:
            return line.used_at + idle_time(definition, self.context.settings)
        is_installed = not is_installer(definition.command, definition.args)
        stands = self.starts.has_begun and definition.lifecycle is not Lifecycle.LAZY and is_installed
        return math.inf if stands else -math.inf

    def _tell(self, child: WarmChild, move: WarmMove, *, by: str | None = None, words: str = "") -> None:
        server, scope = Address(child.address.server), child.address.scope
        warm = len(child.line.free)
        self.context.events.emit(
            WarmChildMoved, server, move=move, child=scope, warm=warm, by=by, words=words, uses=child.uses
        )
