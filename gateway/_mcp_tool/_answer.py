"""What the `mcp` tool answers with: content blocks for the model, and `details` for a program.

An answer is always a result, never a JSON-RPC error: a model can read a result and go on. It has no
`structuredContent`, which clients would show in place of the content; the details stand in `_meta`. Whatever did not do
what was asked has `details.error`, and with it `isError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from .._marks import DETAILS


def _no_details() -> Mapping[str, Any]:
    return {}


@attrs.frozen(eq=False)
class Answer:
    """`content` as MCP content blocks, `details` as the machine's version of the same."""

    content: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any] = attrs.field(factory=_no_details)

    @classmethod
    def of(cls, text: str, **details: Any) -> Answer:
        """An answer of one text block."""
        return cls(({"type": "text", "text": text},), details)

    @property
    def is_error(self) -> bool:
        return "error" in self.details

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
