"""Decodes what is inside an envelope, on request.

If an object is required and a server sent something else, that is a `WireFault`, to be noted; from a client it is
an `RpcFault`, to be answered. A client's request is passed on without being decoded where possible (`PlainCall`),
and by its parts where not.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from .. import lenient
from ..bounds import DEPTH, is_too_deep
from ._envelope import ABSENT, NO_MESSAGE, why
from ._faults import RpcError, RpcFault, WireFault, fault
from ._json import UNREADABLE
from ._terms import INVALID_PARAMS

_LONG: Final = 1 << 17  # bytes
TOO_DEEP: Final = f"nested deeper than {DEPTH} levels"


class _ErrorBody(msgspec.Struct, gc=False):
    code: int
    message: str = ""
    data: Any = None


class CallParams(msgspec.Struct):
    """The params of a tools/call. `arguments` and `_meta` may be null; some clients send that."""

    name: str
    arguments: dict[str, Any] | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class PlainCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The params of a tools/call that has nothing else: no `_meta`, so it is of the handshake era and asks for no
    progress, and no field that we do not know."""

    name: str
    arguments: msgspec.Raw = ABSENT

    def renamed(self, name: str) -> dict[str, Any]:
        """The same params with another name; the arguments stay as they came."""
        return {"name": name} if self.arguments is ABSENT else {"name": name, "arguments": self.arguments}


class CancelParams(msgspec.Struct):
    request_id: msgspec.Raw = msgspec.field(default=ABSENT, name="requestId")


_any = msgspec.json.Decoder()
_decode_any = _any.decode
_error = msgspec.json.Decoder(_ErrorBody)
_call = msgspec.json.Decoder(CallParams)
_plain_call = msgspec.json.Decoder(PlainCall)
_cancel = msgspec.json.Decoder(CancelParams)
_object = msgspec.json.Decoder(dict[str, Any])
_as_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])

# ---- from a server -------------------------------------------------------------------------------------------------


def decode_result(result: bytes) -> dict[str, Any]:
    """The result as a dict, every field as the server sent it. Raises `WireFault` when it is not a JSON object."""
    try:
        value = _decode_any(result) if len(result) < _LONG else _decode(result)
    except NO_MESSAGE:
        value = _decode(result)  # mends it, or raises what is wrong with it
    if not isinstance(value, dict):
        raise WireFault(f"the result is not an object but {_kind(value)}")
    return cast("dict[str, Any]", value)


def decode_params(params: msgspec.Raw) -> dict[str, Any] | None:
    """The params of a request or notification; None when there are none. Raises `WireFault`."""
    raw = bytes(params)
    if not raw or raw == b"null":
        return None
    value = _decode(raw)
    if not isinstance(value, dict):
        raise WireFault(f"the params are not an object but {_kind(value)}")
    if is_too_deep(raw, cast("object", value)):
        raise WireFault(f"the params are {TOO_DEEP}")
    return cast("dict[str, Any]", value)


def decode_error(error: bytes) -> RpcError:
    """A JSON-RPC error as the server sent it, or a fault when it is not one. Data that cannot be passed on are left
    out."""
    try:
        body = lenient.decode(_error, error)
    except NO_MESSAGE as problem:
        return fault(f"the error of the answer is malformed ({problem})")
    data = f"(left out: {TOO_DEEP})" if is_too_deep(error, body.data) else body.data
    return RpcError(body.code, body.message, data)


def _decode(raw: bytes) -> Any:
    try:
        return lenient.decode(_any, raw) if len(raw) < _LONG else _without_collecting(raw)
    except NO_MESSAGE as error:
        raise WireFault(f"not JSON: {error}") from None


def _without_collecting(raw: bytes) -> Any:
    """Decode with the garbage collector off. All new objects are kept, so the collector would only look at them again
    and again: that took four fifths of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return lenient.decode(_any, raw)
    finally:
        if was_on:
            gc.enable()


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {"list": "an array", "str": "a string", "bool": "a boolean"}.get(type(value).__name__, "a number")


# ---- from a client -------------------------------------------------------------------------------------------------


def read_call(params: msgspec.Raw) -> CallParams:
    """The params of a tools/call. Raises `RpcFault`."""
    return _read(_call, params)


def read_plain_call(params: msgspec.Raw) -> PlainCall | None:
    """The params of a plain call. None when they have more fields, or fewer, or are broken: then use `read_parts`."""
    try:
        return _plain_call.decode(params)
    except UNREADABLE:
        return None


def read_cancel(params: msgspec.Raw) -> bytes:
    """The id, as written, of the request that is cancelled. Raises `RpcFault`."""
    return bytes(_read(_cancel, params).request_id)


def read_object(params: msgspec.Raw) -> dict[str, Any]:
    """Params as an object; absent and null are empty. Raises `RpcFault`."""
    raw = bytes(params)
    return {} if raw in (b"", b"null") else _read(_object, params)


def read_parts(params: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Params as an object whose values stay bytes; absent and null are empty. Raises `RpcFault`."""
    try:
        return lenient.decode_parts(params)
    except UNREADABLE:
        return {} if bytes(params) in (b"", b"null") else _read(_as_parts, params)


RawParts = dict[str, msgspec.Raw]  # the members of an object, each still JSON


def raw_parts(parts: Mapping[str, bytes]) -> RawParts:
    """Parts that were cut out of a larger text, as `read_parts` returns them."""
    return {name: msgspec.Raw(part) for name, part in parts.items()}


def read_meta(params: Mapping[str, msgspec.Raw]) -> dict[str, Any] | None:
    """The `_meta` of params, decoded; None when it is absent or null. Raises `RpcFault`."""
    if "_meta" not in params:
        return None
    meta = read_value(params["_meta"])
    if meta is None or isinstance(meta, dict):
        return cast("dict[str, Any] | None", meta)
    raise RpcFault(INVALID_PARAMS, "Invalid params: _meta must be an object.")


def read_at(value: object, path: Iterable[str]) -> object:
    """The value at a path of members; None when there is none. What is still JSON is only decoded along the path,
    because there may be megabytes beside it."""
    try:
        for key in path:
            members = read_parts(value) if isinstance(value, msgspec.Raw) else value
            if not isinstance(members, Mapping):
                return None
            value = cast("Mapping[str, object]", members).get(key)
        return read_value(value) if isinstance(value, msgspec.Raw) else value
    except RpcFault:
        return None


def read_value(raw: msgspec.Raw | None) -> Any:
    """The decoded part; None when it is absent. Raises `RpcFault`."""
    if raw is None:
        return None
    try:
        return lenient.decode(_any, raw)
    except UNREADABLE as error:
        raise RpcFault(INVALID_PARAMS, f"Invalid params: {why(error)}") from None


def _read(decoder: msgspec.json.Decoder[Any], params: msgspec.Raw) -> Any:
    try:
        return lenient.decode(decoder, bytes(params) or b"{}")
    except UNREADABLE as error:
        raise RpcFault(INVALID_PARAMS, f"Invalid params: {why(error)}") from None
