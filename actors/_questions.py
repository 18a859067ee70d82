"""Questions: the requests of one incarnation's server to its client that have no answer yet.

Each is answered in a task of its own, in an empty context, because answers come from people and models and take
their time. The number of questions is bounded; beyond the bound a question is refused at once. A question ends in
exactly one of: an answer, a JSON-RPC error, the server's cancellation, the end of the incarnation. In the last two
cases nothing is sent.

Results that need more input (2026-07-28) carry the same questions in another envelope, so they are answered here
too. All questions of one result are answered side by side, and one refusal ends the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from ..protocol.bounds import OPEN_QUESTIONS
from ..protocol.errors import RpcRefusal, UsageError
from ..protocol.jsonrpc import CANCELLED, INTERNAL_ERROR, PROGRESS, RpcError, RpcFault
from ._host import ServerRequest
from ._incoming import IncomingTable, Refusals

if TYPE_CHECKING:
    from ..protocol.address import Address
    from ._backend import Waiter
    from ._call import Call
    from ._incarnation import Incarnation

MOST_OPEN: Final = OPEN_QUESTIONS
_REFUSALS: Final = Refusals(
    full="{open} requests of this server are open already; ask again later",
    same_id="a request of this server with this id is open already",
    closing="the connection is being closed; nobody answers any more",
)


class _Question:
    """One open question. It may be over before its task has begun, so its scope is made in the task."""

    __slots__ = ("_scope", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._scope: anyio.CancelScope | None = None

    def cancel(self) -> None:
        self.is_over = True
        if self._scope is not None:
            self._scope.cancel()

    def scope(self) -> anyio.CancelScope:
        self._scope = anyio.CancelScope()
        return self._scope


class Questions:
    def __init__(self, incarnation: Incarnation, address: Address) -> None:
        self._incarnation = incarnation
        self._address = address
        self._context = incarnation.actor.context
        self._open: IncomingTable[Any, _Question] = IncomingTable(MOST_OPEN, _REFUSALS)
        self.asked = 0  # in all
        self._settled: Waiter | None = None  # set while somebody waits for the last answer

    def __len__(self) -> int:
        return len(self._open)

    async def settled(self) -> None:
        """Wait until no question is open."""
        while self._open:
            self._settled = self._context.backend.waiter()
            await self._settled.wait()

    def _note_settled(self) -> None:
        if not self._open and self._settled is not None:
            self._settled.set()
            self._settled = None

    def take(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, call: Call | None = None
    ) -> None:
        """A request came in. It is answered later, or refused now. `call`: the call that it belongs to, if known."""
        try:
            self._open.check(rpc_id)
        except RpcFault as refusal:
            self._incarnation.peer.reply(rpc_id, None, RpcError(refusal.code, refusal.message))
            return
        self.asked += 1
        question = self._open[rpc_id] = _Question()
        self._context.spawn(lambda: self._answer(question, rpc_id, self._request(method, params or {}, call)))

    def heed(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Whether this notification is about a question; then it has been handled."""
        if method != CANCELLED:
            return False
        rpc_id = (params or {}).get("requestId")
        if isinstance(rpc_id, int | str | float):
            self._open.cancel(rpc_id)
            self._note_settled()
        return True

    def close(self) -> None:
        """The incarnation ends: nobody waits for an answer any more."""
        self._open.closing = True
        self._open.cancel_all()

    async def answer_all(self, call: Call, requests: Mapping[str, Any]) -> dict[str, Any]:
        """The answers to the input requests of one result of `call`, by the server's keys. Raises `RpcRefusal`."""
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
            raise refusals[0]
        return {key: answers[key] for key in requests}

    # ---- one question -----------------------------------------------------------------------------------------------

    async def _answer(self, question: _Question, rpc_id: Any, request: ServerRequest) -> None:
        result: Mapping[str, Any] | None = None
        error: RpcError | None = None
        if question.is_over:
            return
        with question.scope():
            try:
                result = await self._ask(request)
            except RpcRefusal as refusal:
                error = RpcError(refusal.rpc_code, refusal.message, refusal.data)
        if not question.is_over:
            self._reply(rpc_id, result, error)
            self._open.pop(rpc_id, None)
            self._note_settled()

    async def _ask(self, request: ServerRequest) -> Mapping[str, Any]:
        """Ask the host. What a callback raises becomes a refusal that does not tell the server what it was."""
        try:
            return await self._context.host.answer(request)
        except RpcRefusal:
            raise
        except Exception as error:
            self._incarnation.actor.note_raised(f"what answers {request.method}", error)
            raise RpcRefusal(
                INTERNAL_ERROR, f"Internal error: {request.method} could not be answered."
            ) from error

    def _reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None:
        try:
            self._incarnation.peer.reply(rpc_id, result, error)
        except UsageError as problem:  # a callback's answer is not valid JSON
            self._incarnation.actor.note_raised("what answers a server's question", problem)
            self._incarnation.peer.reply(
                rpc_id, None, RpcError(INTERNAL_ERROR, "Internal error: the answer is not JSON.")
            )

    def _request(self, method: str, params: Mapping[str, Any], call: Call | None) -> ServerRequest:
        meta: object = params.get("_meta")
        token = cast("Mapping[str, Any]", meta).get("progressToken") if isinstance(meta, Mapping) else None
        peer = self._incarnation.peer

        def progress(told: Mapping[str, Any]) -> None:
            if token is not None and not self._open.closing:
                peer.notify(PROGRESS, {**told, "progressToken": token})

        return ServerRequest(self._address, method, params, progress, call)

    def _embedded(self, call: Call, request: object) -> ServerRequest:
        said: Mapping[str, Any] = cast("Any", request) if isinstance(request, Mapping) else {}
        method, params = said.get("method"), said.get("params")
        if not isinstance(method, str):
            raise RpcRefusal(INTERNAL_ERROR, "an input request without a method")
        given: Mapping[str, Any] = cast("Any", params) if isinstance(params, Mapping) else {}
        return ServerRequest(self._address, method, given, call=call)
