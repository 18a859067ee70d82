"""Makes plain who is speaking: nobody can speak in Greenroom's name, and a server's request or error names
the server.

Keys of ours in the `_meta` of a server's or a client's message are removed at the door, in both directions.
Otherwise a server could pass off its words as the gateway's. So is the mark of a task, because the tasks of a client
and those of a server have different ids. A person who is asked for a password sees the
same dialog for every server behind the gateway. So the text begins with the server's name, and a field gives
it to programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..protocol import jsonrpc as rpc
from ..protocol.bounds import LONG_META_BYTES
from ..protocol.json_values import is_array, is_object
from ..protocol.tasks import RELATED
from .result_meta import OURS, SERVER

# A result that holds a key of ours contains one of these: the name itself, or escapes that hide it.
NAMED: Final = b"greenroom"
ESCAPE: Final = b"\\u00"
_NOT_PASSED: Final = (OURS, RELATED)


def without_ours(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Somebody else's params or result, without keys of ours and the mark of a task in `_meta`."""
    meta: object = params.get("_meta")
    if not is_object(meta) or not any(key.startswith(_NOT_PASSED) for key in meta):
        return params
    return {**params, "_meta": {key: value for key, value in meta.items() if not key.startswith(_NOT_PASSED)}}


def result_without_ours(result: bytes) -> bytes:
    """A server's result in bytes, without keys of ours and the mark of a task in `_meta`. Only a result that contains
    `NAMED` or `ESCAPE` needs this. A `_meta` over its bound is left out. Raises as a decoder does for a result that
    cannot be changed."""
    try:
        members = rpc.read_members(result)
    except rpc.NO_MESSAGE:
        return result  # not an object, so it has no keys
    said = rpc.parts_of_meta(members.meta)
    kept = {key: value for key, value in said.items() if not key.startswith(OURS)}
    if len(kept) == len(said) and rpc.nbytes(members.meta) <= LONG_META_BYTES:
        return result
    parts = rpc.result_parts(result, members)
    if parts is None:
        raise msgspec.ValidationError("its other members are too long")
    return rpc.encode({**parts, "_meta": kept})


def attributed_request(server: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The params of a server's request to a client, with the server's name in a field. If a person sees a
    text, the name is in the text too."""
    kept = without_ours(params)
    if method not in ("elicitation/create", "sampling/createMessage"):
        return kept
    meta: Mapping[str, Any] = kept.get("_meta") or {}
    asked: dict[str, Any] = {**kept, "_meta": {**meta, SERVER: server}}
    if method != "elicitation/create":
        return asked
    said: Mapping[str, Any] = params.get("_meta") or {}
    return signed(server, asked, said.get(SERVER))


def signed(server: str, said: Mapping[str, Any], behind: object = None) -> dict[str, Any]:
    """What was said, with the server's name at the start of its `message`, which a person reads. `behind`: the server
    of another Greenroom that asks; it has said so at the same place, and a person reads one path there. (Whoever only
    pretends to be one comes behind its own name all the same.)"""
    message = said.get("message")
    if (
        isinstance(message, str)
        and isinstance(behind, str)
        and message.startswith((f"[{behind}] ", f"[{behind}/"))
    ):
        return {**said, "message": f"[{server}/{message[1:]}"}
    return {**said, "message": f"[{server}] {message}"} if isinstance(message, str) else dict(said)


def error_data_of(server: str, data: Any) -> Any:
    """The data of a server's error, with the server's name added if it is an object or absent."""
    if data is None:
        return {SERVER: server}
    if not is_object(data):
        return data
    said = {key: value for key, value in data.items() if not str(key).startswith(OURS)}
    asked = said.get("elicitations")  # the requests that must be answered first (-32042)
    if is_array(asked):
        said["elicitations"] = [signed(server, one) if is_object(one) else one for one in asked]
    return {**said, SERVER: server}
