"""What a tape keeps of calls until they end.

It is told how far an open call is, and what its server asked. All of that, and its end, is one `CallLine`, as it
was: no secret is cut out of it so far (`line_maker` does that). It shares the bytes of the result, and refers to
nothing that the room goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from ..protocol.bounds import TAPE_ASIDE_BYTES, TAPE_PARAMS_BYTES
from ..protocol.errors import RemoteError, RpcRefusal
from ..protocol.jsonrpc.encoding import REFUSED, UNWRITABLE, encode, plainly
from .tape_lines import EMPTY, NOTHING, CallFailure, CallLine, ClientQuestion

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..actors.host import ServerRequest

Steps = list[tuple[float, dict[str, Any]]]  # of progress, with their times


@attrs.define
class _OpenCall:
    """Of one open call."""

    steps: Steps = attrs.field(factory=Steps)
    asked: list[ClientQuestion] = attrs.field(factory=list[ClientQuestion])
    weight: int = 0  # bytes as JSON

    def has_room(self, *values: Any) -> bool:
        """Whether these are kept, too."""
        self.weight += sum(len(_written(value)) for value in values)
        return self.weight <= TAPE_ASIDE_BYTES


class OpenCalls:
    """What was told of calls that have not ended. `began`: since when times count, by the room's clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._open: dict[Call, _OpenCall] = {}

    def progressed(self, call: Call, params: Mapping[str, Any], now: float) -> None:
        found = self._of(call)
        if found.has_room(params):
            found.steps.append((now - self._began, dict(params)))

    def asked(self, request: ServerRequest, began: float, answer: Mapping[str, Any] | RpcRefusal) -> None:
        """A server has asked its client something, and got this answer, or this refusal."""
        if request.call is None or request.call.ended:
            return
        asked = ClientQuestion(began - self._began, request.method, dict(request.params))
        if isinstance(answer, RpcRefusal):
            asked.refusal = {"code": answer.rpc_code, "message": answer.message}
        else:
            asked.answer = dict(answer)
        found = self._of(request.call)
        if found.has_room(asked.params, asked.answer, asked.refusal):
            found.asked.append(asked)

    def ended(self, call: Call) -> CallLine:
        """A call has its outcome."""
        began, result, table = self._began, call.result, call.owner
        assert table is not None  # it was accepted
        address = table.address
        try:
            params = plainly(call.params or {})
        except REFUSED:
            params = _written(call.params)
        line = CallLine(
            call.number,
            call.order,
            call.accepted_at - began,  # to round it takes longer than to write it
            call.ended_at - began,
            address.server,
            address.scope,
            table.incarnation(),
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
        if self._open and (found := self._open.pop(call, None)) is not None:
            line.progress, line.asked = found.steps, found.asked
        return line

    def _of(self, call: Call) -> _OpenCall:
        return self._open.setdefault(call, _OpenCall())


def _written(params: Any) -> bytes:
    """As JSON, or nothing: what cannot be written as JSON was not sent either, and the call's error says so."""
    try:
        return encode(params)
    except (*UNWRITABLE, TypeError, ValueError):
        return b"{}"


def _failure(call: Call) -> CallFailure:
    """Without the error itself, which refers to all that was going on where it was raised."""
    error = call.error
    assert error is not None
    rpc: dict[str, Any] | None = None
    if isinstance(error, RemoteError):
        rpc = {"code": error.rpc_code, "message": error.rpc_message, "data": error.data}
    return CallFailure(error.code, error.message, rpc)
