"""Results of the `mcp` tool, as the commands print them that ask it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..protocol.errors import UnknownServer
from ..protocol.safe_text import printable
from .exit_codes import FAILED, OK, USAGE
from .printing import say, show
from .standard_streams import print_line
from .typed_options import commands_typed

if TYPE_CHECKING:
    from .json_shapes import Shape


def show_result(
    result: Mapping[str, Any], origin: Mapping[str, Any], as_json: bool, *shapes: type[Shape]
) -> int:
    """The result of the `mcp` tool, on stdout, by `shapes` or refused. Returns the exit code."""
    from ..gateway.result_meta import details_of
    from .json_shapes import RefusedJson

    details = {**details_of(result), **origin}
    if details.get("mode") == "call":  # in other modes the details say everything that the text says
        details["content"] = result["content"]
    failed = "error" in details
    text = text_of(result)
    if failed and details["error"] == "tool_error":
        details.pop("message", None)  # its words are in the content alone
    elif failed:
        details["message"] = commands_typed().filled(text)
        if "content" in details:
            details["content"] = [{"type": "text", "text": details["message"]}]
    is_theirs = details.get("mode") == "call" and details.get("error") in (None, "tool_error")
    if failed and is_theirs and not as_json:
        print_line(printable(text), sys.stderr)
    elif failed and not as_json:
        say(text)
    else:
        show(text, details, as_json, RefusedJson, *shapes, ours=not is_theirs)
    return exit_code_of(details)


def exit_code_of(details: Mapping[str, Any]) -> int:
    """A server that the configuration does not have is bad usage, whatever command it was typed behind."""
    if "error" not in details:
        return OK
    return USAGE if details["error"] == UnknownServer.code else FAILED


def text_of(result: Mapping[str, Any]) -> str:
    """The content as text. Anything else is named, with its size."""
    return "\n".join(_block_text(block) for block in result["content"])


def _block_text(block: Mapping[str, Any]) -> str:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    size = len(str(block.get("data", "")))
    return f"[{block.get('type')}: {block.get('mimeType', 'unknown type')}, {size} characters of base64]"
