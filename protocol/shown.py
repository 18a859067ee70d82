"""What a model is shown of a result: its content as text and images, no more of it than fits, and, where the tool says
that it failed, what it had expected. One rule for the `mcp` tool and for `ToolResult.for_model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._namespace import Target
from .content import (
    MAX_BYTES,
    MAX_LINES,
    Guarded,
    guard,
    guarding,
    making_blocks,
    to_blocks,
    to_resource_blocks,
)
from .schema_text import parameters_text
from .slices import Slices


def shown(
    result: Mapping[str, Any],
    target: Target | None,
    *,
    max_bytes: int = MAX_BYTES,
    max_lines: int = MAX_LINES,
) -> Guarded:
    """What becomes of a result of `target`, where that is known. `max_bytes`, `max_lines`: the guard; 0 = off."""
    blocks = to_resource_blocks(result) if _is_read(target, result) else to_blocks(result)
    if result.get("isError") is True:
        blocks = _as_error(blocks, target)
    return guard(blocks, max_bytes=max_bytes, max_lines=max_lines)


def showing(
    result: Mapping[str, Any], target: Target | None, *, max_bytes: int, max_lines: int
) -> Slices[Guarded]:
    """`shown` of a large result, in slices."""
    blocks = yield from making_blocks(result, is_read=_is_read(target, result))
    if result.get("isError") is True:
        yield
        blocks = _as_error(blocks, target)
    return (yield from guarding(blocks, max_bytes=max_bytes, max_lines=max_lines))


def expected_parameters(target: Target | None) -> str:
    """The suffix of every failed call."""
    if target is None:
        return ""
    if target.kind == "resource":
        return "\n\nExpected parameters:\n(no parameters)"
    return f"\n\nExpected parameters:\n{parameters_text(target.input_schema)}"


def _is_read(target: Target | None, result: Mapping[str, Any]) -> bool:
    """A resource read as a tool. Where the target is not known, the result's own shape says it."""
    return "contents" in result and "content" not in result if target is None else target.kind == "resource"


def _as_error(blocks: Sequence[Mapping[str, Any]], target: Target | None) -> list[dict[str, Any]]:
    """`Error: …` with what was expected, then whatever else the tool sent."""
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    message = "\n".join(texts).strip()
    if not message or message == "(empty result)":
        message = "Tool execution failed"
    text = f"Error: {message}{expected_parameters(target)}"
    others = [dict(block) for block in blocks if block.get("type") != "text"]
    return [{"type": "text", "text": text}, *others]
