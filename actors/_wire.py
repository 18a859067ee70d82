"""The envelope: JSON-RPC as bytes, read once and written once.

A line is decoded only as far as its envelope; `params`, `result` and `error` stay the bytes the server sent, so nothing
of them can be lost, renamed or validated on the way, and whoever wants to look decodes then (`decode_result`). A line
that is no JSON-RPC is told apart by how much of it can still be used: an *answer* that is broken names the exchange it
belongs to and ends that one alone; anything else is junk. Half a character, as JavaScript escapes it, breaks nothing
(`protocol/halves`): the payloads keep it, and what is read of them has it replaced.

Requests of the 2026-07-28 era carry who we are in `_meta` of each; that part is encoded once per connection and spliced
into the encoded params, which is why `Stamp` holds bytes. Rejected: the SDK's models (80-100 µs a call, and unknown
fields vanish) and decoding into dicts to encode them again.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, cast

import attrs
import msgspec

from ..protocol.bounds import BATCH_MESSAGES
from ..protocol.errors import UsageError
from ..protocol.halves import mend_escapes, whole_value
from . import _lenient as lenient
from ._peer import RpcError

MODERN_VERSIONS = ("2026-07-28",)
LISTEN = "subscriptions/listen"  # the request of that era that stays open, and carries what is said unasked
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

METHOD_NOT_FOUND = -32601
UNSUPPORTED_VERSION = -32022
FAULT = -32700  # an answer that cannot be read; only ever seen with `RpcError.fault`

_RESERVED_META = "io.modelcontextprotocol/"
SERVER_INFO_KEY = _RESERVED_META + "serverInfo"
LOG_LEVEL_KEY = _RESERVED_META + "logLevel"

BATCHES = ("2025-03-26",)  # the versions that have batches

HEAD = 256  # how much of a line is searched for the id of a broken answer


class WireFault(ValueError):
    """Bytes that are not what the protocol says they must be. The text is for people."""


_LONG: Final = 1 << 17  # bytes

ABSENT: Final = msgspec.Raw(b"")


class Envelope(msgspec.Struct, gc=False):
    """One message, its payloads still bytes (`ABSENT`, which is empty, where there is none)."""

    id: int | str | float | None = None
    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class _ErrorBody(msgspec.Struct, gc=False):
    code: int
    message: str = ""
    data: Any = None


_envelope = msgspec.json.Decoder(Envelope)
# The one message of a line. Raises one of `NO_MESSAGE` when it is something else, for `decode_line` to say what. No
# function around it: that costs as much again, for every answer.
decode_message = _envelope.decode
NO_MESSAGE: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)
_error = msgspec.json.Decoder(_ErrorBody)
_any = msgspec.json.Decoder()
_decode_any = _any.decode
_encode = msgspec.json.Encoder().encode

# An id at the top level, before anything nested: what stands behind a nested value cannot be told from its inside.
_START = re.compile(rb"\s*+([\[{])")
_HEAD_ID = re.compile(rb'\s*\{[^{}\[\]]*?"id"\s*:\s*"?(\d{1,18})"?\s*[,}]')


# ---- reading -------------------------------------------------------------------------------------------------------


def decode_line(line: bytes | bytearray, version: str | None = None) -> list[Envelope]:
    """The messages of one line: one, or several when the line is a JSON-RPC batch and `version` has those.

    Raises `WireFault` when it is no JSON-RPC, at once where its first character says so.
    """
    start = _START.match(line)
    if start is None:
        raise WireFault("it does not begin as JSON-RPC does")
    try:
        return [_decode_envelope(line)] if start[1] == b"{" else _decode_batch(line, version)
    except NO_MESSAGE as error:
        raise WireFault(str(error)) from None


def _decode_batch(line: bytes | bytearray, version: str | None) -> list[Envelope]:
    if version not in BATCHES:
        raise WireFault("a batch, which this version of the protocol does not have")
    members = msgspec.structs.astuple(lenient.decode(_batch_decoder(), line))
    return [each for each in members if isinstance(each, Envelope)]


@lru_cache(1)
def _batch_decoder() -> msgspec.json.Decoder[Any]:
    """A batch as a struct of a hundred optional members: that ends at the first one too many, a list after all of them.
    Made when the first batch comes, for few ever do."""
    members = [(f"member_{n}", Envelope | msgspec.UnsetType, msgspec.UNSET) for n in range(BATCH_MESSAGES)]
    return msgspec.json.Decoder(
        msgspec.defstruct("_Batch", members, array_like=True, forbid_unknown_fields=True)
    )


def _decode_envelope(line: bytes | bytearray) -> Envelope:
    """One message; half characters in what only passes stay there."""
    mended = None
    try:
        return _envelope.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = mend_escapes(line)
        if mended is None:
            raise
    message, parts = _envelope.decode(mended), lenient.decode_parts(line)
    message.params = parts.get("params", ABSENT)
    message.result = parts.get("result", ABSENT)
    message.error = parts.get("error", ABSENT)
    if isinstance(message.id, str):
        message.id = json.loads(bytes(parts["id"]))  # to be echoed as it came
    return message


def answer_id_in(head: bytes | bytearray) -> int | None:
    """The id of an answer of which only the head can be read; None when it has none, or is no answer."""
    if b'"method"' in head[:HEAD]:
        return None
    found = _HEAD_ID.match(head[:HEAD])
    return int(found[1]) if found else None


def decode_result(result: bytes) -> dict[str, Any]:
    """The result as a dict, every field as the server sent it. Raises `WireFault` when it is not a JSON object."""
    try:
        value = _decode_any(result) if len(result) < _LONG else _decode(result)
    except NO_MESSAGE:
        value = _decode(result)  # mends it, or says what is wrong with it
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
    return cast("dict[str, Any]", value)


def decode_error(error: bytes) -> RpcError:
    """A JSON-RPC error as the server sent it, or a fault when it is not one."""
    try:
        body = lenient.decode(_error, error)
    except NO_MESSAGE as problem:
        return fault(f"the error of the answer is malformed ({problem})")
    return RpcError(body.code, body.message, body.data)


def fault(text: str) -> RpcError:
    """An answer that is no JSON-RPC, in words."""
    return RpcError(FAULT, text, fault=True)


def _decode(raw: bytes) -> Any:
    try:
        return lenient.decode(_any, raw) if len(raw) < _LONG else _without_collecting(raw)
    except NO_MESSAGE as error:
        raise WireFault(f"not JSON: {error}") from None


def _without_collecting(raw: bytes) -> Any:
    """All that is made is kept, so the collector, which comes at every so many new objects, would only look at it over
    and over: four fifths of the time."""
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


# ---- writing -------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Stamp:
    """What each request of the 2026-07-28 era says of us, encoded once: the inside of its `_meta`, without braces."""

    meta: bytes = b""

    @classmethod
    def of(
        cls, version: str | None, client_info: Mapping[str, Any], capabilities: Mapping[str, Any]
    ) -> Stamp:
        """The stamp for `version`: empty for the handshake era, where the handshake said it once."""
        if version not in MODERN_VERSIONS:
            return cls()
        said = {"protocolVersion": version, "clientInfo": client_info, "clientCapabilities": capabilities}
        return cls(_inside(encode_json({_RESERVED_META + key: value for key, value in said.items()})))


NO_STAMP = Stamp()


def weigh(params: Any) -> int:
    """Bytes of a request's parameters as they would be sent; 0 for what is no JSON, which is refused in its turn."""
    try:
        return len(encode_json(params))
    except UsageError:
        return 0


