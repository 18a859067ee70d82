"""The peer over HTTP: a task per exchange, and one place where its fault becomes an outcome.

Each request is its own POST, with its own task and connection. Whatever happens to it is caught in `_carry` and ends
that exchange alone. The `Carrier` transports it (Streamable HTTP, or the older event stream). The peer starts with one
carrier and may change it during the handshake, when the server turns out to be older.

Two faults concern the connection and not only the exchange: the server no longer knows our session, or wants a login.
The exchange that got such an answer did not run, so it counts as unsent again. The other exchanges in flight then get a
moment to end, because twenty calls in flight may each get the same answer; and `on_lost` is called once. Requests made
meanwhile stay unsent, and the actor sends them over another connection.

While a server works on a call, it may send its messages on the GET stream, where it sends what answers no request. What
it sends there before anybody listens is lost: a question would stay unanswered for ever. So a request that may make the
server ask something waits until that stream is open, or refused, or its time is up.

Each of our notifications and replies is its own POST too, so two could overtake each other. Where the order matters it
is kept: our progress notifications arrive in order, and before the reply that they belong to.

Abandoning a request closes its stream. Since 2026-07-28 that alone cancels it. Before, a stream could break for any
reason, so a notification cancels it. That newer era has no other notifications to the server over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import anyio
import anyio.abc
import attrs

from ...protocol.errors import Reach
from ...protocol.halves import repair_utf8
from ...protocol.jsonrpc import (
    LISTEN,
    MODERN_VERSIONS,
    PARSE_ERROR,
    PROGRESS,
    RpcError,
    ServerMessage,
    WireFault,
    as_id,
    decode_line,
    encode_notification,
    encode_reply,
    excerpt,
    fault,
)
from ...protocol.lifecycle import Reason
from .._backend import Backend
from .._exchange_table import ExchangeTable
from .._peer import Exchange, LostReason, PeerHooks
from .._request_table import mark_sent
from .._room_context import Spawner
from ._faults import BadAnswer, Broken, ExchangeFault, LoginNeeded, SessionExpired, WrongTransport

DELIVERED_WITHIN = 30.0  # seconds that a server has to accept a notification or a reply
LAST_ANSWERS = 1.0  # seconds that other exchanges have to end, once the connection is known to be over
LISTENS_WITHIN = 1.0  # seconds that calls wait for the GET stream, once `initialized` was delivered


# Requests at which a server has nothing to ask.
_NOTHING_TO_ASK = frozenset(
    {"ping", "tools/list", "resources/list", "resources/templates/list", "prompts/list", "logging/setLevel"}
)


@attrs.frozen(eq=False)
class Attempt:
    """An exchange and the id it has now. Its owner may send the same exchange again before the task of this attempt
    has ended."""

    exchange: Exchange
    rpc_id: int
    line: bytes

    @property
    def method(self) -> str:
        return self.exchange.method

    def did_not_run(self) -> None:
        """The server itself says that it did not run the request."""
        self.exchange.reach = Reach.NOT_SENT


class Carrier(Protocol):
    """Brings messages to the server and back. Raises only `ExchangeFault`s for anything that a server does."""

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


class HttpPeer(ExchangeTable):
    """A `Peer`; its connection sets `carrier`. Its tasks run in `tasks`. It starts one task there that starts the
    others, because a request may be made where no task is running."""

    channel = "the event stream"
    carrier: Carrier

    def __init__(self, backend: Backend, hooks: PeerHooks, tasks: anyio.abc.TaskGroup, max_size: int) -> None:
        super().__init__(backend, hooks)
        self.max_size = max_size
        self.fall_back: Callable[[WrongTransport], Carrier] | None = None
        self._spawner = Spawner(backend, tasks)
        tasks.start_soon(self._spawner.run)
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._quiet = anyio.Event()  # while leaving: no exchange is in flight any more
        self._leaving = False
        self._introduced: anyio.Event | None = None  # set once `initialized` has reached the server
        self._listening = anyio.Event()  # the GET stream is open, or need not be waited for
        self._listens_by = 0.0
        self._progressed: anyio.Event | None = None  # set once our latest progress has reached the server

    @property
    def is_modern(self) -> bool:
        return self.protocol_version in MODERN_VERSIONS

    # -- what the owner of a call does --

    def request(self, exchange: Exchange) -> None:
        """Start the exchange. On a peer that is lost, or about to be, it stays open and unsent.

        Raises `UsageError` when its params cannot be written as JSON; nothing was sent then.
        """
        line = self._opened(exchange)
        if not self._silent and not self._leaving:
            attempt = Attempt(exchange, exchange.rpc_id, line)
            self._scopes[attempt.rpc_id] = anyio.CancelScope()
            self._spawn(lambda: self._run(attempt))

    def _withdrawn(self, exchange: Exchange) -> None:
        scope = self._scopes.get(exchange.rpc_id)
        if scope is not None:
            scope.cancel()

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        if self.is_modern:
            return
        line = encode_notification(method, params)
        if method == "notifications/initialized":
            self._introduced = introduced = anyio.Event()
            self._spawn(lambda: self._introduce(line, introduced))
        elif method == PROGRESS:
            before, self._progressed = self._progressed, (reached := anyio.Event())
            self._spawn(lambda: self._deliver_after(before, line, reached))
        else:
            self._spawn(lambda: self._deliver(line))

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        line, before = encode_reply(rpc_id, result, error), self._progressed
        self._spawn(lambda: self._deliver_after(before, line))

    # -- what a carrier does --

    def heard(self) -> None:
        """Bytes came in."""
        self.last_heard = self._backend.now()

    def gap(self) -> None:
        """Messages of the server that answer no request may have been missed."""
        if not self._silent:
            self._hooks.on_gap()

    def is_open(self, attempt: Attempt) -> bool:
        return self._requests.find(attempt.rpc_id) is not None

    def sent(self, attempt: Attempt) -> None:
        """The server has received enough of the request to act on it."""
        if self.is_open(attempt):
            mark_sent(attempt.exchange)

    def take_for(self, attempt: Attempt, data: bytes | bytearray) -> None:
        """Take what came on the exchange's own stream: its answer, or another message of the server.

        Raises `BadAnswer` for anything else.
        """
        try:
            messages = decode_line(repair_utf8(data), self.protocol_version)
        except WireFault as problem:
            raise BadAnswer(f"the answer is not JSON-RPC: {problem} ({excerpt(data)})") from None
        for message in messages:
            if message.method is not None:
                self.take(message)
            elif _is_for(attempt, message):
                self.answer(attempt, message)
            else:
                said, asked = message.id, attempt.rpc_id
                raise BadAnswer(f"the answer is to another request (id {said!r}, not {asked})")

    def answer(self, attempt: Attempt, message: ServerMessage) -> None:
        """End the exchange with its answer, unless it has ended."""
        if self.is_open(attempt) and not self._silent:
            self._requests.drop(attempt.rpc_id)
            attempt.exchange.reach = Reach.ANSWERED
            self._end(attempt.exchange, message)

    def lose(self, reason: LostReason) -> None:
        """The connection is over: report it once the exchanges in flight have ended, or their moment is up."""
        if self._leaving or self._silent:
            return
        self._leaving = True
        for rpc_id, scope in self._scopes.items():
            exchange = self._requests.find(rpc_id)
            if exchange is not None and exchange.method == LISTEN:
                scope.cancel()  # it never ends by itself
        if not self._scopes:
            self._quiet.set()
        self._spawn(lambda: self._see_off(reason))

    # -- the tasks --

    def _spawn(self, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._silent:
            self._spawner.spawn(body)

    async def _run(self, attempt: Attempt) -> None:
        try:
            with self._scopes[attempt.rpc_id]:
                if self._introduced is not None:
                    await self._introduced.wait()
                    await self._until_it_is_heard(attempt.method)
                await self._carry(attempt)
        finally:
            del self._scopes[attempt.rpc_id]
            if self._leaving and not self._scopes:
                self._quiet.set()

    async def _carry(self, attempt: Attempt) -> None:
        """Carry the request. Whatever happens to it concerns no other exchange."""
        try:
            await self._carry_either_way(attempt)
        except (SessionExpired, LoginNeeded) as end:
            self.lose(_reason(end))
        except Broken as problem:
            self._fail(attempt, RpcError(PARSE_ERROR, str(problem), broken=True))
        except ExchangeFault as problem:
            self._fail(attempt, fault(str(problem)))

    async def _carry_either_way(self, attempt: Attempt) -> None:
        try:
            await self.carrier.carry(attempt)
        except WrongTransport as refusal:
            if self.fall_back is None:
                raise
            self.carrier, self.fall_back = self.fall_back(refusal), None
            attempt.did_not_run()
            await self.carrier.carry(attempt)

    async def _until_it_is_heard(self, method: str) -> None:
        if not self._listening.is_set() and method not in _NOTHING_TO_ASK:
            with anyio.CancelScope(deadline=self._listens_by):
                await self._listening.wait()

    async def _introduce(self, line: bytes, introduced: anyio.Event) -> None:
        try:
            await self._deliver(line)
        finally:
            self._listens_by = self._backend.now() + LISTENS_WITHIN
            introduced.set()
        try:
            await self.carrier.listen(self._listening.set)
        except (SessionExpired, LoginNeeded) as end:
            self.lose(_reason(end))
        except ExchangeFault as problem:
            self.notes.add("the stream of notifications ended", str(problem))
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
            with anyio.fail_after(DELIVERED_WITHIN):
                await self.carrier.deliver(line)
        except (SessionExpired, LoginNeeded) as end:
            self.lose(_reason(end))
        except ExchangeFault as problem:
            self.notes.add("a message did not reach the server", f"{problem}: {excerpt(line)}")
        except TimeoutError:
            text = f"not accepted within {DELIVERED_WITHIN:g}s"
            self.notes.add("a message did not reach the server", f"{text}: {excerpt(line)}")

    async def _see_off(self, reason: LostReason) -> None:
        with anyio.move_on_after(LAST_ANSWERS):
            await self._quiet.wait()
        if not self._silent:
            self.silence()
            self._hooks.on_lost(reason)

    def _fail(self, attempt: Attempt, error: RpcError) -> None:
        """End the exchange without an answer."""
        if self.is_open(attempt) and not self._silent:
            self._requests.drop(attempt.rpc_id)
            if not error.broken:
                attempt.exchange.reach = Reach.ANSWERED
            attempt.exchange.end(None, error)


def _is_for(attempt: Attempt, message: ServerMessage) -> bool:
    """Over HTTP the stream tells whose answer it is; the id must only not contradict it."""
    if message.id is None:
        return bool(bytes(message.error))
    return as_id(message.id) == attempt.rpc_id


def _reason(end: SessionExpired | LoginNeeded) -> LostReason:
    if isinstance(end, SessionExpired):
        return LostReason(f"session expired: {end}", loss=Reason.EXPIRED)
    return LostReason(str(end), loss=Reason.NEEDS_AUTH)
