"""Decodes what is inside an envelope, on request.

If an object is required and a server sent something else, that is a `WireFault`, to be noted; from a client it is
an `RpcFault`, to be answered. A client's request is passed on without being decoded where possible (`PlainCall`),
and by its parts where not.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec

from ..bounds import BATCH_MESSAGES, DEPTH, LARGE_MESSAGE, LONG_ID_BYTES, LONG_META_BYTES, is_too_deep
from ..lazy_patterns import lazy_pattern
from ..safe_text import mend_escapes, repair_utf8, shortened
from . import encoding
from .encoding import UNREADABLE
from .terms import (
    BATCHES,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    RpcError,
    RpcFault,
    WireFault,
    fault,
)

# ---- Incoming messages: the envelope is decoded once, and its payloads only when they are needed --------------------
#
# `params`, `result` and `error` stay the bytes that came, so nothing in them can be lost, renamed or validated on the
# way. The two sides differ only in the id. Servers mostly send answers, which carry our ids, so there an id is read as
# a value and looked up. Clients mostly send requests, which carry their ids, so there an id is kept as it was written
# and echoed unchanged: a number stays that number and a string that string.
#
# When a line is not a message, we use what can still be read. If the head of the line shows an id, a broken answer
# still ends its exchange, and a broken request is answered under that id. Anything else from a server is junk and is
# counted. A client is told what was wrong (`RpcFault`). Half a character, as JavaScript escapes it, breaks nothing
# (`safe_text`): data that only passes keeps it.

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"  # with which some programs begin UTF-8
HEAD: Final = 256  # how much of a broken line is searched for its id
ABSENT: Final = msgspec.Raw(b"")
# What the decoder raises when the bytes are not a message.
NO_MESSAGE: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)
M = TypeVar("M", bound="Envelope")


class Envelope(msgspec.Struct, gc=False):
    """One message. Its payloads are still bytes; a missing one is `ABSENT`, which is empty. A request has `method` and
    an id, a notification only `method`."""

    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class ServerMessage(Envelope, gc=False):
    id: int | str | float | None = None


class ClientMessage(Envelope, gc=False):
    id: msgspec.Raw = ABSENT


_from_server = msgspec.json.Decoder(ServerMessage)
_from_client = msgspec.json.Decoder(ClientMessage)
# Decodes a server's line as one message. When the line is something else it raises one of `NO_MESSAGE`, and then
# `decode_line` tells what it is. No function wraps the decoder: that would double the cost of every answer.
decode_message: Callable[[bytes | bytearray | str], ServerMessage] = _from_server.decode
_START = lazy_pattern(rb"\s*+([\[{])")
_ID_STARTS: Final = b'"-0123456789'
# Only at the top level and before anything nested: behind a nested value, we cannot tell inside from outside.
_HEAD_ID: Final = lazy_pattern(rb'\s*\{[^{}\[\]]*?"id"\s*:\s*("[^"\\\x00-\x1f\x80-\xff]*"|-?\d{1,18})\s*[,}]')


# ---- from a server -------------------------------------------------------------------------------------------------
def decode_line(line: bytes | bytearray, version: str | None = None) -> list[ServerMessage]:
    """The messages of one line: one, or several when the line is a JSON-RPC batch and `version` has batches.

    Raises `WireFault` when it is not JSON-RPC, without decoding if its first character already shows that.
    """
    start = _START.match(line)
    if start is None:
        raise WireFault("it does not begin as JSON-RPC does")
    try:
        return [_decode_server_message(line)] if start[1] == b"{" else _decode_batch(line, version)
    except NO_MESSAGE as error:
        raise WireFault(str(error)) from None


def _decode_server_message(line: bytes | bytearray) -> ServerMessage:
    """One message; half characters stay in the parts that only pass."""
    message, mended = _decode(_from_server, line)
    if len(line) >= LARGE_MESSAGE:
        _check_head(message.method, message.id if isinstance(message.id, str) else None)
    if mended:
        parts = encoding.decode_parts(line)
        message.params = parts.get("params", ABSENT)
        message.result = parts.get("result", ABSENT)
        message.error = parts.get("error", ABSENT)
        if isinstance(message.id, str):
            message.id = json.loads(bytes(parts["id"]))  # to be echoed as it came
    return message


def _decode_batch(line: bytes | bytearray, version: str | None) -> list[ServerMessage]:
    if version not in BATCHES:
        raise WireFault("it is a batch, which this version of the protocol does not have")
    members = msgspec.structs.astuple(encoding.decode(_batch_decoder(), line))
    return [each for each in members if isinstance(each, ServerMessage)]


@lru_cache(1)
def _batch_decoder() -> msgspec.json.Decoder[Any]:
    """The decoder of a batch: a struct of a hundred optional members. It stops at the first member too many, while a
    list would first be decoded whole. Made when the first batch comes, because few servers ever send one."""
    members = [
        (f"member_{n}", ServerMessage | msgspec.UnsetType, msgspec.UNSET) for n in range(BATCH_MESSAGES)
    ]
    return msgspec.json.Decoder(
        msgspec.defstruct("_Batch", members, array_like=True, forbid_unknown_fields=True)
    )


# ---- from a client -------------------------------------------------------------------------------------------------
def read_client_line(line: bytes | bytearray) -> ClientMessage:
    """The message on a client's line. Raises `RpcFault`: a parse error, or an invalid request for JSON that is not a
    message."""
    try:
        if len(line) >= LARGE_MESSAGE:
            return _decode_large_client_message(line)
        # Mend all bytes: msgspec checks only what it decodes, and the other parts are sent back or passed on.
        if not line.isascii():
            line = repair_utf8(line)
        try:
            return _from_client.decode(line)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return _decode_client_message(line)
    except msgspec.ValidationError:
        what = (
            "Batches are not supported: send" if line.lstrip()[:1] == b"[" else "Not a JSON-RPC message: send"
        )
        raise RpcFault(INVALID_REQUEST, f"{what} each JSON-RPC object by itself.") from None
    except UNREADABLE as error:
        raise RpcFault(PARSE_ERROR, f"Parse error: {why(error)}") from None


def read_client_lines(text: bytes) -> Iterable[tuple[bytes, ClientMessage]]:
    """Each line of a text, without its newline, with its message. A line that is no message gets one with nothing but
    the id that its head shows. Where all are messages, this takes half the time of one after another."""
    lines = text.removesuffix(b"\n").split(b"\n")
    if len(text) < LARGE_MESSAGE and repair_utf8(text) is text:
        with suppress(*NO_MESSAGE):
            return zip(lines, [_from_client.decode(line) for line in lines], strict=True)
    return ((line, _message_on(line)) for line in lines)


def _message_on(line: bytes) -> ClientMessage:
    try:
        return read_client_line(line.removeprefix(BYTE_ORDER_MARK))
    except RpcFault:
        return ClientMessage(id=msgspec.Raw(read_head_id(line)))


def _decode_large_client_message(line: bytes | bytearray) -> ClientMessage:
    """A large message, which was mended as it came. Raises as a decoder does, and `RpcFault` for a head that is too
    long."""
    message = _from_client.decode(line)
    try:
        _check_head(message.method, bytes(message.id))
    except WireFault as problem:
        raise RpcFault(INVALID_REQUEST, f"Invalid request: {problem}.") from None
    return message


def _decode_client_message(line: bytes | bytearray) -> ClientMessage:
    """A message with half a character in it: only its id stays as it came. The rest is mended so that every server can
    read it: servers made with the Python SDK do not answer a request with such a half. Raises as a decoder does."""
    message, mended = _decode(_from_client, line)
    if mended and bytes(message.id):
        message.id = encoding.decode_parts(line)["id"]
    return message


def read_id(message: ClientMessage) -> bytes:
    """The id as written; empty for a notification. Raises `RpcFault` when it is neither a string nor a number."""
    key = bytes(message.id)
    if key and key[0] not in _ID_STARTS:
        raise RpcFault(INVALID_REQUEST, "Invalid request: the id must be a string or a number.")
    return key


# ---- from either ---------------------------------------------------------------------------------------------------
def _decode(decoder: msgspec.json.Decoder[M], line: bytes | bytearray) -> tuple[M, bool]:
    """The message, and whether it had to be mended before it could be read. Raises as a decoder does."""
    mended = None
    try:
        return decoder.decode(line), False
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = (
            mend_escapes(line) if len(line) < LARGE_MESSAGE else None
        )  # a large one was mended as it came
        if mended is None:
            raise
    return decoder.decode(mended), True


def _check_head(method: str | None, key: str | bytes | None) -> None:
    """Raises `WireFault` when the method or the id of a large message is too long."""
    for name, value in (("id", key), ("method", method)):
        if value is not None and len(value) > LONG_ID_BYTES:
            raise WireFault(f"its {name} is longer than {LONG_ID_BYTES:,} bytes")


def read_head_id(head: bytes | bytearray) -> bytes:
    """The id, as written, of a message of which only the head can be read; empty when the head does not show it."""
    found = _HEAD_ID.match(head[:HEAD])
    return found[1] if found else b""


def answer_id_in(head: bytes | bytearray) -> int | None:
    """Our id in an answer of which only the head can be read; None when it shows none, or is not an answer."""
    if b'"method"' in head[:HEAD]:
        return None
    key = read_head_id(head).strip(b'"')
    return int(key) if key.isdigit() and len(key) < _DIGITS else None


_ANSWERS: Final = lazy_pattern(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"\s*:')
_LAST_ID: Final = lazy_pattern(rb'"id"\s*:\s*("?)(\d{1,18})\1\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')


def answer_id_at_end(head: bytes, tail: bytes) -> int | None:
    """Our id in an answer of which only the two ends can be read, and whose last member it is. The last brace of a
    message closes the message itself, so what stands before it is no part of the result."""
    found = _LAST_ID.search(tail) if _ANSWERS.match(head) else None
    return int(found[2]) if found else None


_DIGITS: Final = 19  # our ids have fewer


def as_id(value: object) -> int:
    """Our id as a number, even if it comes back as a string or a float. 0, which we never use, if the value is no
    id."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < _DIGITS else 0
    if isinstance(value, float):
        return int(value) if value.is_integer() else 0
    return value if type(value) is int else 0


