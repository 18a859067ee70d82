"""What a model is shown of a result: its content as text and images, and no more than fits. If the tool reports an
error, also the parameters that it expects. The `mcp` tool and `ToolResult.for_model` share this rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

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
from .errors import BadArguments, CallError, RemoteError, ToolFailed
from .jsonrpc import METHOD_NOT_FOUND
from .plain_text import unhidden
from .schema_text import parameters_text
from .slices import Slices

_EXPECTED: Final = "\n\nExpected parameters:\n"


class Called(Protocol):
    """What was called: a tool, or a resource that is read as one."""

    @property
    def name(self) -> str: ...

    @property
    def server(self) -> str: ...

    @property
    def original(self) -> str:
        """The server's own name for it; of a resource, its URI."""
        ...

    @property
    def kind(self) -> str: ...

    @property
    def input_schema(self) -> Mapping[str, Any] | None: ...

    def in_caller_names(self, message: str) -> str:
        """The server's message, with the names under which its caller knows the tool and its parameters."""
        ...


def shown(
    result: Mapping[str, Any],
    target: Called | None,
    *,
    max_bytes: int = MAX_BYTES,
    max_lines: int = MAX_LINES,
) -> Guarded:
    """The blocks that a model is shown of a result. `target`: the tool that was called, if known. `max_bytes` and
    `max_lines` bound the text; 0 = no bound."""
    blocks = to_resource_blocks(result) if _is_read(target, result) else to_blocks(result)
    if result.get("isError") is True:
        blocks = _as_error(blocks, target)
    return guard(blocks, max_bytes=max_bytes, max_lines=max_lines)


def showing(
    result: Mapping[str, Any], target: Called | None, *, max_bytes: int, max_lines: int
) -> Slices[Guarded]:
    """`shown` of a large result, in slices."""
    blocks = yield from making_blocks(result, is_read=_is_read(target, result))
    if result.get("isError") is True:
        yield
        blocks = _as_error(blocks, target)
    return (yield from guarding(blocks, max_bytes=max_bytes, max_lines=max_lines))


def expected_parameters(target: Called | None, message: str = "") -> str:
    """The parameters that the tool expects: the end of the text of a failed call whose arguments may be at fault. Empty
    if `message` has them already, as the error of a gateway behind this one does."""
    if target is None or _EXPECTED in message:
        return ""
    if target.kind == "resource":
        return f"{_EXPECTED}(no parameters)"
    return _EXPECTED + unhidden(parameters_text(target.input_schema))


def arguments_may_be_at_fault(error: CallError) -> bool:
    """Whether other arguments may help. A server may refuse arguments with any code but that of a method it lacks."""
    if isinstance(error, RemoteError):
        return error.rpc_code != METHOD_NOT_FOUND
    return isinstance(error, BadArguments | ToolFailed) or error.code == "invalid_args"


def _is_read(target: Called | None, result: Mapping[str, Any]) -> bool:
    """Whether a resource was read as a tool. If the target is not known, the shape of the result tells."""
    return "contents" in result and "content" not in result if target is None else target.kind == "resource"


def _as_error(blocks: Sequence[Mapping[str, Any]], target: Called | None) -> list[dict[str, Any]]:
    """`Error: …` (said once) with the expected parameters, then everything else that the tool sent."""
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    message = "\n".join(texts).strip()
    if not message or message == "(empty result)":
        message = "Tool execution failed"
    if target is not None:
        message = target.in_caller_names(message)
    said = message if message.startswith("Error:") else f"Error: {message}"
    text = said + expected_parameters(target, message)
    others = [dict(block) for block in blocks if block.get("type") != "text"]
    return [{"type": "text", "text": text}, *others]
