"""Outgoing messages: one line each, with its newline; the parts are joined once.

Rejected: the SDK's models (80-100 µs a call, and unknown fields vanish) and decoding into dicts to encode them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from ._faults import RpcError, RpcFault
from ._json import REFUSED, UNWRITABLE, encode, encode_json, plainly
from ._meta import NO_STAMP, Stamp, joined, with_meta

_REQUEST: Final = b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}\n'
_ID: Final = b'{"jsonrpc":"2.0","id":'
_RESULT: Final = _ID + b'%b,"result":%b}\n'
_ERROR: Final = b'{"jsonrpc":"2.0","id":%b,"error":%b}\n'

_encode_method = lru_cache(64)(encode_json)  # there are a dozen methods, used over and over

# ---- requests and notifications ------------------------------------------------------------------------------------


def encode_request(
    rpc_id: int,
    method: str,
    params: Mapping[str, Any] | None,
    stamp: Stamp = NO_STAMP,
    *,
    progress: bool = False,
) -> bytes:
    """One request to a server. `progress` asks for progress notifications under the request's own id.

    Raises `UsageError` when `params` cannot be written as JSON.
    """
    meta = stamp.meta
    if progress:
        meta = joined(meta, b'"progressToken":%d' % rpc_id)
    if params is None and not meta:
        return b'{"jsonrpc":"2.0","id":%d,"method":%b}\n' % (rpc_id, encode_json(method))
    number, name = b"%d" % rpc_id, _encode_method(method)
    if meta:
        body = with_meta(params or {}, meta)
        return b"".join((_ID, number, b',"method":', name, b',"params":', *body, b"}\n"))
    try:
        body = plainly(params)
    except REFUSED:
        body = encode_json(params)  # mends them, or raises what is wrong with them
    return b"".join((_ID, number, b',"method":', name, b',"params":', body, b"}\n"))


def request_line(key: bytes, method: str, params: Mapping[str, Any]) -> bytes:
    """One request to a client; `key` is its id as JSON. Raises as `encode` does."""
    return _REQUEST % (key, encode(method), encode(params))


def encode_notification(
    method: str, params: Mapping[str, Any] | None, encoder: Callable[[Any], bytes] = encode_json
) -> bytes:
    """One notification. For a client, `encoder` is `encode`. Raises as `encoder` does."""
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}\n' % encoder(method)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}\n' % (encoder(method), encoder(params))


# ---- answers -------------------------------------------------------------------------------------------------------


def encode_reply(rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> bytes:
    """The answer to a server's request; `rpc_id` is its id as a value. Raises `UsageError` as `encode_request` does."""
    if error is None:
        return _RESULT % (_echo(rpc_id), encode_json(result or {}))
    return _ERROR % (_echo(rpc_id), encode_json(_body(error)))


def raw_line(key: bytes, result: bytes) -> bytes:
    """An answer with a result that is already JSON; `key` is the id as it was written."""
    return b"".join((_ID, key, b',"result":', result, b"}\n"))


def result_line(key: bytes, result: Mapping[str, Any]) -> bytes:
    """An answer with this result; `key` is the id as it was written. Raises as `encode` does."""
    return _RESULT % (key, encode(result))


def error_line(key: bytes, fault: RpcFault) -> bytes:
    """An error answer; an empty `key` becomes null, as JSON-RPC wants for a message whose id is unknown."""
    body = _body(fault)
    try:
        said = encode(body)
    except UNWRITABLE:  # because of the data, which may be a server's: send the rest without it
        said = encode({"code": fault.code, "message": fault.message})
    return _ERROR % (key or b"null", said)


def _body(error: RpcError | RpcFault) -> dict[str, Any]:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    return body if error.data is None else {**body, "data": error.data}


def _echo(rpc_id: Any) -> bytes:
    """The other side's own id as JSON, even with half a character in it."""
    try:
        return plainly(rpc_id)
    except UnicodeEncodeError:
        return json.dumps(rpc_id).encode()
