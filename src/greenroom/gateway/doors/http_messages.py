"""Which JSON-RPC message a body or an outgoing line is.

An incoming body is read once, and its envelope, whose payloads stay bytes, goes to the conversation. That of a body of
megabytes is read in a thread.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...actors.current_trace import within
from ...actors.workers import aside
from ...catalogue.namespace import Target
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import LARGE_MESSAGE
from ...protocol.header_params import decode_value, mismatch
from ...protocol.jsonrpc.terms import RpcFault
from ...protocol.tasks import CANCEL, GET, UPDATE
from ...protocol.trace_context import TraceContext
from ..requests import read_large
from ..state_handles import META_KEY, state_in
from .http_request import HEADER_MISMATCH, Refusal, Request

if TYPE_CHECKING:
    from ..endpoint import ClientSession


_HEAD: Final = re.compile(
    rb'\{"jsonrpc":"2\.0",(?:"id":("(?:[^"\\]|\\.)*"|[^,"]*),)?"(result|error|method)":(?:"([^"\\]*)")?'
)
_MCP_TOOL: Final = "mcp"
_ERROR_CODE: Final = re.compile(  # of a line of ours
    rb'\{"jsonrpc":"2\.0","id":(?:"(?:[^"\\]|\\.)*"|[^,"]*),"error":\{"code":(-?\d+)[,}]'
)
_NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    **dict.fromkeys((GET, UPDATE, CANCEL), "taskId"),
}
_INFO_KEY: Final = f"{rpc.META}clientInfo"
_VERSION: Final = b"protocolVersion"  # the slash before it may be escaped
_PROGRESS_TOKEN: Final = b"progressToken"


class MessageKind(enum.Enum):
    ANSWER = enum.auto()
    SERVER_REQUEST = enum.auto()  # from us to the client
    NOTIFICATION = enum.auto()


def kind_of(line: bytes) -> tuple[MessageKind, bytes, bytes]:
    """What an outgoing line is, its id (empty: it has none), and its method (empty for an answer)."""
    head = _HEAD.match(line)
    assert head is not None, "every line of ours begins in this way"
    key, word, method = head.groups(b"")
    if word != b"method":
        return MessageKind.ANSWER, key, b""
    return (MessageKind.SERVER_REQUEST if key else MessageKind.NOTIFICATION), key, method


Parts = Mapping[str, msgspec.Raw]


class Read(msgspec.Struct, frozen=True, eq=False):
    """A message that was read: its envelope, its id (empty: it has none), and its size. `parts` are the members of the
    params of a large request; None for any other message."""

    envelope: rpc.ClientMessage
    key: bytes
    parts: Parts | None = None
    is_large: bool = False
    size: int = 0
    trace: TraceContext | None = None  # as its headers say

    @property
    def is_request(self) -> bool:
        return bool(self.key) and self.envelope.method is not None

    def give_to(self, client: ClientSession) -> None:
        """Let the conversation handle the message, as every other door does."""
        if self.trace is None:
            self._give(client)
        else:
            with within(self.trace):
                self._give(client)

    def _give(self, client: ClientSession) -> None:
        if self.is_large:
            client.take_large(self.envelope, self.key, self.parts)
        else:
            client.receive(b"", self.envelope, self.size)


async def read_message(body: bytes | bytearray, trace: TraceContext | None = None) -> Read:
    """The envelope of a body, whose headers say `trace`. Raises `Refusal` when it is not one JSON-RPC message."""
    if len(body) < LARGE_MESSAGE:
        return read_short(body, trace)
    key, parts = b"", None
    try:
        message = await aside(partial(rpc.read_client_line, body))
        key = rpc.read_id(message)
        if key and message.method is not None:
            parts = await aside(partial(read_large, message.params))
    except RpcFault as fault:
        raise Refusal(400, fault.message, code=fault.code, key=key) from None
    return _checked(Read(message, key, parts, is_large=True, size=len(body), trace=trace))


def read_short(body: bytes | bytearray, trace: TraceContext | None) -> Read:
    """The same for a body that is not of megabytes."""
    key = b""
    try:
        message = rpc.read_client_line(body)
        key = rpc.read_id(message)
    except RpcFault as fault:
        raise Refusal(400, fault.message, code=fault.code, key=key) from None
    return _checked(Read(message, key, size=len(body), trace=trace))


def _checked(read: Read) -> Read:
    message = read.envelope
    if message.method is None and not rpc.nbytes(message.result) and not rpc.nbytes(message.error):
        raise Refusal(400, "Invalid request: it has no method.")
    return read


def progress_token(message: Read) -> object:
    """The progress token of a request; None when it has none."""
    parts, params = message.parts, message.envelope.params
    if parts is None and _PROGRESS_TOKEN not in bytes(params):
        return None
    try:
        meta = rpc.read_meta(rpc.read_parts(params) if parts is None else parts)
    except RpcFault:
        return None  # the conversation refuses it
    return None if meta is None else meta.get("progressToken")


def same_token(one: object, other: object) -> bool:
    return one == other and type(one) is type(other)


class _Notification(msgspec.Struct):
    params: dict[str, msgspec.Raw] = {}


_notification: Final = msgspec.json.Decoder(_Notification)


def params_of(line: bytes) -> dict[str, msgspec.Raw]:
    """The members of the parameters of an outgoing notification. Each is still JSON: one may be the result of a task,
    of megabytes."""
    return _notification.decode(line).params


def cancelled_key(message: rpc.ClientMessage) -> bytes:
    """The id of the request that a notification cancels, as it was written; empty when there is none."""
    try:
        return bytes(rpc.read_parts(message.params).get("requestId", b""))
    except RpcFault:
        return b""


# ---- 2026-07-28 ------------------------------------------------------------------------------------------------------
class Stateless(msgspec.Struct, frozen=True, eq=False):
    """A request of 2026-07-28. `who` identifies its client. `params` are those of `message`."""

    message: Read
    key: bytes
    method: str
    params: Parts
    meta: dict[str, Any]
    who: bytes


def read_stateless(message: Read, request: Request) -> Stateless:
    """Check a request of 2026-07-28 against its headers. Raises `Refusal` as the SDK's server does, in the same
    order."""
    key, method = message.key, message.envelope.method or ""
    try:
        params = rpc.read_parts(message.envelope.params) if message.parts is None else message.parts
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
    info = meta.get(_INFO_KEY)
    who = rpc.encode([info] if info else [None, meta[rpc.CAPABILITIES_KEY]])
    return Stateless(message, key, method, params, meta, who)


def check_older(message: Read, request: Request) -> None:
    """Check a request that its headers call one of a version before 2026-07-28. Raises `Refusal` when its body says
    otherwise (2026-07-28, basic/transports: a server must refuse that)."""
    params = message.envelope.params
    if message.parts is None and _VERSION not in bytes(params):
        return
    try:
        meta = rpc.read_meta(rpc.read_parts(params) if message.parts is None else message.parts)
    except RpcFault:
        return  # the conversation refuses it
    said = None if meta is None else meta.get(rpc.VERSION_KEY)
    if said is not None and said not in rpc.HANDSHAKE_VERSIONS:
        _match(request, b"mcp-protocol-version", said, "the version in params._meta", message.key)


async def without_handle(said: Stateless) -> tuple[Stateless, object]:
    """The request without the handle of a state, and that handle; None: it is given none. Raises `Refusal` for
    arguments that cannot be looked into."""
    if said.method != "tools/call":
        return said, said.meta.get(META_KEY)
    look = partial(_without_handle, said)
    try:
        return await aside(look) if said.message.is_large else look()
    except RpcFault as fault:
        raise Refusal(400, fault.message, code=fault.code, key=said.key) from None


def _without_handle(said: Stateless) -> tuple[Stateless, object]:
    message = said.message
    nests = name_in(said) == _MCP_TOOL
    handle, arguments = state_in(said.params.get("arguments"), said.meta, nests=nests)
    if arguments is None:
        return said, handle
    params = {**said.params, "arguments": arguments}
    raw = msgspec.Raw(msgspec.json.encode(params))
    envelope = rpc.ClientMessage(said.method, raw, id=message.envelope.id)
    parts = params if message.is_large else None
    message = msgspec.structs.replace(message, envelope=envelope, parts=parts)
    return msgspec.structs.replace(said, params=params, message=message), handle


def name_in(said: Stateless) -> object:
    """The name that a request gives, of a tool or a prompt; None: it gives none."""
    return _value(said.params["name"]) if "name" in said.params else None


def _match(request: Request, header: bytes, said: object, what: str, key: bytes) -> None:
    given = request.text(header)
    if given is None or (decode_value(given) if header == b"mcp-name" else given) != said:
        text = f"The header {header.decode()} does not match {what} in the body."
        raise Refusal(400, text, code=HEADER_MISMATCH, key=key)


def check_mirrored(said: Stateless, target: Target, request: Request) -> None:
    """Check the headers that repeat arguments of a call of this tool. Raises `Refusal` for a header that contradicts
    its argument. Of a large message: work for a thread."""
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


def with_id(said: Stateless, number: int, token: bool) -> Read:
    """The request under another id, which is also its progress token."""
    key, message = b"%d" % number, said.message
    params, parts = message.envelope.params, message.parts
    if token:
        meta = msgspec.Raw(msgspec.json.encode({**said.meta, "progressToken": number}))
        if parts is None:
            params = msgspec.Raw(msgspec.json.encode({**said.params, "_meta": meta}))
        else:
            parts = {**parts, "_meta": meta}
    envelope = rpc.ClientMessage(said.method, params, id=msgspec.Raw(key))
    return Read(envelope, key, parts, message.is_large, message.size, message.trace)


def answer_under(key: bytes, number: int, line: bytes) -> bytes:
    """An answer to request `number`, under the id that its client gave."""
    head = b'{"jsonrpc":"2.0","id":%d' % number
    return b"".join((b'{"jsonrpc":"2.0","id":', key, memoryview(line)[len(head) :]))


def error_code(line: bytes) -> int | None:
    """The code of an answer that is an error; None for a result."""
    found = _ERROR_CODE.match(line)
    return None if found is None else int(found[1])
