"""Reads a call of a tool of ours, or of one beside it, whose params are megabytes. It is work for a thread.

The arguments of the server's tool stay the JSON of an object: nobody decodes and encodes them again. For a tool of ours
they are `args`, and may come as JSON text in a string, which is looked into here too: nobody has counted yet how many
values are in there.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final, NoReturn

import attrs
import msgspec

from ...actors.message_buffer import LONG, on_one_line
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import DECODED_ESCAPES, MESSAGE_VALUES
from ...protocol.jsonrpc.encoding import UNREADABLE
from ...protocol.jsonrpc.incoming import why
from ...protocol.jsonrpc.terms import RpcFault
from ...protocol.long_text import unquoted
from ...protocol.safe_text import JsonRepair
from ...protocol.value_count import has_more_values

_NULL: Final = b"null"


class _ToolCallParams(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(_NULL)


class _Arguments(msgspec.Struct):
    args: msgspec.Raw = rpc.ABSENT


_call = msgspec.json.Decoder(_ToolCallParams)
_arguments = msgspec.json.Decoder(_Arguments)
_raw = msgspec.json.Decoder(msgspec.Raw)


@attrs.frozen
class LargeCall:
    """The name of a tool and its arguments. The arguments of a tool of ours are decoded; those of any other tool are
    the JSON of an object."""

    name: str
    arguments: Mapping[str, Any] | msgspec.Raw | None


def read_large_call(params: msgspec.Raw, ours: Container[str]) -> LargeCall:
    """Read the params of a large call. `ours`: the names of our tools. Raises `RpcFault`."""
    try:
        call = _call.decode(params)
        given = call.arguments
        if bytes(memoryview(given)[:4]) == _NULL:
            return LargeCall(call.name, None)
        args = _arguments.decode(given).args  # raises for what is no object
    except UNREADABLE as error:
        _refuse(why(error))
    if call.name not in ours:
        return LargeCall(call.name, given)
    rpc.check_rest(given, [args], "args")
    parts = rpc.read_parts(given)
    return LargeCall(
        call.name,
        {key: _args(part) if key == "args" else rpc.read_value(part) for key, part in parts.items()},
    )


def _args(part: msgspec.Raw) -> Any:
    if rpc.nbytes(part) < LONG:
        return rpc.read_value(part)
    if bytes(memoryview(part)[:1]) != b'"':
        return part
    quoted = bytes(part)
    if quoted.count(b"\\") > DECODED_ESCAPES:
        _refuse(f"args is a text with more than {DECODED_ESCAPES:,} escaped characters: give an object.")
    return _in_text(unquoted(quoted))


def _in_text(text: bytes) -> msgspec.Raw:
    """The JSON in a text, on one line."""
    raw = on_one_line(text)
    if has_more_values(raw, MESSAGE_VALUES):
        _refuse(f"args has more than {MESSAGE_VALUES:,} values and keys.")
    repair = JsonRepair()
    pieces = [repair.take(raw[at : at + LONG]) for at in range(0, len(raw), LONG)]
    try:
        return _raw.decode(b"".join((*pieces, repair.take(b"", is_last=True))))
    except UNREADABLE as error:
        _refuse(why(error))


def _refuse(text: str) -> NoReturn:
    raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: {text}")
