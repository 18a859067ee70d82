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
from ..jobs import read_large
from ..state_handles import META_KEY, state_in
from .http_request import HEADER_MISMATCH, DoorRequest, HttpRefusal

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


class PostedMessage(msgspec.Struct, frozen=True, eq=False):
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

    @property
    def progress_token(self) -> object:
        """The progress token of a request; None when it has none."""
        parts, params = self.parts, self.envelope.params
        if parts is None and bytes(params).find(_PROGRESS_TOKEN) < 0:
            return None
        try:
            meta = rpc.read_meta(rpc.read_parts(params) if parts is None else parts)
        except RpcFault:
            return None  # the conversation refuses it
        return None if meta is None else meta.get("progressToken")


async def read_message(body: bytes | bytearray, trace: TraceContext | None = None) -> PostedMessage:
    """The envelope of a body, whose headers say `trace`. Raises `HttpRefusal` when it is not one JSON-RPC message."""
    if len(body) < LARGE_MESSAGE:
        return read_short(body, trace)
    key, parts = b"", None
    try:
        message = await aside(partial(rpc.read_client_line, body))
        key = rpc.read_id(message)
        if key and message.method is not None:
            parts = await aside(partial(read_large, message.params))
    except RpcFault as fault:
        raise HttpRefusal(400, fault.message, code=fault.code, key=key) from None
    return _checked(PostedMessage(message, key, parts, is_large=True, size=len(body), trace=trace))


def read_short(body: bytes | bytearray, trace: TraceContext | None) -> PostedMessage:
    """The envelope of a body that is not of megabytes. Raises as `read_message` does."""
    key = b""
    try:
        message = rpc.read_client_line(body)
        key = rpc.read_id(message)
    except RpcFault as fault:
        raise HttpRefusal(400, fault.message, code=fault.code, key=key) from None
    return _checked(PostedMessage(message, key, size=len(body), trace=trace))


def _checked(read: PostedMessage) -> PostedMessage:
    message = read.envelope
    if message.method is None and not rpc.nbytes(message.result) and not rpc.nbytes(message.error):
        raise HttpRefusal(400, "Invalid request: it has no method.")
    return read


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
class StatelessRequest(msgspec.Struct, frozen=True, eq=False):
    """A request of 2026-07-28. `who` identifies its client. `params` are those of `message`."""

    message: PostedMessage
    key: bytes
    method: str
    params: Parts
    meta: dict[str, Any]
    who: bytes

    async def without_handle(self) -> tuple[StatelessRequest, object]:
        """The request without the handle of a state, and that handle; None: it is given none. Raises `HttpRefusal` for
        arguments that cannot be looked into."""
        if self.method != "tools/call":
            return self, self.meta.get(META_KEY)
        look = self._without_handle
        try:
            return await aside(look) if self.message.is_large else look()
        except RpcFault as fault:
            raise HttpRefusal(400, fault.message, code=fault.code, key=self.key) from None

    def _without_handle(self) -> tuple[StatelessRequest, object]:
        message = self.message
        nests = self.name == _MCP_TOOL
        handle, arguments = state_in(self.params.get("arguments"), self.meta, nests=nests)
        if arguments is None:
            return self, handle
        params = {**self.params, "arguments": arguments}
        raw = msgspec.Raw(msgspec.json.encode(params))
        envelope = rpc.ClientMessage(self.method, raw, id=message.envelope.id)
        parts = params if message.is_large else None
        message = msgspec.structs.replace(message, envelope=envelope, parts=parts)
        return msgspec.structs.replace(self, params=params, message=message), handle

    @property
    def name(self) -> object:
        """The name that a request gives, of a tool or a prompt; None: it gives none."""
        return _value(self.params["name"]) if "name" in self.params else None

    def check_mirrored(self, target: Target, request: DoorRequest) -> None:
        """Check the headers that repeat arguments of a call of this tool. Raises `HttpRefusal` for a header that
        contradicts its argument. For a large message this is work for a thread."""
        header = mismatch(target.mirrored, self.params.get("arguments"), request.headers)
        if header is not None:
            text = f"The header {header} does not match the argument of {target.name} in the body."
            raise HttpRefusal(400, text, code=HEADER_MISMATCH, key=self.key)

    def with_id(self, number: int, token: bool) -> PostedMessage:
        """The request under another id, which is also its progress token."""
        key, message = b"%d" % number, self.message
        params, parts = message.envelope.params, message.parts
        if token:
            meta = msgspec.Raw(msgspec.json.encode({**self.meta, "progressToken": number}))
            if parts is None:
                params = msgspec.Raw(msgspec.json.encode({**self.params, "_meta": meta}))
            else:
                parts = {**parts, "_meta": meta}
        envelope = rpc.ClientMessage(self.method, params, id=msgspec.Raw(key))
        return PostedMessage(envelope, key, parts, message.is_large, message.size, message.trace)


