"""What a room tells of its calls, kept by reference until a call ends.

While a call is open, it is told when it was sent, how far it is, and what its server asked. All of that, and its end,
is one `EndedCall`: references only, nothing encoded and no secret cut out. So it costs little to keep. Its line on a
tape is made when that is wanted (`making`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..actors.host import ASKED_FOR
from ..protocol.address import Address
from ..protocol.errors import RemoteError, RpcRefusal
from .lines import Failure

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..actors.host import Declaration, Host, ServerRequest

Steps = list[tuple[float, Mapping[str, Any]]]  # of progress, with their times


class Question(msgspec.Struct):
    """What a server asked its client during a call, and what it got: an answer, or a refusal, or neither."""

    at: float
    method: str
    params: Mapping[str, Any]
    answer: Mapping[str, Any] | RpcRefusal | None


class EndedCall(msgspec.Struct):
    """A call that has ended. Times are the room's. Nobody may change what it refers to."""

    n: int
    order: int  # 0: it was not sent
    accepted: float
    ended: float
    sent: float | None
    address: Address
    incarnation: int
    method: str
    params: Mapping[str, Any] | None
    outcome: str
    reach: str
    session: str | None
    tool: str | None
    result: bytes | None
    failure: Failure | None
    progress: Steps
    asked: list[Question]


class OpenCalls:
    """What was told of calls that have not ended. Knows nothing of a call of which nothing was told."""

    def __init__(self) -> None:
        self._sent = 0
        self._orders: dict[Call, tuple[int, float]] = {}  # as which it was sent last, and when
        self._steps: dict[Call, Steps] = {}
        self._asked: dict[Call, list[Question]] = {}

    def sent(self, call: Call) -> None:
        """A call was sent, perhaps once more."""
        self._sent += 1
        self._orders[call] = self._sent, call.sent_at

    def progressed(self, call: Call, params: Mapping[str, Any], now: float) -> None:
        self._steps.setdefault(call, []).append((now, params))

    def asked(self, request: ServerRequest, began: float, answer: Mapping[str, Any] | RpcRefusal) -> None:
        """A server has asked its client something, and got this answer, or this refusal."""
        if request.call is not None and not request.call.ended:
            question = Question(began, request.method, request.params, answer)
            self._asked.setdefault(request.call, []).append(question)

    def ended(self, call: Call, address: Address, incarnation: int, now: float) -> EndedCall:
        """A call has its outcome."""
        order, sent = self._orders.pop(call, (0, None))
        return EndedCall(
            call.number,
            order,
            call.accepted_at,
            now,
            sent,
            address,
            incarnation,
            call.method,
            call.params,
            call.outcome,
            call.reach.value,
            call.client,
            call.tool,
            call.result,
            None if call.error is None else _failure(call),
            self._steps.pop(call, []) if self._steps else [],
            self._asked.pop(call, []) if self._asked else [],
        )


def _failure(call: Call) -> Failure:
    """Without the error itself, which refers to all that was going on where it was raised."""
    error = call.error
    assert error is not None
    rpc: dict[str, Any] | None = None
    if isinstance(error, RemoteError):
        rpc = {"code": error.rpc_code, "message": error.rpc_message, "data": error.data}
    return Failure(error.code, error.message, rpc)


class Hearing(Protocol):
    """Is told what servers ask and notify."""

    def asked(self, request: ServerRequest, began: float, answer: Mapping[str, Any] | RpcRefusal) -> None: ...

    def noticed(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None: ...


class RecordingHost:
    """A host whose answers, and the notifications that it hears, are told to somebody else, too."""

    def __init__(self, host: Host, hearing: Hearing, now: Callable[[], float]) -> None:
        self._host = host
        self._hearing = hearing
        self._now = now

    def declaration(self, address: Address) -> Declaration:
        return self._host.declaration(address)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        if request.is_ours or request.method not in ASKED_FOR:
            return await self._host.answer(request)
        began = self._now()
        try:
            answer = await self._host.answer(request)
        except RpcRefusal as refusal:
            self._hearing.asked(request, began, refusal)
            raise
        self._hearing.asked(request, began, answer)
        return answer

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        self._hearing.noticed(address, method, params)
        self._host.heard(address, method, params)
