"""The owner task of one incarnation: it opens the connection, greets, lists, and stays to the end.

Everything that must be entered and left in one task is entered and left here. The task decides nothing and touches
no state. It sends the actor `Ready`, `Failed`, `Lost` and `Gone`. It receives one command, `cancel`, which ends
whatever it is doing: opening the connection, or something inside it. Then it stops the process tree, shielded,
within the stop time, which `hurry` makes shorter. `Gone` is sent in a plain `finally`, so the actor receives it
also when the loop cancels this task natively; by then the connector's own `finally` has killed the tree.

The work in between is done by the objects it holds: greeting and lists (`_meeting`), what its peer says
(`_hearing`), what its server asks of its client (`_questions`), what its server shall report (`_subscriptions`),
and whether it lives (`_health`). All of them end with the task.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

from ..protocol.errors import Bug, CallError, hidden_lines
from ..protocol.events import ConnectStep, Note, NoteCode, Step
from ..protocol.lifecycle import Reason
from ..protocol.secrets import in_words
from ._connection import Connection, Handshake
from ._handshake import RpcFailure
from ._health import Pulse
from ._hearing import Hearing
from ._host import Greeting
from ._meeting import Meeting
from ._messages import Failed, Gone, Lost, connect_failed
from ._peer import LostReason, Peer
from ._questions import Questions
from ._subscriptions import Listening

if TYPE_CHECKING:
    from ._server import ServerActor
    from ._waits import Told


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
        self._meeting = Meeting(self)
        self.questions = Questions(self, actor.address)
        self.listening: Listening | None = None
        self.greeting: Greeting | None = None  # how its server was greeted
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
        """Whether its command may still be installing it: the server itself has not answered yet."""
        return self._meeting.is_installing

    @property
    def last_line(self) -> str:
        """The last lines of its stderr."""
        return self.actor.hidden(self._connection.last_line) if self._connection is not None else ""

    def cancel(self) -> None:
        """Stop the tree. Idempotent; may be called before the task has begun."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def hurry(self) -> None:
        """The room is closing, so a running stop may get less time than it was given."""
        if self.actor.context.backend.now() + self._stop_time() < self._stopped_by:
            self._stopping.cancel()

    def give_up(self, why: str, loss: Reason) -> LostReason:
        """The actor declares the connection lost."""
        self.lost = LostReason(self.actor.hidden(why), stderr_tail=self.stderr_tail(), loss=loss)
        return self.lost

    def found_dead(self, why: str) -> None:
        """The connection counts as lost, although the other side did not say so."""
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
        with anyio.CancelScope(deadline=self._meeting.deadline) as opening:
            self._scope = opening
            async with connector.open(Hearing(self)) as connection:
                opening.deadline = math.inf
                self._connection = connection
                self.reached(ConnectStep.STARTED)
                await self._use(connection)
        if opening.cancelled_caught:
            self.fail("it could not be opened in time")

    async def _use(self, connection: Connection) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                self._meeting.begin(connection)
                await self._serve(connection)
        finally:
            self._meeting.stop()
            self._fall_silent()
        with anyio.CancelScope(shield=True):
            await self._stop(connection)

    async def _stop(self, connection: Connection) -> None:
        """Stop the tree within the stop time. When that time is shortened meanwhile, start again with the shorter
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
        """Greet and list, then stay until `cancel`."""
        try:
            await self._meeting.run(connection)
        except RpcFailure as error:
            self.fail(str(error))
        await anyio.sleep_forever()  # until `cancel`, which every ending calls

    def reached(self, step: ConnectStep) -> None:
        """Emit an event, for readers of connects."""
        self.actor.context.events.emit(Step, self.actor.address, self.number, step=step)

    def listen(self, handshake: Handshake) -> None:
        """The server has been greeted: listen to its notifications."""
        self.listening = Listening(self, handshake)
        self.listening.listen()

    def look_after(self) -> None:
        """The server is ready: send it the other subscriptions, and start to check its health."""
        if not self._cancelled and self.listening is not None:
            self.listening.start()
            self._pulse.start()

    def rearm(self) -> None:
        """The health policy has changed."""
        if self.actor.is_connected:
            self._pulse.start()

    def look_again(self, told: Told | None = None) -> None:
        """The server's lists may have changed. `told`: somebody waits until they have been read again."""
        self._meeting.look_again(told)

    def _fall_silent(self) -> None:
        self._pulse.stop()
        self.questions.close()
        if self.listening is not None:
            self.listening.stop()

    def fail(self, text: str) -> None:
        """The attempt to connect has failed."""
        reason = LostReason(self.actor.hidden(text), stderr_tail=self.stderr_tail())
        self.actor.tell(Failed(self.number, connect_failed(self.actor.address.server, reason)))

    def note(self, code: NoteCode, words: str) -> None:
        """Write a line to the log."""
        self.actor.context.events.emit(Note, self.actor.address, self.number, code=code, words=words)
