"""Reads large messages in slices (`protocol/large_json`), so that a line of megabytes does not make others wait.

The result is the same as from `jsonrpc.decode_line` and `jsonrpc.read_client_line`. Only the id and the method are
decoded. A payload is `bytes` where a small message has a `Raw`, so that reading its bytes does not copy it once more.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from .bounds import LONG_ID_BYTES, LONG_META_BYTES
from .cooperative import Slices
from .jsonrpc.incoming import (
    ABSENT,
    ClientMessage,
    Envelope,
    PlainCall,
    RawParts,
    ServerMessage,
    decode_line,
    raw_parts,
    read_client_line,
    read_value,
)
from .jsonrpc.terms import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, RpcFault, WireFault
from .large_json import first_mark, outlining
from .safe_text import mend_escapes

LARGE_MESSAGE: Final = 1 << 20  # bytes of a message from which on it is read in slices
_PIECE: Final = 1 << 18  # bytes
_PAIR: Final = 12  # bytes of two escaped halves
_OBJECT: Final = ord("{")
_ESCAPES: Final = re.compile(rb"[^\\]*+(?:\\(?:[^u]|u.{4})[^\\]*+)*+", re.DOTALL)  # only complete ones
_FIRST_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_PAYLOADS: Final = ("params", "result", "error")
_NAMES: Final = frozenset(("id", "method", *_PAYLOADS))
M = TypeVar("M", bound=Envelope)


def reading_line(line: bytes | bytearray, version: str | None) -> Slices[list[ServerMessage]]:
    """`decode_line`, in slices. A batch is still read in one go. Raises `WireFault`."""
    if first_mark(line) != _OBJECT:
        return decode_line(line, version)
    parts = yield from outlining(line, _NAMES)
    (message,) = decode_line(_head_of(parts))
    return [_with_payloads(message, parts)]


def reading_client_line(line: bytes | bytearray) -> Slices[ClientMessage]:
    """`read_client_line`, in slices. Raises `RpcFault`."""
    text = yield from repairing_utf8(line)
    if first_mark(text) != _OBJECT:
        raise RpcFault(INVALID_REQUEST, "Not a JSON-RPC message: send one JSON-RPC object per line.")
    try:
        parts = yield from outlining(text, _NAMES)
    except WireFault as problem:
        raise RpcFault(PARSE_ERROR, f"Parse error: {problem}") from None
    try:
        message = read_client_line(_head_of(parts))
    except WireFault as problem:
        raise RpcFault(INVALID_REQUEST, f"Invalid request: {problem}.") from None
    for name in parts.keys() & _PAYLOADS:  # mended, so that every server can read it
        parts[name] = yield from mending_escapes(parts[name])
    return _with_payloads(message, parts)


def reading_params(message: Envelope) -> Slices[RawParts]:
    """`read_parts` of a large message's params, in slices. Raises `RpcFault`."""
    try:
        parts = yield from outlining(bytes(message.params))
    except WireFault as problem:
        raise RpcFault(INVALID_PARAMS, f"Invalid params: {problem}") from None
    if len(parts.get("_meta", b"")) > LONG_META_BYTES:
        raise RpcFault(
            INVALID_PARAMS, f"Invalid params: _meta of a long message may have {LONG_META_BYTES:,} bytes."
        )
    return raw_parts(parts)


def plain_call(parts: Mapping[str, Any]) -> PlainCall | None:
    """`read_plain_call`, of params that were read in slices; each part is a `Raw`."""
    if not parts.keys() <= {"name", "arguments"} or len(bytes(parts.get("name", b""))) > LONG_ID_BYTES:
        return None
    name = read_value(parts.get("name"))
    return PlainCall(name, parts.get("arguments", ABSENT)) if isinstance(name, str) else None


def _head_of(parts: dict[str, bytes]) -> bytes:
    """A small message with only the id and the method from these parts."""
    head = {name: parts[name] for name in ("id", "method") if name in parts}
    for name, value in head.items():
        if len(value) > LONG_ID_BYTES:
            raise WireFault(f"its {name} is longer than {LONG_ID_BYTES:,} bytes")
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), value) for name, value in head.items())


def _with_payloads(message: M, parts: dict[str, bytes]) -> M:
    for name in parts.keys() & _PAYLOADS:
        setattr(message, name, parts[name])
    return message


def repairing_utf8(data: bytes | bytearray) -> Slices[bytes | bytearray]:
    """`halves.repair_utf8`, in slices."""
    strict, is_pending = codecs.getincrementaldecoder("utf-8")(), False
    try:
        for piece in _pieces(data):
            if is_pending or not piece.isascii():
                is_pending = _is_pending(strict, piece)
            yield
        strict.decode(b"", final=True)
    except UnicodeDecodeError:
        pass
    else:
        return data
    lenient, mended = codecs.getincrementaldecoder("utf-8")("replace"), bytearray()
    for piece in _pieces(data):
        mended += lenient.decode(piece).encode()
        yield
    mended += lenient.decode(b"", final=True).encode()
    return mended


def mending_escapes(text: bytes) -> Slices[bytes]:
    """`halves.mend_escapes`, in slices; the same object when there is nothing to mend."""
    pieces, at, is_mended = list[bytes](), 0, False
    while at < len(text):
        end = _end_of_escapes(text, at)
        piece = text[at:end]
        mended = mend_escapes(piece)
        is_mended = is_mended or mended is not None
        pieces.append(piece if mended is None else mended)
        at = end
        yield
    return b"".join(pieces) if is_mended else text


def _end_of_escapes(text: bytes, at: int) -> int:
    """A place about a piece behind `at`, where no escape begins. It splits neither an escape nor a pair of them."""
    end = at + _PIECE
    if end >= len(text) or text.find(b"\\", max(at, end - _PAIR), end) < 0:
        return end
    found = _ESCAPES.match(text, at, end)
    assert found is not None
    end = found.end()
    half = end - _PAIR // 2
    if half > at and _FIRST_HALF.match(text, half, end):
        before = text[at:half]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:  # it begins an escape, and is not in one
            end = half
    return end if end > at else len(text)


def _is_pending(decoder: codecs.IncrementalDecoder, piece: bytes | bytearray) -> bool:
    """Decode a piece. Returns whether a character has begun that has not ended yet."""
    decoder.decode(piece)
    held: Any = decoder.getstate()[0]
    return bool(held)


def _pieces(data: bytes | bytearray) -> Iterator[bytes | bytearray]:
    return (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
