"""The errors that a call ends with when it has no result: each text is made here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..config.scrubbing import scrubbed
from ..protocol.errors import (
    Busy,
    CallError,
    CallTimeout,
    Drained,
    ProtocolFault,
    Reach,
    RemoteError,
    ServerLost,
    UsageError,
)
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.jsonrpc.incoming import decode_result
from ..protocol.jsonrpc.terms import INVALID_PARAMS, RpcError, WireFault
from ..protocol.safe_text import unhidden
from .peer import LostReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..config.scrubbing import Secrets
    from ..protocol.lifecycle import Ending
    from .call import Call


def busy_error(
    server: str, calls: Iterable[Call], now: float, *, in_flight: int, queued: int, why: str
) -> Busy:
    """The error of a call for which a bound is reached. `calls`: the open calls at this address. `in_flight` and
    `queued` are counted over all scopes of the server."""
    oldest = now - min((call.accepted_at for call in calls), default=now)
    return Busy(
        server,
        in_flight=in_flight,
        queued=queued,
        oldest_age=oldest,
        retry_in=max(0.1, min(5.0, oldest)),
        why=why,
    )


def not_ready_error(server: str, waited: float, what: str) -> CallTimeout:
    """The error of a call that was queued for all its time. `what`: what its server was doing."""
    text = f'Server "{server}" was not ready within {waited:g} s ({what}); {Reach.NOT_SENT.words}.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def not_started_error(server: str, waited: float, why: str) -> CallTimeout:
    """The error of a call whose server was not allowed to start in time."""
    text = f'Server "{server}" was not started within {waited:g} s: {why}; {Reach.NOT_SENT.words}.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def timed_out_error(server: str, call: Call, queue_timeout: float) -> CallTimeout:
    """The error of a call that was handed to the connection and got no answer in time."""
    if call.reach is Reach.NOT_SENT:
        waited = queue_timeout
        text = f'Server "{server}" read nothing for {waited:g} s; {call.reach.words}.'
    elif call.deadline == call.total_deadline > call.sent_at + (call.timeout or 0.0):
        waited = call.total_deadline - call.sent_at
        text = (
            f'Server "{server}" did not finish within {waited:g} s, despite its progress; {call.reach.words}.'
        )
    else:
        waited = call.timeout or 0.0
        text = f'Server "{server}" did not answer within {waited:g} s; {call.reach.words}.'
    return CallTimeout(text, server=server, reach=call.reach, timeout=waited)


def drained_error(server: str, call: Call, ending: Ending | None) -> Drained:
    """The error of a call that was still open when its server's drain time ended."""
    text = f'Server "{server}" was drained ({ending}) before the call was done; {call.reach.words}.'
    return Drained(text, server=server, reach=call.reach)


def lost_error(server: str, reason: LostReason, reach: Reach, what: str = "was lost") -> ServerLost:
    """The error of a call whose connection was lost."""
    return ServerLost(
        f'Server "{server}" {what}: {reason.in_words()}; {reach.words}.',
        server=server,
        reach=reach,
        exit_code=reason.exit_code,
        stderr_tail=reason.stderr_tail,
        kind=reason.kind,
    )


def answer_error(server: str, call: Call, error: RpcError) -> CallError:
    """The error of a call that the server answered with an error, or with something that is not an answer."""
    if error.upstream is not None:
        return error.upstream.error(error.message, server=server, tool=call.tool)
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
    """The same error without these secrets. Data that cannot be searched for them are left out. A message of ours about
    the server (`fault`) also loses the characters that a terminal obeys or hides."""
    try:
        data = _without(error.data, known) if error.data is not None else None
    except (UsageError, WireFault, RecursionError):
        data = "(left out: it cannot be written as JSON)"
    said = unhidden(error.message) if error.fault else error.message
    return replace(error, message=known.without(said), data=data)


def _without(data: Any, known: Secrets) -> Any:
    raw = encode_json({"data": data})
    found = scrubbed(raw, known.in_json())  # as a result, whatever stands in its texts
    if found is not raw:
        data = decode_result(found)["data"]
    return known.without_any(data) if known.stand_in(found.decode(errors="replace")) else data
