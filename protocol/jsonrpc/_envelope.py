"""Messages in: the envelope is read once, everything inside it only when somebody looks.

`params`, `result` and `error` stay the bytes that came, so nothing of them can be lost, renamed or validated on the
way. The two sides differ in the id alone. What servers send most are answers, and those carry ids of ours, so there an
id is read as a value and looked up. What clients send most are requests, and those carry ids of theirs, so there it is
kept as it was written and echoed as such: a number stays that number and a string that string.

A line that is no message is told apart by how much of it can still be used. An answer that is broken names the exchange
it belongs to, and a broken request its id, if the head of the line shows it. From a server anything else is junk, to be
counted; a client is told what was wrong (`RpcFault`). Half a character, as JavaScript escapes it, breaks nothing
(`protocol/halves`): what only passes keeps it.
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
# What the decoder of a message raises when it is something else.
NO_MESSAGE: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)

M = TypeVar("M", bound="Envelope")


class Envelope(msgspec.Struct, gc=False):
    """One message, its payloads still bytes (`ABSENT`, which is empty, where there is none). A request has `method` and
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
# The one message of a server's line. Raises one of `NO_MESSAGE` when it is something else, for `decode_line` to say
# what. No function around it: that costs as much again, for every answer.
decode_message = _from_server.decode

_START = re.compile(rb"\s*+([\[{])")
_ID_STARTS: Final = b'"-0123456789'
# At the top level, before anything nested: what stands behind a nested value cannot be told from its inside.
_HEAD_ID: Final = re.compile(rb'\s*\{[^{}\[\]]*?"id"\s*:\s*("[^"\\\x00-\x1f\x80-\xff]*"|-?\d{1,18})\s*[,}]')


# ---- from a server -------------------------------------------------------------------------------------------------


def decode_line(line: bytes | bytearray, version: str | None = None) -> list[ServerMessage]:
    """The messages of one line: one, or several when the line is a JSON-RPC batch and `version` has those.

    Raises `WireFault` when it is no JSON-RPC, at once where its first character says so.
    """
    start = _START.match(line)
    if start is None:
        raise WireFault("it does not begin as JSON-RPC does")
    try:
        return [_decode_server_message(line)] if start[1] == b"{" else _decode_batch(line, version)
    except NO_MESSAGE as error:
        raise WireFault(str(error)) from None


def _decode_server_message(line: bytes | bytearray) -> ServerMessage:
    """One message; half characters in what only passes stay there."""
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
        raise WireFault("a batch, which this version of the protocol does not have")
    members = msgspec.structs.astuple(lenient.decode(_batch_decoder(), line))
    return [each for each in members if isinstance(each, ServerMessage)]


@lru_cache(1)
def _batch_decoder() -> msgspec.json.Decoder[Any]:
    """A batch as a struct of a hundred optional members: that ends at the first one too many, a list after all of them.
    Made when the first batch comes, for few ever do."""
    members = [
        (f"member_{n}", ServerMessage | msgspec.UnsetType, msgspec.UNSET) for n in range(BATCH_MESSAGES)
    ]
    return msgspec.json.Decoder(
        msgspec.defstruct("_Batch", members, array_like=True, forbid_unknown_fields=True)
    )


# ---- from a client -------------------------------------------------------------------------------------------------


def read_client_line(line: bytes) -> ClientMessage:
    """Raises `RpcFault`: parse error, or invalid request for JSON that is no message."""
    try:
        # msgspec looks only into what it decodes, and what it does not is sent back or passed on
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
    """A message with half a character in it: only its id stays as it came. Servers are sent what every server can read:
    those of the SDK in Python leave a request with such a half unanswered. Raises as a decoder does."""
    message, mended = _decode(_from_client, line)
    if mended and bytes(message.id):
        message.id = lenient.decode_parts(line)["id"]
    return message


def read_id(message: ClientMessage) -> bytes:
    """The id as written; empty for a notification. Raises `RpcFault` when it is no string and no number."""
    key = bytes(message.id)
    if key and key[0] not in _ID_STARTS:
        raise RpcFault(INVALID_REQUEST, "Invalid request: the id must be a string or a number.")
    return key


# ---- from either ---------------------------------------------------------------------------------------------------


def _decode(decoder: msgspec.json.Decoder[M], line: bytes | bytearray) -> tuple[M, bool]:
    """The message, and whether it had to be mended to be read at all. Raises as a decoder does."""
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
    """The id, as written, of a message of which only the head can be read; empty when the head does not say."""
    found = _HEAD_ID.match(head[:HEAD])
    return found[1] if found else b""


def answer_id_in(head: bytes | bytearray) -> int | None:
    """Our id in an answer of which only the head can be read; None when it has none, or is no answer."""
    if b'"method"' in head[:HEAD]:
        return None
    key = read_head_id(head).strip(b'"')
    return int(key) if key.isdigit() and len(key) < _DIGITS else None


_DIGITS: Final = 19  # an id of ours has fewer


def as_id(value: object) -> int:
    """An id as we gave it, also if it comes back as a string or a float. 0, which we never give, if it is none."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < _DIGITS else 0
    if isinstance(value, float):
        return int(value) if value.is_integer() else 0
    return value if type(value) is int else 0


def excerpt(line: bytes | bytearray, limit: int = 80) -> str:
    """The beginning of a line as people may see it: printable, on one line, cut."""
    text = json.dumps(line[:limit].decode(errors="replace"), ensure_ascii=False)
    return text if len(line) <= limit else f"{text}… ({len(line):,} bytes)"


def why(error: BaseException) -> str:
    """Why something cannot be read, for a client."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
