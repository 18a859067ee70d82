"""The owner task of one incarnation: it opens the connection, initializes and lists the server, and
stays to the end.

Everything that must be entered and left in one task is entered and left here. The task decides nothing and touches
no state. It sends the actor `Ready`, `Failed`, `Lost` and `Gone`. It receives one command, `cancel`, which ends
whatever it is doing: opening the connection, or something inside it. Then it stops the process tree, shielded,
within the stop time, which `hurry` makes shorter. `Gone` is sent in a plain `finally`, so the actor receives it
also when the loop cancels this task natively; by then the connector's own `finally` has killed the tree.

The work in between is done by the objects it holds: handshake and lists (`Initialization`), what its peer says
(`PeerListener`), what its server asks of its client (`ServerRequests`), what its server shall report
(`Subscriptions`), and whether it lives (`Health`). All of them end with the task.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import attrs
import msgspec
from msgspec.structs import replace

from ..catalogue.definition_secrets import without_credentials
from ..config.installers import STILL_INSTALLING, is_installer
from ..config.model import Scrub, Settings
from ..config.secrets import Secrets, in_words
from ..protocol.bounds import OPEN_SERVER_REQUESTS
from ..protocol.errors import Bug, CallError, ConnectFailed, RpcRefusal, UsageError, hidden_lines
from ..protocol.events import ConnectStep, Note, NoteCode, Step
from ..protocol.jsonrpc.terms import (
    CANCELLED,
    INTERNAL_ERROR,
    LISTEN,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    PROGRESS,
    RpcError,
    RpcFault,
)
from ..protocol.lifecycle import Ending, Reason
from .call import Call
from .exchanges import IncomingTable, Refusals
from .handshake import RpcFailure, ask, shake_hands
from .host import Declaration, ServerRequest
from .lists import list_all
from .peer import Connection, Exchange, Handshake, Listing, LostReason, Peer, WhenEnded, connect_failed
from .server_tasks import ServerTasks

if TYPE_CHECKING:
    from ..protocol.address import Address
    from .backend import Waiter
    from .room_context import RoomContext
    from .server import ServerActor, Told
    from .timers import Timer


class Ready(msgspec.Struct, frozen=True, eq=False):
    """The handshake is done and the lists are in."""

    incarnation: int
    handshake: Handshake
    listing: Listing
    revision: int  # the room's count when the reading began: an older answer never overwrites a newer one


class Listed(msgspec.Struct, frozen=True, eq=False):
    """The server said that its lists changed, and they have been read again."""

    incarnation: int
    handshake: Handshake
    listing: Listing
    revision: int  # the room's count when the reading began: an older answer never overwrites a newer one


class Failed(msgspec.Struct, frozen=True, eq=False):
    """The attempt to connect has failed."""

    incarnation: int
    error: CallError


class Lost(msgspec.Struct, frozen=True, eq=False):
    """The connection ended although nobody had asked for that."""

    incarnation: int
    reason: LostReason


class Gone(msgspec.Struct, frozen=True, eq=False):
    """The owner task has ended; nothing of the process tree is left."""

    incarnation: int


class Stop(msgspec.Struct, frozen=True, eq=False):
    """Somebody asked for the end of the incarnation: it was idle, evicted, drained, restarted, or the room closes."""

    ending: Ending
    patience: float  # seconds that calls in flight may still take; 0 = none


Message = Ready | Listed | Failed | Lost | Gone | Stop


class Incarnation:
    peer: Peer  # once its connection is open

    def __init__(self, actor: ServerActor, number: int) -> None:
        self.actor = actor
        self.number = number
        self.lost: LostReason | None = None
        self._connection: Connection | None = None
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._stopping = anyio.CancelScope()
        self._stopped_by = -math.inf
        self._initialization = Initialization(self)
        self.server_requests: ServerRequests = ServerRequests(self, actor.address)
        self.tasks: ServerTasks = ServerTasks(self)
        self.listening: Listening | None = None
        self.declaration: Declaration | None = None  # what its server was told of its client
        self._pulse = Pulse(self)

    # ---- what the actor uses ----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        return self._connection.pid if self._connection is not None else None

    @property
    def is_installing(self) -> bool:
        """Whether the command may still be installing the server, which has not answered yet."""
        return self._initialization.patience.is_installing

    @property
    def last_line(self) -> str:
        """The last lines of its stderr."""
        return self.actor.hidden(self._connection.last_line) if self._connection is not None else ""

    def cancel(self) -> None:
        """Stop the process tree. Idempotent; may be called before the task has begun."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def hurry(self) -> None:
        """The room is closing: let a stop that is under way take less time, if less is left."""
        if self.actor.context.backend.now() + self._stop_time() < self._stopped_by:
            self._stopping.cancel()

    def give_up(self, why: str, loss: Reason) -> LostReason:
        """Declare the connection lost, for the actor. Returns the reason that others are told."""
        self.lost = LostReason(self.actor.hidden(why), stderr_tail=self.stderr_tail(), loss=loss)
        return self.lost

    def found_dead(self, why: str) -> None:
        """Tell the actor that the connection counts as lost, although the other side has not ended it."""
        self.actor.tell(Lost(self.number, self.give_up(why, Reason.UNHEALTHY)))

    def stderr_tail(self) -> tuple[str, ...]:
        tail = self._connection.stderr_tail() if self._connection is not None else ()
        return hidden_lines(tail, self.actor.hidden)

    # ---- the owner task ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        actor, number = self.actor, self.number
        try:
            if not self._cancelled:
                await self._live()
        except CallError as error:
            error.hide(actor.hidden)
            actor.tell(Failed(number, error))
        except Exception as error:
            bug = Bug(
                f'Connecting "{actor.address}" failed in Greenroom itself: {actor.hidden(in_words(error))}',
                server=actor.address.server,
            )
            bug.__cause__ = error
            actor.note_bug(error)
            actor.tell(Failed(number, bug))
        finally:
            actor.tell(Gone(number))

    async def _live(self) -> None:
        context, address = self.actor.context, self.actor.address
        connector = context.connect(self.actor.definition, address, self.number)
        with anyio.CancelScope(deadline=self._initialization.deadline) as opening:
            self._scope = opening
            async with connector.open(PeerListener(self)) as connection:
                opening.deadline = math.inf
                self._connection, self.peer = connection, connection.peer
                self.reached(ConnectStep.STARTED)
                await self._use(connection)
        if opening.cancelled_caught:
            self.fail("it could not be opened in time")

    async def _use(self, connection: Connection) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                self._initialization.begin(connection)
                await self._serve(connection)
        finally:
            self._initialization.stop()
            self._fall_silent()
        with anyio.CancelScope(shield=True):
            await self._stop(connection)

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

    async def _serve(self, connection: Connection) -> None:
        """Initialize and list, then stay until `cancel`."""
        try:
            await self._initialization.run(connection)
        except RpcFailure as error:
            self.fail(str(error))
        await anyio.sleep_forever()  # until `cancel`, which every ending calls

    def reached(self, step: ConnectStep) -> None:
        """Emit an event, for readers of connects."""
        self.actor.context.events.emit(Step, self.actor.address, self.number, step=step)

    def listen(self, handshake: Handshake) -> None:
        """The handshake is done: listen to the server's notifications."""
        self.listening = Listening(self, handshake)
        self.listening.listen()

    def look_after(self) -> None:
        """The server is ready: send it the remaining subscriptions, and begin the health checks."""
        if not self._cancelled and self.listening is not None:
            self.listening.start()
            self._pulse.start()

    def rearm(self) -> None:
        """The health policy has changed."""
        if self.actor.is_connected:
            self._pulse.start()

    def look_again(self, told: Told | None = None) -> None:
        """Read the server's lists again, because they may have changed. `told` is called when that is done."""
        self._initialization.look_again(told)

    def _fall_silent(self) -> None:
        self._pulse.stop()
        self.server_requests.close()
        if self.listening is not None:
            self.listening.stop()

    def fail(self, text: str) -> None:
        """The attempt to connect has failed."""
        reason = LostReason(self.actor.hidden(text), stderr_tail=self.stderr_tail())
        self.actor.tell(Failed(self.number, connect_failed(self.actor.address.server, reason)))

    def note(self, code: NoteCode, words: str) -> None:
        """Write a line to the log."""
        self.actor.context.events.emit(Note, self.actor.address, self.number, code=code, words=words)


