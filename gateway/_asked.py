"""What a client asks for, in the words of an audit, where there is no call of it yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from ..protocol import jsonrpc as rpc
from ..protocol.audit import AUDITED, Asked
from ..protocol.errors import Busy, RoomClosed, UsageError
from ..protocol.jsonrpc import RpcFault

if TYPE_CHECKING:
    from ..supervisor import Session
    from ._jobs import Job

_CALLING: Final = ("mcp", "mcp_call")  # our own tools that call another one


def asked_in(job: Job) -> Asked:
    """The request of a job, as its client wrote it."""
    plain = job.plain
    if plain is not None:
        return Asked(job.method, plain.name, None, plain.arguments)
    name = rpc.read_value(job.params.get("uri" if job.method == "resources/read" else "name"))
    return Asked(job.method, name if isinstance(name, str) else "", None, job.params.get("arguments"))


def tell_unbegun(session: Session, is_direct: bool, job: Job, *, closing: bool, doubled: bool) -> None:
    """A request is refused whatever it asks for: the gateway is ending, or too many are open (or one with its id)."""
    if job.method in AUDITED:
        asked = asked_in(job)
        is_ours = not is_direct and asked.name in _CALLING and not job.is_large
        asked = _inside(job) if is_ours else asked
        if asked is not None:
            code = RoomClosed.code if closing else UsageError.code if doubled else Busy.code
            session.turned_away(asked, code)


def _inside(job: Job) -> Asked | None:
    """The call that the `mcp` tool is asked for; None: it is asked for something else."""
    try:
        arguments = rpc.read_call(job.raw).arguments or {}
    except RpcFault:
        return None
    tool, server = arguments.get("tool"), cast("Any", arguments.get("server"))
    if not isinstance(tool, str) or not tool:
        return None
    return Asked(
        "tools/call", tool, server if isinstance(server, str) and server else None, arguments.get("args")
    )
