"""Outgoing messages: one line each, with its newline; the parts are joined once.

Rejected: the SDK's models (80-100 µs a call, and unknown fields vanish) and decoding into dicts to encode them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, cast

import msgspec

from ..bounds import LARGE_MESSAGE
from .encoding import REFUSED, UNWRITABLE, decode_parts, encode, encode_json, plainly
from .incoming import ABSENT, parts_of_meta, read_head_id, result_parts
from .terms import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    INTERNAL_ERROR,
    LOG_LEVEL_KEY,
    META,
    MODERN_VERSIONS,
    TRACE_KEYS,
    VERSION_KEY,
    RpcError,
    RpcFault,
)

# ---- What each era carries in `_meta`, and in other fields beside the content ---------------------------------------
#
# Each request of the 2026-07-28 era says in `_meta` who we are. That part is encoded once per connection and spliced
# into the encoded params, so `Stamp` holds bytes. A result that passes from a server of one era to a client of the
# other is translated only at its top level: the parts stay the bytes the server sent. One that nobody can take apart
# (`result_parts`) passes as it is.

NEWER: Final = frozenset(
    {"resultType", "ttlMs", "cacheScope", "_meta"}
)  # members of a result beside what it says
_LONG: Final = 1 << 16  # bytes
_STEP: Final = 1 << 20  # bytes that are copied in one go


# ---- requests to servers -------------------------------------------------------------------------------------------
class Stamp(msgspec.Struct, frozen=True, eq=False):
    """What each request of the 2026-07-28 era says about us, encoded once: the inside of `_meta`, without braces."""

    meta: bytes = b""

    @classmethod
    def of(
        cls, version: str | None, client_info: Mapping[str, Any], capabilities: Mapping[str, Any]
    ) -> Stamp:
        """The stamp for `version`. It is empty in the handshake era, where the handshake says it once."""
        if version not in MODERN_VERSIONS:
            return cls()
        said = {VERSION_KEY: version, CLIENT_INFO_KEY: client_info, CAPABILITIES_KEY: capabilities}
        return cls(_inside(encode_json(said)))


NO_STAMP = Stamp()


def with_meta(
    params: Mapping[str, Any], meta: bytes, replaced: Sequence[str] = ()
) -> tuple[bytes | memoryview, ...]:
    """The params with our part of `_meta` added, in pieces: they may be megabytes, and a join copies them only once.
    The caller's own keys stay, except those that only we may set, and those that are `replaced`. A `_meta` that is no
    object is left out: of two keys of one name, most servers take the last, and would lose ours."""
    if "_meta" in params:
        own = params["_meta"]
        params = {key: value for key, value in params.items() if key != "_meta"}
        if isinstance(own, Mapping):
            theirs = {
                key: value
                for key, value in cast("Mapping[str, Any]", own).items()
                if not _is_ours(key) and key not in replaced
            }
            meta = joined(_inside(encode_json(theirs)), meta)
    encoded = encode_json(params)
    rest = encoded[1:] if len(encoded) < _LONG else memoryview(encoded)[1:]  # a view takes longer to make
    return b'{"_meta":{', meta, b"}," if params else b"}", rest


def joined(first: bytes, second: bytes) -> bytes:
    """Two lists of members, each without braces, joined to one."""
    return b"%b,%b" % (first, second) if first and second else first or second


def _is_ours(key: str) -> bool:
    """Whether only we may set the key: who we are, and the progress token. A caller may set the log level."""
    return (key.startswith(META) and key != LOG_LEVEL_KEY) or key == "progressToken"


def without_stamp(params: msgspec.Raw) -> msgspec.Raw:
    """Encoded params without what was added to `_meta` when they were sent. Raises as a decoder does."""
    if b'"_meta"' not in bytes(params):
        return params
    parts: dict[str, Any] = decode_parts(params)
    said = parts_of_meta(parts.pop("_meta", ABSENT))
    own = {key: value for key, value in said.items() if not _is_ours(key) and key not in TRACE_KEYS}
    return msgspec.Raw(encode({"_meta": own, **parts} if own else parts))


def _inside(encoded: bytes) -> bytes:
    return encoded[1:-1]


# ---- results to clients --------------------------------------------------------------------------------------------
def for_modern(result: bytes, stamp: Mapping[str, Any], cached: Mapping[str, Any]) -> bytes:
    """A server's result in the form for a client of 2026-07-28: with a type, and signed by us. `cached`: the caching
    fields for a result without any."""
    parts = result_parts(result)
    if parts is None:
        return result
    meta = {**parts_of_meta(parts.pop("_meta", ABSENT)), **stamp}
    return encode({"resultType": "complete", **cached, **parts, "_meta": meta})


def for_handshake(result: bytes) -> bytes:
    """The result of a server of 2026-07-28 in the form that an older client knows."""
    parts = result_parts(result)
    if parts is None:
        return result
    said = parts_of_meta(parts.get("_meta", ABSENT))
    meta = {key: value for key, value in said.items() if not key.startswith(META)}
    parts = {key: value for key, value in parts.items() if key not in NEWER}
    return encode({**parts, "_meta": meta} if meta else parts)


def result_with_meta(result: bytes, more: Mapping[str, Any]) -> bytes:
    """A server's result with more in its `_meta`."""
    parts = result_parts(result)
    if parts is None:
        return result
    return encode({**parts, "_meta": {**parts_of_meta(parts.get("_meta", ABSENT)), **more}})


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
    progress: bool = False,
    trace: bytes = b"",
) -> bytes:
    """One request to a server. `progress` asks for progress notifications under the request's own id. `trace`: the
    members of its trace context, which take the place of the caller's own.

    Raises `UsageError` when `params` cannot be written as JSON.
    """
    meta = stamp.meta
    if progress:
        meta = joined(meta, b'"progressToken":%d' % rpc_id)
    if trace:
        meta = joined(meta, trace)
    if params is None and not meta:
        return b'{"jsonrpc":"2.0","id":%d,"method":%b}\n' % (rpc_id, encode_json(method))
    number, name = plainly(rpc_id), _encode_method(method)  # `%d` on bytes takes four times as long
    if meta:
        body = with_meta(params or {}, meta, TRACE_KEYS if trace else ())
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
    parts = _ID, key, b',"result":', result, b"}\n"
    return b"".join(parts) if len(result) < LARGE_MESSAGE else joined_in_steps(parts)