# ---- Initializes one server, reads its lists, and reads them again when they change ---------------------------------
#
# One deadline covers opening, handshake and listing (but see `Patience`). When it passes, the error names the step that
# used up the time.
#
# When the server says that one of its lists changed, or somebody asks for it by name, the lists are read again here. A
# short pause before reading lets a burst of changes end. A change announced during a reading causes another reading
# afterwards. So no change is lost, one change causes one reading, and a caller never gets a list from before its
# request.
#
# A server of the handshake era may ask for its client's roots as soon as it is initialized, and refuse calls until it
# has them. So if it was told that it may ask, we send a ping, and answer first whatever the server asks before it
# answers the ping. The first call is sent a moment later.

DEBOUNCE: Final = 0.1
_LEAST_TIME: Final = 1.0  # the lists get at least this, even when the handshake used up the connect time
FIRST_ANSWERS: Final = 2.0  # seconds that the server's first requests may delay its first call
ACTING: Final = 0.05  # seconds for it to act on the answers: the filesystem server looks at each root


class Initialization:
    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._actor = incarnation.actor
        self._context = incarnation.actor.context
        context, definition = self._context, self._actor.definition
        self._limit = definition.connect_timeout or context.settings.connect_timeout
        installs = is_installer(definition.command, definition.args)
        most = (definition.install_timeout or context.settings.install_timeout) if installs else None
        self.patience: Patience = Patience(context, context.backend.now(), self._limit, most)
        self._changed = context.backend.waiter()
        self._waiting: list[Told] = []  # the callers that wait for the next reading

    @property
    def deadline(self) -> float:
        """The time by which the connection must be open."""
        return self.patience.began + self._limit

    def begin(self, connection: Connection) -> None:
        """The connection is open: the patience starts to count."""
        self.patience.begin(lambda: (connection.signs(), connection.peer.last_heard), self._tell_progress)

    def stop(self) -> None:
        self.patience.stop()
        if self._waiting:
            self._tell(self._take_waiting(), self._unread("the connection has ended"))

    def look_again(self, told: Told | None = None) -> None:
        """Read the server's lists again, because they may have changed. `told` is called when that is done."""
        if told is not None:
            self._waiting.append(told)
        self._changed.set()

    async def run(self, connection: Connection) -> None:
        """Initialize and list within the connect time, then stay until cancelled.

        Raises `RpcFailure`. Returns early when the handshake was not done in time; that has been reported by then.
        """
        handshake = await self._initialize(connection)
        if handshake is not None:
            self._incarnation.reached(ConnectStep.INITIALIZED)
            await self._list(connection, handshake)
            await self._stay(connection, handshake)

    async def _initialize(self, connection: Connection) -> Handshake | None:
        """Do the handshake. Returns None if it was not done in time, which has been reported by then. Raises
        `RpcFailure`."""
        context, actor, patience = self._context, self._actor, self.patience
        declaration = self._incarnation.declaration = context.host.declaration(actor.address)
        handshake = None
        with patience.scope:
            handshake = await shake_hands(
                connection.peer,
                context.backend,
                settings=attrs.evolve(context.settings, connect_timeout=self._limit),
                client_info=context.client_info,
                declaration=declaration,
                era=actor.definition.era,
                era_hint=actor.record.era_hint,
                deadline=patience.began + patience.most,
            )
        if handshake is None:
            self._incarnation.fail(patience.reason())
        patience.stop()
        return None if handshake is None else self._without_credentials(handshake)

    async def _list(self, connection: Connection, handshake: Handshake) -> None:
        """Read the lists in the time that is left to connect. If an install used up that time, the lists get as much
        again. Raises `RpcFailure` when the list of tools fails."""
        context, actor, incarnation = self._context, self._actor, self._incarnation
        incarnation.listen(handshake)  # before the lists are read, so that no change in between is missed
        revision = context.next_revision()
        left = self._limit if self.patience.installs else self.deadline - context.backend.now()
        settings = attrs.evolve(self._settings, connect_timeout=max(left, _LEAST_TIME))
        before, secrets = actor.record.listing, self._secrets
        listing = await list_all(
            connection.peer, context.backend, handshake, settings, before, secrets=secrets
        )
        await self._answer_first(connection.peer, handshake)
        actor.tell(Ready(incarnation.number, handshake, listing, revision))
        incarnation.look_after()

    @property
    def _settings(self) -> Settings:
        """The room's settings, with those that the server's definition overrides for its lists."""
        settings, own = self._context.settings, self._actor.definition
        return attrs.evolve(
            settings, pinning=own.pinning or settings.pinning, scrub=own.scrub or settings.scrub
        )

    @property
    def _secrets(self) -> Secrets:
        return self._context.secrets.of(self._actor.address)

    def _without_credentials(self, handshake: Handshake) -> Handshake:
        """What the server says of itself besides its lists, as it is kept and shown."""
        if self._settings.scrub is Scrub.OFF:
            return handshake
        remove = partial(without_credentials, self._secrets)
        return replace(
            handshake,
            capabilities=remove(handshake.capabilities),
            server_info=remove(handshake.server_info),
            instructions=remove({"instructions": handshake.instructions})["instructions"],
            beside=remove(handshake.beside),
        )

    def _tell_progress(self, text: str) -> None:
        incarnation = self._incarnation
        incarnation.note(
            NoteCode.INSTALLING, f"{text}: {incarnation.last_line}" if incarnation.last_line else text
        )

    async def _answer_first(self, peer: Peer, handshake: Handshake) -> None:
        """Answer the requests that the server sent when it was initialized, and give it time to act on the answers. The
        ping brings the requests that were on their way; it does not show when the server has acted. People take their
        time, so after a while the connection is ready in any case."""
        declaration, requests = self._incarnation.declaration, self._incarnation.server_requests
        may_ask = declaration is not None and declaration.capabilities
        if not may_ask or handshake.protocol_version in MODERN_VERSIONS:
            return
        answered = 0
        with anyio.move_on_after(FIRST_ANSWERS):
            await self._ping(peer)
            while requests.taken > answered:
                answered = requests.taken
                await requests.settled()
                await anyio.sleep(ACTING)
                await self._ping(peer)

    async def _ping(self, peer: Peer) -> None:
        with suppress(RpcFailure):
            await ask(peer, self._context.backend, "ping", None, FIRST_ANSWERS)

    async def _stay(self, connection: Connection, handshake: Handshake) -> None:
        context = self._context
        while True:
            await self._changed.wait()
            await anyio.sleep(DEBOUNCE)
            self._changed = context.backend.waiter()
            waiting, failure = self._take_waiting(), self._unread("the connection has ended")
            try:
                failure = await self._read_again(connection, handshake)
            finally:
                self._tell(waiting, failure)

    async def _read_again(self, connection: Connection, handshake: Handshake) -> CallError | None:
        """Read the lists again. Returns why they could not be read; None if they could."""
        context, incarnation = self._context, self._incarnation
        revision = context.next_revision()
        try:
            with anyio.fail_after(context.settings.call_timeout):
                listing = await list_all(
                    connection.peer, context.backend, handshake, self._settings, secrets=self._secrets
                )
        except (TimeoutError, RpcFailure) as error:
            why = self._actor.hidden(str(error)) or "no answer in time"
            incarnation.note(NoteCode.UNREAD, f"reading its lists again failed: {why}")
            return self._unread(why)
        self._actor.tell(Listed(incarnation.number, handshake, listing, revision))
        return None

    def _unread(self, why: str) -> CallError:
        return ConnectFailed(f"it did not list what it has again: {why}", server=self._actor.address.server)

    def _take_waiting(self) -> list[Told]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _tell(self, waiting: list[Told], failure: CallError | None) -> None:
        for told in waiting:
            told(failure)


