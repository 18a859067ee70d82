"""The errors that a call ends with when it has no result: each text is made here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..protocol.errors import (
    Busy,
    CallTimeout,
    Drained,
    ProtocolFault,
    Reach,
    RemoteError,
    ServerLost,
    UsageError,
)
from ..protocol.jsonrpc import INVALID_PARAMS, WireFault, decode_result, encode_json
from ..protocol.plain_text import unhidden
from ..protocol.scrubbing import scrubbed
from ._messages import describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.errors import CallError
    from ..protocol.jsonrpc import RpcError
    from ..protocol.lifecycle import Ending
    from ..protocol.secrets import Secrets
    from ._call import Call
    from ._peer import LostReason


def busy(server: str, calls: Iterable[Call], now: float, *, in_flight: int, queued: int, why: str) -> Busy:
    """`calls`: the open calls at this address; the numbers are the server's, over all its scopes."""
    oldest = now - min((call.accepted_at for call in calls), default=now)
    return Busy(
        server,
        in_flight=in_flight,
        queued=queued,
        oldest_age=oldest,
        retry_after=max(0.1, min(5.0, oldest)),
        why=why,
    )


def not_ready(server: str, waited: float, what: str) -> CallTimeout:
    """The call was queued for all its time. `what`: what its server was doing."""
    text = f'Server "{server}" was not ready within {waited:g}s ({what}); {Reach.NOT_SENT.words}.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def not_started(server: str, waited: float, why: str) -> CallTimeout:
    """The server was not allowed to start in time."""
    text = f'Server "{server}" was not started within {waited:g}s: {why}; {Reach.NOT_SENT.words}.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def timed_out(server: str, call: Call, queue_timeout: float) -> CallTimeout:
    """The call was handed to the connection, and no answer came in time."""
    if call.reach is Reach.NOT_SENT:
        waited = queue_timeout
        text = f'Server "{server}" read nothing for {waited:g}s; {call.reach.words}.'
    elif call.deadline == call.total_deadline > call.sent_at + (call.timeout or 0.0):
        waited = call.total_deadline - call.sent_at
        text = (
            f'Server "{server}" did not finish within {waited:g}s, despite its progress; {call.reach.words}.'
        )
    else:
        waited = call.timeout or 0.0
        text = f'Server "{server}" did not answer within {waited:g}s; {call.reach.words}.'
    return CallTimeout(text, server=server, reach=call.reach, timeout=waited)


def drained(server: str, call: Call, ending: Ending | None) -> Drained:
    """The server's drain time ended before the call did."""
    text = f'Server "{server}" was drained ({ending}) before the call was done; {call.reach.words}.'
    return Drained(text, server=server, reach=call.reach)


def lost(server: str, reason: LostReason, reach: Reach, what: str = "was lost") -> ServerLost:
    """The connection was lost during the call."""
    return ServerLost(
        f'Server "{server}" {what}: {describe(reason)}; {reach.words}.',
        server=server,
        reach=reach,
        exit_code=reason.exit_code,
        stderr_tail=reason.stderr_tail,
    )


def answered_with(server: str, call: Call, error: RpcError) -> CallError:
    """The server answered with an error, or with something that is not an answer."""
    if error.fault:
        return ProtocolFault(error.message, server=server, reach=call.reach, tool=call.tool)
    return RemoteError(
        error.message,
        server=server,
        rpc_code=error.code,
        data=error.data,
        tool=call.tool,
        http_status=400 if error.code == INVALID_PARAMS else 502,
    )


def without_secrets(error: RpcError, known: Secrets) -> RpcError:
    """The same error, without these secrets. Data in which they cannot be looked for are left out. If the message is
    not the server's own but ours about it (`fault`), it also loses what a terminal obeys or hides."""
    try:
        data = _without(error.data, known) if error.data is not None else None
    except (UsageError, WireFault, RecursionError):
        data = "(left out: it cannot be written as JSON)"
    said = unhidden(error.message) if error.fault else error.message
    return attrs.evolve(error, message=known.without(said), data=data)


def _without(data: Any, known: Secrets) -> Any:
    raw = encode_json({"data": data})
    found = scrubbed(raw, known.in_json())  # as a result, whatever stands in its texts
    if found is not raw:
        data = decode_result(found)["data"]
    return known.without_any(data) if known.stand_in(found.decode(errors="replace")) else data
