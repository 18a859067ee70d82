"""Reads a call of the `mcp` tool whose params are megabytes, in slices.

The arguments of the server's tool stay JSON, member by member: encoding them again could not be done in slices. They
may come as JSON text in a string, which is looked into here too: nobody has counted yet how many values are in there.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...actors.values import Values
from ...protocol import jsonrpc as rpc
from ...protocol.cooperative import Slices
from ...protocol.jsonrpc.incoming import CallParams
from ...protocol.jsonrpc.terms import RpcFault, WireFault
from ...protocol.large_json import LARGE, decoding, first_mark, outlining
from ...protocol.large_message import mending_escapes

_PIECE: Final = 1 << 16  # bytes
_OBJECT, _TEXT = b'{"'


def reading_call(params: bytes) -> Slices[CallParams]:
    """`rpc.read_call`, in slices. Raises `RpcFault`."""
    try:
        said: dict[str, Any] = {}
        for name, part in (yield from outlining(params, {"name", "arguments"})).items():
            said[name] = yield from (_reading_arguments(part) if name == "arguments" else decoding(part))
        return msgspec.convert(said, CallParams)
    except (WireFault, msgspec.ValidationError) as problem:
        raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: {problem}") from None


def _reading_arguments(part: bytes) -> Slices[Any]:
    if first_mark(part) != _OBJECT:
        return (yield from decoding(part))
    arguments: dict[str, Any] = {}
    for name, member in (yield from outlining(part)).items():
        arguments[name] = yield from (_reading_args(member) if name == "args" else decoding(member))
    return arguments


def _reading_args(member: bytes) -> Slices[Any]:
    if first_mark(member) == _TEXT:
        (text,) = yield from decoding(b"[%b]" % member)
        if len(text) < LARGE:
            return text
        member = yield from _reading_text(text.encode())
    if first_mark(member) != _OBJECT:
        return (yield from decoding(member))
    members = yield from outlining(member)
    return {name: msgspec.Raw(each) for name, each in members.items()}


def _reading_text(text: bytes) -> Slices[bytes]:
    """JSON text on one line, with no more values than a message may have."""
    seen, values = bytearray(), None
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE].replace(b"\n", b" ").replace(b"\r", b" ")
        seen += piece
        values, over = Values.counted(values, piece, seen)
        if over:
            raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: args has more than {over}.")
        yield
    return (yield from mending_escapes(bytes(seen)))