# ---- What one incarnation hears from its peer: the `PeerHooks` of its connection ------------------------------------
#
# The hooks are called from a pump (on asyncio: from a loop callback, where there is no current task), so they only
# send messages or set a flag. The reason of a lost connection passes here on its way to errors, so the server's
# secrets are removed from it here.

LISTS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
    }
)


class PeerListener:
    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation

    def on_lost(self, reason: LostReason) -> None:
        incarnation = self.incarnation
        if incarnation.lost is None:
            incarnation.lost = reason = _without_secrets(reason, incarnation.actor.hidden)
            incarnation.actor.tell(Lost(incarnation.number, reason))

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        incarnation = self.incarnation
        if method in LISTS:
            incarnation.look_again()
        if method == PROGRESS:
            incarnation.tasks.progressed(params)
        elif not (incarnation.server_requests.heed(method, params) or incarnation.tasks.heed(method, params)):
            context, address = incarnation.actor.context, incarnation.actor.address
            context.recent.noticed(address, method, params, context.backend.now())
            context.host.heard(address, method, params)

    def on_request(
        self,
        rpc_id: Any,
        method: str,
        params: Mapping[str, Any] | None,
        during: Exchange | None = None,
    ) -> None:
        self.incarnation.server_requests.take(
            rpc_id,
            method,
            params,
            during if isinstance(during, Call) else self.incarnation.tasks.call_of(params),
        )

    def on_late_answer(self, result: bytes) -> None:
        self.incarnation.tasks.late(result)

    def on_gap(self) -> None:
        incarnation = self.incarnation
        incarnation.look_again()
        if incarnation.listening is not None:
            incarnation.listening.presume_changed()

    def on_note(self, text: str) -> None:
        self.incarnation.note(NoteCode.ODD, text)
        record, actor = self.incarnation.actor.record, self.incarnation.actor
        if record.odd is None:
            record.remark(actor.hidden(text))


