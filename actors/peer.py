"""The peer: what a server actor sees of a connection, whatever carries it.

Below this line are bytes, HTTP exchanges and SDK sessions; above it there are only `Exchange`s. The seam is plain
functions and callbacks, not coroutines. A call on a connected server is written in its caller's own task and ended
by the pump that reads the answer, with no task and no queue in between. The rules both sides keep:

* `Peer.request` never raises for a fault of the other side. The owner of each exchange is told its end exactly
  once (`exchange_ended`), or `abandon`s it and then it never ends.
* `Exchange.reach` becomes SENT in the step in which a write accepts its first byte, not before.
* When the connection is over, `PeerHooks.on_lost` is called exactly once, and *afterwards* nothing else is. The
  peer does not end the exchanges that are still open: it leaves them to the actor, which knows whether they may be
  replayed.
* Nothing here waits, so nothing here can be cancelled half-way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from ..catalogue.entries import Raw
from ..protocol.errors import ConnectFailed, FailureKind, NeedsAuth, Reach
from ..protocol.events import NoteCode
from ..protocol.jsonrpc.terms import MODERN_VERSIONS, RpcError
from ..protocol.lifecycle import Reason
from ..protocol.safe_text import typed, with_stderr
from ..protocol.trace_context import TraceContext

if TYPE_CHECKING:
    from .host import Declaration

# Every call needs these. On Python 3.11, reading a member of an enum costs ten times as much as reading a constant.
NOT_SENT: Final = Reach.NOT_SENT
SENT: Final = Reach.SENT
ANSWERED: Final = Reach.ANSWERED


class Cancellable(Protocol):
    """Work that may be cancelled: on the answer of an open request, or on input for a call."""

    def cancel(self) -> object: ...


class ExchangeOwner(Protocol):
    """The maker of an exchange, which is told what becomes of it. Called synchronously; must not block or raise.

    An owner knows its own exchanges, so each may name the class that it made.
    """

    def exchange_sent(self, exchange: Any, /) -> None:
        """The first byte was accepted. `reach` is SENT already."""
        ...

    def exchange_ended(self, exchange: Any, result: bytes | None, error: RpcError | None, /) -> None:
        """The answer: exactly one of the two is not None. `reach` is ANSWERED already."""
        ...

    def exchange_progressed(self, exchange: Any, params: Mapping[str, Any], /) -> None:
        """The server sent a `notifications/progress` for this exchange, with these `params`."""
        ...


class Exchange:
    """One request and its one answer. It holds its owner, which is told what becomes of it.

    `params` is a plain dict (without our `_meta`: the peer adds that) or None. `result` arrives as the raw JSON
    bytes of the result value; `decode_result` of `protocol.jsonrpc` decodes it when somebody needs it.

    An exchange is made for every call, and most of its fields never change: the initial values of those are class
    attributes, here and in `Call`. What every call reads is set by `__init__`, because on Python 3.11 the value of a
    class takes ten times as long to read. (Fewer than thirty names are set on all calls together: from there on each of
    them needs a dict.)
    """

    rpc_id: int = 0  # the peer's id, while the exchange is open
    line: bytes = b""  # as it was sent, as far as that is kept (`last_minutes`)
    version: str | None = None  # it is spoken in this version, beside the connection's own (`Peer.beside`)
    # What the client that it is for can answer, as a request of 2026-07-28 says. None: as the peer says.
    declares: Mapping[str, Any] | None = None
    trace: TraceContext | None = None  # the trace that it belongs to
    deadline: float = math.inf  # in the loop's time: then its owner gives it up

    def __init__(
        self,
        owner: ExchangeOwner,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        on_progress: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.owner: Any = owner  # an `ExchangeOwner`
        self.method = method
        self.params = params
        self.on_progress = on_progress  # its request asks for progress, if there is one
        self.reach: Reach = NOT_SENT


class EndOnlyOwner:
    """The methods of an exchange's owner that wants to know only the end."""

    def exchange_sent(self, exchange: Exchange, /) -> None:
        pass

    def exchange_progressed(self, exchange: Exchange, params: Mapping[str, Any], /) -> None:
        pass


class EndCallback(EndOnlyOwner):
    """An owner that does `act(exchange, result, error)`."""

    def __init__(self, act: Callable[[Exchange, bytes | None, RpcError | None], None]) -> None:
        self._act = act

    def exchange_ended(self, exchange: Exchange, result: bytes | None, error: RpcError | None, /) -> None:
        self._act(exchange, result, error)