def read_stateless(message: PostedMessage, request: DoorRequest) -> StatelessRequest:
    """Check a request of 2026-07-28 against its headers. Raises `HttpRefusal` as the SDK's server does, in the same
    order."""
    key, method = message.key, message.envelope.method or ""
    try:
        params = rpc.read_parts(message.envelope.params) if message.parts is None else message.parts
        meta = rpc.read_meta(params)
    except RpcFault as fault:
        raise HttpRefusal(400, fault.message, code=fault.code, key=key) from None
    missing = [name for name in (rpc.VERSION_KEY, rpc.CAPABILITIES_KEY) if name not in (meta or ())]
    if meta is None or missing:
        text = f"Invalid params: params._meta must be an object with {', '.join(missing)}."
        raise HttpRefusal(400, text, code=rpc.INVALID_PARAMS, key=key)
    _match(request, b"mcp-protocol-version", meta[rpc.VERSION_KEY], "the version in params._meta", key)
    _match(request, b"mcp-method", method, "the method", key)
    named = _NAMED_BY.get(method)
    if named is not None and named in params:
        _match(request, b"mcp-name", _value(params[named]), f"params.{named}", key)
    version = meta[rpc.VERSION_KEY]
    if version not in rpc.MODERN_VERSIONS:
        raise unsupported_version(str(version), key)
    info = meta.get(_INFO_KEY)
    who = rpc.encode([info] if info else [None, meta[rpc.CAPABILITIES_KEY]])
    return StatelessRequest(message, key, method, params, meta, who)


def check_older(message: PostedMessage, request: DoorRequest) -> None:
    """Check a request that its headers call one of a version before 2026-07-28. Raises `HttpRefusal` when its body says
    otherwise (2026-07-28, basic/transports: a server must refuse that)."""
    params = message.envelope.params
    if message.parts is None and bytes(params).find(_VERSION) < 0:
        return
    try:
        meta = rpc.read_meta(rpc.read_parts(params) if message.parts is None else message.parts)
    except RpcFault:
        return  # the conversation refuses it
    said = None if meta is None else meta.get(rpc.VERSION_KEY)
    if said is not None and said not in rpc.HANDSHAKE_VERSIONS:
        _match(request, b"mcp-protocol-version", said, "the version in params._meta", message.key)


def _match(request: DoorRequest, header: bytes, said: object, what: str, key: bytes) -> None:
    given = request.text(header)
    if given is None or (decode_value(given) if header == b"mcp-name" else given) != said:
        text = f"The header {header.decode()} does not match {what} in the body."
        raise HttpRefusal(400, text, code=HEADER_MISMATCH, key=key)


def _value(raw: msgspec.Raw) -> Any:
    try:
        return rpc.read_value(raw)
    except RpcFault:
        return None


def unsupported_version(requested: str, key: bytes = b"") -> HttpRefusal:
    data = {"supported": list(rpc.MODERN_VERSIONS), "requested": requested}
    text, code = "Unsupported protocol version", rpc.UNSUPPORTED_VERSION
    return HttpRefusal(400, text, code=code, key=key, data=data)


def answer_under(key: bytes, number: int, line: bytes) -> bytes:
    """An answer to request `number`, under the id that its client gave."""
    head = b'{"jsonrpc":"2.0","id":%d' % number
    return b"".join((b'{"jsonrpc":"2.0","id":', key, memoryview(line)[len(head) :]))


def error_code(line: bytes) -> int | None:
    """The code of an answer that is an error; None for a result."""
    found = _ERROR_CODE.match(line)
    return None if found is None else int(found[1])