def _without_secrets(reason: LostReason, hidden: Callable[[str], str]) -> LostReason:
    text, tail = hidden(reason.text), hidden_lines(reason.stderr_tail, hidden)
    same = text == reason.text and tail == reason.stderr_tail
    return reason if same else replace(reason, text=text, stderr_tail=tail)


# ---- Health: is a silent server still there? ------------------------------------------------------------------------
#
# Rules (why: `docs/decisions/health.md`). Any byte from the server is proof, so a busy server is never asked. A server
# that has been silent for one interval is asked (`ping`, or `server/discover` in the era that has no ping). Any answer
# is proof, even an error. Slow is not dead: when nothing comes within the next interval, that is a suspicion, and the
# server is asked again. Only a second miss is a loss. While calls are in flight nothing is asked: the server may be
# busy with them and silent, and calls have their own clocks.
#
# `Health` is pure: what is known now goes in; what to do, and when to look again, comes out. `Pulse` belongs to one
# incarnation: it has the timer and sends the ping. The supervisor says which servers are checked, and how often.
# Rejected: a fixed timeout on the ping, which makes slow servers restart for ever.


class Finding(enum.Enum):
    WELL = "well"
    ASK = "ask"  # send a ping
    LOST = "lost"


class Health(msgspec.Struct, frozen=True):
    asked_at: float | None = None  # when the open ping was sent
    misses: int = 0  # pings in a row without an answer

    def look(self, now: float, last_heard: float, interval: float) -> tuple[Health, Finding, float]:
        """The next health, what to do, and when to look again (absolute, seconds)."""
        # What was heard in the very tick of the ping is an answer: earlier bytes are an interval older.
        if self.asked_at is not None and last_heard < self.asked_at:
            if self.misses:
                return Health(), Finding.LOST, math.inf
            return Health(now, misses=1), Finding.ASK, now + interval
        if (
            last_heard + interval > now
        ):  # not `now - last_heard < interval`: rounding must not yield this very moment again
            return Health(), Finding.WELL, last_heard + interval
        return Health(now), Finding.ASK, now + interval