def result_line(key: bytes, result: Mapping[str, Any]) -> bytes:
    """An answer with this result; `key` is the id as it was written. Raises as `encode` does."""
    return _RESULT % (key, encode(result))


def large_result_line(key: bytes, result: Mapping[str, Any]) -> bytes:
    """An answer whose result holds megabytes, made in steps (`joined_in_steps`). Otherwise as `result_line`."""
    parts: list[bytes | msgspec.Raw] = [_ID, key, b',"result":{']
    before = b""
    for name, value in result.items():
        parts += before, encode(name), b":", value if isinstance(value, msgspec.Raw) else encode(value)
        before = b","
    return joined_in_steps([*parts, b"}}\n"])


def large_array(values: Iterable[Any]) -> msgspec.Raw:
    """An array of values that hold megabytes, each encoded by itself. Raises as `encode` does."""
    parts, before = list[bytes](), b""
    for value in values:
        parts += before, encode(value)
        before = b","
    return msgspec.Raw(joined_in_steps([b"[", *parts, b"]"]))


def joined_in_steps(parts: Iterable[bytes | msgspec.Raw]) -> bytes:
    """`b"".join(parts)`, for megabytes and in a thread. What copies them in one go lets no other thread run meanwhile,
    so they are copied in steps. (`BytesIO` gives away what it holds without another copy.)"""
    held = BytesIO()
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), _STEP):
            held.write(view[at : at + _STEP])
    return held.getvalue()


def error_line(key: bytes, fault: RpcFault) -> bytes:
    """An error answer; an empty `key` becomes null, as JSON-RPC wants for a message whose id is unknown."""
    body = _body(fault)
    try:
        said = encode(body)
    except UNWRITABLE:  # because of the data, which may be a server's: send the rest without it
        said = encode({"code": fault.code, "message": fault.message})
    return _ERROR % (key or b"null", said)


def unreadable_line(line: bytes) -> bytes:
    """In place of an answer that a client cannot read: an error, so that nobody waits for it for ever."""
    text = "The answer cannot be read: it is nested too deep, or a number in it is out of range."
    return error_line(read_head_id(line), RpcFault(INTERNAL_ERROR, text))


def _body(error: RpcError | RpcFault) -> dict[str, Any]:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    return body if error.data is None else {**body, "data": error.data}


def _echo(rpc_id: Any) -> bytes:
    """The other side's own id as JSON, even with half a character in it."""
    try:
        return plainly(rpc_id)
    except UnicodeEncodeError:
        return json.dumps(rpc_id).encode()
