"""A link to a Greenroom of ours that carries calls out for us: a host of a cluster.

To the rest of Greenroom it is an HTTP server that speaks MCP. Four things of its direct door are undone here, so that
a caller notices nothing of it:

* An end that is Greenroom's own is no answer of the server, so the call ends here with the same error.
* Errors of the server begin with the server's name, and so do its questions to people. Our own door adds that again.
* When the host is gone, or knows neither this session nor this life of itself any more, nothing of the server has
  failed: it has moved. Then what this host has refused is made again where the server is now, without a failure being
  counted. An exchange that broke in its middle proves nothing, and ends alone; but while a link is being made, nothing
  is lost by making it again.
* A key of ours in the `_meta` of a result is Greenroom's word there. Of any other server's we believe none.

A connector says that its server is such a Greenroom. Nothing that a server answers can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from ...protocol.jsonrpc.encoding import UNREADABLE
from ...protocol.jsonrpc.incoming import ServerMessage, decode_result, parts_of_meta, read_members, read_value
from ...protocol.jsonrpc.terms import INTERNAL_ERROR, RpcError, RpcFault, WireFault
from ...protocol.upstream import ERROR, as_said, read_upstream, unsigned_request, upstream_in_error
from ..exchanges import answer_in
from ..peer import Exchange, LostReason, PeerHooks
from .http_client import ExchangeFault, SessionExpired, Unreachable

_NAMED: Final = ERROR.encode()


@attrs.frozen
class FromGreenroom:
    """Reads what comes over the link of `server`."""

    server: str

    def answer_in(self, message: ServerMessage) -> tuple[bytes | None, RpcError | None]:
        """The result of an answer, or its error: exactly one of the two is not None."""
        result, error = answer_in(message)
        if result is not None:
            own = _own_error_in(result)
            return (result, None) if own is None else (None, own)
        if error is None or error.fault:
            return result, error
        upstream = upstream_in_error(error.data)
        if upstream is not None:
            return None, attrs.evolve(error, data=None, upstream=upstream)
        text, data = as_said(self.server, error.message, error.data)
        return None, attrs.evolve(error, message=text, data=data)

    def has_moved(self, end: ExchangeFault) -> bool:
        """Whether this end of an exchange says that the server must be looked for elsewhere. The exchange did not
        run."""
        return isinstance(end, (SessionExpired, Unreachable))

    def hooks(self, hooks: PeerHooks) -> PeerHooks:
        """The same hooks, for a peer of this link."""
        return _Hooks(self.server, hooks)


def _own_error_in(result: bytes) -> RpcError | None:
    """The error that the other Greenroom answers the call of a tool with; None: the server answered."""
    if result.find(_NAMED) < 0:
        return None
    try:
        said = parts_of_meta(read_members(result).meta).get(ERROR)
        upstream = None if said is None else read_upstream(read_value(said))
        if upstream is None:
            return None
        content: Any = decode_result(result).get("content")
        text = "\n".join(str(block["text"]) for block in content)
    except (*UNREADABLE, RpcFault, WireFault, TypeError, KeyError):
        return None  # it only looks a little like an error of ours
    return RpcError(INTERNAL_ERROR, text, upstream=upstream)


@attrs.frozen
class _Hooks:
    server: str
    hooks: PeerHooks

    def on_lost(self, reason: LostReason) -> None:
        self.hooks.on_lost(reason)

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.hooks.on_notification(method, params)

    def on_request(
        self,
        rpc_id: Any,
        method: str,
        params: Mapping[str, Any] | None,
        during: Exchange | None = None,
    ) -> None:
        asked = unsigned_request(self.server, params) if method == "elicitation/create" else params
        self.hooks.on_request(rpc_id, method, asked, during)

    def on_gap(self) -> None:
        self.hooks.on_gap()

    def on_note(self, text: str) -> None:
        self.hooks.on_note(text)

    def on_late_answer(self, result: bytes) -> None:
        self.hooks.on_late_answer(result)