# Any answer will do: that bytes came shows that the server is there.
_ANY_ANSWER = WhenEnded(lambda _exchange, _result, _error: None)


class Pulse:
    """Checks one incarnation, from `start` to `stop`."""

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._health = Health()
        self._timer: Timer | None = None
        self._ping: Exchange | None = None

    def start(self) -> None:
        """Begin the checks, or begin again with another interval."""
        self.stop()
        self._health = Health()
        self._look_at(self._now() + self._interval())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        actor, peer, now = self._incarnation.actor, self._incarnation.peer, self._now()
        if actor.in_flight:
            self._health = Health()
            self._look_at(now + self._interval())
            return
        self._health, finding, again = self._health.look(now, peer.last_heard, self._interval())
        if self._ping is not None:
            peer.abandon(self._ping, "no longer wanted")
            self._ping = None
        if finding is Finding.LOST:
            self._incarnation.found_dead("failed its health check: two requests in a row got no answer")
        elif finding is Finding.ASK:
            self._ask()
        self._look_at(again)

    def _ask(self) -> None:
        peer = self._incarnation.peer
        is_modern = peer.protocol_version in MODERN_VERSIONS
        self._ping = Exchange(_ANY_ANSWER, "server/discover" if is_modern else "ping", None)
        peer.request(self._ping)

    def _look_at(self, when: float) -> None:
        if when < math.inf:
            self._timer = self._incarnation.actor.context.timers.at(when, self._look)

    def _interval(self) -> float:
        return self._incarnation.actor.supervisor.health_interval(self._incarnation.actor)

    def _now(self) -> float:
        return self._incarnation.actor.context.backend.now()


# ---- Patience with a server that may have to be installed before it runs --------------------------------------------
#
# `npx`, `uvx` and similar commands may download for minutes, and killing them in the middle leaves a broken cache
# behind. So such an attempt to connect has no fixed time: it may go on as long as it shows signs of work. We look for
# these signs from outside, now and then: the command writes something, processes below it start or end, or they use
# processor time. An attempt without such a sign for the whole connect time counts as hung. The install time bounds it
# in any case.
#
# Once the handshake is done, the server is installed, and its lists have the time that every server has.

LOOK_EVERY: Final = 1.0  # seconds; more often when the patience is short
TELL_AFTER: Final = (
    10.0  # seconds until the log is told that it takes its time; then twice as many, and so on
)


