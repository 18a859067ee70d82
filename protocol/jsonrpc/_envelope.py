"""Incoming messages: the envelope is decoded once, and its payloads only when they are needed.

`params`, `result` and `error` stay the bytes that came, so nothing in them can be lost, renamed or validated on the
way. The two sides differ only in the id. Servers mostly send answers, which carry our ids, so there an id is read as a
value and looked up. Clients mostly send requests, which carry their ids, so there an id is kept as it was written and
echoed unchanged: a number stays that number and a string that string.

When a line is not a message, we use what can still be read. If the head of the line shows an id, a broken answer still
ends its exchange, and a broken request is answered under that id. Anything else from a server is junk and is counted. A
client is told what was wrong (`RpcFault`). Half a character, as JavaScript escapes it, breaks nothing
(`protocol/halves`): data that only passes keeps it.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from .. import lenient
from ..bounds import BATCH_MESSAGES
from ..halves import mend_escapes, repair_utf8
from ._faults import RpcFault, WireFault
from ._json import UNREADABLE
from ._terms import BATCHES, INVALID_REQUEST, PARSE_ERROR

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
decode_message = _from_server.decode

_START = re.compile(rb"\s*+([\[{])")
_ID_STARTS: Final = b'"-0123456789'
# Only at the top level and before anything nested: behind a nested value, we cannot tell inside from outside.
_HEAD_ID: Final = re.compile(rb'\s*\{[^{}\[\]]*?"id"\s*:\s*("[^"\\\x00-\x1f\x80-\xff]*"|-?\d{1,18})\s*[,}]')


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
    if mended:
        parts = lenient.decode_parts(line)
        message.params = parts.get("params", ABSENT)
        message.result = parts.get("result", ABSENT)
        message.error = parts.get("error", ABSENT)
        if isinstance(message.id, str):
            message.id = json.loads(bytes(parts["id"]))  # to be echoed as it came
    return message


def _decode_batch(line: bytes | bytearray, version: str | None) -> list[ServerMessage]:
    if version not in BATCHES:
        raise WireFault("it is a batch, which this version of the protocol does not have")
    members = msgspec.structs.astuple(lenient.decode(_batch_decoder(), line))
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


def read_client_line(line: bytes) -> ClientMessage:
    """The message on a client's line. Raises `RpcFault`: a parse error, or an invalid request for JSON that is not a
    message."""
    try:
        # Mend all bytes: msgspec checks only what it decodes, and the other parts are sent back or passed on.
        text = line if line.isascii() else repair_utf8(line)
        try:
            return _from_client.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return _decode_client_message(text)
    except msgspec.ValidationError:
        what = (
            "Batches are not supported: send" if line.lstrip()[:1] == b"[" else "Not a JSON-RPC message: send"
        )
        raise RpcFault(INVALID_REQUEST, f"{what} one JSON-RPC object per line.") from None
    except UNREADABLE as error:
        raise RpcFault(PARSE_ERROR, f"Parse error: {why(error)}") from None


def _decode_client_message(line: bytes | bytearray) -> ClientMessage:
    """A message with half a character in it: only its id stays as it came. The rest is mended so that every server can
    read it: servers made with the Python SDK do not answer a request with such a half. Raises as a decoder does."""
    message, mended = _decode(_from_client, line)
    if mended and bytes(message.id):
        message.id = lenient.decode_parts(line)["id"]
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
        mended = mend_escapes(line)
        if mended is None:
            raise
    return decoder.decode(mended), True


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


_DIGITS: Final = 19  # our ids have fewer


def as_id(value: object) -> int:
    """Our id as a number, even if it comes back as a string or a float. 0, which we never use, if it is not an id."""
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
    """The reason why something cannot be read, for a client."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
