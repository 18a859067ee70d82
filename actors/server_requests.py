"""The requests of one incarnation's server to its client that have no answer yet.

Each is answered in a task of its own, in an empty context, because answers come from people and models and take
their time. Their number is bounded; beyond the bound a request is refused at once. A request ends in
exactly one of: an answer, a JSON-RPC error, the server's cancellation, the end of the incarnation. In the last two
cases nothing is sent.

Results that need more input (2026-07-28) carry the same requests in another envelope, so they are answered here
too. All requests of one result are answered side by side, and one refusal ends the others. Then the call is sent
again with the answers and with the state that the server returned. The number of rounds is bounded, and a round that
brings only state waits a little, so that a server cannot keep us busy for nothing. Meanwhile the call's own clock
stands still (its total time does not): a server must not time out because a person takes long to answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from ..protocol.bounds import OPEN_SERVER_REQUESTS
from ..protocol.errors import CallError, InputRefused, ProtocolFault, Reach, RpcRefusal, UsageError
from ..protocol.jsonrpc.terms import CANCELLED, INTERNAL_ERROR, PROGRESS, RpcError, RpcFault
from ..protocol.version_differences import older_answer
from .host import ServerRequest
from .open_requests import IncomingTable, Refusals

if TYPE_CHECKING:
    from .backend import Waiter
    from .call import Call
    from .connection import Incarnation

MOST_OPEN: Final = OPEN_SERVER_REQUESTS
MOST_ROUNDS: Final = 10
_PAUSES: Final = (0.05, 0.1, 0.2, 0.25)  # seconds before a call is sent again that brings only state
_REFUSALS: Final = Refusals(
    full="{open} requests of this server are open already; ask again later",
    same_id="a request of this server with this id is open already",
    closing="the connection is being closed; nobody answers any more",
)


class PendingAnswer:
    """The answer to one request, which somebody works on. It may be over before its task has begun, so its scope is
    made in the task."""

    __slots__ = ("is_over", "scope")

    def __init__(self) -> None:
        self.is_over: bool = False
        self.scope: anyio.CancelScope | None = None

    def cancel(self) -> None:
        self.is_over = True
        if self.scope is not None:
            self.scope.cancel()


class ServerRequests(IncomingTable[Any, PendingAnswer]):
    def __init__(self, incarnation: Incarnation) -> None:
        super().__init__(MOST_OPEN, _REFUSALS)
        self._incarnation = incarnation
        self._context = incarnation.actor.context
        self.taken: int = 0  # in all
        self._settled: Waiter | None = None  # set while somebody waits for the last answer

    async def settled(self) -> None:
        """Wait until no request is open."""
        while self:
            self._settled = self._context.backend.waiter()
            await self._settled.wait()

    def _note_settled(self) -> None:
        if not self and self._settled is not None:
            self._settled.set()
            self._settled = None

    def take(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, call: Call | None = None
    ) -> None:
        """Take a request of the server. It is answered later, or refused now. `call`: the call that it belongs to, if
        known."""
        try:
            self.check(rpc_id)
        except RpcFault as refusal:
            self._incarnation.peer.reply(rpc_id, None, RpcError(refusal.code, refusal.message))
            return
        self.taken += 1
        pending = self[rpc_id] = PendingAnswer()
        self._context.spawn(lambda: self._answer(pending, rpc_id, self._request(method, params or {}, call)))

    def heed(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Handle a notification that cancels a request. Returns whether it is one."""
        if method != CANCELLED:
            return False
        rpc_id = (params or {}).get("requestId")
        if isinstance(rpc_id, int | str | float):
            self.cancel(rpc_id)
            self._note_settled()
        return True

    def close(self) -> None:
        """The incarnation ends: cancel all open requests."""
        self.closing = True
        self.cancel_all()

    # One request.

    async def _answer(self, pending: PendingAnswer, rpc_id: Any, request: ServerRequest) -> None:
        result: Mapping[str, Any] | None = None
        error: RpcError | None = None
        if pending.is_over:
            return
        with anyio.CancelScope() as pending.scope:
            try:
                result = await self._ask(request)
            except RpcRefusal as refusal:
                error = RpcError(refusal.rpc_code, refusal.message, refusal.data)
        if not pending.is_over:
            self._reply(rpc_id, result, error)
            self.pop(rpc_id, None)
            self._note_settled()

    async def _ask(self, request: ServerRequest) -> Mapping[str, Any]:
        """Ask the host. If a callback raises, the server gets a refusal that does not say what was raised."""
        context = self._context
        began, watchers = context.backend.now(), context.watchers
        try:
            answer = await context.host.answer(request)
            version = self._incarnation.peer.protocol_version
            if version is not None:
                answer = older_answer(request.method, answer, version)
            watchers.tell(watchers.asked, request, began, answer)
            return answer
        except RpcRefusal as refusal:
            watchers.tell(watchers.asked, request, began, refusal)
            raise
        except Exception as error:
            context.note_raised(f"what answers {request.method}", error, request.address)
            raise RpcRefusal(
                INTERNAL_ERROR, f"Internal error: {request.method} could not be answered."
            ) from error

    def _reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None:
        incarnation = self._incarnation
        try:
            incarnation.peer.reply(rpc_id, result, error)
        except UsageError as problem:  # a callback's answer is not valid JSON
            self._context.note_raised("what answers a server's request", problem, incarnation.actor.address)
            refusal = RpcError(INTERNAL_ERROR, "Internal error: the answer is not JSON.")
            incarnation.peer.reply(rpc_id, None, refusal)

    def _request(self, method: str, params: Mapping[str, Any], call: Call | None) -> ServerRequest:
        meta: object = params.get("_meta")
        token = cast("Mapping[str, Any]", meta).get("progressToken") if isinstance(meta, Mapping) else None
        peer = self._incarnation.peer

        def progress(told: Mapping[str, Any]) -> None:
            if token is not None and not self.closing:
                peer.notify(PROGRESS, {**told, "progressToken": token})

        return ServerRequest(self._incarnation.actor.address, method, params, progress, call)

    # Results that need more input.

    def find_input(self, call: Call, result: Mapping[str, Any]) -> None:
        """The server needs more input before it can answer. Find it, and send the call again, or end it with an
        error."""

        async def find() -> None:
            try:
                await self._find_input(call, result)
            except Exception as error:
                self._incarnation.actor.stop_for_bug(error)

        self._context.spawn(find)

    async def _find_input(self, call: Call, result: Mapping[str, Any]) -> None:
        """If the call ends meanwhile, this is cancelled."""
        if call.ended:
            return
        more: dict[str, Any] | CallError | None = None
        with anyio.CancelScope() as call.asking:
            try:
                more = await self._more_params(call, result)
            except CallError as error:
                more = error
        call.asking = None
        calls = self._incarnation.actor.calls
        if isinstance(more, CallError):
            calls.give_up(call, more)
        elif more is not None:
            calls.send_again(call, more)

    async def _more_params(self, call: Call, result: Mapping[str, Any]) -> dict[str, Any]:
        """What is added to the params of the call when it is sent again. Raises `CallError`."""
        call.rounds += 1
        server = self._incarnation.actor.address.server
        if call.rounds > MOST_ROUNDS:
            text = f'Server "{server}" asked for more input {MOST_ROUNDS} times over; the call was given up.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
        requests: object = result.get("inputRequests")
        more: dict[str, Any] = {}
        if isinstance(requests, Mapping) and requests:
            call.pauses = 0
            more["inputResponses"] = await self.answer_all(call, cast("Mapping[str, Any]", requests))
        else:
            await anyio.sleep(_PAUSES[min(call.pauses, len(_PAUSES) - 1)])
            call.pauses += 1
        if "requestState" in result:
            more["requestState"] = result["requestState"]
        return more

    async def answer_all(self, call: Call, requests: Mapping[str, Any]) -> dict[str, Any]:
        """The answers to the input requests of one result of `call`, or of its task, by the server's keys. Raises
        `InputRefused`."""
        answers: dict[str, Any] = {}
        refusals: list[RpcRefusal] = []

        async def one(key: str, request: object) -> None:
            try:
                answers[key] = await self._ask(self._embedded(call, request))
            except RpcRefusal as refusal:
                refusals.append(refusal)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for key, request in requests.items():
                tasks.start_soon(one, key, request)
        if refusals:
            why, server = refusals[0], self._incarnation.actor.address.server
            text = f'Server "{server}" needs input that it was not given: {why.message} ({why.rpc_code})'
            raise InputRefused(text, server=server, reach=call.reach)
        return {key: answers[key] for key in requests}

    def _embedded(self, call: Call, request: object) -> ServerRequest:
        said: Mapping[str, Any] = cast("Any", request) if isinstance(request, Mapping) else {}
        method, params = said.get("method"), said.get("params")
        if not isinstance(method, str):
            raise RpcRefusal(INTERNAL_ERROR, "an input request without a method")
        given: Mapping[str, Any] = cast("Any", params) if isinstance(params, Mapping) else {}
        return ServerRequest(self._incarnation.actor.address, method, given, call=call)