class Patience:
    """The time that an attempt to connect has for its handshake, as the deadline of `scope`.

    `quiet`: the seconds that may pass without a sign of work. `most`: the seconds in all; None for a server that
    installs nothing, which has `quiet` seconds whatever it does.
    """

    def __init__(self, context: RoomContext, began: float, quiet: float, most: float | None) -> None:
        self.began = began
        self.installs: bool = most is not None
        self.most: float = quiet if most is None else max(most, quiet)
        self.scope: anyio.CancelScope = anyio.CancelScope(deadline=began + quiet)
        self.is_installing = False
        self._context = context
        self._quiet = quiet
        self._seen: object = None
        self._tell_at = began + TELL_AFTER
        self._timer: Timer | None = None

    def begin(self, signs: Callable[[], object], tell: Callable[[str], None]) -> None:
        """The attempt has started: look for signs of work, if they can move the deadline. The values of `signs()` are
        only compared with one another."""
        if self.installs:
            self.is_installing = True
            self._seen = signs()
            self._look_later(signs, tell)

    def stop(self) -> None:
        """The handshake is done, or the attempt is over. Idempotent."""
        self.is_installing: bool = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reason(self) -> str:
        """Why the time ran out."""
        if not self.installs:
            return f"no answer to the handshake within {self._quiet:g}s"
        if self._context.backend.now() >= self.began + self.most:
            return f"no answer to the handshake within {self.most:g}s, with the time to install it"
        return f"no answer to the handshake, and no sign of work for {self._quiet:g}s"

    def _look_later(self, signs: Callable[[], object], tell: Callable[[str], None]) -> None:
        now = self._context.backend.now()
        pause = min(LOOK_EVERY, self._quiet / 4)
        self._timer = self._context.timers.at(now + pause, lambda: self._look(signs, tell))

    def _look(self, signs: Callable[[], object], tell: Callable[[str], None]) -> None:
        if not self.is_installing:
            return
        now, seen = self._context.backend.now(), signs()
        if seen != self._seen:
            self._seen = seen
            self.scope.deadline = min(now + self._quiet, self.began + self.most)
        if now >= self._tell_at:
            tell(f"{STILL_INSTALLING} after {now - self.began:.0f} s")
            self._tell_at = now + (now - self.began)
        self._look_later(signs, tell)


# ---- The requests of one incarnation's server to its client that have no answer yet ----------------------------------
#
# Each is answered in a task of its own, in an empty context, because answers come from people and models and take
# their time. Their number is bounded; beyond the bound a request is refused at once. A request ends in
# exactly one of: an answer, a JSON-RPC error, the server's cancellation, the end of the incarnation. In the last two
# cases nothing is sent.
#
# Results that need more input (2026-07-28) carry the same requests in another envelope, so they are answered here
# too. All requests of one result are answered side by side, and one refusal ends the others.

MOST_OPEN: Final = OPEN_SERVER_REQUESTS
_REFUSALS: Final = Refusals(
    full="{open} requests of this server are open already; ask again later",
    same_id="a request of this server with this id is open already",
    closing="the connection is being closed; nobody answers any more",
)


