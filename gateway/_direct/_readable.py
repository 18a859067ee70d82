"""Makes results readable that strict clients refuse, where nothing is lost by it.

These are: a tool's result without `content` (from servers that answer with structured content only), contents
without the URI they were requested by, and more completions than the protocol allows. The SDKs raise on
these, and the answer is lost. All other results pass as the bytes they are; for a tool's result that takes
one look at the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from ...protocol import jsonrpc as rpc
from ...protocol.bounds import COMPLETIONS

_MOST_VALUES: Final = COMPLETIONS


CONTENT: Final = b'"content":'  # ten bytes
# What follows `CONTENT` in nearly every result of a tool. Such a result passes.
LIST: Final = (b"[{", b"[]", b" [")


def readable_tool(result: bytes) -> bytes:
    if result.find(b'"content":[') >= 0 or result.find(b'"content": [') >= 0:
        return result
    parts: dict[str, Any] = dict(rpc.read_parts(msgspec.Raw(result)))
    kind = rpc.read_value(parts.get("resultType"))
    if kind not in (None, "complete") or "task" in parts or rpc.read_value(parts.get("content")) is not None:
        return result
    structured = parts.get("structuredContent")
    said = None if structured is None else bytes(structured)
    text = [] if said in (None, b"null") else [{"type": "text", "text": said.decode(errors="replace")}]
    kept = {key: value for key, value in parts.items() if bytes(value) != b"null"}
    return rpc.encode({**kept, "content": text})


def readable(method: str, params: Mapping[str, msgspec.Raw], result: bytes) -> bytes:
    """The same for whatever `method` was asked with `params`."""
    if method == "tools/call":
        return readable_tool(result)
    if method == "resources/read":
        return _with_uris(rpc.read_value(params.get("uri")), result)
    if method == "completion/complete":
        return _shortened(result)
    return result


def _with_uris(asked: Any, result: bytes) -> bytes:
    parts = rpc.read_parts(msgspec.Raw(result))
    contents = rpc.read_value(parts.get("contents"))
    if not isinstance(contents, list):
        return result
    items = [cast("dict[str, Any]", each) for each in cast("list[Any]", contents) if isinstance(each, dict)]
    if len(items) == len(cast("list[Any]", contents)) and all(
        isinstance(item.get("uri"), str) for item in items
    ):
        return result
    named = [item if isinstance(item.get("uri"), str) else {**item, "uri": asked} for item in items]
    return rpc.encode({**parts, "contents": named})


def _shortened(result: bytes) -> bytes:
    parts = rpc.read_parts(msgspec.Raw(result))
    completion: Any = rpc.read_value(parts.get("completion"))
    values: Any = cast("dict[str, Any]", completion).get("values") if isinstance(completion, dict) else None
    if not isinstance(values, list) or len(cast("list[Any]", values)) <= _MOST_VALUES:
        return result
    first = cast("list[Any]", values)[:_MOST_VALUES]
    return rpc.encode({**parts, "completion": {**completion, "values": first, "hasMore": True}})