class LostReason(msgspec.Struct, frozen=True, eq=False):
    """Why a connection is over, with what the other side left behind.

    The other side may have proved that exchanges did not run: it answered that it does not know the session, or
    us. These are at `Reach.NOT_SENT` again before this is reported.
    """

    text: str  # "exited with code 3", "closed its stdout", "broken pipe"
    exit_code: int | None = None
    stderr_tail: tuple[str, ...] = ()
    loss: Reason = Reason.DIED
    is_stderr_old: bool = False  # the other side has answered since it wrote these lines
    kind: FailureKind = FailureKind.OTHER

    def in_words(self) -> str:
        """A lost connection in one line, including the last words of its stderr, which are marked as such."""
        return with_stderr(self.text, self.stderr_tail, are_old=self.is_stderr_old)


class PeerHooks(Protocol):
    """What a peer tells its owner. Called from the pump, synchronously; must not block or raise."""

    def on_lost(self, reason: LostReason) -> None: ...

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        """A notification. Progress only if it is for no open request."""
        ...

    def on_request(
        self,
        rpc_id: Any,
        method: str,
        params: Mapping[str, Any] | None,
        during: Exchange | None = None,
    ) -> None:
        """A request from the server. Answer with `Peer.reply`, now or later. `during`: the exchange that it belongs
        to, where the transport tells."""
        ...

    def on_late_answer(self, result: bytes) -> None:
        """A result that no open request has: its request was given up, or never made. Empty: an error."""
        ...

    def on_gap(self) -> None:
        """The stream of notifications was interrupted and is back: changes in between were missed."""
        ...

    def on_note(self, code: NoteCode, text: str) -> None:
        """Something odd that deserves an event: junk on stdout, an answer nobody asked for."""
        ...


class AskOnlyHooks:
    """The part of `PeerHooks` that is the same for whoever only asks, and wants to know when it is over: what the other
    side says by itself is heard by nobody."""

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        pass

    def on_request(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, during: Exchange | None = None
    ) -> None:
        pass

    def on_late_answer(self, result: bytes) -> None:
        pass

    def on_gap(self) -> None:
        pass

    def on_note(self, code: NoteCode, text: str) -> None:
        pass


class RelayHooks:
    """`PeerHooks` that pass everything on to `hooks`; what differs, a class of one's own says."""

    hooks: PeerHooks

    def on_lost(self, reason: LostReason) -> None:
        self.hooks.on_lost(reason)

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.hooks.on_notification(method, params)

    def on_request(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, during: Exchange | None = None
    ) -> None:
        self.hooks.on_request(rpc_id, method, params, during)

    def on_late_answer(self, result: bytes) -> None:
        self.hooks.on_late_answer(result)

    def on_gap(self) -> None:
        self.hooks.on_gap()

    def on_note(self, code: NoteCode, text: str) -> None:
        self.hooks.on_note(code, text)


class Peer(Protocol):
    """One live connection, to send on."""

    protocol_version: str | None  # set by the handshake; decides how requests are stamped
    client_info: Mapping[str, Any]  # who we are, as stamps say, and
    client_capabilities: Mapping[str, Any]  # what we can do: set before `protocol_version`
    # From 2026-07-28 on each request stands alone, so over HTTP a server of both eras can be spoken to in this version
    # as well, beside the session that it was initialized with. None: it cannot, or nobody has asked it.
    beside: str | None

    @property
    def last_heard(self) -> float:
        """Room time of the last byte from the other side."""
        ...

    @property
    def may_speak_both(self) -> bool:
        """Whether its transport can carry requests of both eras side by side."""
        ...

    @property
    def said_instead(self) -> str:
        """What came that was no answer to anything, in words; empty if there was nothing of the kind."""
        ...

    def request(self, exchange: Exchange) -> None: ...

    def abandon(self, exchange: Exchange, reason: str) -> None:
        """The owner no longer wants the answer. If the request was sent, the server is told
        (`notifications/cancelled`); if not, it is taken out of the write queue. A late answer ends
        nothing (`PeerHooks.on_late_answer`). Harmless when the exchange has already ended."""
        ...

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None: ...

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None: ...


class Handshake(msgspec.Struct, frozen=True, eq=False):
    """What the two sides agreed on."""

    protocol_version: str
    capabilities: Raw
    server_info: Raw
    instructions: str | None = None
    beside: Raw = msgspec.field(
        default_factory=dict[str, Any]
    )  # its capabilities in the newer era, if it speaks both
    is_its_choice: bool = True  # False: it accepted the only era that was tried; it may speak the other too

    @property
    def is_stateless(self) -> bool:
        """Whether the server speaks the era in which each request is complete by itself, without a session."""
        return self.protocol_version in MODERN_VERSIONS


