"""What a call brings back: the server's own result, untouched, with a few ways to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import attrs

if TYPE_CHECKING:
    from mcp_types import CallToolResult


@attrs.frozen(eq=False)
class ToolResult:
    """The result of a tools/call (or of a resource read as a tool), field by field what the server said.

    `raw` is the decoded result object; nothing is dropped, renamed or validated.
    """

    raw: dict[str, Any]

    @property
    def content(self) -> list[dict[str, Any]]:
        """The content blocks, as the server sent them. A resource read has `contents`; both are read here."""
        blocks = self.raw.get("content", self.raw.get("contents"))
        return cast("list[dict[str, Any]]", blocks) if isinstance(blocks, list) else []

    @property
    def structured(self) -> Any:
        """`structuredContent`, or None."""
        return self.raw.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """True when the *tool* reports failure; the call itself went well."""
        return self.raw.get("isError") is True

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        texts = (block.get("text") for block in self.content)
        return "\n".join(text for text in texts if isinstance(text, str))

    def to_mcp(self) -> CallToolResult:
        """The SDK's typed result. Imports `mcp_types`; unknown fields are dropped there, not here.

        Raises `pydantic.ValidationError` when the server's result does not conform.
        """
        from mcp_types import CallToolResult

        return CallToolResult.model_validate(self.raw)
