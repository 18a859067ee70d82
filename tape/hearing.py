"""What a room tells of its calls until they end.

Of an open call it is told how far it is, and what its server asked. All of that, and its end, is one `CallLine`, as it
was: no secret is cut out of it so far (`making` does that). It shares the bytes of the result, and refers to nothing
that the room goes on with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from ..actors.host import ASKED_FOR
from ..protocol.address import Address
from ..protocol.bounds import TAPE_ASIDE_BYTES, TAPE_PARAMS_BYTES
from ..protocol.errors import RemoteError, RpcRefusal
from ..protocol.jsonrpc.encoding import REFUSED, UNWRITABLE, encode, plainly
from .lines import EMPTY, NOTHING, Asked, CallLine, Failure

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..actors.host import Declaration, Host, ServerRequest

Steps = list[tuple[float, dict[str, Any]]]  # of progress, with their times


@attrs.define
class _Told:
    """Of one open call."""

    steps: Steps = attrs.field(factory=Steps)
    asked: list[Asked] = attrs.field(factory=list[Asked])
    weight: int = 0  # bytes as JSON

    def has_room(self, *values: Any) -> bool:
        """Whether these are kept, too."""
        self.weight += sum(len(_written(value)) for value in values)
        return self.weight <= TAPE_ASIDE_BYTES


class OpenCalls:
    """What was told of calls that have not ended. `began`: since when times count, by the room's clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._told: dict[Call, _Told] = {}

    def progressed(self, call: Call, params: Mapping[str, Any], now: float) -> None:
        told = self._about(call)
        if told.has_room(params):
            told.steps.append((now - self._began, dict(params)))

    def asked(self, request: ServerRequest, began: float, answer: Mapping[str, Any] | RpcRefusal) -> None:
        """A server has asked its client something, and got this answer, or this refusal."""
        if request.call is None or request.call.ended:
            return
        asked = Asked(began - self._began, request.method, dict(request.params))
        if isinstance(answer, RpcRefusal):
            asked.refusal = {"code": answer.rpc_code, "message": answer.message}
        else:
            asked.answer = dict(answer)
        told = self._about(request.call)
        if told.has_room(asked.params, asked.answer, asked.refusal):
            told.asked.append(asked)

    def ended(self, call: Call, address: Address, incarnation: int, now: float) -> CallLine:
        """A call has its outcome."""
        began, result = self._began, call.result
        try:
            params = plainly(call.params or {})
        except REFUSED:
            params = _written(call.params)
        line = CallLine(
            call.number,
            call.order,
            call.accepted_at - began,  # to round it takes longer than to write it
            now - began,
            address.server,
            address.scope,
            incarnation,
            call.method,
            msgspec.Raw(params),
            call.outcome,
            call.reach,
            call.sent_at - began if call.order else None,
            call.client,
            call.tool,
            NOTHING if result is None else msgspec.Raw(result),
        )
        if len(params) > TAPE_PARAMS_BYTES:
            line.params, line.left_out = EMPTY, {"params": len(params)}
        if call.error is not None:
            line.error = _failure(call)
        if self._told and (told := self._told.pop(call, None)) is not None:
            line.progress, line.asked = told.steps, told.asked
        return line

    def _about(self, call: Call) -> _Told:
        return self._told.setdefault(call, _Told())


def _written(params: Any) -> bytes:
    """As JSON, or nothing: what cannot be written as JSON was not sent either, and the call's error says so."""
    try:
        return encode(params)
    except (*UNWRITABLE, TypeError, ValueError):
        return b"{}"


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
