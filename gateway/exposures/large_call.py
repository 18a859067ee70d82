"""Reads a call of a tool of ours, or of one beside it, whose params are megabytes.

The arguments of the server's tool stay JSON, member by member: nobody decodes and encodes them again. They may come as
JSON text in a string, which is looked into here too: nobody has counted yet how many values are in there. Any other
member that is long stays JSON as well.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import msgspec

from ...actors.message_buffer import LONG, has_more_values
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import MESSAGE_VALUES
from ...protocol.jsonrpc.encoding import UNREADABLE
from ...protocol.jsonrpc.incoming import CallParams, why
from ...protocol.jsonrpc.terms import RpcFault
from ...protocol.safe_text import JsonRepair

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")  # in JSON they are white space


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, msgspec.Raw] | None = None


_call = msgspec.json.Decoder(_Call)


def read_large_call(params: msgspec.Raw) -> CallParams:
    """`rpc.read_call`, in which the arguments of the server's tool stay JSON. Raises `RpcFault`."""
    try:
        call = _call.decode(params)
    except UNREADABLE as error:
        _refuse(why(error))
    if call.arguments is None:
        return CallParams(call.name)
    return CallParams(call.name, {key: _member(key, part) for key, part in call.arguments.items()})


def _member(key: str, part: msgspec.Raw) -> Any:
    if rpc.nbytes(part) < LONG:
        return rpc.read_value(part)
    if key != "args":
        return part
    is_text = bytes(memoryview(part)[:1]) == b'"'
    return rpc.read_parts(_in_text(rpc.read_value(part)) if is_text else part)


def _in_text(text: str) -> msgspec.Raw:
    """The JSON in a text, on one line."""
    raw = text.encode(errors="replace").translate(_ONE_LINE)
    if has_more_values(raw, MESSAGE_VALUES):
        _refuse(f"args has more than {MESSAGE_VALUES:,} values.")
    repair = JsonRepair()
    pieces = [repair.take(raw[at : at + LONG]) for at in range(0, len(raw), LONG)]
    return msgspec.Raw(b"".join((*pieces, repair.take(b"", is_last=True))))


def _refuse(text: str) -> NoReturn:
    raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: {text}")
