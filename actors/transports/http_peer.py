"""The peer over HTTP: a task per exchange, and one place where its fault becomes an outcome.

Each request is its own POST, with its own task and connection. Whatever happens to it is caught in `_carry` and ends
that exchange alone. The `Carrier` transports it (Streamable HTTP, or the older event stream). The peer starts with one
carrier and may change it during the handshake, when the server turns out to be older.

Two faults concern the connection and not only the exchange: the server no longer knows our session, or wants a login.
The exchange that got such an answer did not run, so it counts as unsent again. The other exchanges in flight then get a
moment to end, because twenty calls in flight may each get the same answer; and `on_lost` is called once. Requests made
meanwhile stay unsent, and the actor sends them over another connection.

Notifications and replies to the server go out by `Deliveries`.

A result may be laid out on several lines. It is put on one, because it passes as the bytes that came, and clients read
lines.

Abandoning a request closes its stream. Since 2026-07-28 that alone cancels it. Before, a stream could break for any
reason, so a notification cancels it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
import attrs
from msgspec import Raw

from ...protocol.bounds import LARGE_MESSAGE
from ...protocol.errors import NeedsAuth, Reach
from ...protocol.jsonrpc.incoming import ServerMessage, as_id, decode_line, excerpt
from ...protocol.jsonrpc.outgoing import encode_notification, encode_reply
from ...protocol.jsonrpc.terms import (
    LISTEN,
    MODERN_VERSIONS,
    PARSE_ERROR,
    PROGRESS,
    RpcError,
    WireFault,
    fault,
)
from ...protocol.lifecycle import Reason
from ...protocol.safe_text import repair_utf8
from ...protocol.upstream_error import UpstreamError
from ..backend import Backend
from ..exchanges import ExchangeTable, answer_in
from ..message_buffer import on_one_line
from ..open_requests import mark_sent
from ..peer import Exchange, LostReason, PeerHooks, identity_words
from ..room_context import Spawner
from ..server_notes import ServerNotes
from ..timers import at_most, in_time
from .http_faults import (
    BadAnswer,
    ExchangeBroken,
    ExchangeFault,
    IdentityNeeded,
    LoginNeeded,
    NoLoginNow,
    SessionExpired,
    Unreachable,
    WrongTransport,
)

LAST_ANSWERS = 1.0  # seconds that other exchanges have to end, once the connection is known to be over
DELIVERED_WITHIN = 30.0  # seconds that a server has to accept a notification or a reply
LISTENS_WITHIN = 1.0  # seconds that calls wait for the GET stream, once `initialized` was delivered
# Requests at which a server has nothing to ask.
_NOTHING_TO_ASK = frozenset(
    {
        *("ping", "logging/setLevel"),
        *("tools/list", "resources/list", "resources/templates/list", "prompts/list", "skills/list"),
    }
)
_OF_START = _NOTHING_TO_ASK | {"initialize", "server/discover"}


class HttpPeer(ExchangeTable):
    """A `Peer`; its connection sets `carrier`. Its tasks run in `tasks`. It starts one task there that starts the
    others, because a request may be made where no task is running."""

    channel = "the event stream"
    carrier: Carrier

    def __init__(self, backend: Backend, hooks: PeerHooks, tasks: anyio.abc.TaskGroup, max_size: int) -> None:
        notes = ServerNotes(hooks.on_note)
        self._deliveries = Deliveries(self, backend, notes)
        super().__init__(backend, hooks, notes, self._deliveries)
        self.max_size = max_size
        self.fall_back: Callable[[WrongTransport], Carrier] | None = None
        self._spawner = Spawner(backend, tasks)
        tasks.start_soon(self._spawner.run)
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._is_used = False  # a request of a caller was made
        self._quiet = anyio.Event()  # while leaving: no exchange is in flight any more
        self._leaving = False

    @property
    def is_modern(self) -> bool:
        return self.protocol_version in MODERN_VERSIONS

    @property
    def may_speak_both(self) -> bool:
        return self.carrier.may_speak_both

    # -- what the owner of a call does --

    def request(self, exchange: Exchange) -> None:
        """Start the exchange. On a peer that is lost, or about to be, it stays open and unsent.

        Raises `UsageError` when its params cannot be written as JSON; nothing was sent then.
        """
        line = self._opened(exchange)
        self._is_used = self._is_used or exchange.method not in _OF_START
        if not self.is_silent and not self._leaving:
            version = exchange.version or self.protocol_version
            attempt = Attempt(exchange, exchange.rpc_id, line, version)
            self._scopes[attempt.rpc_id] = anyio.CancelScope()
            self.spawn(lambda: self._run(attempt))

    # -- what deliveries need --

    def spawn(self, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self.is_silent:
            self._spawner.spawn(body)

    def stop_carrying(self, exchange: Exchange) -> None:
        scope = self._scopes.get(exchange.rpc_id)
        if scope is not None:
            scope.cancel()

    def lose_for(self, end: SessionExpired | LoginNeeded) -> None:
        self.lose(_reason(end))

    # -- what a carrier does --

    def heard(self) -> None:
        """Bytes came in."""
        self.last_heard: float = self._backend.now()

    def gap(self) -> None:
        """Messages of the server that answer no request may have been missed."""
        if not self.is_silent:
            self._hooks.on_gap()

    def is_open(self, attempt: Attempt) -> bool:
        return attempt.rpc_id in self._requests

    def sent(self, attempt: Attempt) -> None:
        """The server has received enough of the request to act on it."""
        if self.is_open(attempt):
            mark_sent(attempt.exchange)

    async def hear(self, data: bytes | bytearray) -> None:
        """Take messages from a stream that belongs to no exchange. Others have their turns beside a large message."""
        if len(data) < LARGE_MESSAGE:
            self.take_line(data)
            return
        data = on_one_line(data)
        await anyio.lowlevel.checkpoint()
        take_decoded = self.decode_large(data)
        await anyio.lowlevel.checkpoint()
        take_decoded()

    async def take_for(self, attempt: Attempt, data: bytes | bytearray) -> None:
        """Take messages from the exchange's own stream: its answer, or another message of the server. Others have their
        turns beside a large one.

        Raises `BadAnswer` for anything else.
        """
        try:
            if len(data) < LARGE_MESSAGE:
                messages = decode_line(repair_utf8(data), self.protocol_version)
            else:
                data = on_one_line(data)
                await anyio.lowlevel.checkpoint()
                messages = decode_line(data, self.protocol_version)
                await anyio.lowlevel.checkpoint()
        except WireFault as problem:
            raise BadAnswer(f"the answer is not JSON-RPC: {problem} ({excerpt(data)})") from None
        for message in messages:
            if message.method is not None:
                self.take(message, attempt.exchange)
            elif attempt.is_answered_by(message):
                self.answer(attempt, message)
            else:
                said, asked = message.id, attempt.rpc_id
                raise BadAnswer(f"the answer is to another request (id {said!r}, not {asked})")

    def take(self, message: ServerMessage, during: Exchange | None = None) -> None:
        _lay_on_one_line(message)
        super().take(message, during)

    def answer(self, attempt: Attempt, message: ServerMessage) -> None:
        """End the exchange with its answer, unless it has ended."""
        if self.is_open(attempt) and not self.is_silent:
            self._requests.pop(attempt.rpc_id, None)
            exchange = attempt.exchange
            exchange.reach = Reach.ANSWERED
            _lay_on_one_line(message)
            result, error = answer_in(message)
            exchange.owner.exchange_ended(exchange, result, error)

    def lose(self, reason: LostReason) -> None:
        """The connection is over: report that once the exchanges in flight have ended, or their time is up."""
        if self._leaving or self.is_silent:
            return
        self._leaving = True
        for rpc_id, scope in self._scopes.items():
            exchange = self._requests.get(rpc_id)
            if exchange is not None and exchange.method == LISTEN:
                scope.cancel()  # it never ends by itself
        if not self._scopes:
            self._quiet.set()
        self.spawn(lambda: self._see_off(reason))

    # -- the tasks --

    async def _run(self, attempt: Attempt) -> None:
        try:
            with self._scopes[attempt.rpc_id]:
                if not attempt.is_modern:
                    await self._deliveries.until_heard(attempt.method)
                await self._carry(attempt)
        finally:
            del self._scopes[attempt.rpc_id]
            if self._leaving and not self._scopes:
                self._quiet.set()

    async def _carry(self, attempt: Attempt) -> None:
        """Carry the request. Whatever happens to it, other exchanges go on."""
        try:
            await self._carry_either_way(attempt)
        except (SessionExpired, LoginNeeded) as end:
            self.lose_for(end)
        except IdentityNeeded as refusal:
            self._without_identity(attempt, str(refusal))
        except ExchangeBroken as problem:
            if isinstance(problem, NoLoginNow):
                attempt.did_not_run()
            unreached = isinstance(problem, Unreachable)
            self._fail(attempt, RpcError(PARSE_ERROR, str(problem), broken=True, unreached=unreached))
        except ExchangeFault as problem:
            self._fail(attempt, fault(str(problem)))

    def _without_identity(self, attempt: Attempt, why: str) -> None:
        """No token can be had for whom this request is made. It fails alone; but one of the handshake takes the
        connection with it."""
        attempt.did_not_run()
        if not self._is_used:
            self.lose(LostReason(why, loss=Reason.NO_IDENTITY))
            return
        said = UpstreamError(NeedsAuth.code, Reach.NOT_SENT)
        self._fail(attempt, RpcError(PARSE_ERROR, identity_words(why), upstream=said))

    async def _carry_either_way(self, attempt: Attempt) -> None:
        try:
            await self.carrier.carry(attempt)
        except WrongTransport as refusal:
            if self.fall_back is None:
                raise
            self.carrier, self.fall_back = self.fall_back(refusal), None
            attempt.did_not_run()
            await self.carrier.carry(attempt)

    async def _see_off(self, reason: LostReason) -> None:
        async with at_most(LAST_ANSWERS):
            await self._quiet.wait()
        if not self.is_silent:
            self.silence()
            self._hooks.on_lost(reason)

    def _fail(self, attempt: Attempt, error: RpcError) -> None:
        """End the exchange without an answer."""
        if self.is_open(attempt) and not self.is_silent:
            self._requests.pop(attempt.rpc_id, None)
            if not error.broken and error.upstream is None:
                attempt.exchange.reach = Reach.ANSWERED
            attempt.exchange.owner.exchange_ended(attempt.exchange, None, error)


def _reason(end: SessionExpired | LoginNeeded) -> LostReason:
    if isinstance(end, SessionExpired):
        return LostReason(f"session expired: {end}", loss=Reason.EXPIRED)
    return LostReason(str(end), loss=Reason.NEEDS_AUTH)


class Deliveries:
    """Delivers our notifications to an HTTP server, and our replies to its requests. Each is its own POST, so two could
    overtake each other. Where the order matters it is kept: our progress notifications arrive in order, and before the
    reply that they belong to.

    The first notification says that we are initialised. Once it is delivered, the GET stream is opened, on which the
    server sends what answers no request. What it sends there before anybody listens is lost: a request would stay
    unanswered for ever. So a request that may make the server ask something waits until that stream is open, or
    refused, or its time is up (`until_heard`).

    Whether the server knows our session, or us, is for requests to decide. Some servers take nothing but requests, and
    refuse a notification with whatever status they have; one that has really forgotten us says so to the next request.
    So a message that is refused is a note, whatever the refusal says.

    Since 2026-07-28 there are no notifications to the server over HTTP, apart from closing a stream.
    """

    def __init__(self, peer: HttpPeer, backend: Backend, notes: ServerNotes) -> None:
        self._peer = peer
        self._backend = backend
        self._notes = notes
        self._introduced: anyio.Event | None = None  # set once `initialized` has reached the server
        self._listening = anyio.Event()  # the GET stream is open, or need not be waited for
        self._listens_by = 0.0
        self._progressed: anyio.Event | None = None  # set once our latest progress has reached the server

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        if self._peer.is_modern:
            return
        line = encode_notification(method, params)
        if method == "notifications/initialized":
            self._introduced = introduced = anyio.Event()
            self._peer.spawn(lambda: self._introduce(line, introduced))
        elif method == PROGRESS:
            before, self._progressed = self._progressed, (reached := anyio.Event())
            self._peer.spawn(lambda: self._deliver_after(before, line, reached))
        else:
            self._peer.spawn(lambda: self._deliver(line))

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None:
        line, before = encode_reply(rpc_id, result, error), self._progressed
        self._peer.spawn(lambda: self._deliver_after(before, line))

    def withdraw(self, exchange: Exchange) -> None:
        self._peer.stop_carrying(exchange)

    async def until_heard(self, method: str) -> None:
        """Wait until a request of this method may be sent."""
        if self._introduced is None:
            return
        await self._introduced.wait()
        if not self._listening.is_set() and method not in _NOTHING_TO_ASK:
            async with at_most(self._listens_by - self._backend.now()):
                await self._listening.wait()

    # -- the tasks --

    async def _introduce(self, line: bytes, introduced: anyio.Event) -> None:
        try:
            await self._deliver(line)
        finally:
            self._listens_by = self._backend.now() + LISTENS_WITHIN
            introduced.set()
        try:
            await self._peer.carrier.listen(self._listening.set)
        except (SessionExpired, LoginNeeded) as end:
            self._peer.lose_for(end)
        except ExchangeFault as problem:
            self._notes.add("the stream of notifications ended", str(problem))
        finally:
            self._listening.set()

    async def _deliver_after(
        self, before: anyio.Event | None, line: bytes, reached: anyio.Event | None = None
    ) -> None:
        try:
            if before is not None:
                await before.wait()
            await self._deliver(line)
        finally:
            if reached is not None:
                reached.set()

    async def _deliver(self, line: bytes) -> None:
        try:
            async with in_time(DELIVERED_WITHIN):
                await self._peer.carrier.deliver(line)
        except ExchangeFault as problem:
            self._notes.add("a message did not reach the server", f"{problem}: {excerpt(line)}")
        except TimeoutError:
            text = f"not accepted within {DELIVERED_WITHIN:g} s"
            self._notes.add("a message did not reach the server", f"{text}: {excerpt(line)}")


@attrs.frozen(eq=False)
class Attempt:
    """An exchange and the id it has now. Its owner may send the same exchange again before the task of this attempt
    has ended."""

    exchange: Exchange
    rpc_id: int
    line: bytes
    version: str | None = None  # the protocol version that it is spoken in

    @property
    def is_modern(self) -> bool:
        return self.version in MODERN_VERSIONS

    @property
    def method(self) -> str:
        return self.exchange.method

    def did_not_run(self) -> None:
        """The server says that it did not run the request, so the exchange counts as unsent again."""
        self.exchange.reach = Reach.NOT_SENT

    def is_answered_by(self, message: ServerMessage) -> bool:
        """Whether the message answers this attempt. Over HTTP the stream shows that, so the id must only not contradict
        it."""
        if message.id is None:
            return bool(bytes(message.error))
        return as_id(message.id) == self.rpc_id


class SentTeller:
    """The HTTP library tells it how far a request has got. A request counts as sent once its whole head is, because the
    server can act on that."""

    def __init__(self, attempt: Attempt, peer: HttpPeer) -> None:
        self._attempt = attempt
        self._peer = peer
        self._is_ours = False

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        _, _, step = event.rpartition("send_request_headers.")
        if step == "started":
            self._is_ours = info["request"].method != b"CONNECT"  # a CONNECT is for the proxy
        elif step == "complete" and self._is_ours:
            self._peer.sent(self._attempt)


class Carrier(Protocol):
    """Brings messages to the server and back. Raises only `ExchangeFault`s for anything that a server does."""

    @property
    def may_speak_both(self) -> bool:
        """See `Peer`."""
        ...

    async def carry(self, attempt: Attempt) -> None:
        """Send a request, and have its answer taken: here, or by a stream that is read elsewhere."""
        ...

    async def deliver(self, line: bytes) -> None:
        """Send a notification, or a reply to one of the server's requests."""
        ...

    async def listen(self, settled: Callable[[], object]) -> None:
        """Read the server's messages that answer no request, for as long as their stream lasts. Starts after the
        handshake. Calls `settled()`, any number of times, when the stream is open or cannot be opened now."""
        ...

    async def leave(self) -> None:
        """Tell the server that the session is over."""
        ...


def _lay_on_one_line(message: ServerMessage) -> None:
    """Put a result on one line. A large message is laid on one before it is decoded."""
    if memoryview(message.result).nbytes < LARGE_MESSAGE:
        message.result = Raw(on_one_line(bytes(message.result)))
