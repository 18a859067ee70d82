"""Which method exists in which era of the protocol, and to which era a request belongs.

The era is a property of each request, not of the connection. A request whose `_meta` names the version
2026-07-28 is of that version; any other is of the handshake era. A method that does not exist in its
request's era is -32601.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, cast

from ..protocol import jsonrpc as rpc
from ..protocol.jsonrpc import RpcFault


class Era(enum.Flag):
    HANDSHAKE = enum.auto()
    STATELESS = enum.auto()


_BOTH: Final = Era.HANDSHAKE | Era.STATELESS
LISTS: Final = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list"})
METHODS: Final[Mapping[str, Era]] = {
    "initialize": Era.HANDSHAKE,
    "ping": Era.HANDSHAKE,
    "server/discover": Era.STATELESS,
    **dict.fromkeys(LISTS, _BOTH),
    "tools/call": _BOTH,
    "resources/read": _BOTH,
    "prompts/get": _BOTH,
    "completion/complete": _BOTH,
    "resources/subscribe": Era.HANDSHAKE,
    "resources/unsubscribe": Era.HANDSHAKE,
    "logging/setLevel": Era.HANDSHAKE,
    rpc.LISTEN: Era.STATELESS,
}
# The same by era. Every request looks here, and testing a flag of an enum is slow.
_HANDSHAKE_METHODS: Final = frozenset(method for method, eras in METHODS.items() if Era.HANDSHAKE in eras)
_STATELESS_METHODS: Final = frozenset(method for method, eras in METHODS.items() if Era.STATELESS in eras)
# The methods that may take time.
JOBS: Final = frozenset(METHODS) - LISTS - {"initialize", "ping", "server/discover"}


def stateless_meta(method: str, meta: object) -> Mapping[str, Any] | None:
    """The `_meta` of a request of 2026-07-28; None for a request of the handshake era. Raises `RpcFault` for
    an unknown version, and for a method that does not exist in the request's era."""
    said = cast("Mapping[str, Any]", meta) if isinstance(meta, dict) else None
    version: object = None if said is None else said.get(rpc.VERSION_KEY)
    if version is not None and version not in rpc.MODERN_VERSIONS:
        data = {"supported": list(rpc.MODERN_VERSIONS), "requested": str(version)}
        raise RpcFault(rpc.UNSUPPORTED_VERSION, f"Unsupported protocol version: {version}", data)
    if method not in (_HANDSHAKE_METHODS if version is None else _STATELESS_METHODS):
        raise no_method(method)
    return None if version is None else said


def no_method(method: str) -> RpcFault:
    return RpcFault(rpc.METHOD_NOT_FOUND, f"Method not found: {method}")
