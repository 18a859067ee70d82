"""The server actor: everything of one address, in steps that do not wait.

An actor is a record with a mailbox. The objects it holds do the work: `steps` moves it through its life; `calls`
accepts, sends and ends its calls; `idling` says how long it has had nothing to do; `waits` lists who else waits
for its connection. No task wakes up to read a mailbox: whatever brings a message (a caller, a pump, a timer)
handles it at once. So a call on a connected server is admitted and written in its caller's own task, and an idle
actor has no task at all. From connecting to closed there is one task, `Incarnation.run`, which owns the connection
and nothing else.

There are two lanes. System messages are handled in the order they came, one at a time, even when handling one
brings the next. Calls wait in the user lane while there is no connection (or all its places are taken), and
outlive incarnations there.

An actor may not decide whether to connect, what follows an ending, or how long to idle. It asks the `Supervisor`.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..protocol.address import Address
from ..protocol.config import ServerDefinition
from ..protocol.errors import CallError
from ..protocol.events import Note, NoteCode
from ..protocol.lifecycle import Ending, Life, Reason, State
from ..protocol.plain_text import unhidden
from . import _call_errors as errors
from ._alarm import Alarm
from ._call_table import CONNECTED, CallTable
from ._idling import Idling
from ._mailbox import Mailbox
from ._messages import Message, Stop
from ._room_context import Record, RoomContext, Supervisor
from ._start import Start
from ._steps import Steps
from ._subscriptions import Subscriptions
from ._waits import Told, Waits

if TYPE_CHECKING:
    from ._call import Call
    from ._incarnation import Incarnation
    from ._peer import Peer


class ServerActor:
    __slots__ = (
        "address",
        "alarm",
        "calls",
        "connected_at",
        "context",
        "failed_at",
        "failure",
        "idling",
        "incarnation",
        "life",
        "loss",
        "mailbox",
        "peer",
        "record",
        "start",
        "steps",
        "subscriptions",
        "supervisor",
        "waits",
    )

    def __init__(
        self, address: Address, record: Record, context: RoomContext, supervisor: Supervisor
    ) -> None:
        self.address = address
        self.record = record
        self.context = context
        self.supervisor = supervisor
        self.life = Life()  # `steps` moves it
        self.start = Start()  # the supervisor moves it
        self.incarnation: Incarnation | None = None  # from connecting to closed
        self.peer: Peer | None = None  # the incarnation's, once it is ready
        self.connected_at = -math.inf
        self.failure: CallError | None = None  # why it last failed, until it connects again
        self.failed_at = -math.inf
        self.loss = Reason.DIED  # how its connection was lost, if it was
        self.subscriptions = Subscriptions()
        self.steps = Steps(self)
        # Unbounded here: the bound is the server's, over all its scopes, and is checked in `CallTable.submit`.
        self.mailbox: Mailbox[Message, Call] = Mailbox(1 << 60, self.steps.run)
        self.alarm = Alarm(context.timers, self._ring)
        self.calls = CallTable(self)
        self.idling = Idling(self)
        self.waits = Waits()

    def __repr__(self) -> str:
        return f"<ServerActor {self.address} {self.life.state.value} #{self.life.incarnation}>"

    # ---- how it is --------------------------------------------------------------------------------------------------

    @property
    def definition(self) -> ServerDefinition:
        return self.record.definition

    @property
    def in_flight(self) -> int:
        return len(self.calls.open)

    @property
    def queued(self) -> int:
        return len(self.mailbox.user)

    @property
    def is_connected(self) -> bool:
        return self.life.state is CONNECTED

    @property
    def is_resting(self) -> bool:
        """Nothing in flight, nothing queued, and nobody holds a lease."""
        return not self.calls.open and not self.mailbox.user and not self.idling.leases

    @property
    def is_idle(self) -> bool:
        """It is connected, has nothing to do, and has not been told to stop."""
        return self.life.state is CONNECTED and self.is_resting and not self.is_stopping

    @property
    def is_stopping(self) -> bool:
        """It is stopping, or has been told to stop while another step runs."""
        told = self.mailbox.system
        return self.life.state is State.DRAINING or (bool(told) and any(isinstance(m, Stop) for m in told))

    @property
    def is_installing(self) -> bool:
        """It is connecting, and its command may still be installing it."""
        connecting = self.life.state is State.CONNECTING
        return connecting and self.incarnation is not None and self.incarnation.is_installing

    @property
    def is_asking(self) -> bool:
        """Whether the server waits for an answer from its client."""
        return self.incarnation is not None and len(self.incarnation.questions) > 0

    @property
    def doing(self) -> str:
        """What a waiting call is waiting for, in words."""
        if self.life.state is State.IDLE:
            return f"waiting for {self.start.waiting_for or 'its start'}"
        incarnation = self.incarnation
        if self.is_installing:
            took = self.context.backend.now() - self.start.waits_since
            wrote = incarnation.last_line if incarnation is not None else ""
            return f"installing for {took:.0f} s, which goes on" + (f": {wrote}" if wrote else "")
        tail = incarnation.stderr_tail() if incarnation is not None else ()
        return f"still {self.life.state.value}" + (f"; stderr: {' — '.join(tail)}" if tail else "")

    @property
    def is_awaited(self) -> bool:
        """Calls, waits or subscribed resources need a connection."""
        return bool(self.mailbox.user or self.subscriptions.uris or self.is_waited_for)

    @property
    def is_waited_for(self) -> bool:
        """Somebody other than a call waits for a connection."""
        return bool(self.waits) and any(True for _ in self.waits.open(self.life))

    @property
    def is_asked_for_by_name(self) -> bool:
        """One of those who wait for a connection asked for it by name."""
        return any(wait.by_name for wait in self.waits.open(self.life))

    @property
    def awaited_since(self) -> float:
        """Since when the oldest call or wait has waited; `inf` when there is none."""
        return min(self.waits.since(self.life), self.calls.waiting.since)

    # ---- what is asked of it ----------------------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Put a message in the system lane: it is handled now, or right after the present one."""
        self.mailbox.put_system(message)

    def stop(self, ending: Ending, patience: float | None = None) -> None:
        """Ask this incarnation to end. `patience` None: the server's drain time. An idle actor closes at once."""
        if patience is None:
            patience = self.definition.drain_timeout or self.context.settings.drain_timeout
        if self.life.state is CONNECTED:
            self.supervisor.leaving(self)
        self.tell(Stop(ending, patience))

    def on_connected(self, told: Told, *, by_name: bool = False) -> Callable[[], None]:
        """Call `told(None)` when it is next connected, `told(error)` when that fails. Returns the function that
        stops the wait."""
        return self.waits.add(told, self.context.backend.now(), self.life, by_name=by_name)

    def list_again(self, told: Told) -> None:
        """Have a connected server list what it has again. `told(None)` when that has been read, `told(error)` when
        that failed or the connection has ended instead."""
        assert self.incarnation is not None
        self.incarnation.look_again(told)

    def request_start(self) -> None:
        """There is a reason to connect: a waiting call, another wait, or its policy."""
        if self.life.state is State.IDLE:
            self.supervisor.request_start(self)

    def refuse_waiting(self, why: str, since: float) -> None:
        """The connection does not come in time: those who have waited since `since` or longer get the error, the
        others wait on."""
        error = errors.not_started(self.address.server, self.context.settings.acquire_timeout, why)
        had_calls = bool(self.mailbox.user)
        self.calls.waiting.refuse(error, since)
        self.waits.tell_early(error, since, self.life)
        self.supervisor.withdraw_start(self)
        if had_calls:
            self.calls.call_over()

    def subscriptions_changed(self) -> None:
        """Its subscriptions or its log level have changed: tell a live server."""
        listening = self.incarnation.listening if self.incarnation is not None else None
        if listening is not None and self.is_connected:
            listening.refresh()
            listening.tell_level()
        self.rearm()

    def rearm(self) -> None:
        """Its policy changed: look again at its idle time, its health and its places."""
        self.idling.ask_time()
        now = self.context.backend.now()
        self.alarm.wake_by(self.idling.until if self.is_idle else self.steps.next_deadline(now))
        if self.incarnation is not None:
            self.incarnation.rearm()
        self.calls.share_places()

    # ---- what is told of it -----------------------------------------------------------------------------------------

    def hidden(self, text: str) -> str:
        """A failure's text from a server, a library or the system, without characters that a terminal obeys or hides,
        and without this server's secrets."""
        return self.context.secrets.of(self.address).without(unhidden(text))

    def note(self, code: NoteCode, words: str) -> None:
        """Write a line to the log."""
        self.context.events.emit(Note, self.address, self.life.incarnation, code=code, words=words)

    def note_raised(self, what: str, error: BaseException) -> None:
        """What the embedding program handed in has raised: its own error, with the traceback."""
        text = "".join(traceback.format_exception(error))
        self.note(NoteCode.CALLBACK, f"{what} raised\n{text}")

    def note_bug(self, error: BaseException) -> None:
        """Put the traceback of an error of ours into the event stream."""
        self.note(NoteCode.BUG, "".join(traceback.format_exception(error)))

    # ---- the alarm --------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        """Do whatever is due, then set the alarm to what is due next."""
        try:
            now = self.context.backend.now()
            self.calls.expire(now)
            self.steps.expire(now)
            # With the same `now` throughout: what falls due during this is for the next alarm.
            self.alarm.wake_by(min(self.steps.next_deadline(now), self.calls.next_deadline))
        except Exception as error:
            self.steps.stop_for_bug(error)