class _OpenRequest:
    """One open request. It may be over before its task has begun, so its scope is made in the task."""

    __slots__ = ("_scope", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._scope: anyio.CancelScope | None = None

    def cancel(self) -> None:
        self.is_over = True
        if self._scope is not None:
            self._scope.cancel()

    def scope(self) -> anyio.CancelScope:
        self._scope = anyio.CancelScope()
        return self._scope


class ServerRequests:
    def __init__(self, incarnation: Incarnation, address: Address) -> None:
        self._incarnation = incarnation
        self._address = address
        self._context = incarnation.actor.context
        self._open: IncomingTable[Any, _OpenRequest] = IncomingTable(MOST_OPEN, _REFUSALS)
        self.taken: int = 0  # in all
        self._settled: Waiter | None = None  # set while somebody waits for the last answer

    def __len__(self) -> int:
        return len(self._open)

    async def settled(self) -> None:
        """Wait until no request is open."""
        while self._open:
            self._settled = self._context.backend.waiter()
            await self._settled.wait()

    def _note_settled(self) -> None:
        if not self._open and self._settled is not None:
            self._settled.set()
            self._settled = None

    def take(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, call: Call | None = None
    ) -> None:
        """Take a request of the server. It is answered later, or refused now. `call`: the call that it belongs to, if
        known."""
        try:
            self._open.check(rpc_id)
        except RpcFault as refusal:
            self._incarnation.peer.reply(rpc_id, None, RpcError(refusal.code, refusal.message))
            return
        self.taken += 1
        request = self._open[rpc_id] = _OpenRequest()
        self._context.spawn(lambda: self._answer(request, rpc_id, self._request(method, params or {}, call)))

    def heed(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Handle a notification that cancels a request. Returns whether it is one."""
        if method != CANCELLED:
            return False
        rpc_id = (params or {}).get("requestId")
        if isinstance(rpc_id, int | str | float):
            self._open.cancel(rpc_id)
            self._note_settled()
        return True

    def close(self) -> None:
        """The incarnation ends: cancel all open requests."""
        self._open.closing = True
        self._open.cancel_all()

    async def answer_all(self, call: Call, requests: Mapping[str, Any]) -> dict[str, Any]:
        """The answers to the input requests of one result of `call`, by the server's keys. Raises `RpcRefusal`."""
        answers: dict[str, Any] = {}
        refusals: list[RpcRefusal] = []

        async def one(key: str, request: object) -> None:
            try:
                answers[key] = await self._ask(self._embedded(call, request))
            except RpcRefusal as refusal:
                refusals.append(refusal)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for key, request in requests.items():
                tasks.start_soon(one, key, request)
        if refusals:
            raise refusals[0]
        return {key: answers[key] for key in requests}

    # ---- one request -----------------------------------------------------------------------------------------------

    async def _answer(self, opened: _OpenRequest, rpc_id: Any, request: ServerRequest) -> None:
        result: Mapping[str, Any] | None = None
        error: RpcError | None = None
        if opened.is_over:
            return
        with opened.scope():
            try:
                result = await self._ask(request)
            except RpcRefusal as refusal:
                error = RpcError(refusal.rpc_code, refusal.message, refusal.data)
        if not opened.is_over:
            self._reply(rpc_id, result, error)
            self._open.pop(rpc_id, None)
            self._note_settled()

    async def _ask(self, request: ServerRequest) -> Mapping[str, Any]:
        """Ask the host. If a callback raises, the server gets a refusal that does not say what was raised."""
        began = self._context.backend.now()
        try:
            answer = await self._context.host.answer(request)
            self._context.recent.asked(request, began, answer)
            return answer
        except RpcRefusal as refusal:
            self._context.recent.asked(request, began, refusal)
            raise
        except Exception as error:
            self._incarnation.actor.note_raised(f"what answers {request.method}", error)
            raise RpcRefusal(
                INTERNAL_ERROR, f"Internal error: {request.method} could not be answered."
            ) from error

    def _reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None:
        try:
            self._incarnation.peer.reply(rpc_id, result, error)
        except UsageError as problem:  # a callback's answer is not valid JSON
            self._incarnation.actor.note_raised("what answers a server's request", problem)
            self._incarnation.peer.reply(
                rpc_id, None, RpcError(INTERNAL_ERROR, "Internal error: the answer is not JSON.")
            )

    def _request(self, method: str, params: Mapping[str, Any], call: Call | None) -> ServerRequest:
        meta: object = params.get("_meta")
        token = cast("Mapping[str, Any]", meta).get("progressToken") if isinstance(meta, Mapping) else None
        peer = self._incarnation.peer

        def progress(told: Mapping[str, Any]) -> None:
            if token is not None and not self._open.closing:
                peer.notify(PROGRESS, {**told, "progressToken": token})

        return ServerRequest(self._address, method, params, progress, call)

    def _embedded(self, call: Call, request: object) -> ServerRequest:
        said: Mapping[str, Any] = cast("Any", request) if isinstance(request, Mapping) else {}
        method, params = said.get("method"), said.get("params")
        if not isinstance(method, str):
            raise RpcRefusal(INTERNAL_ERROR, "an input request without a method")
        given: Mapping[str, Any] = cast("Any", params) if isinstance(params, Mapping) else {}
        return ServerRequest(self._address, method, given, call=call)


# --------------------------------------------------------------------------------------------------------------
#
#
# Subscriptions: what a server has been asked to report, and how the next incarnation is asked again.
#
# The subscribed resources and the log level belong to the actor and outlive incarnations, so the next incarnation is
# asked at once. Changes while nobody listened are unknown. So each subscribed resource is then reported as changed:
# a needless read is cheaper than a missed change.
#
# The eras ask differently. Until 2025-11-25 there is one request per resource and one for the level. From 2026-07-28
# on nothing is reported without a `subscriptions/listen`, whose answer is the stream itself. One is kept open for
# everything that we want to hear. It is replaced by another when that changes, and opened again, at growing
# intervals, when the server ends it.

_AGAIN: Final = (1.0, 60.0)  # seconds before asking again for a stream that ended: at first, at most
UPDATED: Final = "notifications/resources/updated"
_LISTS: Final = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}


class Subscriptions(msgspec.Struct, eq=False):
    """The subscriptions of one address."""

    uris: dict[str, int] = msgspec.field(
        default_factory=dict[str, int]
    )  # subscribers of each, by the server's own URI

    def add(self, uri: str) -> bool:
        """Count a subscriber. Returns whether it is the first of this resource."""
        self.uris[uri] = self.uris.get(uri, 0) + 1
        return self.uris[uri] == 1

    def drop(self, uri: str) -> bool:
        """A subscriber has gone. Returns whether it was the last of this resource."""
        left = self.uris.pop(uri, 1) - 1
        if left > 0:
            self.uris[uri] = left
        return left <= 0


class Listening:
    """The subscriptions of one incarnation: tells its server what is subscribed to."""

    def __init__(self, incarnation: Incarnation, handshake: Handshake) -> None:
        self._incarnation = incarnation
        self._actor = incarnation.actor
        self._handshake = handshake
        self._stream: Exchange | None = None  # the open `subscriptions/listen`
        self._again: Timer | None = None
        self._pause = _AGAIN[0]
        self._level: str | None = None
        self.is_modern: bool = handshake.protocol_version in MODERN_VERSIONS

    def listen(self) -> None:
        """The handshake is done: listen to changes from now on, and set the log level before the first call."""
        if self.is_modern:
            self._listen()
        else:
            self.tell_level()

    def start(self) -> None:
        """The server's lists are known: send it the other subscriptions."""
        if not self.is_modern:
            for uri in self._actor.subscriptions.uris:
                self._send("resources/subscribe", {"uri": uri})
            self.tell_level()
        if self._incarnation.number > 1:
            self.presume_changed()

    def refresh(self) -> None:
        """The subscriptions have changed, so open the stream anew. Older servers were told by the request that changed
        them."""
        if self.is_modern:
            self._listen()

    def tell_level(self) -> None:
        """Send an older server the level; newer ones read it in each request."""
        level = self._actor.record.log_level
        if (
            level is None
            or level == self._level
            or self.is_modern
            or "logging" not in self._handshake.capabilities
        ):
            return
        self._level = level
        self._send("logging/setLevel", {"level": level})

    def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _note_failure(self, asked: Exchange, _result: bytes | None, error: RpcError | None) -> None:
        """Note that this request failed. Its result is not needed."""
        if error is not None:
            self._incarnation.note(NoteCode.UNREAD, f"{asked.method}: {error.message} ({error.code})")

    def _stream_ended(self, stream: Exchange, result: bytes | None, error: RpcError | None) -> None:
        """The server ended the stream: open it again later, unless the server does not know streams."""
        if stream is not self._stream:
            return
        self._stream = None
        self._note_failure(stream, result, error)
        if error is not None and error.code == METHOD_NOT_FOUND:
            return
        context = self._actor.context
        self._again = context.timers.at(context.backend.now() + self._pause, self._listen_again)
        self._pause = min(self._pause * 2, _AGAIN[1])

    def _listen_again(self) -> None:
        self._again = None
        self._listen()
        self.presume_changed()
        self._incarnation.look_again()

    def _listen(self) -> None:
        """Open a stream for everything that is subscribed to. The previous stream is closed once this one is
        requested."""
        self.stop()
        before, self._stream = self._stream, None
        wanted = self._wanted()
        if wanted:
            self._stream = Exchange(WhenEnded(self._stream_ended), LISTEN, {"notifications": wanted})
            self._incarnation.peer.request(self._stream)
        if before is not None:
            self._incarnation.peer.abandon(before, "replaced by a newer subscription")

    def _wanted(self) -> dict[str, Any]:
        said = self._handshake.capabilities
        wanted: dict[str, Any] = {flag: True for kind, flag in _LISTS.items() if _changes(said.get(kind))}
        if self._actor.subscriptions.uris:
            wanted["resourceSubscriptions"] = sorted(self._actor.subscriptions.uris)
        if tasks := self._incarnation.tasks.watched:
            wanted["taskIds"] = tasks
        return wanted

    def presume_changed(self) -> None:
        """Report each subscribed resource as changed: nobody listened for a while, so any of them may have changed."""
        for uri in tuple(self._actor.subscriptions.uris):
            self._actor.context.host.heard(self._actor.address, UPDATED, {"uri": uri})

    def _send(self, method: str, params: Mapping[str, Any]) -> None:
        self._incarnation.peer.request(Exchange(WhenEnded(self._note_failure), method, params))


def _changes(capability: object) -> bool:
    return (
        isinstance(capability, Mapping) and cast("Mapping[str, Any]", capability).get("listChanged") is True
    )
