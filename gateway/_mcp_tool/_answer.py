"""What the `mcp` tool answers with: content blocks for the model, and `details` for a program.

An answer is always a result, never a JSON-RPC error: a model can read a result and go on. `isError` is set when a call
was carried out, or tried in earnest, and went wrong; being told that a name is unknown or a server is down is an answer
like any other, told apart by `details.error`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

_FAILURES: Final = frozenset(
    {
        "tool_error",
        "call_failed",
        "invalid_args",
        "timeout",
        "drained",
        "protocol_error",
        "bug",
    }
)


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
        return self.details.get("error") in _FAILURES

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")

    def as_result(self) -> dict[str, Any]:
        """The answer as the result of a tools/call."""
        result: dict[str, Any] = {"content": list(self.content), "structuredContent": dict(self.details)}
        if self.is_error:
            result["isError"] = True
        return result
