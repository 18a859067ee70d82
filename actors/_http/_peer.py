"""The peer over HTTP: a task per exchange, and one place where its fault becomes an outcome.

Each request is its own POST, with its own task and connection. Whatever happens to it is caught in `_carry` and ends
that exchange alone. The `Carrier` transports it (Streamable HTTP, or the older event stream). The peer starts with one
carrier and may change it during the handshake, when the server turns out to be older.

Two faults concern the connection and not only the exchange: the server no longer knows our session, or wants a login.
The exchange that got such an answer did not run, so it counts as unsent again. The other exchanges in flight then get a
moment to end, because twenty calls in flight may each get the same answer; and `on_lost` is called once. Requests made
meanwhile stay unsent, and the actor sends them over another connection.

Notifications and replies to the server go out by `Deliveries`.

Abandoning a request closes its stream. Since 2026-07-28 that alone cancels it. Before, a stream could break for any
reason, so a notification cancels it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.abc

from ...protocol.errors import Reach
from ...protocol.halves import repair_utf8
from ...protocol.jsonrpc import (
    LISTEN,
    MODERN_VERSIONS,
    PARSE_ERROR,
    RpcError,
    ServerMessage,
    WireFault,
    as_id,
    decode_line,
    excerpt,
    fault,
)
from ...protocol.large_message import LARGE_MESSAGE, reading_line, repairing_utf8
from ...protocol.lifecycle import Reason
from ...protocol.slices import Slices
from .._backend import Backend
from .._exchange_table import ExchangeTable
from .._notes import Notes
from .._peer import Exchange, LostReason, PeerHooks
from .._request_table import mark_sent
from .._room_context import Spawner
from .._slices import in_turns
from ._carrier import Attempt, Carrier
from ._deliveries import Deliveries
from ._faults import BadAnswer, Broken, ExchangeFault, LoginNeeded, SessionExpired, WrongTransport

LAST_ANSWERS = 1.0  # seconds that other exchanges have to end, once the connection is known to be over


class HttpPeer(ExchangeTable):
    """A `Peer`; its connection sets `carrier`. Its tasks run in `tasks`. It starts one task there that starts the
    others, because a request may be made where no task is running."""

    channel = "the event stream"
    carrier: Carrier

    def __init__(self, backend: Backend, hooks: PeerHooks, tasks: anyio.abc.TaskGroup, max_size: int) -> None:
        notes = Notes(hooks.on_note)
        self._deliveries = Deliveries(self, backend, notes)
        super().__init__(backend, hooks, notes, self._deliveries)
        self.max_size = max_size
        self.fall_back: Callable[[WrongTransport], Carrier] | None = None
        self._spawner = Spawner(backend, tasks)
        tasks.start_soon(self._spawner.run)
        self._scopes: dict[int, anyio.CancelScope] = {}
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
        if not self._silent and not self._leaving:
            version = exchange.version or self.protocol_version
            attempt = Attempt(exchange, exchange.rpc_id, line, version)
            self._scopes[attempt.rpc_id] = anyio.CancelScope()
            self.spawn(lambda: self._run(attempt))

    # -- what deliveries need --

    def spawn(self, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._silent:
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

    async def hear(self, data: bytes | bytearray) -> None:
        """Take what came on a stream that is not an exchange's own; a large message in slices."""
        if len(data) < LARGE_MESSAGE:
            self.take_line(data)
        else:
            await in_turns(self.taking_line(data))

    async def take_for(self, attempt: Attempt, data: bytes | bytearray) -> None:
        """Take what came on the exchange's own stream: its answer, or another message of the server; a large
        message in slices.

        Raises `BadAnswer` for what is neither.
        """
        try:
            if len(data) < LARGE_MESSAGE:
                messages = decode_line(repair_utf8(data), self.protocol_version)
            else:
                messages = await in_turns(self._reading(data))
        except WireFault as problem:
            raise BadAnswer(f"the answer is not JSON-RPC: {problem} ({excerpt(data)})") from None
        for message in messages:
            if message.method is not None:
                self.take(message, attempt.exchange)
            elif _is_for(attempt, message):
                self.answer(attempt, message)
            else:
                said, asked = message.id, attempt.rpc_id
                raise BadAnswer(f"the answer is to another request (id {said!r}, not {asked})")

    def _reading(self, data: bytes | bytearray) -> Slices[list[ServerMessage]]:
        text = yield from repairing_utf8(data)
        messages = yield from reading_line(text, self.protocol_version)
        yield
        return messages

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
        """Carry the request. Whatever happens to it concerns no other exchange."""
        try:
            await self._carry_either_way(attempt)
        except (SessionExpired, LoginNeeded) as end:
            self.lose_for(end)
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