class Listing(msgspec.Struct, frozen=True, eq=False):
    """What the server has listed. A list is None if the server lacks the capability, or if reading it failed
    (unknown)."""

    tools: tuple[Raw, ...] | None
    resources: tuple[Raw, ...] | None = None
    templates: tuple[Raw, ...] | None = None
    prompts: tuple[Raw, ...] | None = None
    skills: tuple[Raw, ...] | None = None
    problems: tuple[str, ...] = ()  # lists that failed or were cut, in words
    prints: Mapping[str, str] = msgspec.field(
        default_factory=dict[str, str]
    )  # by tool (`catalogue.fingerprints`); "": not pinned
    digest: bytes = b""  # of the pages as they came, and of how they were read


class Agreement(msgspec.Struct, frozen=True, eq=False):
    """A handshake that has been made: what was said in it, and what came of it."""

    declaration: Declaration
    client_info: Mapping[str, Any]
    handshake: Handshake

    def is_as(self, declaration: Declaration, client_info: Mapping[str, Any]) -> bool:
        """Whether the same would be said with these."""
        return self.declaration == declaration and self.client_info == client_info


class Connection(Protocol):
    agreed: Agreement | None  # the handshake, once it has been made: by who has it now, or by another before

    @property
    def peer(self) -> Peer: ...

    @property
    def pid(self) -> int | None:
        """The process id, where it is a process."""
        ...

    @property
    def last_line(self) -> str:
        """The last line of its stderr; empty where it has none."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the other side is seen to be gone now, reported or not."""
        ...

    def signs(self) -> object:
        """Signs of work, to be compared with earlier ones; None where none can be seen."""
        ...

    def hand_to(self, address: Any, incarnation: int) -> None:
        """It was opened ahead, and belongs to this incarnation of this address from now on."""
        ...

    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its stderr, for an error message; empty where it has none."""
        ...

    def forget_stderr(self) -> None:
        """What it has written to its stderr so far is nobody else's: quote none of it from now on."""
        ...

    async def stop(self, grace: float) -> None:
        """End the other side and everything it started, within about `grace` seconds; returns when nothing of the
        tree is left. Idempotent. Call it shielded."""
        ...

    def kill_now(self) -> None:
        """End the other side by force, at once and without waiting, for a `finally` that may not await. Idempotent."""
        ...


class NoProcess:
    """The part of a `Connection` that is the same for every server that we did not start as a process."""

    agreed: Agreement | None = None
    pid: int | None = None
    has_ended: bool = False

    @property
    def last_line(self) -> str:
        return ""

    def hand_to(self, address: Any, incarnation: int) -> None:
        pass

    def signs(self) -> object:
        return None

    def stderr_tail(self) -> tuple[str, ...]:
        return ()

    def forget_stderr(self) -> None:
        pass


class Connector(Protocol):
    """What opens, initializes and ends the carrier of a peer. It is made for one incarnation of one address.

    `open` is an async context manager. The actor's owner task enters and leaves it, and no other task may (leaving an
    SDK client in another task ends a whole trio run). Inside, the pumps run in a task group of the connection's own. A
    fault of the other side never comes out as an exception: it is reported through `PeerHooks.on_lost`. Leaving the
    context, by whatever path, leaves nothing of the process tree behind: it ends politely if `stop` was awaited, and by
    force, synchronously, if not.
    """

    def open(self, hooks: PeerHooks) -> AbstractAsyncContextManager[Connection]:
        """Start the other side. Raises `ConnectFailed` when it cannot be started (the message says why and what to
        do). No handshake yet: that is `shake_hands`, over the connection's peer."""
        ...


class ConnectorFactory(Protocol):
    """Made by the room, called by the actor at each incarnation."""

    def __call__(self, definition: Any, address: Any, incarnation: int) -> Connector: ...


def connect_failed(server: str, reason: LostReason) -> ConnectFailed:
    """How an attempt to connect ended."""
    return ConnectFailed(
        reason.in_words(),
        server=server,
        exit_code=reason.exit_code,
        stderr_tail=reason.stderr_tail,
        kind=reason.kind,
    )


def identity_words(what: str) -> str:
    """What a caller is told for whom no token can be had."""
    return f"The server is called as its caller, and there is no token for this one: {what}; the call was not sent."


def identity_needed(server: str, what: str) -> NeedsAuth:
    """The error for a caller for whom no token can be had; `what` says why."""
    return NeedsAuth(f'Server "{server}": {identity_words(what)}', server=server)


def login_needed(server: str, what: str) -> NeedsAuth:
    """The error for a server that wants a login; `what` is its own text."""
    return NeedsAuth(
        f'Server "{server}" needs a login: {what}. Run: greenroom auth {typed(server)} - or set "bearerToken" '
        'or "headers" in its entry, then connect it again.',
        server=server,
    )
