"""The answer of the `mcp` tool: content blocks for the model, and `details` for a program.

An answer is always a result, never a JSON-RPC error: a model can read a result and go on. It has no
`structuredContent`, because clients would show that in place of the content; the details are in `_meta`. If
the request was not carried out, `details.error` is set, and `isError` with it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec

from ...protocol.plain_text import unhidden
from ...protocol.unhiding import unhidden_value
from .._commands import Commands
from .._marks import DETAILS

DETAILS_LIMIT: Final = 51_200  # bytes
_THEIR_ERRORS: Final = frozenset({"call_failed", "tool_error"})
# Modes whose answers are in the words of a server.
_THEIRS: Final = frozenset({"call", "instructions"})


def size_of(value: Any) -> int:
    """The size of `value` as JSON, in bytes. A value that cannot be encoded counts as too large for any
    bound."""
    try:
        return len(msgspec.json.encode(value))
    except (OverflowError, RecursionError, TypeError, UnicodeError):
        return sys.maxsize


def _no_details() -> Mapping[str, Any]:
    return {}


@attrs.frozen(eq=False)
class Answer:
    """`content` is MCP content blocks, and `details` says the same for programs."""

    content: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any] = attrs.field(factory=_no_details)

    @classmethod
    def of(cls, text: str, **details: Any) -> Answer:
        """An answer of one text block, in our own words and those of definitions: without hidden characters, also in
        the details."""
        return cls(({"type": "text", "text": unhidden(text)},), unhidden_value(details))

    @property
    def is_error(self) -> bool:
        return "error" in self.details

    def filled(self, commands: Commands) -> Answer:
        """The same answer, its next steps with the options of `commands`. What a server says stays as it is."""
        error = self.details.get("error")
        if (
            commands == Commands()
            or error in _THEIR_ERRORS
            or (not error and self.details.get("mode") in _THEIRS)
        ):
            return self
        content = [
            {**block, "text": commands.filled(block["text"])} if block.get("type") == "text" else block
            for block in self.content
        ]
        return Answer(content, commands.filled_in(self.details))

    def slim(self) -> Answer:
        """The same answer with its details within bounds: the largest details are left out, and their names
        kept."""
        sizes = {key: size_of(value) for key, value in self.details.items()}
        omitted: dict[str, int] = {}
        for key in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if sum(sizes.values()) <= DETAILS_LIMIT:
                break
            omitted[key] = sizes.pop(key)
        if not omitted:
            return self
        return Answer(self.content, {**{key: self.details[key] for key in sizes}, "omittedBytes": omitted})

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")

    def as_result(self) -> dict[str, Any]:
        """The answer as the result of a tools/call."""
        result: dict[str, Any] = {"content": list(self.content), "_meta": {DETAILS: dict(self.details)}}
        if self.is_error:
            result["isError"] = True
        return result
