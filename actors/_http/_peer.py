"""The peer over HTTP: a task per exchange, and one place where its fault becomes an outcome.

A request is a POST of its own, so its task, its connection and its fault are its own: whatever happens to it is caught
in `_carry` and ends that exchange alone. What carries it (Streamable HTTP, or the older event stream) is the `Carrier`;
the peer starts with one and may change it while greeting, when the server turns out to be older.

Two faults are about the connection and not the exchange: the server does not know our session any more, or wants a
login. The exchange they were told to did not run, so it is unsent again; then the exchanges still under way are given a
moment to end (twenty calls in flight are each told the same), and `on_lost` is told once. Requests made meanwhile stay
unsent, for the actor to place elsewhere.

What a server says while it works on a call may come on the stream of what it says unasked, and what it says there
before anybody listens is lost: a question would stay unanswered for ever. So whatever may make it ask waits until that
stream is open, or refused, or has had its time.

What we tell the server has a POST of its own too, so two could overtake each other. Where the order says something it
is kept: progress on the way to an answer of ours arrives in order, and before the answer.

Abandoning closes the exchange's stream, which since 2026-07-28 is how cancellation is said; before, a stream may break
for any reason, so the notification says it. The same era has no other notifications to the server over HTTP.
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

DELIVERED_WITHIN = 30.0  # seconds that a server has to accept what is no request
LAST_ANSWERS = 1.0  # seconds that other exchanges have to end, once the connection is known to be over
LISTENS_WITHIN = (
    1.0  # seconds that calls wait for the stream of what the server says unasked, from the introduction on
)


_NOTHING_TO_ASK = frozenset(
    {"ping", "tools/list", "resources/list", "resources/templates/list", "prompts/list", "logging/setLevel"}
)


@attrs.frozen(eq=False)
class Attempt:
    """An exchange under the id it has now. The same exchange may be begun anew, before the task of this one has ended,
    by an owner who sends it again."""

    exchange: Exchange
    rpc_id: int
    line: bytes

    @property
    def method(self) -> str:
        return self.exchange.method

    def did_not_run(self) -> None:
        """The server says itself that it did nothing."""
        self.exchange.reach = Reach.NOT_SENT


class Carrier(Protocol):
    """What brings messages to the server and back. Raises `ExchangeFault`s, and nothing else for a server's doing."""

    async def carry(self, attempt: Attempt) -> None:
        """Send a request, and see to it that its answer is taken: here, or by a stream that is read elsewhere."""
        ...

    async def deliver(self, line: bytes) -> None:
        """Send a notification, or the answer to a request of the server's."""
        ...

    async def listen(self, settled: Callable[[], object]) -> None:
        """Hear what the server says unasked, for as long as it lasts. Begun when the handshake is done; `settled()` is
        called, any number of times, when it is heard or will not be just now."""
        ...

    async def leave(self) -> None:
        """Tell the server that we go."""
        ...


class HttpPeer(ExchangeTable):
    """A `Peer` whose carrier is `carrier` (set by its connection). Its tasks run in `tasks`, and it begins one there
    that starts them: a request may be made where no task is running."""

    channel = "the event stream"
    carrier: Carrier

    def __init__(self, backend: Backend, hooks: PeerHooks, tasks: anyio.abc.TaskGroup, max_size: int) -> None:
        super().__init__(backend, hooks)
        self.max_size = max_size
        self.fall_back: Callable[[WrongTransport], Carrier] | None = None
        self._spawner = Spawner(backend, tasks)
        tasks.start_soon(self._spawner.run)
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._quiet = anyio.Event()  # while leaving: no exchange is under way any more
        self._leaving = False
        self._introduced: anyio.Event | None = None  # that we are initialised has reached the server
        self._listening = (
            anyio.Event()
        )  # the stream of what it says unasked is open, or need not be waited for
        self._listens_by = 0.0
        self._progressed: anyio.Event | None = None  # the latest progress that we told has reached the server

    @property
    def is_modern(self) -> bool:
        return self.protocol_version in MODERN_VERSIONS

    # -- what the owner of a call does --

    def request(self, exchange: Exchange) -> None:
        """Begin the exchange. On a peer that is over, or about to be, it stays open and unsent.

        Raises `UsageError` when its params cannot be said in JSON; nothing was sent then.
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
        """What the server said unasked may have been missed."""
        if not self._silent:
            self._hooks.on_gap()

    def is_open(self, attempt: Attempt) -> bool:
        return self._requests.find(attempt.rpc_id) is not None

    def sent(self, attempt: Attempt) -> None:
        """The server has what it needs to act on it."""
        if self.is_open(attempt):
            mark_sent(attempt.exchange)

    def take_for(self, attempt: Attempt, data: bytes | bytearray) -> None:
        """What came on the exchange's own stream: its answer, or what the server says along the way.

        Raises `BadAnswer` for what is neither.
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
        """The connection is over: say so once the exchanges under way have ended, or had their moment to."""
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
        """Carry the request. Whatever becomes of it, it is nobody else's."""
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
    """Over HTTP the stream says whose answer it is; the id only must not say otherwise."""
    if message.id is None:
        return bool(bytes(message.error))
    return as_id(message.id) == attempt.rpc_id


def _reason(end: SessionExpired | LoginNeeded) -> LostReason:
    if isinstance(end, SessionExpired):
        return LostReason(f"session expired: {end}", loss=Reason.EXPIRED)
    return LostReason(str(end), loss=Reason.NEEDS_AUTH)