def encode_request(
    rpc_id: int,
    method: str,
    params: Mapping[str, Any] | None,
    stamp: Stamp = NO_STAMP,
    *,
    progress: bool = False,
) -> bytes:
    """One request line. `progress` asks for progress notifications under the request's own id.

    Raises `UsageError` when `params` cannot be said in JSON.
    """
    meta = stamp.meta
    if progress:
        meta = _joined(meta, b'"progressToken":%d' % rpc_id)
    if params is None and not meta:
        return b'{"jsonrpc":"2.0","id":%d,"method":%b}\n' % (rpc_id, encode_json(method))
    try:
        body = _with_meta(params or {}, meta) if meta else _encode(params)
    except (TypeError, ValueError, OverflowError, RecursionError):
        body = encode_json(params)  # mends it, or says what is wrong with it
    return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}\n' % (rpc_id, _encode_method(method), body)


def encode_notification(method: str, params: Mapping[str, Any] | None) -> bytes:
    """One notification line. Raises `UsageError` as `encode_request` does."""
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}\n' % encode_json(method)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}\n' % (encode_json(method), encode_json(params))


def encode_reply(rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> bytes:
    """The answer to a request of the other side. Raises `UsageError` as `encode_request` does."""
    if error is None:
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (_echo(rpc_id), encode_json(result or {}))
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (_echo(rpc_id), encode_json(body))


def _echo(rpc_id: Any) -> bytes:
    """The other side's own id, also with half a character in it."""
    try:
        return _encode(rpc_id)
    except UnicodeEncodeError:
        return json.dumps(rpc_id).encode()


def encode_json(value: Any) -> bytes:
    """`value` as JSON bytes. Raises `UsageError`: what cannot be said in JSON is the caller's to mend."""
    try:
        try:
            return _encode(value)
        except UnicodeEncodeError:
            return _encode(whole_value(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"This cannot be sent as JSON: {error}. Use objects, arrays, strings and numbers."
        ) from None


_encode_method = lru_cache(64)(encode_json)  # there are a dozen of them, said over and over


def _with_meta(params: Mapping[str, Any], meta: bytes) -> bytes:
    """The params with our part of `_meta` in them; the caller's own keys stay, but it cannot speak for us."""
    own = params.get("_meta")
    if isinstance(own, Mapping):
        theirs = {key: value for key, value in cast("Mapping[str, Any]", own).items() if not _is_ours(key)}
        params = {key: value for key, value in params.items() if key != "_meta"}
        meta = _joined(_inside(encode_json(theirs)), meta)
    return b"{%b}" % _joined(b'"_meta":{%b}' % meta, _inside(encode_json(params)))


def _is_ours(key: str) -> bool:
    """What only we may say: who we are, and the token. The log level is a wish, and whoever calls may have one."""
    return (key.startswith(_RESERVED_META) and key != LOG_LEVEL_KEY) or key == "progressToken"


def _inside(encoded: bytes) -> bytes:
    return encoded[1:-1]


def _joined(first: bytes, second: bytes) -> bytes:
    return b"%b,%b" % (first, second) if first and second else first or second


def excerpt(line: bytes | bytearray, limit: int = 80) -> str:
    """The beginning of a line as people may see it: printable, on one line, cut."""
    text = json.dumps(line[:limit].decode(errors="replace"), ensure_ascii=False)
    return text if len(line) <= limit else f"{text}… ({len(line):,} bytes)"