def excerpt(line: bytes | bytearray, limit: int = 80) -> str:
    """The beginning of a line in a form for people: printable, on one line, cut."""
    text = json.dumps(line[:limit].decode(errors="replace"), ensure_ascii=False)
    return text if len(line) <= limit else f"{text}… ({len(line):,} bytes)"


def why(error: BaseException) -> str:
    """Why something cannot be read, in words for a client."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


_LONG: Final = 1 << 17  # bytes
_ERROR_SHOWN: Final = 1_000  # bytes of an error that has no words
_CODE_SHOWN: Final = 100  # characters of a code that is a text
_WHOLE: Final = 2**53
TOO_DEEP: Final = f"nested deeper than {DEPTH} levels"


class _ErrorBody(msgspec.Struct, gc=False):
    code: int
    message: str | msgspec.UnsetType = msgspec.UNSET
    data: Any = None


class CallParams(msgspec.Struct):
    """The params of a tools/call. `arguments` and `_meta` may be null, because some clients send that."""

    name: str
    arguments: dict[str, Any] | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class PlainCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The params of a tools/call that has nothing but a name and arguments. Without `_meta` it is of the handshake era
    and asks for no progress."""

    name: str
    arguments: msgspec.Raw = ABSENT

    def renamed(self, name: str) -> dict[str, Any]:
        """These params with another name; the arguments stay as they came."""
        return {"name": name} if self.arguments is ABSENT else {"name": name, "arguments": self.arguments}


