"""What a request brings back: the server's own result, untouched, with a few ways to read it.

Each has the decoded result object in `raw`, in which nothing is dropped, renamed or validated, and a few properties
that read it leniently: a missing or senseless value reads as empty.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from .bounds import INPUT_BYTES
from .errors import CallError, ProtocolFault, Reach, ToolFailed
from .jsonrpc.encoding import UNREADABLE
from .jsonrpc.incoming import decode_result, is_true, nbytes, read_members, read_value
from .jsonrpc.terms import RpcFault
from .malformed_content import blocks_in, contents_in, messages_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_types import CallToolResult, GetPromptResult, ReadResourceResult

    from .content import CalledTool


def decoded(result: bytes, target: CalledTool | None) -> dict[str, Any]:
    """The result object of a call of this tool. Raises `ProtocolFault` when the answer is no object."""
    try:
        return decode_result(result)
    except ValueError as problem:
        name, server = (None, "") if target is None else (target.name, target.server)
        text = f'Server "{server}" answered with something that is not a result: {problem}.'
        raise ProtocolFault(text, server=server, reach=Reach.ANSWERED, tool=name) from None


LOOKED_INTO: Final = 1 << 20  # bytes of a result that is looked into for whether the tool calls it an error


def says_error(result: bytes) -> bool:
    """Whether the tool itself calls its result an error."""
    if len(result) > LOOKED_INTO or result.find(b'"isError"') < 0 or result.find(b"true") < 0:
        return False
    try:
        return is_true(read_members(result).is_error)
    except UNREADABLE:
        return False


def check_input_size(server: str, result: bytes) -> None:
    """Raises `ProtocolFault` for a result that asks for input and is over the bound: it is decoded in one go."""
    if len(result) > INPUT_BYTES:
        text = f'Server "{server}" asks for input with more than {INPUT_BYTES:,} bytes; nobody was asked.'
        raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)


class _Parts(msgspec.Struct):
    """The members of a large result that are read, each still as bytes."""

    content: msgspec.Raw = msgspec.Raw()
    contents: msgspec.Raw = msgspec.Raw()
    structuredContent: msgspec.Raw = msgspec.Raw()  # noqa: N815 (as on the wire)
    isError: msgspec.Raw = msgspec.Raw()  # noqa: N815


_SHOWN: Final = 200  # characters of a result in its `repr`
_as_parts: Final = msgspec.json.Decoder(_Parts)


def _cut(value: object) -> str:
    """The value, for a person, on one line that is not long."""
    said = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…"


class ToolResult:
    """The result of a tools/call (or of a resource read as a tool), field by field as the server sent it.

    Of a large result, a member is decoded when it is first asked for, so that no other call waits for what nobody
    reads.
    """

    def __init__(self, raw: dict[str, Any] | bytes, target: CalledTool | None = None) -> None:
        self._given = raw
        self.target: CalledTool | None = target  # what was called

    @cached_property
    def raw(self) -> dict[str, Any]:
        """The decoded result object; nothing is dropped, renamed or validated. Raises `ProtocolFault` when it cannot be
        decoded."""
        given = self._given
        return decoded(given, self.target) if isinstance(given, bytes) else given

    @cached_property
    def _parts(self) -> _Parts | None:
        """The members of a large result; None when it cannot be split in this way."""
        try:
            return _as_parts.decode(cast("bytes", self._given))
        except UNREADABLE:
            return None

    def _member(self, name: str) -> Any:
        """This member of the result object, or None."""
        if isinstance(self._given, dict) or self._parts is None:
            return self.raw.get(name)
        part: msgspec.Raw = getattr(self._parts, name)
        try:
            return read_value(part) if nbytes(part) else None
        except RpcFault:
            return self.raw.get(name)  # mends what can be mended, or says what is wrong

    @cached_property
    def content(self) -> list[dict[str, Any]]:
        """The content blocks, as the server sent them; an item that is not a block becomes a text block. For the result
        of a resource read, these are its `contents`."""
        blocks = self._member("content")
        if blocks is None:
            blocks = self._member("contents")
        return blocks_in(blocks)

    @cached_property
    def structured(self) -> Any:
        """`structuredContent` as Python data: a dict from nearly every server; from one that speaks 2026-07-28, any
        JSON value. None if the server sent none. A failed tool sends none, or one that describes the failure, so look
        at `is_error` first, or write `(await room.call(…)).or_raise().structured`."""
        return self._member("structuredContent")

    @property
    def is_error(self) -> bool:
        """True when the *tool* reports failure; the call itself went well."""
        return self._member("isError") is True

    def __repr__(self) -> str:
        name = f"{self.target.name!r}, " if self.target is not None else ""
        if isinstance(self._given, bytes):  # a large one; to look inside would cost its reader
            return f"<ToolResult {name}{len(self._given):,} bytes>"
        structured = self._given.get("structuredContent")
        said = f"text={_cut(self.text)}"
        if not self.text:
            said = f"content={_cut(self.content)}" if structured is None else f"structured={_cut(structured)}"
        return f"<ToolResult {name}{said}{', is_error=True' if self.is_error else ''}>"

    def or_raise(self) -> ToolResult:
        """This result, or `ToolFailed` if the tool reports failure, for code that handles all failures as
        exceptions."""
        if not self.is_error:
            return self
        name, server = (self.target.name, self.target.server) if self.target is not None else (None, "")
        text = self.text or "it does not say why"
        raise ToolFailed(f'Tool "{name}" failed: {text}', server=server, tool=name, result=self.raw)

    @property
    def images(self) -> list[dict[str, Any]]:
        """The image blocks: each has `data` (base64) and `mimeType`."""
        return [block for block in self.content if block.get("type") == "image"]

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        return "\n".join([text for block in self.content if isinstance(text := block.get("text"), str)])

    def for_model(
        self,
        *,
        max_bytes: int | None = None,
        max_lines: int | None = None,
        save: Callable[[str], object] | None = None,
    ) -> list[dict[str, Any]]:
        """The content blocks that the `mcp` tool would show to a model: only text and images; everything else is
        described in words. If the tool failed, they also say which parameters it expects.

        Text beyond `max_bytes` of UTF-8 or `max_lines` (default: 51,200 and 2,000; 0 = no limit) is cut, and the last
        line says so. Then `save(text)` gets the whole text and returns the place where it is kept, which the last line
        names. If it raises `OSError`, the last line says that.
        """
        from .content import MAX_BYTES, MAX_LINES, shown

        guarded = shown(
            self.raw,
            self.target,
            max_bytes=MAX_BYTES if max_bytes is None else max_bytes,
            max_lines=MAX_LINES if max_lines is None else max_lines,
        )
        if guarded.spill is None:
            return guarded.blocks
        path, error = None, ""
        try:
            path = None if save is None else str(save(guarded.spill))
        except OSError as problem:
            error = str(problem)
        return guarded.cut(path=path, error=error).blocks

    def to_mcp(self) -> CallToolResult:
        """The SDK's typed result. Imports the SDK; unknown fields are dropped there, not here.

        Raises `pydantic.ValidationError` when the server's result does not conform.
        """
        return sdk_types().CallToolResult.model_validate(self.raw)


class ModelResult(msgspec.Struct, frozen=True, eq=False):
    """The content for a model about one call (`call_for_model`): its result, or the reason why there is none."""

    blocks: list[dict[str, Any]]  # text and images only, in the form of MCP, cut to the bounds of the room
    is_error: bool = False  # whether the call failed, or the tool says that it did
    error: CallError | None = None  # why there is no result; its `reach` says whether the call may have run
    result: ToolResult | None = None  # the whole result; None when there is none
    is_cut: bool = False  # whether text was left out

    @classmethod
    def of(cls, result: ToolResult, *, max_bytes: int, max_lines: int) -> ModelResult:
        """What a model is told of this result, with so much text at most."""
        from .content import shown

        guarded = shown(result.raw, result.target, max_bytes=max_bytes, max_lines=max_lines)
        is_cut = guarded.spill is not None
        blocks = guarded.cut().blocks if is_cut else guarded.blocks
        return cls(blocks, result.is_error, result=result, is_cut=is_cut)

    @classmethod
    def failed(cls, error: CallError, text: str) -> ModelResult:
        """What a model is told of this error, in these words."""
        return cls([{"type": "text", "text": text}], True, error)

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return "\n".join(block["text"] for block in self.blocks if block["type"] == "text")

    @property
    def images(self) -> list[dict[str, Any]]:
        """The image blocks: each has `data` (base64) and `mimeType`."""
        return [block for block in self.blocks if block["type"] == "image"]

    @property
    def structured(self) -> Any:
        """`structuredContent`, an alternative to the text. None if there is none, if the tool failed, or if it is too
        large for a model."""
        return None if self.result is None or self.is_error or self.is_cut else self.result.structured

    @property
    def reach(self) -> Reach:
        """How far the call got."""
        return Reach.ANSWERED if self.error is None else self.error.reach


class ResourceContents(msgspec.Struct, frozen=True, eq=False):
    """The result of a resources/read."""

    raw: dict[str, Any]  # the whole result, as the server sent it

    @property
    def contents(self) -> list[dict[str, Any]]:
        """The contents, as the server sent them: each has a `uri` and `text` or `blob`. What is of another form is a
        `text` here."""
        return contents_in(self.raw)

    @property
    def text(self) -> str:
        """All text contents, joined by newlines."""
        texts = (each.get("text") for each in self.contents)
        return "\n".join(text for text in texts if isinstance(text, str))

    def to_mcp(self) -> ReadResourceResult:
        """The SDK's typed result; raises `pydantic.ValidationError` when the server's does not conform."""
        return sdk_types().ReadResourceResult.model_validate({**self.raw, "contents": self.contents})


class PromptMessages(msgspec.Struct, frozen=True, eq=False):
    """The result of a prompts/get."""

    raw: dict[str, Any]  # the whole result, as the server sent it

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, as the server sent them: each has a `role` and `content`. What is of another form is a text
        of the user here."""
        return messages_in(self.raw.get("messages"))

    @property
    def description(self) -> str:
        """What the prompt is for, in the server's words; empty: it says nothing."""
        text = self.raw.get("description")
        return text if isinstance(text, str) else ""

    def to_mcp(self) -> GetPromptResult:
        """The SDK's typed result; raises `pydantic.ValidationError` when the server's does not conform."""
        return sdk_types().GetPromptResult.model_validate({**self.raw, "messages": self.messages})


class Completion(msgspec.Struct, frozen=True, eq=False):
    """The result of a completion/complete."""

    raw: dict[str, Any]  # the whole result, as the server sent it

    @property
    def values(self) -> list[str]:
        """The values that may be meant."""
        values = self._said.get("values")
        return (
            [each for each in cast("list[Any]", values) if isinstance(each, str)] if _is_list(values) else []
        )

    @property
    def total(self) -> int | None:
        """The total number of values, if the server says how many there are."""
        total = self._said.get("total")
        return total if isinstance(total, int) else None

    @property
    def has_more(self) -> bool:
        """Whether there are more values than these."""
        return self._said.get("hasMore") is True

    @property
    def _said(self) -> dict[str, Any]:
        said = self.raw.get("completion")
        return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _is_list(value: object) -> bool:
    return isinstance(value, list)


# ---- The SDK's types, from whichever major version is installed ------------------------------------------------------
#
# `mcp_types` since 2.0, `mcp.types` before.
#
# A function imports them when they are first needed, because the import takes a third of a second.


def sdk_types() -> Any:
    """The module with `Tool`, `CallToolResult` and the others."""
    try:
        import mcp_types
    except ModuleNotFoundError:
        import mcp.types as older_types

        return older_types
    return mcp_types
