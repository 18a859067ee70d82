"""JSON-RPC as our doors read and write it: the envelope once, everything inside it only when somebody looks.

An id is kept as the bytes the client wrote and echoed as such, so a number stays that number and a string that string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from ..actors import lenient
from ..protocol.halves import repair_utf8, whole_value
from ._jobs import RpcFault

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
OVERLOADED: Final = -32000
UNSUPPORTED_VERSION: Final = -32022

MODERN_VERSIONS: Final = ("2026-07-28",)
META: Final = "io.modelcontextprotocol/"
_NEWER: Final = frozenset({"resultType", "ttlMs", "cacheScope", "_meta"})
_NONE: Final = msgspec.Raw(b"")
_ID_STARTS: Final = b'"-0123456789'
_HEAD: Final = 256  # bytes of a broken message that are searched for its id
# At the top level, before anything nested: what stands behind a nested value cannot be told from its inside.
_HEAD_ID: Final = re.compile(rb'\s*\{[^{}\[\]]*?"id"\s*:\s*("[^"\\\x00-\x1f\x80-\xff]*"|-?\d{1,18})\s*[,}]')


class Envelope(msgspec.Struct):
    """One message from a client. A request has `method` and `id`, a notification only `method`."""

    id: msgspec.Raw = _NONE
    method: str | None = None
    params: msgspec.Raw = _NONE
    result: msgspec.Raw = _NONE
    error: msgspec.Raw = _NONE


class CallParams(msgspec.Struct):
    """The params of a tools/call. `arguments` and `_meta` may be null; some clients send that."""

    name: str
    arguments: dict[str, Any] | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class PlainCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The params of a tools/call that says nothing else: no `_meta`, so it is of the handshake era and wants no
    progress, and nothing that this version does not know."""

    name: str
    arguments: msgspec.Raw = _NONE

    def renamed(self, name: str) -> dict[str, Any]:
        """The same for another name, the arguments as they came."""
        return {"name": name} if self.arguments is _NONE else {"name": name, "arguments": self.arguments}


class CancelParams(msgspec.Struct):
    request_id: msgspec.Raw = msgspec.field(default=_NONE, name="requestId")


_envelope = msgspec.json.Decoder(Envelope)
_call = msgspec.json.Decoder(CallParams)
_plain_call = msgspec.json.Decoder(PlainCall)
_cancel = msgspec.json.Decoder(CancelParams)
_object = msgspec.json.Decoder(dict[str, Any])
_as_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
UNWRITABLE: Final = (
    *_UNREADABLE,
    UnicodeEncodeError,
    OverflowError,
)  # what an answer made of a server's may raise


def read_envelope(line: bytes) -> Envelope:
    """Raises `RpcFault`: parse error, or invalid request for JSON that is no message."""
    try:
        # msgspec looks only into what it decodes, and what it does not is sent back or passed on
        text = line if line.isascii() else repair_utf8(line)
        try:
            return _envelope.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return _read_mended(text)
    except msgspec.ValidationError:
        what = (
            "Batches are not supported: send" if line.lstrip()[:1] == b"[" else "Not a JSON-RPC message: send"
        )
        raise RpcFault(INVALID_REQUEST, f"{what} one JSON-RPC object per line.") from None
    except _UNREADABLE as error:
        raise RpcFault(PARSE_ERROR, f"Parse error: {_why(error)}") from None


def _read_mended(line: bytes | bytearray) -> Envelope:
    """A message with half a character in it (`protocol/halves`): only its id stays as it came. Servers are sent what
    every server can read: those of the SDK in Python leave a request with such a half unanswered. Raises as a decoder
    does."""
    envelope = lenient.decode(_envelope, line)
    if bytes(envelope.id):
        envelope.id = lenient.decode_parts(line)["id"]
    return envelope


def read_head_id(head: bytes | bytearray) -> bytes:
    """The id, as written, of a message of which only the head can be read; empty when the head does not say."""
    found = _HEAD_ID.match(head[:_HEAD])
    return found[1] if found else b""


def read_id(envelope: Envelope) -> bytes:
    """The id as written; empty for a notification. Raises `RpcFault` when it is no string and no number."""
    key = bytes(envelope.id)
    if key and key[0] not in _ID_STARTS:
        raise RpcFault(INVALID_REQUEST, "Invalid request: the id must be a string or a number.")
    return key


