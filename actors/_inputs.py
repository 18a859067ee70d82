"""Results that are not final: `input_required`, from servers of 2026-07-28.

Such a server does not ask its client while it works. It answers that it needs more input; the call is then sent
again with that input and with the state the server returned. To the caller it is one call all the same. It stays
in flight, and its questions go through the host like those of the older eras. When they are answered, the call is
sent again. The number of rounds is bounded, and a round that brings only state waits a little, so that a server
cannot keep us busy for nothing.

While the input is being found, the call's own clock stands still (its total time does not): a server must not time
out because a person takes long to answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from ..protocol.errors import CallError, InputRefused, ProtocolFault, Reach, RpcRefusal
from ..protocol.jsonrpc import MODERN_VERSIONS, WireFault, decode_result

if TYPE_CHECKING:
    from ._call import Call
    from ._call_table import CallTable
    from ._questions import Questions

MOST_ROUNDS: Final = 10
_PAUSES: Final = (
    0.05,
    0.1,
    0.2,
    0.25,
)  # seconds before sending the call again when there was nothing to answer
_MARK: Final = b"input_required"


def needs_input(call: Call, result: bytes, version: str | None) -> dict[str, Any] | None:
    """The result, decoded, if it asks for more input and the caller does not handle that itself."""
    if version not in MODERN_VERSIONS or call.takes_inputs or _MARK not in result:
        return None
    try:
        decoded = decode_result(result)
    except WireFault:
        return None
    return decoded if decoded.get("resultType") == "input_required" else None


async def answer_inputs(
    table: CallTable, call: Call, result: Mapping[str, Any], questions: Questions
) -> None:
    """Find the answers and send the call again; or end it. A call that ends meanwhile cancels this."""
    if call.ended:
        return
    more: dict[str, Any] | CallError | None = None
    with anyio.CancelScope() as call.asking:
        try:
            more = await _more_params(call, result, questions)
        except CallError as error:
            more = error
    call.asking = None
    if isinstance(more, CallError):
        table.give_up(call, more)
    elif more is not None:
        table.send_again(call, more)


async def _more_params(call: Call, result: Mapping[str, Any], questions: Questions) -> dict[str, Any]:
    call.rounds += 1
    server = call.owner.address.server if call.owner is not None else ""
    if call.rounds > MOST_ROUNDS:
        text = f'Server "{server}" asked for more input {MOST_ROUNDS} times over; the call was given up.'
        raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
    requests: object = result.get("inputRequests")
    more: dict[str, Any] = {}
    if isinstance(requests, Mapping) and requests:
        call.pauses = 0
        try:
            more["inputResponses"] = await questions.answer_all(call, cast("Mapping[str, Any]", requests))
        except RpcRefusal as refusal:
            text = (
                f'Server "{server}" needs input that it was not given: {refusal.message} ({refusal.rpc_code})'
            )
            raise InputRefused(text, server=server, reach=Reach.ANSWERED) from None
    else:
        await anyio.sleep(_PAUSES[min(call.pauses, len(_PAUSES) - 1)])
        call.pauses += 1
    if "requestState" in result:
        more["requestState"] = result["requestState"]
    return more
