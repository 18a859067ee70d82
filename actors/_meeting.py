"""Greets one server, reads its lists, and reads them again when they change.

One deadline covers opening, greeting and listing (but see `_patience`). When it passes, the error names the step that
used up the time.

When the server says that one of its lists changed, or somebody asks for it by name, the lists are read again here. A
short pause before reading lets a burst of changes end. A change announced during a reading causes another reading
afterwards. So no change is lost, one change causes one reading, and who asked never gets a list from before.

A server of the handshake era may ask for its client's roots as soon as it is greeted, and refuse calls until it has
them. So if it was told that it may ask, we send a ping, and answer first whatever the server asks before it answers
the ping. The first call is sent a moment later.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio
import attrs

from ..protocol.config import Settings
from ..protocol.errors import CallError, ConnectFailed
from ..protocol.events import ConnectStep, NoteCode
from ..protocol.installers import is_installer
from ..protocol.jsonrpc import MODERN_VERSIONS
from ._connection import Connection, Handshake
from ._handshake import RpcFailure, ask, shake_hands
from ._lists import list_all
from ._messages import Listed, Ready
from ._patience import Patience
from ._peer import Peer

if TYPE_CHECKING:
    from ._incarnation import Incarnation
    from ._waits import Told

DEBOUNCE: Final = 0.1
_LEAST_TIME: Final = 1.0  # the lists get at least this, even when the greeting used up the connect time
FIRST_ANSWERS: Final = 2.0  # seconds that the server's first questions may delay its first call
ACTING: Final = 0.05  # seconds for it to act on the answers: the filesystem server looks at each root


class Meeting:
    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._actor = incarnation.actor
        self._context = incarnation.actor.context
        context, definition = self._context, self._actor.definition
        self._limit = definition.connect_timeout or context.settings.connect_timeout
        installs = is_installer(definition.command, definition.args)
        most = (definition.install_timeout or context.settings.install_timeout) if installs else None
        self._patience = Patience(context, context.backend.now(), self._limit, most)
        self._bell = context.backend.waiter()
        self._waiting: list[Told] = []  # who waits for the next reading

    @property
    def deadline(self) -> float:
        """The time by which the connection must be open."""
        return self._patience.began + self._limit

    @property
    def is_installing(self) -> bool:
        """Whether its command may still be installing it: the server itself has not answered yet."""
        return self._patience.is_installing

    def begin(self, connection: Connection) -> None:
        """The connection is open: the patience starts to count."""
        self._patience.begin(lambda: (connection.signs(), connection.peer.last_heard), self._tell_progress)

    def stop(self) -> None:
        self._patience.stop()
        self._tell(self._take_waiting(), self._unread("the connection has ended"))

    def look_again(self, told: Told | None = None) -> None:
        """The server's lists may have changed. `told`: somebody waits until they have been read again."""
        if told is not None:
            self._waiting.append(told)
        self._bell.set()

    async def run(self, connection: Connection) -> None:
        """Greet and list within the connect time, then stay until cancelled.

        Raises `RpcFailure`. Returns early when the greeting did not come in time; that has been reported by then.
        """
        handshake = await self._greet(connection)
        if handshake is not None:
            self._incarnation.reached(ConnectStep.GREETED)
            await self._list(connection, handshake)
            await self._stay(connection, handshake)

    async def _greet(self, connection: Connection) -> Handshake | None:
        """Greet the server. None: no greeting came in time, and that has been reported. Raises `RpcFailure`."""
        context, actor, patience = self._context, self._actor, self._patience
        greeting = self._incarnation.greeting = context.host.greeting(actor.address)
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
            self._incarnation.fail(patience.reason())
        patience.stop()
        return handshake

    async def _list(self, connection: Connection, handshake: Handshake) -> None:
        """Read the lists in what is left of the connect time; after an install that used it up, in the same time
        again. Raises `RpcFailure` when the list of tools fails."""
        context, actor, incarnation = self._context, self._actor, self._incarnation
        incarnation.listen(handshake)  # before the lists are read, so that no change in between is missed
        revision = context.next_revision()
        left = self._limit if self._patience.installs else self.deadline - context.backend.now()
        settings = attrs.evolve(self._settings, connect_timeout=max(left, _LEAST_TIME))
        listing = await list_all(connection.peer, context.backend, handshake, settings)
        await self._answer_first(connection.peer, handshake)
        actor.tell(Ready(incarnation.number, handshake, listing, revision))
        incarnation.look_after()

    @property
    def _settings(self) -> Settings:
        """The room's, with what the server's definition says otherwise of its lists."""
        settings, own = self._context.settings, self._actor.definition.pinning
        return settings if own is None else attrs.evolve(settings, pinning=own)

    def _tell_progress(self, text: str) -> None:
        incarnation = self._incarnation
        incarnation.note(
            NoteCode.INSTALLING, f"{text}: {incarnation.last_line}" if incarnation.last_line else text
        )

    async def _answer_first(self, peer: Peer, handshake: Handshake) -> None:
        """Answer what the server asked on being greeted, and let it act on the answers. People take their time, so go
        on after a while in any case. The ping brings the questions it was about to ask. It does not say when it has
        acted on the answers."""
        greeting, questions = self._incarnation.greeting, self._incarnation.questions
        may_ask = greeting is not None and greeting.capabilities
        if not may_ask or handshake.protocol_version in MODERN_VERSIONS:
            return
        answered = 0
        with anyio.move_on_after(FIRST_ANSWERS):
            await self._ping(peer)
            while questions.asked > answered:
                answered = questions.asked
                await questions.settled()
                await anyio.sleep(ACTING)
                await self._ping(peer)

    async def _ping(self, peer: Peer) -> None:
        with suppress(RpcFailure):
            await ask(peer, self._context.backend, "ping", None, FIRST_ANSWERS)

    async def _stay(self, connection: Connection, handshake: Handshake) -> None:
        context = self._context
        while True:
            await self._bell.wait()
            await anyio.sleep(DEBOUNCE)
            self._bell = context.backend.waiter()
            waiting, failure = self._take_waiting(), self._unread("the connection has ended")
            try:
                failure = await self._read_again(connection, handshake)
            finally:
                self._tell(waiting, failure)

    async def _read_again(self, connection: Connection, handshake: Handshake) -> CallError | None:
        """Returns why the lists could not be read."""
        context, incarnation = self._context, self._incarnation
        revision = context.next_revision()
        try:
            with anyio.fail_after(context.settings.call_timeout):
                listing = await list_all(connection.peer, context.backend, handshake, self._settings)
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
