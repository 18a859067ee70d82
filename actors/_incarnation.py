"""The owner task of one incarnation: opens the connection, greets, lists, and sees it to its end.

Everything that must be entered and left in one task is entered and left here. The task decides nothing and touches no
state: it tells the actor `Ready`, `Failed`, `Lost`, `Gone`, and is told one thing, `cancel`, which ends whatever it
is doing: opening the connection, or something inside it; then it stops the tree, shielded, within the stop time, which
`hurry` makes shorter. One deadline covers opening, greeting and listing (but see `_patience`), and whichever of them
used it up is named. `Gone` is told in a plain `finally`, so an actor hears it also when the loop cancels this task
natively; the connector's own `finally` has killed the tree by then.

It is also the peer's `PeerHooks`. Those are called from a pump (on asyncio: from a loop callback, where there is no
current task), so they only tell, or set a flag.

Whatever is said of a failure passes here, or `CallTable.call_answered`, on its way to errors: so here the server's
secrets are taken out of it (`ServerActor.hidden`).

What the server asks of its client is in `_questions`, what it is asked to tell in `_subscriptions`; both end with the
task.

When the server says that one of its lists changed, they are read again here, after a pause that lets a burst end; a
change announced while reading is read after that, so none is lost and one change is one reading.

A server of the handshake era may ask for its client's roots as soon as it is greeted, and refuse calls until it knows
them. So where it was told that it may ask, what it has asked by the time a ping is answered is answered first, and the
first call is sent a moment after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from ..protocol.errors import Bug, CallError
from ..protocol.events import ConnectStep, Note, NoteCode, Step
from ..protocol.installers import is_installer
from ..protocol.jsonrpc import MODERN_VERSIONS
from ..protocol.lifecycle import Reason
from ..protocol.secrets import in_words
from ._connection import Connection, Handshake
from ._handshake import RpcFailure, ask, shake_hands
from ._health import Pulse
from ._host import Greeting
from ._lists import list_all
from ._messages import Failed, Gone, Listed, Lost, Ready, connect_failed
from ._patience import Patience
from ._peer import LostReason, Peer
from ._questions import Questions
from ._subscriptions import Listening

if TYPE_CHECKING:
    from ._server import ServerActor

DEBOUNCE: Final = 0.1
_LEAST_TIME: Final = 1.0  # what the lists are given even when the greeting used everything up
FIRST_ANSWERS: Final = 2.0  # seconds that what a server asks on being greeted may keep its first call waiting
ACTING: Final = 0.05  # seconds for it to act on the answers: the file system's server looks at each root
LISTS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
    }
)


class Incarnation:
    def __init__(self, actor: ServerActor, number: int) -> None:
        self.actor = actor
        self.number = number
        self.lost: LostReason | None = None
        self._connection: Connection | None = None
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._stopping = anyio.CancelScope()
        self._stopped_by = -math.inf
        context, definition = actor.context, actor.definition
        self._limit = definition.connect_timeout or context.settings.connect_timeout
        installs = is_installer(definition.command, definition.args)
        most = (definition.install_timeout or context.settings.install_timeout) if installs else None
        self._patience = Patience(context, context.backend.now(), self._limit, most)
        self._bell = actor.context.backend.waiter()
        self.questions = Questions(self, actor.address)
        self.listening: Listening | None = None
        self.greeting: Greeting | None = None  # how its server was met
        self._pulse = Pulse(self)

    # ---- what the actor uses ----------------------------------------------------------------------------------------

    @property
    def peer(self) -> Peer:
        assert self._connection is not None
        return self._connection.peer

    @property
    def pid(self) -> int | None:
        return self._connection.pid if self._connection is not None else None

    @property
    def is_installing(self) -> bool:
        """Its command may still be installing it: the server itself has not been heard."""
        return self._patience.is_installing

    @property
    def last_line(self) -> str:
        """What it wrote last to its stderr."""
        return self.actor.hidden(self._connection.last_line) if self._connection is not None else ""

    def cancel(self) -> None:
        """Stop the tree. Idempotent; before the task has begun, too."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def hurry(self) -> None:
        """The room is closing, so a stop that is under way may have less time than it was given."""
        if self.actor.context.backend.now() + self._stop_time() < self._stopped_by:
            self._stopping.cancel()

    def give_up(self, why: str, loss: Reason) -> LostReason:
        """The actor declares the connection lost."""
        self.lost = LostReason(self.actor.hidden(why), stderr_tail=self.stderr_tail(), loss=loss)
        return self.lost

    def found_dead(self, why: str) -> None:
        """Nobody said so, but it is lost."""
        self.actor.tell(Lost(self.number, self.give_up(why, Reason.UNHEALTHY)))

    def stderr_tail(self) -> tuple[str, ...]:
        tail = self._connection.stderr_tail() if self._connection is not None else ()
        return tuple(map(self.actor.hidden, tail))

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
        with anyio.CancelScope(deadline=self._patience.began + self._limit) as opening:
            self._scope = opening
            async with connector.open(self) as connection:
                opening.deadline = math.inf
                self._connection = connection
                self._reached(ConnectStep.STARTED)
                await self._use(connection)
        if opening.cancelled_caught:
            self._fail("it could not be opened in time")

    async def _use(self, connection: Connection) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                self._patience.begin(self._signs, self._tell_progress)
                await self._serve(connection)
        finally:
            self._patience.stop()
            self._fall_silent()
        with anyio.CancelScope(shield=True):
            await self._stop(connection)

    async def _stop(self, connection: Connection) -> None:
        """Stop the tree within the stop time; once more from the beginning where there is less of it than there was."""
        is_hurried = True
        while is_hurried:
            seconds = self._stop_time()
            self._stopped_by = self.actor.context.backend.now() + seconds
            with anyio.CancelScope() as self._stopping:
                await connection.stop(seconds)
            is_hurried = self._stopping.cancelled_caught

    def _stop_time(self) -> float:
        """Seconds the process tree has for its end."""
        context = self.actor.context
        limit = self.actor.definition.stop_timeout or context.settings.stop_timeout
        return max(0.1, min(limit, context.stop_by - context.backend.now()))

    async def _serve(self, connection: Connection) -> None:
        """Greet and list within the connect time, then stay until `cancel`."""
        try:
            handshake = await self._greet(connection)
            if handshake is not None:
                self._reached(ConnectStep.GREETED)
                await self._list_and_stay(connection, handshake)
        except RpcFailure as error:
            self._fail(str(error))
        await anyio.sleep_forever()  # until `cancel`, which every ending brings

    async def _greet(self, connection: Connection) -> Handshake | None:
        """None: it did not come in time, which has been told. Raises `RpcFailure`."""
        context, actor, patience = self.actor.context, self.actor, self._patience
        greeting = self.greeting = context.host.greeting(actor.address)
        handshake = None
        with patience.scope:
            handshake = await shake_hands(
                connection.peer,
                context.backend,
                settings=attrs.evolve(context.settings, connect_timeout=self._limit),
                client_info=context.client_info,
                greeting=greeting,
                era=actor.definition.era,
                era_hint=actor.record.era_hint,
                deadline=patience.began + patience.most,
            )
        if handshake is None:
            self._fail(patience.reason())
        patience.stop()
        return handshake

    async def _list_and_stay(self, connection: Connection, handshake: Handshake) -> None:
        """What is left of the connect time is for the lists; after an install that took it up, as much again. Raises
        `RpcFailure` when the tools cannot be had."""
        context, actor = self.actor.context, self.actor
        self.listening = Listening(self, handshake)
        self.listening.listen()  # before the lists are read, so that no change falls between
        revision, left = context.next_revision(), self._patience.began + self._limit - context.backend.now()
        if self._patience.installs:
            left = self._limit
        settings = attrs.evolve(context.settings, connect_timeout=max(left, _LEAST_TIME))
        listing = await list_all(connection.peer, context.backend, handshake, settings)
        await self._answer_first(connection.peer, handshake)
        actor.tell(Ready(self.number, handshake, listing, revision))
        if not self._cancelled:
            self.listening.start()
            self._pulse.start()
        await self._stay(connection, handshake)

    def _signs(self) -> object:
        assert self._connection is not None
        return self._connection.signs(), self.peer.last_heard

    def _tell_progress(self, text: str) -> None:
        self.note(NoteCode.INSTALLING, f"{text}: {self.last_line}" if self.last_line else text)

    async def _answer_first(self, peer: Peer, handshake: Handshake) -> None:
        """Answer what the server asked on being greeted, and let it act on the answers; or go on after a while, for
        people take their time. The ping brings what it was about to ask. That it has acted it does not say."""
        may_ask = self.greeting is not None and self.greeting.capabilities
        if not may_ask or handshake.protocol_version in MODERN_VERSIONS:
            return
        answered = 0
        with anyio.move_on_after(FIRST_ANSWERS):
            await self._ping(peer)
            while self.questions.asked > answered:
                answered = self.questions.asked
                await self.questions.settled()
                await anyio.sleep(ACTING)
                await self._ping(peer)

    async def _ping(self, peer: Peer) -> None:
        with suppress(RpcFailure):
            await ask(peer, self.actor.context.backend, "ping", None, FIRST_ANSWERS)

    async def _stay(self, connection: Connection, handshake: Handshake) -> None:
        context = self.actor.context
        while True:
            await self._bell.wait()
            await anyio.sleep(DEBOUNCE)
            self._bell = context.backend.waiter()
            revision = context.next_revision()
            try:
                with anyio.fail_after(context.settings.call_timeout):
                    listing = await list_all(connection.peer, context.backend, handshake, context.settings)
            except (TimeoutError, RpcFailure) as error:
                why = str(error) or "no answer in time"
                self.note(NoteCode.UNREAD, f"its lists changed, but reading them failed: {why}")
            else:
                self.actor.tell(Listed(self.number, handshake, listing, revision))

    def _reached(self, step: ConnectStep) -> None:
        self.actor.context.events.emit(Step, self.actor.address, self.number, step=step)

    def rearm(self) -> None:
        """What it is looked after by has changed."""
        if self.actor.is_connected:
            self._pulse.start()

    def look_again(self) -> None:
        """Its lists may have changed."""
        self._bell.set()

    def _fall_silent(self) -> None:
        self._pulse.stop()
        self.questions.close()
        if self.listening is not None:
            self.listening.stop()

    def _fail(self, text: str) -> None:
        reason = LostReason(self.actor.hidden(text), stderr_tail=self.stderr_tail())
        self.actor.tell(Failed(self.number, connect_failed(self.actor.address.server, reason)))

    # ---- PeerHooks --------------------------------------------------------------------------------------------------

    def on_lost(self, reason: LostReason) -> None:
        if self.lost is None:
            self.lost = reason = self._without_secrets(reason)
            self.actor.tell(Lost(self.number, reason))

    def _without_secrets(self, reason: LostReason) -> LostReason:
        text = self.actor.hidden(reason.text)
        tail = tuple(map(self.actor.hidden, reason.stderr_tail))
        same = text == reason.text and tail == reason.stderr_tail
        return reason if same else attrs.evolve(reason, text=text, stderr_tail=tail)

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        if method in LISTS:
            self.look_again()
        if not self.questions.heed(method, params):
            self.actor.context.host.heard(self.actor.address, method, params)

    def on_request(self, rpc_id: Any, method: str, params: Mapping[str, Any] | None) -> None:
        self.questions.take(rpc_id, method, params)

    def on_gap(self) -> None:
        self.look_again()
        if self.listening is not None:
            self.listening.presume_changed()

    def on_note(self, text: str) -> None:
        self.note(NoteCode.ODD, text)

    def note(self, code: NoteCode, words: str) -> None:
        """Something worth a line of the log."""
        self.actor.context.events.emit(Note, self.actor.address, self.number, code=code, words=words)
