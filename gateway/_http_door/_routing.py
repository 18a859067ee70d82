"""Which JSON-RPC message a body or an outgoing line is. Nothing here waits.

An incoming body is decoded once more by the conversation: the envelope alone, whose payloads stay bytes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs
import msgspec

from ...protocol import jsonrpc as rpc
from ...protocol.index import Target
from ...protocol.jsonrpc import RpcFault
from ...protocol.mirrored import decode_value, mismatch
from ._refusals import HEADER_MISMATCH, Refusal
from ._request import Request

_HEAD: Final = re.compile(
    rb'\{"jsonrpc":"2\.0",(?:"id":("(?:[^"\\]|\\.)*"|[^,"]*),)?"(result|error|method)":(?:"([^"\\]*)")?'
)
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_INFO_KEY: Final = f"{rpc.META}clientInfo"
SUBSCRIPTION_KEY: Final = f"{rpc.META}subscriptionId"
_PROGRESS_TOKEN: Final = b"progressToken"


class Kind(enum.Enum):
    ANSWER = enum.auto()
    QUESTION = enum.auto()  # a request of ours to the client
    NOTIFICATION = enum.auto()


def kind_of(line: bytes) -> tuple[Kind, bytes, bytes]:
    """What an outgoing line is, its id (empty: it has none), and its method (empty for an answer)."""
    head = _HEAD.match(line)
    assert head is not None, "every line of ours begins in this way"
    key, word, method = head.groups(b"")
    if word != b"method":
        return Kind.ANSWER, key, b""
    return (Kind.QUESTION if key else Kind.NOTIFICATION), key, method


def read_message(body: bytes) -> rpc.ClientMessage:
    """The envelope of a body. Raises `Refusal` when it is not one JSON-RPC message."""
    try:
        message = rpc.read_client_line(body)
        rpc.read_id(message)
    except RpcFault as fault:
        raise Refusal(400, fault.message, code=fault.code) from None
    if message.method is None and not bytes(message.result) and not bytes(message.error):
        raise Refusal(400, "Invalid request: it has no method.")
    return message


def progress_token(message: rpc.ClientMessage) -> object:
    """The progress token of a request; None when it has none."""
    raw = bytes(message.params)
    if _PROGRESS_TOKEN not in raw:
        return None
    try:
        meta = rpc.read_meta(rpc.read_parts(message.params))
    except RpcFault:
        return None  # the conversation refuses it
    return None if meta is None else meta.get("progressToken")


def same_token(one: object, other: object) -> bool:
    return one == other and type(one) is type(other)


def params_of(line: bytes) -> dict[str, Any]:
    """The parameters of an outgoing notification."""
    params = msgspec.json.decode(line).get("params")
    return cast("dict[str, Any]", params) if isinstance(params, dict) else {}


def cancelled_key(message: rpc.ClientMessage) -> bytes:
    """The id of the request that a notification cancels, as it was written; empty when there is none."""
    try:
        return bytes(rpc.read_parts(message.params).get("requestId", b""))
    except RpcFault:
        return b""


# ---- 2026-07-28 ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Stateless:
    """A request of 2026-07-28. `who` are the parts of it by which its client is known."""

    key: bytes
    method: str
    params: dict[str, msgspec.Raw]
    meta: dict[str, Any]
    who: bytes


def read_stateless(message: rpc.ClientMessage, request: Request) -> Stateless:
    """Check a request of 2026-07-28 against its headers. Raises `Refusal` as the SDK's server does, in the same
    order."""
    key, method = rpc.read_id(message), message.method or ""
    try:
        params = dict(rpc.read_parts(message.params)) if bytes(message.params) else {}
        meta = rpc.read_meta(params)
    except RpcFault as fault:
        raise Refusal(400, fault.message, code=fault.code, key=key) from None
    needed = (rpc.VERSION_KEY, rpc.CAPABILITIES_KEY)
    if meta is None or (missing := [name for name in needed if name not in meta]):
        what = ", ".join(needed if meta is None else missing)  # pyright: ignore[reportPossiblyUnboundVariable]
        text = f"Invalid params: params._meta must be an object with {what}."
        raise Refusal(400, text, code=rpc.INVALID_PARAMS, key=key)
    _match(request, b"mcp-protocol-version", meta[rpc.VERSION_KEY], "the version in params._meta", key)
    _match(request, b"mcp-method", method, "the method", key)
    named = _NAMED_BY.get(method)
    if named is not None and named in params:
        _match(request, b"mcp-name", _value(params[named]), f"params.{named}", key)
    version = meta[rpc.VERSION_KEY]
    if version not in rpc.MODERN_VERSIONS:
        raise UnsupportedVersion(str(version), key)
    who = rpc.encode([meta[rpc.CAPABILITIES_KEY], meta.get(_INFO_KEY)])
    return Stateless(key, method, params, dict(meta), who)


def _match(request: Request, header: bytes, said: object, what: str, key: bytes) -> None:
    given = request.text(header)
    if given is None or (decode_value(given) if header == b"mcp-name" else given) != said:
        text = f"The header {header.decode()} does not match {what} in the body."
        raise Refusal(400, text, code=HEADER_MISMATCH, key=key)


def check_mirrored(said: Stateless, target: Target | None, request: Request) -> None:
    """Check the arguments of a call that its headers repeat. Raises `Refusal` for a header that contradicts them."""
    if target is None or not target.mirrored:
        return
    header = mismatch(target.mirrored, said.params.get("arguments"), request.headers)
    if header is not None:
        text = f"The header {header} does not match the argument of {target.name} in the body."
        raise Refusal(400, text, code=HEADER_MISMATCH, key=said.key)


def _value(raw: msgspec.Raw) -> Any:
    try:
        return rpc.read_value(raw)
    except RpcFault:
        return None


class UnsupportedVersion(Refusal):
    def __init__(self, requested: str, key: bytes = b"") -> None:
        super().__init__(400, "Unsupported protocol version", code=rpc.UNSUPPORTED_VERSION, key=key)
        self._requested = requested

    @property
    def body(self) -> bytes:
        data = {"supported": list(rpc.MODERN_VERSIONS), "requested": self._requested}
        return rpc.error_line(self.key, RpcFault(self.code, self.message, data))


def with_id(message: Stateless, number: int, token: bool) -> bytes:
    """The request under another id, which is also its progress token."""
    params: Mapping[str, Any] = message.params
    if token:
        params = {**params, "_meta": {**message.meta, "progressToken": number}}
    head = b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":' % (number, rpc.encode(message.method))
    return b"".join((head, msgspec.json.encode(params), b"}"))


def answer_under(key: bytes, number: int, line: bytes) -> bytes:
    """An answer to request `number`, under the id that its client gave."""
    head = b'{"jsonrpc":"2.0","id":%d' % number
    return b'{"jsonrpc":"2.0","id":' + key + line[len(head) :]


def error_code(line: bytes) -> int | None:
    """The code of an answer that is an error; None for a result."""
    head = _HEAD.match(line)
    if head is None or head[2] != b"error":
        return None
    return msgspec.json.decode(line, type=_Error).error.code


class _Code(msgspec.Struct):
    code: int


class _Error(msgspec.Struct):
    error: _Code
