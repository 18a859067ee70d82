"""The owner task of one incarnation: it opens the connection, initializes and lists the server, and stays to the end.

Everything that must be entered and left in one task is entered and left here. The task decides nothing and touches
no state. It sends the actor `ServerLists`, `ConnectFailure`, `ConnectionLoss` and `TaskOver`. It receives one command,
`cancel`, which ends whatever it is doing: opening the connection, or something inside it. Then it stops the process
tree, shielded, within the stop time, which `hurry` makes shorter. `TaskOver` is sent in a plain `finally`, so the actor
receives it also when the loop cancels this task natively; by then the connector's own `finally` has killed the tree.

One deadline covers opening, handshake and listing (but see `Patience`). When it passes, the error names the step that
used up the time.

When the server says that one of its lists changed, or somebody asks for it by name, the lists are read again here. A
short pause before reading lets a burst of changes end. A change announced during a reading causes another reading
afterwards. So no change is lost, one change causes one reading, and a caller never gets a list from before its
request.

A server of the handshake era may ask for its client's roots as soon as it is initialized, and refuse calls until it
has them. So if it was told that it may ask, we send a ping, and answer first whatever the server asks before it
answers the ping. The first call is sent a moment later.

The incarnation also hears what its peer reports (`PeerHooks`). That comes from a pump (on asyncio: from a loop
callback, where there is no current task), so these functions only send messages or set a flag. The reason of a lost
connection passes here on its way to errors, so the server's secrets are removed from it here. What the server asks is
answered by `ServerRequests`, what it has been asked to report is kept by `ServerReports`, the calls that it has turned
into tasks by `ServerTasks`; `HealthCheck` asks whether it lives. All of them end with the task.

Rejected: the handshake and the lists as an object beside the task, and the hooks as another. Each had the incarnation
and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from msgspec.structs import replace

from ..catalogue.definition_secrets import without_credentials
from ..config.installers import is_installer
from ..config.model import Scrub, Settings
from ..protocol.errors import Bug, CallError, ConnectFailed, FailureKind, hidden_lines
from ..protocol.events import ConnectStep, Note, NoteCode, Step
from ..protocol.jsonrpc.terms import MODERN_VERSIONS, PROGRESS
from ..protocol.lifecycle import Ending, Reason
from ..protocol.safe_text import in_words
from ..protocol.tasks import TOLD
from .call import Call
from .handshake import RpcFailure, ask, shake_hands
from .health import HealthCheck
from .install_patience import Patience
from .list_reader import list_all
from .peer import Agreement, Connection, Exchange, Handshake, Listing, LostReason, Peer, connect_failed
from .server_reports import ServerReports
from .server_requests import ServerRequests
from .server_tasks import ServerTasks, makes_tasks

if TYPE_CHECKING:
    from .host import Declaration
    from .server import ServerActor, WaitCallback

DEBOUNCE: Final = 0.1
_LEAST_TIME: Final = 1.0  # the lists get at least this, even when the handshake used up the connect time
FIRST_ANSWERS: Final = 2.0  # seconds that the server's first requests may delay its first call
ACTING: Final = 0.05  # seconds for it to act on the answers: the filesystem server looks at each root
LISTS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
    }
)


class ServerLists(msgspec.Struct, frozen=True, eq=False):
    """The handshake is done and the lists are in; or they have been read again, because they changed."""

    incarnation: int
    handshake: Handshake
    listing: Listing
    revision: int  # the room's count when the reading began: an older answer never overwrites a newer one


class ConnectFailure(msgspec.Struct, frozen=True, eq=False):
    """The attempt to connect has failed."""

    incarnation: int
    error: CallError


class ConnectionLoss(msgspec.Struct, frozen=True, eq=False):
    """The connection ended although nobody had asked for that."""

    incarnation: int
    reason: LostReason


class TaskOver(msgspec.Struct, frozen=True, eq=False):
    """The owner task has ended; nothing of the process tree is left."""

    incarnation: int


class StopOrder(msgspec.Struct, frozen=True, eq=False):
    """Somebody asked for the end of the incarnation: it was idle, evicted, drained, restarted, or the room closes."""

    ending: Ending
    patience: float  # seconds that calls in flight may still take; 0 = none


Message = ServerLists | ConnectFailure | ConnectionLoss | TaskOver | StopOrder


class Incarnation:
    """One walk of an actor through the lifecycle. It is its peer's `PeerHooks`."""

    peer: Peer  # once its connection is open

    def __init__(self, actor: ServerActor, number: int) -> None:
        context, definition, settings = actor.context, actor.definition, actor.context.settings
        self.actor: ServerActor = actor
        self.number = number
        self.lost: LostReason | None = None
        self.failed: str = ""  # why it could not connect, in words
        self.declaration: Declaration | None = None  # what its server was told of its client
        self.requests: ServerRequests = ServerRequests(self)
        self.reports: ServerReports | None = None  # once the handshake is done
        self.tasks: ServerTasks | None = None  # likewise, of a server that makes tasks
        self._health = HealthCheck(self)
        self._connection: Connection | None = None
        self._scope: anyio.CancelScope | None = None  # of what it does now, once the task has begun
        self._cancelled = False
        self._stopping: anyio.CancelScope | None = None
        self._stopped_by = -math.inf
        self._limit = actor.record.connect_timeout(actor)
        self._deadline = context.backend.now() + self._limit  # of the attempt to connect
        installs = is_installer(definition.command, definition.args)
        most = (definition.install_timeout or settings.install_timeout) if installs else None
        # None: the handshake is done.
        self._usual: float = definition.connect_timeout or settings.connect_timeout
        self._patience: Patience | None = Patience(
            context, context.backend.now(), self._limit, most, self._usual
        )
        self._changed = context.backend.waiter()
        self._readers: list[WaitCallback] = []  # the callers that wait for the next reading of the lists

    # What the actor uses.

    @property
    def pid(self) -> int | None:
        return self._connection.pid if self._connection is not None else None

    @property
    def is_installing(self) -> bool:
        """Whether the command may still be installing the server, which has not answered yet."""
        return self._patience is not None and self._patience.is_installing

    @property
    def connect_by(self) -> float:
        """When the attempt to connect has failed without another sign of life."""
        patience = self._patience
        return self._deadline if patience is None or patience.limit.when == math.inf else patience.limit.when

    @property
    def last_line(self) -> str:
        """The last lines of its stderr."""
        return self.actor.hidden(self._connection.last_line) if self._connection is not None else ""

    def stderr_tail(self) -> tuple[str, ...]:
        tail = self._connection.stderr_tail() if self._connection is not None else ()
        return hidden_lines(tail, self.actor.hidden)

    def cancel(self) -> None:
        """Stop the process tree. Idempotent; may be called before the task has begun."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def hurry(self) -> None:
        """The room is closing: let a stop that is under way take less time, if less is left."""
        if (
            self._stopping is not None
            and self.actor.context.backend.now() + self._stop_time() < self._stopped_by
        ):
            self._stopping.cancel()

    def give_up(self, why: str, loss: Reason) -> LostReason:
        """Declare the connection lost, for the actor. Returns the reason that others are told."""
        self.lost = LostReason(self.actor.hidden(why), stderr_tail=self.stderr_tail(), loss=loss)
        return self.lost

    def found_dead(self, why: str) -> None:
        """Tell the actor that the connection counts as lost, although the other side has not ended it."""
        self.actor.tell(ConnectionLoss(self.number, self.give_up(why, Reason.UNHEALTHY)))

    def rearm(self) -> None:
        """The health policy has changed."""
        if self.actor.is_connected:
            self._health.start()

    def look_again(self, told: WaitCallback | None = None) -> None:
        """Read the server's lists again, because they may have changed. `told` is called when that is done."""
        if told is not None:
            self._readers.append(told)
        self._changed.set()

    def somebody_waits(self) -> None:
        """Somebody waits for this attempt to connect, which may have more time than the configured limit, because
        nobody did: it has that limit, counted from now."""
        now = self.actor.context.backend.now()
        self._limit = min(self._limit, self._usual)
        self._deadline = min(self._deadline, now + self._limit)
        if self._patience is not None:
            self._patience.somebody_waits(now)

    def note(self, code: NoteCode, words: str) -> None:
        """Write a line to the log."""
        self.actor.context.events.emit(Note, self.actor.address, self.number, code=code, words=words)

    # The owner task.

    async def run(self) -> None:
        actor, number = self.actor, self.number
        try:
            if not self._cancelled:
                await self._live()
        except CallError as error:
            error.hide(actor.hidden)
            actor.tell(ConnectFailure(number, error))
        except Exception as error:
            bug = Bug(
                f'Connecting "{actor.address}" failed in Greenroom itself: {actor.hidden(in_words(error))}',
                server=actor.address.server,
            )
            bug.__cause__ = error
            actor.note_bug(error)
            actor.tell(ConnectFailure(number, bug))
        finally:
            actor.tell(TaskOver(number))

    async def _live(self) -> None:
        context, address = self.actor.context, self.actor.address
        connector = context.connect(self.actor.definition, address, self.number)
        with context.timers.limited(self._deadline) as opening:
            self._scope = opening.scope
            async with connector.open(self) as connection:
                opening.move(math.inf)
                self._connection, self.peer = connection, connection.peer
                self._reached(ConnectStep.STARTED)
                await self._use(connection)
        if opening.scope.cancelled_caught:
            self._fail("it could not be opened in time", FailureKind.SILENCE)

    async def _use(self, connection: Connection) -> None:
        """Initialize and list, then stay until `cancel`, which every ending calls."""
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                try:
                    handshake = await self._initialize(connection)
                    if handshake is not None:
                        await self._list(connection.peer, handshake)
                        await self._follow_lists(connection.peer, handshake)
                except RpcFailure as error:
                    self._fail(str(error), _kind_of(error))
                await anyio.sleep_forever()
        finally:
            self._fall_silent()
        with anyio.CancelScope(shield=True):
            await self._stop(connection)

    def _fall_silent(self) -> None:
        if self._patience is not None:
            self._patience.stop()
        self._health.stop()
        self.requests.close()
        if self.reports is not None:
            self.reports.stop()
        readers, self._readers = self._readers, []
        for told in readers:
            told(self._unread_lists("the connection has ended"))

    async def _stop(self, connection: Connection) -> None:
        """Stop the process tree within the stop time. If that time is shortened meanwhile, start again with the shorter
        one."""
        is_hurried = True
        while is_hurried:
            seconds = self._stop_time()
            self._stopped_by = self.actor.context.backend.now() + seconds
            with anyio.CancelScope() as self._stopping:
                await connection.stop(seconds)
            is_hurried = self._stopping.cancelled_caught

    def _stop_time(self) -> float:
        """Seconds the process tree has to end."""
        context = self.actor.context
        limit = self.actor.definition.stop_timeout or context.settings.stop_timeout
        return max(0.1, min(limit, context.stop_by - context.backend.now()))

    def _reached(self, step: ConnectStep) -> None:
        """Emit an event, for readers of connects."""
        self.actor.context.events.emit(Step, self.actor.address, self.number, step=step)

    def _fail(self, text: str, kind: FailureKind) -> None:
        """The attempt to connect has failed."""
        self.failed = text = self.actor.hidden(self._with_said_instead(text))
        reason = LostReason(text, stderr_tail=self.stderr_tail(), kind=kind)
        self.actor.tell(ConnectFailure(self.number, connect_failed(self.actor.address.server, reason)))

    def _with_said_instead(self, text: str) -> str:
        """Why the handshake failed, with what the server wrote instead of an answer."""
        said = self.peer.said_instead if self._connection is not None else ""
        return f"{text}; {said}" if said else text

    # Handshake and lists.

    async def _initialize(self, connection: Connection) -> Handshake | None:
        """Do the handshake. Returns None if it was not done in time, which has been reported by then. Raises
        `RpcFailure`."""
        actor, context, patience = self.actor, self.actor.context, self._patience
        assert patience is not None
        self.declaration = context.host.declaration(actor.address)
        if connection.agreed is not None:
            return self._handshake_of_before(connection.agreed)
        patience.begin(lambda: (connection.signs(), connection.peer.last_heard), self._note_install)
        handshake = None
        with patience.limit.scope:
            handshake = await shake_hands(
                connection.peer,
                context.backend,
                context.timers,
                settings=msgspec.structs.replace(context.settings, connect_timeout=self._limit),
                client_info=context.client_info,
                declaration=self.declaration,
                era=actor.definition.era,
                era_hint=actor.record.era_hint,
                deadline=math.inf,  # the patience ends it
            )
        if handshake is None:
            self._fail(patience.reason(), FailureKind.SILENCE)
            return None
        patience.stop()
        if patience.installs:  # an install has used up the time: the lists get as much again
            self._deadline = context.backend.now() + self._limit
        connection.agreed = Agreement(self.declaration, context.client_info, handshake)
        return self._agreed(handshake)

    def _handshake_of_before(self, agreed: Agreement) -> Handshake | None:
        """The handshake that this connection has had, if the same would be said now. None: it is another client by now,
        so the connection belongs to nobody."""
        assert self.declaration is not None
        if agreed.is_as(self.declaration, self.actor.context.client_info):
            return self._agreed(agreed.handshake)
        self.on_lost(LostReason("its client can answer something else now", loss=Reason.MOVED))
        return None

    def _agreed(self, handshake: Handshake) -> Handshake:
        """The handshake is done."""
        self._patience = None
        self._reached(ConnectStep.INITIALIZED)
        return self._without_credentials(handshake)

    def _note_install(self, text: str) -> None:
        self.note(NoteCode.INSTALLING, f"{text}: {self.last_line}" if self.last_line else text)

    def _without_credentials(self, handshake: Handshake) -> Handshake:
        """What the server says of itself besides its lists, as it is kept and shown."""
        context, actor = self.actor.context, self.actor
        if (actor.definition.scrub or context.settings.scrub) is Scrub.OFF:
            return handshake
        remove = partial(without_credentials, context.secrets.of(actor.address))
        return replace(
            handshake,
            capabilities=remove(handshake.capabilities),
            server_info=remove(handshake.server_info),
            instructions=remove({"instructions": handshake.instructions})["instructions"],
            beside=remove(handshake.beside),
        )

    async def _list(self, peer: Peer, handshake: Handshake) -> None:
        """Read the lists in the time that is left to connect. Raises `RpcFailure` when the list of tools fails."""
        actor, context = self.actor, self.actor.context
        if makes_tasks(handshake):
            self.tasks = ServerTasks(self)
        # Before the lists are read, so that no change in between is missed.
        self.reports = ServerReports(self, handshake)
        self.reports.begin()
        revision = context.next_revision()
        left = max(self._deadline - context.backend.now(), _LEAST_TIME)
        listing = await self._read(peer, handshake, left, actor.record.listing)
        await self._answer_first(peer, handshake)
        actor.tell(ServerLists(self.number, handshake, listing, revision))
        if not self._cancelled:
            self.reports.start()
            self._health.start()

    async def _read(
        self, peer: Peer, handshake: Handshake, seconds: float, before: Listing | None = None
    ) -> Listing:
        """Read all lists. Each may take so long. `before`: what is known of them. Raises `RpcFailure`."""
        context, own = self.actor.context, self.actor.definition
        settings: Settings = msgspec.structs.replace(
            context.settings,
            pinning=own.pinning or context.settings.pinning,
            scrub=own.scrub or context.settings.scrub,
            connect_timeout=seconds,
        )
        secrets = context.secrets.of(self.actor.address)
        return await list_all(
            peer, context.backend, context.timers, handshake, settings, before, secrets=secrets
        )

    async def _answer_first(self, peer: Peer, handshake: Handshake) -> None:
        """Answer the requests that the server sent when it was initialized, and give it time to act on the answers. The
        ping brings the requests that were on their way; it does not show when the server has acted. People take their
        time, so after a while the connection is ready in any case."""
        may_ask = self.declaration is not None and self.declaration.capabilities
        if not may_ask or handshake.protocol_version in MODERN_VERSIONS:
            return
        answered, context = 0, self.actor.context
        with context.timers.limited(context.backend.now() + FIRST_ANSWERS):
            await self._ping(peer)
            while self.requests.taken > answered:
                answered = self.requests.taken
                await self.requests.settled()
                await anyio.sleep(ACTING)
                await self._ping(peer)

    async def _ping(self, peer: Peer) -> None:
        context = self.actor.context
        with suppress(RpcFailure):
            await ask(peer, context.backend, context.timers, "ping", None, FIRST_ANSWERS)

    async def _follow_lists(self, peer: Peer, handshake: Handshake) -> None:
        """Read the lists again whenever they may have changed."""
        while True:
            await self._changed.wait()
            await anyio.sleep(DEBOUNCE)
            self._changed = self.actor.context.backend.waiter()
            readers, self._readers = self._readers, []
            failure: CallError | None = self._unread_lists("the connection has ended")
            try:
                failure = await self._read_again(peer, handshake)
            finally:
                for told in readers:
                    told(failure)

    async def _read_again(self, peer: Peer, handshake: Handshake) -> CallError | None:
        """Read the lists again. Returns why they could not be read; None if they could."""
        context, settings = self.actor.context, self.actor.context.settings
        revision = context.next_revision()
        listing, why = None, "no answer in time"
        try:
            with context.timers.limited(context.backend.now() + settings.call_timeout):
                listing = await self._read(peer, handshake, settings.connect_timeout)
        except RpcFailure as error:
            why = self.actor.hidden(str(error))
        if listing is None:
            self.note(NoteCode.UNREAD, f"reading its lists again failed: {why}")
            return self._unread_lists(why)
        self.actor.tell(ServerLists(self.number, handshake, listing, revision))
        return None

    def _unread_lists(self, why: str) -> CallError:
        return ConnectFailed(f"it did not list what it has again: {why}", server=self.actor.address.server)

    # What its peer reports.

    def on_lost(self, reason: LostReason) -> None:
        if self.lost is None:
            if self.reports is None:  # the handshake was not done
                reason = replace(reason, text=self._with_said_instead(reason.text))
            self.lost = reason = _without_secrets(reason, self.actor.hidden)
            self.actor.tell(ConnectionLoss(self.number, reason))

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        if method in LISTS:
            self.look_again()
        if method == PROGRESS:
            if self.tasks is not None:
                self.tasks.progressed(params)
        elif method in TOLD:
            if self.tasks is not None:
                self.tasks.changed(params)
        elif not self.requests.heed(method, params):
            context, address = self.actor.context, self.actor.address
            context.watchers.tell(context.watchers.noticed, address, method, params)
            context.host.heard(address, method, params)

    def on_request(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, during: Exchange | None = None
    ) -> None:
        call = during if isinstance(during, Call) else None
        if call is None and self.tasks is not None:
            call = self.tasks.call_of(params)
        self.requests.take(rpc_id, method, params, call)

    def on_late_answer(self, result: bytes) -> None:
        if self.tasks is not None:
            self.tasks.late(result)

    def on_gap(self) -> None:
        self.look_again()
        if self.reports is not None:
            self.reports.presume_changed()

    def on_note(self, code: NoteCode, text: str) -> None:
        self.note(code, text)
        # A late answer says nothing of how the server is now: its caller had left.
        if self.actor.record.odd is None and code is not NoteCode.LATE_ANSWER:
            self.actor.record.remark(self.actor.hidden(text), code)


def _without_secrets(reason: LostReason, hidden: Callable[[str], str]) -> LostReason:
    text, tail = hidden(reason.text), hidden_lines(reason.stderr_tail, hidden)
    same = text == reason.text and tail == reason.stderr_tail
    return reason if same else replace(reason, text=text, stderr_tail=tail)


def _kind_of(error: RpcFailure) -> FailureKind:
    """What kind of failure it is that a request of the handshake, or for the lists, brought no result."""
    if error.timed_out:
        return FailureKind.SILENCE
    is_unreached = error.error is not None and error.error.unreached
    return FailureKind.CONNECTION if is_unreached else FailureKind.OTHER
