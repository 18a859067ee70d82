"""The connection of a child that may be used again, and the call of the tool that resets it.

What a session can leave behind at a connection is no list that anybody could complete: subscriptions, a log level,
streams, tasks, questions, whatever the next version of the protocol has. So there is none. Whoever uses such a child
speaks through a `NotedPeer`, which knows the few things that leave nothing once they are answered
(`policy.warm.is_passing`). Anything else that goes out, and anything that comes and is neither an answer nor a line of
the log, is noted once, and then the child is not used again. Nor is it while a request has no answer: a late one could
otherwise come in another's time. Ids of requests go on over all users of a connection and never repeat, so that it
could end nothing even then. One stream is not the user's own, that of news about the server's lists (2026-07-28): it is
closed before the reset.

`ReusableConnection` is what its user gets in place of the connection. To stop it is to give it back, if that may be.

Nothing of this is on the way of a call to a server without such a tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..actors.handshake import RpcFailure, ask
from ..actors.peer import ANSWERED, NOT_SENT, SENT, Agreement, Connection, EndCallback, Exchange, Peer
from ..protocol.jsonrpc.terms import CANCELLED, RpcError
from .policy.warm import is_passing, is_passing_stream, why_not_reset

if TYPE_CHECKING:
    from ..actors.backend import Backend
    from ..actors.timers import Timers

# Seconds that the tool may take, and at most a third of the time to connect: whoever waits for it may need a new
# process all the same.
RESET_WITHIN: Final = 5.0
_LOOK_AT: Final = 64  # noted requests from which on those with an answer are forgotten


class NotedPeer:
    """A `Peer` that notes what its user leaves at the connection: `lasting`, in words."""

    def __init__(self, peer: Peer) -> None:
        self.lasting: str | None = None
        self._peer = peer
        self._asked: list[Exchange] = []
        self._streams: list[Exchange] = []  # of news about lists
        self._is_over = False  # its user has given the child back, and says nothing through it any more

    @property
    def left(self) -> str | None:
        """What is left now, in words; None: nothing."""
        unsent = any(stream.reach is NOT_SENT for stream in self._streams)
        if self.lasting is None and (unsent or any(asked.reach is not ANSWERED for asked in self._asked)):
            return "a request had no answer"
        return self.lasting

    def note(self, words: str) -> None:
        """Something lasts. The first is told."""
        self.lasting = self.lasting or words

    # ---- Peer ---------------------------------------------------------------------------------------------------

    @property
    def protocol_version(self) -> str | None:
        return self._peer.protocol_version

    @protocol_version.setter
    def protocol_version(self, version: str | None) -> None:
        self._peer.protocol_version = version

    @property
    def client_info(self) -> Mapping[str, Any]:
        return self._peer.client_info

    @client_info.setter
    def client_info(self, said: Mapping[str, Any]) -> None:
        self._peer.client_info = said

    @property
    def client_capabilities(self) -> Mapping[str, Any]:
        return self._peer.client_capabilities

    @client_capabilities.setter
    def client_capabilities(self, said: Mapping[str, Any]) -> None:
        self._peer.client_capabilities = said

    @property
    def beside(self) -> str | None:
        return self._peer.beside

    @beside.setter
    def beside(self, version: str | None) -> None:
        self._peer.beside = version

    @property
    def last_heard(self) -> float:
        return self._peer.last_heard

    @property
    def may_speak_both(self) -> bool:
        return self._peer.may_speak_both

    @property
    def said_instead(self) -> str:
        return self._peer.said_instead

    def request(self, exchange: Exchange) -> None:
        if self._is_over:
            return
        if is_passing_stream(exchange.method, exchange.params):
            self._streams = [stream for stream in self._streams if stream.reach is not ANSWERED]
            self._streams.append(exchange)
        else:
            if not is_passing(exchange.method, exchange.params):
                self.note(f"{exchange.method} was sent")
            self._asked.append(exchange)
        if len(self._asked) > _LOOK_AT:
            self._asked = [asked for asked in self._asked if asked.reach is not ANSWERED]
        self._peer.request(exchange)

    def close(self) -> list[Exchange]:
        """Send nothing more, and have the server end its streams of news about lists. Returns those that it has not
        ended yet: it may answer them, or end them without a word."""
        self._is_over = True
        still = [stream for stream in self._streams if stream.reach is SENT]
        for stream in still:
            stream.owner = EndCallback(_nothing_more)
            self._peer.notify(CANCELLED, {"requestId": stream.rpc_id, "reason": "its session is over"})
        return still

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if self._is_over:
            return
        if exchange.reach is SENT:
            self.note(f"{exchange.method} was cancelled, and its answer may still come")
        self._peer.abandon(exchange, reason)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        if self._is_over:
            return
        if not is_passing(method, params):
            self.note(f"{method} was sent")
        self._peer.notify(method, params)

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        if self._is_over:
            return
        self.note("its client has answered a question of the server")
        self._peer.reply(rpc_id, result, error)


def _nothing_more(_stream: Exchange, _result: bytes | None, _error: RpcError | None) -> None:
    """A stream has ended that nobody reads any more."""


class ReusableConnection:
    """A `Connection` whose user gives it back instead of stopping it, if `give_back` takes it."""

    def __init__(self, connection: Connection, peer: NotedPeer, give_back: Callable[[], bool]) -> None:
        self.peer: NotedPeer = peer
        self._connection = connection
        self._give_back = give_back

    @property
    def agreed(self) -> Agreement | None:
        return self._connection.agreed

    @agreed.setter
    def agreed(self, agreed: Agreement | None) -> None:
        self._connection.agreed = agreed

    @property
    def pid(self) -> int | None:
        return self._connection.pid

    @property
    def last_line(self) -> str:
        return self._connection.last_line

    @property
    def has_ended(self) -> bool:
        return self._connection.has_ended

    def signs(self) -> object:
        return self._connection.signs()

    def hand_to(self, address: Any, incarnation: int) -> None:
        self._connection.hand_to(address, incarnation)

    def stderr_tail(self) -> tuple[str, ...]:
        return self._connection.stderr_tail()

    def forget_stderr(self) -> None:
        self._connection.forget_stderr()

    async def stop(self, grace: float) -> None:
        if not self._give_back():
            await self._connection.stop(grace)

    def kill_now(self) -> None:
        self._connection.kill_now()


async def why_not_reset_by(
    tool: str, peer: Peer, backend: Backend, timers: Timers, within: float, streams: Sequence[Exchange] = ()
) -> str | None:
    """Call the tool, which has so many seconds. `streams`: those that were closed before. Returns why the child is not
    reset, in words; None: it is."""
    params = {"name": tool, "arguments": dict[str, Any]()}
    try:
        result = await ask(peer, backend, timers, "tools/call", params, within)
    except RpcFailure as failure:
        return failure.text
    for stream in streams:
        if stream.reach is SENT:  # it was ended without a word, as it should be
            peer.abandon(stream, "its session is over")
    return why_not_reset(result)