class CancelParams(msgspec.Struct):
    request_id: msgspec.Raw = msgspec.field(default=ABSENT, name="requestId")


_any = msgspec.json.Decoder()
_error = msgspec.json.Decoder(_ErrorBody)
_call = msgspec.json.Decoder(CallParams)
_plain_call = msgspec.json.Decoder(PlainCall)
_cancel = msgspec.json.Decoder(CancelParams)
_object = msgspec.json.Decoder(dict[str, Any])
_decode_object = _object.decode
_as_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])


# ---- from a server -------------------------------------------------------------------------------------------------
class ResultMembers(msgspec.Struct, gc=False):
    """The members of a result that we know, each still JSON; the others are skipped without making anything."""

    content: msgspec.Raw = ABSENT
    contents: msgspec.Raw = ABSENT
    structured: msgspec.Raw = msgspec.field(default=ABSENT, name="structuredContent")
    messages: msgspec.Raw = ABSENT
    completion: msgspec.Raw = ABSENT
    is_error: msgspec.Raw = msgspec.field(default=ABSENT, name="isError")
    result_type: msgspec.Raw = msgspec.field(default=ABSENT, name="resultType")
    meta: msgspec.Raw = msgspec.field(default=ABSENT, name="_meta")


_members = msgspec.json.Decoder(ResultMembers)


