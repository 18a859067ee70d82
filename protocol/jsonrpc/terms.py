"""The constants of the protocol: versions, error codes, and our names in `_meta`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from ..upstream_error import UpstreamError

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS: Final = ("2026-07-28",)
BATCHES: Final = ("2025-03-26",)  # the versions that have batches
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000  # servers made with the SDK use it for many errors, we only for `OVERLOADED`
OVERLOADED: Final = SERVER_ERROR
NO_RESOURCE: Final = -32002  # until 2025-11-25; a wrong parameter since
NOT_ON_TAPE: Final = -32071  # ours: a tape that is replayed has no such call
MISSING_CAPABILITY: Final = -32021  # that the client did not declare with its request
UNSUPPORTED_VERSION: Final = -32022
META: Final = "io.modelcontextprotocol/"  # the protocol's own keys in `_meta` start with this
VERSION_KEY: Final = f"{META}protocolVersion"
CLIENT_INFO_KEY: Final = f"{META}clientInfo"
CAPABILITIES_KEY: Final = f"{META}clientCapabilities"
SERVER_INFO_KEY: Final = f"{META}serverInfo"
LOG_LEVEL_KEY: Final = f"{META}logLevel"
TRACE_KEYS: Final = ("traceparent", "tracestate", "baggage")  # the names that need no prefix
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
# The request of 2026-07-28 that stays open and carries the server's notifications.
LISTEN: Final = "subscriptions/listen"
# The negotiation may not be cancelled (the specification says so): a late answer to it is simply dropped.
NEVER_CANCELLED: Final = frozenset({"initialize", "server/discover"})


# ---- What can be wrong with a message, and the error that answers it ------------------------------------------------


class WireFault(ValueError):
    """Bytes that are not what the protocol says they must be. The text is for people."""


class RpcFault(Exception):
    """A JSON-RPC error to answer with."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class RpcError(msgspec.Struct, frozen=True, eq=False):
    """A JSON-RPC error as the other side sent it. `fault=True`: the answer was not JSON-RPC at all. `broken=True`: no
    answer can come any more, although the connection lives on (an HTTP exchange failed by itself). `unreached=True`: of
    these, one for which no connection could be made. `upstream`: another Greenroom that we trust failed to get an
    answer, and says why; or we did, for want of a token of the caller. Only what is `broken` or has an `upstream` may
    leave the exchange's `reach` below ANSWERED."""

    code: int
    message: str
    data: Any = None
    fault: bool = False
    broken: bool = False
    unreached: bool = False
    upstream: UpstreamError | None = None


def fault(text: str) -> RpcError:
    """The error for an answer that is not JSON-RPC; `text` says what is wrong with it."""
    return RpcError(PARSE_ERROR, text, fault=True)
