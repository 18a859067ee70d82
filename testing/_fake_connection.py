"""One incarnation of a fake server as the runtime sees it: the connection and its peer, in one object.

A request is accepted at once. How it is answered is decided by `FakeAnswers`. What a real process would do reaches the
runtime in the same words: a crash is `on_lost` with an exit code and the last lines of stderr, junk is a note, and a
hanging server accepts everything and answers nothing.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..actors import Call, Exchange, LostReason, Peer, PeerHooks, current_backend, mark_sent
from ..protocol.errors import Reach, RpcRefusal, UsageError
from ..protocol.jsonrpc import INTERNAL_ERROR, RpcError
from ..protocol.lifecycle import Reason
from ._fake_answers import Answer, FakeAnswers, pause

if TYPE_CHECKING:
    from ._fake import FakeServer

TAIL: Final = 3  # last lines of stderr, as many as the runtime quotes


class FakeConnection:
    """A `Connection` and its `Peer`, and the `Wire` of its far end."""

    may_speak_both = False

    def __init__(self, server: FakeServer, start: int, hooks: PeerHooks, tasks: anyio.abc.TaskGroup) -> None:
        self.server = server
        self.start = start
        self.hooks = hooks
        self.pid: int | None = None
        self.last_heard = 0.0
        self.protocol_version: str | None = None
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self.beside: str | None = None
        self._answers = FakeAnswers(server, start, self, tasks)
        self._tasks = tasks
        self._backend = current_backend()
        self._stderr: list[str] = []
        self._open: set[Exchange] = set()
        self._asked: dict[str, _Asked] = {}  # what it has asked its client, by id
        self._watched: set[str] = set()
        self._over = False

    @property
    def peer(self) -> Peer:
        return self

    # ---- Peer -------------------------------------------------------------------------------------------------------

    def request(self, exchange: Exchange) -> None:
        if self.server.strict_json:
            _check_json(exchange.params)
        self._open.add(exchange)
        if self.server.blocked:
            return
        if exchange.method == "tools/call":
            self.server.calls.append(exchange.params or {})
        self.server.pings += exchange.method == "ping"
        mark_sent(exchange)
        self._tasks.start_soon(self._answers.answer, exchange)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if exchange in self._open:
            self._open.discard(exchange)
            self.server.cancelled += exchange.method == "tools/call"
            if exchange in self._answers.late:
                self.end(exchange, self._answers.late.pop(exchange))

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        pass

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        asked = self._asked.pop(rpc_id, None)
        if asked is not None:
            asked.answer = error or result or {}
            asked.over.set()

    # ---- Connection -------------------------------------------------------------------------------------------------

    @property
    def last_line(self) -> str:
        return ""

    def signs(self) -> object:
        return None

    def stderr_tail(self) -> tuple[str, ...]:
        return tuple(self._stderr[-TAIL:])

    async def stop(self, grace: float) -> None:
        with anyio.move_on_after(grace):
            if self._over:
                await pause(self.server.wreck_latency)
            else:
                await self._answers.close()
        self.kill_now()

    def kill_now(self) -> None:
        self._over = True
        self._open.clear()
        if self in self.server.connections:
            self.server.connections.remove(self)
            self.server.live -= 1

    # ---- what tests do to it ----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start it: returns once it is there, after its `start_latency`."""
        await pause(self.server.start_latency)
        self._answers.begin()

    def lose(self, reason: LostReason) -> None:
        """The connection is over. Open exchanges are left to their owner."""
        if not self._over:
            self._over = True
            self._open.clear()
            self.hooks.on_lost(reason)

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None:
        """Its process ends, with this exit code or by this signal. `last_words`: its last line on stderr."""
        if last_words:
            self.write_stderr(last_words)
        code = exit_code if signal_name is None else -signal.Signals[signal_name].value
        text = f"exited with code {code}" if code >= 0 else f"was ended by {signal_name}"
        self.lose(LostReason(text, code, self.stderr_tail()))

    def progress(self, params: Mapping[str, Any]) -> None:
        """Report progress on every open call."""
        self._hear()
        for exchange in tuple(self._open):
            exchange.progress(params)

    # ---- what its far end does --------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._over

    def is_waiting(self, exchange: Exchange) -> bool:
        return exchange in self._open

    def end(self, exchange: Exchange, answer: Answer) -> None:
        if self.server.deaf or self._answers.is_hung:
            return
        self._hear()  # a late answer is a sign of life too
        if exchange not in self._open:
            return
        self._open.discard(exchange)
        exchange.reach = Reach.ANSWERED
        if isinstance(answer, RpcError):
            exchange.end(None, answer)
        else:
            exchange.end(json.dumps(answer).encode(), None)

    def break_off(self, exchange: Exchange, raised: Exception) -> None:
        """The handler of the test raised, or returned what cannot be sent: the call ends with that, and has it as its
        cause."""
        text = f"The handler of this FakeServer raised {type(raised).__name__}: {raised}"
        self.end(exchange, RpcError(INTERNAL_ERROR, text))
        if isinstance(exchange, Call) and exchange.error is not None:
            exchange.error.__cause__ = raised

    async def ask(self, method: str, params: Mapping[str, Any], during: Exchange) -> Mapping[str, Any]:
        """Ask the client something in the course of a call. Raises the `RpcRefusal` with which it refuses."""
        self._hear()
        number = f"fake-{self.start}-{len(self.server.asked)}"
        self.server.asked.append((method, params))
        asked = self._asked[number] = _Asked()
        self.hooks.on_request(number, method, params, during)
        await asked.over.wait()
        if isinstance(asked.answer, RpcError):
            raise RpcRefusal(asked.answer.code, asked.answer.message, asked.answer.data)
        return asked.answer

    def watch(self, uri: str, *, on: bool) -> None:
        (self._watched.add if on else self._watched.discard)(uri)

    def tell_update(self, uri: str) -> None:
        """Report that a resource has changed, if it is subscribed to."""
        if uri in self._watched:
            self.tell("notifications/resources/updated", {"uri": uri})

    def expire(self, exchange: Exchange) -> None:
        if not self._over:
            exchange.reach = Reach.NOT_SENT
            self.lose(LostReason("session expired: HTTP 404", loss=Reason.EXPIRED))

    def note(self, text: str) -> None:
        self.hooks.on_note(text)

    def junk(self) -> None:
        self._hear()
        self.hooks.on_note("junk on stdout: by its script")

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        self._hear()
        self.hooks.on_notification(method, params)

    def write_stderr(self, text: str) -> None:
        self._stderr.append(text)

    def _hear(self) -> None:
        self.last_heard = self._backend.now()


class _Asked:
    """A question to the client, and its answer once it is `over`."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.answer: Mapping[str, Any] | RpcError = {}


def _check_json(params: object) -> None:
    """As a real peer does. Raises `UsageError`."""
    try:
        json.dumps(params)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"This cannot be sent as JSON: {error}") from None