def read_members(result: bytes) -> ResultMembers:
    """The members of a result. Raises as a decoder does."""
    return encoding.decode(_members, result)


def result_parts(result: bytes, members: ResultMembers | None = None) -> dict[str, msgspec.Raw] | None:
    """A result by its members, of which those that we do not know could be millions in a large one: None when they are
    over their bound. So it can only be passed on as it is. `members`: those of it that we know, if they have been read.
    Raises as a decoder does."""
    if len(result) >= LARGE_MESSAGE:
        known = sum(map(nbytes, msgspec.structs.astuple(members or read_members(result))))
        if len(result) - known > LONG_META_BYTES:
            return None
    return encoding.decode_parts(result)


def parts_of_meta(meta: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The `_meta` of a result, by its members; empty when it is no object, or over its bound."""
    try:
        return encoding.decode_parts(meta) if 0 < nbytes(meta) <= LONG_META_BYTES else {}
    except UNREADABLE:
        return {}


def is_true(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"true"


_WANTS_INPUT: Final = b'"input_required"'


def wants_input(result: bytes) -> bool:
    """Whether a result asks for more input. Only the members of a large one are read."""
    if result.find(b"input_required") < 0:
        return False
    try:
        return bytes(read_members(result).result_type) == _WANTS_INPUT
    except UNREADABLE:
        return False


def decode_result(result: bytes) -> dict[str, Any]:
    """The result as a dict, every field as the server sent it. Raises `WireFault` when it is not a JSON object."""
    try:
        if len(result) < _LONG:
            return _decode_object(result)
    except NO_MESSAGE:
        pass  # mended below, or it raises what is wrong with it
    value = _decode_payload(result)
    if not isinstance(value, dict):
        raise WireFault(f"the result is not an object but {_kind(value)}")
    return cast("dict[str, Any]", value)


def decode_params(params: msgspec.Raw) -> dict[str, Any] | None:
    """The params of a request or notification; None when there are none. Raises `WireFault`."""
    raw = bytes(params)
    if not raw or raw == b"null":
        return None
    value = _decode_payload(raw)
    if not isinstance(value, dict):
        raise WireFault(f"the params are not an object but {_kind(value)}")
    if is_too_deep(raw, cast("object", value)):
        raise WireFault(f"the params are {TOO_DEEP}")
    return cast("dict[str, Any]", value)


def decode_error(error: bytes) -> RpcError:
    """A JSON-RPC error as the server sent it. One that is malformed keeps its words, and has a code of ours. Data that
    cannot be passed on are left out."""
    try:
        body = encoding.decode(_error, error)
    except NO_MESSAGE:
        return _malformed_error(error)
    words = _beginning(error) if isinstance(body.message, msgspec.UnsetType) else body.message
    data = f"(left out: {TOO_DEEP})" if is_too_deep(error, body.data) else body.data
    return RpcError(body.code, words, data)


def _beginning(error: bytes) -> str:
    text = (
        error if len(error) <= 2 * _ERROR_SHOWN else b"%b %b" % (error[:_ERROR_SHOWN], error[-_ERROR_SHOWN:])
    )
    return shortened(text.decode(errors="replace"), _ERROR_SHOWN)


def _malformed_error(error: bytes) -> RpcError:
    """What a server said with an error that is no object, or has a code that is no whole number."""
    try:
        said = _decode_payload(error)
    except WireFault as problem:
        return fault(f"the error of the answer is malformed ({problem}): {excerpt(error)}")
    if isinstance(said, str) and said:
        return RpcError(INTERNAL_ERROR, said)
    body = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    code, message = body.get("code"), body.get("message")
    words = message if isinstance(message, str) and message else _beginning(error)
    if isinstance(code, float) and code.is_integer() and abs(code) < _WHOLE:
        return RpcError(int(code), words)
    if isinstance(code, str) and words is message:
        words = f"{message} (code {code[:_CODE_SHOWN]})"
    return RpcError(INTERNAL_ERROR, words)


def _decode_payload(raw: bytes) -> Any:
    try:
        return encoding.decode(_any, raw) if len(raw) < _LONG else _without_collecting(raw)
    except NO_MESSAGE as error:
        raise WireFault(f"not JSON: {error}") from None


def _without_collecting(raw: bytes) -> Any:
    """Decode with the garbage collector off. All new objects are kept, so the collector would only look at them again
    and again: that took four fifths of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return encoding.decode(_any, raw)
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
        return encoding.decode_parts(params)
    except UNREADABLE:
        return {} if bytes(params) in (b"", b"null") else _read(_as_parts, params)


class _LongParams(msgspec.Struct, gc=False):
    """What may be long in the params of a request. A decoder skips the other members without making anything."""

    arguments: msgspec.Raw = ABSENT
    input_responses: msgspec.Raw = msgspec.field(default=ABSENT, name="inputResponses")


_long_params = msgspec.json.Decoder(_LongParams)


def read_large_parts(params: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """`read_parts` of a large request. Only what it asks about may be large: its other members could be millions.
    Raises `RpcFault`."""
    long = _read(_long_params, params)
    check_rest(params, (long.arguments, long.input_responses), "arguments and inputResponses")
    return read_parts(params)


def check_rest(whole: msgspec.Raw, long: Iterable[msgspec.Raw], what: str) -> None:
    """Raises `RpcFault` when an object of a large request has more than its bound beside its `long` members, which are
    called `what`."""
    if nbytes(whole) - sum(map(nbytes, long)) > LONG_META_BYTES:
        text = f"Invalid params: a large message may have {LONG_META_BYTES:,} bytes beside {what}."
        raise RpcFault(INVALID_PARAMS, text)


def plain_call(parts: Mapping[str, msgspec.Raw]) -> PlainCall | None:
    """`read_plain_call`, of params that were read by their parts."""
    if not parts.keys() <= {"name", "arguments"} or nbytes(parts.get("name", ABSENT)) > LONG_ID_BYTES:
        return None
    name = read_value(parts.get("name"))
    return PlainCall(name, parts.get("arguments", ABSENT)) if isinstance(name, str) else None


def nbytes(raw: msgspec.Raw) -> int:
    """Its length. Its bytes are not copied for that."""
    return memoryview(raw).nbytes


def read_meta(params: Mapping[str, msgspec.Raw]) -> dict[str, Any] | None:
    """The `_meta` of params, decoded; None when it is absent or null. Raises `RpcFault`."""
    if "_meta" not in params:
        return None
    meta = read_value(params["_meta"])
    if meta is None or isinstance(meta, dict):
        return cast("dict[str, Any] | None", meta)
    raise RpcFault(INVALID_PARAMS, "Invalid params: _meta must be an object.")


def read_at(value: object, path: Iterable[str]) -> object:
    """The value at a path of members; None when there is none, or a long one that is still JSON. What is still JSON is
    only decoded along the path, because there may be megabytes beside it."""
    try:
        for key in path:
            if isinstance(value, msgspec.Raw):
                value = _member(value, key)
            elif isinstance(value, Mapping):
                value = cast("Mapping[str, object]", value).get(key)
            else:
                return None
        if isinstance(value, msgspec.Raw):
            return read_value(value) if nbytes(value) <= LONG_ID_BYTES else None
        return value
    except (RpcFault, *UNREADABLE):
        return None


def _member(raw: msgspec.Raw, key: str) -> msgspec.Raw | None:
    """The member of this name, or None. Nothing is made of the others. Raises as a decoder does."""
    decoder = _only(key)
    if decoder is not None:
        found = encoding.decode(decoder, raw).value
        return found if nbytes(found) else None
    return None if nbytes(raw) >= LARGE_MESSAGE else encoding.decode_parts(raw).get(key)


@lru_cache(256)
def _only(key: str) -> msgspec.json.Decoder[Any] | None:
    """A decoder of an object that makes nothing but this member; None: it cannot be made for such a name."""
    try:
        only = msgspec.defstruct("_Only", [("value", msgspec.Raw, ABSENT)], rename={"value": key})
    except ValueError:
        return None
    return msgspec.json.Decoder(only)


def read_value(raw: msgspec.Raw | None) -> Any:
    """The decoded part; None when it is absent. Raises `RpcFault`."""
    if raw is None:
        return None
    try:
        return encoding.decode(_any, raw)
    except UNREADABLE as error:
        raise RpcFault(INVALID_PARAMS, f"Invalid params: {why(error)}") from None


def _read(decoder: msgspec.json.Decoder[Any], params: msgspec.Raw) -> Any:
    try:
        return encoding.decode(decoder, params if nbytes(params) else b"{}")
    except UNREADABLE as error:
        raise RpcFault(INVALID_PARAMS, f"Invalid params: {why(error)}") from None
