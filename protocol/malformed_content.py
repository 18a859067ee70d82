"""What is in a result whose content has another form than the protocol says: every word of it, in a form that its
readers take.

A server that answers with one text where a list of blocks belongs has said something, and the SDKs of clients refuse
the whole result for it. So a text becomes a text block, one block a list, and what is neither is shown as JSON.
Whatever has the right form is the same object as before. Rejected: to refuse such a result in our words: the call has
run, and what came is the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

Block = dict[str, Any]
_ROLES: Final = ("user", "assistant")


def blocks_in(content: object) -> list[Block]:
    """The content blocks of a tool's result."""
    return [_block(each) for each in _listed(content)]


def contents_in(result: Mapping[str, Any], uri: str = "") -> list[Block]:
    """The contents of a resources/read. `uri`: what was asked for, for those that name none."""
    said = result.get("contents")
    if said is None:  # as a tool answers
        said = result.get("content")
    return [_contents(each, uri) for each in _listed(said)]


def messages_in(messages: object) -> list[Block]:
    """The messages of a prompts/get."""
    return [found for each in _listed(messages) for found in _messages(each)]


def _listed(said: object) -> list[Any]:
    if isinstance(said, list):
        return cast("list[Any]", said)
    return [] if said is None else [said]


def _block(said: Any) -> Block:
    if isinstance(said, dict):
        return cast("Block", said)
    return {"type": "text", "text": said if isinstance(said, str) else _json(said)}


def _contents(said: Any, uri: str) -> Block:
    if not isinstance(said, dict):
        return {"uri": uri, "text": said if isinstance(said, str) else _json(said)}
    one = cast("Block", said)
    if not isinstance(one.get("text"), str) and not isinstance(one.get("blob"), str):
        kept = {"uri": one["uri"]} if isinstance(one.get("uri"), str) else {"uri": uri}
        return {**kept, "text": _json(one)}
    return one if isinstance(one.get("uri"), str) else {**one, "uri": uri}


def _messages(said: Any) -> Iterator[Block]:
    one = cast("Block", said) if isinstance(said, dict) else {}
    content = one.get("content")
    if content is None:  # it is no message, and may be a block
        yield {"role": "user", "content": _block(said if "type" in one or not one else _json(one))}
    elif isinstance(one["content"], dict) and one.get("role") in _ROLES:
        yield one
    else:
        role = one.get("role") if one.get("role") in _ROLES else "user"
        for each in _listed(content):
            yield {**one, "role": role, "content": _block(each)}


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(nested too deeply to be shown)"