def read_call(params: msgspec.Raw) -> CallParams:
    return _read(_call, params)


def read_plain_call(params: msgspec.Raw) -> PlainCall | None:
    """None: there is more in it, or less, or it is broken; `read_parts` tells."""
    try:
        return _plain_call.decode(params)
    except _UNREADABLE:
        return None


def read_cancel(params: msgspec.Raw) -> bytes:
    return bytes(_read(_cancel, params).request_id)


def read_object(params: msgspec.Raw) -> dict[str, Any]:
    """Params as an object; absent and null are empty."""
    raw = bytes(params)
    return {} if raw in (b"", b"null") else _read(_object, params)


def read_parts(params: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Params as an object whose values stay bytes; absent and null are empty."""
    try:
        return lenient.decode_parts(params)
    except _UNREADABLE:
        return {} if bytes(params) in (b"", b"null") else _read(_as_parts, params)


def read_meta(params: Mapping[str, msgspec.Raw]) -> dict[str, Any] | None:
    """The `_meta` of params, decoded; None when it is absent or null. Raises `RpcFault`."""
    if "_meta" not in params:
        return None
    meta = read_value(params["_meta"])
    if meta is None or isinstance(meta, dict):
        return cast("dict[str, Any] | None", meta)
    raise RpcFault(INVALID_PARAMS, "Invalid params: _meta must be an object.")


def read_value(raw: msgspec.Raw | None) -> Any:
    """One part, decoded; None when it is absent. Raises `RpcFault`."""
    if raw is None:
        return None
    try:
        return lenient.decode(_any, raw)
    except _UNREADABLE as error:
        raise RpcFault(INVALID_PARAMS, f"Invalid params: {_why(error)}") from None


def raw_line(key: bytes, result: bytes) -> bytes:
    """An answer around a result that is JSON already."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (key, result)


def request_line(key: bytes, method: str, params: Mapping[str, Any]) -> bytes:
    body = encode({"jsonrpc": "2.0", "method": method, "params": params})
    return b'{"id":%b,%b\n' % (key, body[1:])


def for_modern(result: bytes, stamp: Mapping[str, Any], cached: Mapping[str, Any]) -> bytes:
    """A server's result as a client of 2026-07-28 wants it: with a type, and from us. `cached`: what is said of caching
    where the server said nothing."""
    parts = lenient.decode_parts(result)
    meta = {**_meta(parts), **stamp}
    parts.pop("_meta", None)
    return encode({"resultType": "complete", **cached, **parts, "_meta": meta})


def for_handshake(result: bytes) -> bytes:
    """The result of a server of 2026-07-28 as an older client knows it."""
    parts = lenient.decode_parts(result)
    meta = {key: value for key, value in _meta(parts).items() if not key.startswith(META)}
    parts = {key: value for key, value in parts.items() if key not in _NEWER}
    return encode({**parts, "_meta": meta} if meta else parts)


def _meta(parts: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    try:
        return lenient.decode(_object, parts["_meta"]) if "_meta" in parts else {}
    except _UNREADABLE:  # no object: nothing that could be kept
        return {}


def result_line(key: bytes, result: Mapping[str, Any]) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (key, encode(result))


def error_line(key: bytes, fault: RpcFault) -> bytes:
    """An error answer; an empty `key` becomes null, as JSON-RPC wants for a message whose id is unknown."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    try:
        said = encode(error if fault.data is None else {**error, "data": fault.data})
    except UNWRITABLE:  # the data, which may be a server's: what matters is said without it
        said = encode(error)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (key or b"null", said)


def notification_line(method: str, params: Mapping[str, Any] | None) -> bytes:
    message = {"jsonrpc": "2.0", "method": method}
    return encode(message if params is None else {**message, "params": params}) + b"\n"


def encode(value: Any) -> bytes:
    """JSON bytes, on one line. Numbers beyond 64 bits, which msgspec refuses to write, are written by Python's own
    encoder."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return encode(whole_value(value))
    except OverflowError:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _read(decoder: msgspec.json.Decoder[Any], params: msgspec.Raw) -> Any:
    try:
        return lenient.decode(decoder, bytes(params) or b"{}")
    except _UNREADABLE as error:
        raise RpcFault(INVALID_PARAMS, f"Invalid params: {_why(error)}") from None


def _why(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
