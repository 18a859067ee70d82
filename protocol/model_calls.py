"""Tool calls as a model's API gives them, and what came of them as it takes that back.

* `"openai"`: the tool calls of a chat completion, or the items of a response (`function_call`); the answers have the
  same form. Only text is allowed in them, so images follow in a message of the user.
* `"openai-responses"`: the items of a response; images are in the answer.
* `"anthropic"`: the `tool_use` blocks of a message.
* `"gemini"`: the `parts` of a content, or `function_calls`.
* `"mcp"`: params of `tools/call`; answered with a result of MCP for each.

Dicts and the SDKs' own objects are read alike, and nothing of an SDK is imported. What is no call of a function (texts,
thoughts) is passed over. Kinds of images that the APIs refuse are named in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import attrs

from .errors import UsageError

Format = Literal["openai", "openai-responses", "anthropic", "gemini", "mcp"]
FORMATS: Final = ("openai", "openai-responses", "anthropic", "gemini", "mcp")
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


@attrs.frozen
class ToolCall:
    """One tool call of a model. `problem`: why its arguments cannot be read."""

    id: str
    name: str
    arguments: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    problem: str = ""
    is_item: bool = False  # of OpenAI's responses, not of a chat completion


@attrs.frozen
class ToolCallAnswer:
    """What a model is told of one of its calls: blocks of text and images, in the form of MCP."""

    call: ToolCall
    blocks: Sequence[Mapping[str, Any]]
    is_error: bool = False

    @classmethod
    def failed(cls, call: ToolCall, text: str) -> ToolCallAnswer:
        return cls(call, [{"type": "text", "text": text}], is_error=True)

    @property
    def text(self) -> str:
        said = (_text_of(block) for block in self.blocks if not _is_shown(block))
        return "\n".join(text for text in said if text)

    @property
    def images(self) -> list[Mapping[str, Any]]:
        return [block for block in self.blocks if _is_shown(block)]


def read_calls(calls: Iterable[Any] | None, format: Format) -> list[ToolCall]:
    """The calls among these objects, in their order. Raises `UsageError` for another format."""
    read = _READERS.get(str(format))
    if read is None:
        raise UsageError(f'"{format}" is not a format of tool calls. Use one of {", ".join(FORMATS)}.')
    return [found for each in calls or () if (found := read(each)) is not None]


def told_back(told: Sequence[ToolCallAnswer], format: Format) -> list[dict[str, Any]]:
    """The messages (or items) that answer these calls, to follow the model's own."""
    if format == "anthropic":
        return [{"role": "user", "content": [_to_anthropic(one) for one in told]}] if told else []
    if format == "gemini":
        return [{"role": "user", "parts": [_to_gemini(one) for one in told]}] if told else []
    if format == "openai-responses":
        return [_to_item(one) for one in told]
    if format == "mcp":
        return [_to_mcp(one) for one in told]
    answers = [_to_openai(one) for one in told]
    return [*answers, *(_images_apart(one) for one in told if one.images)]


# ---- reading ---------------------------------------------------------------------------------------------------------
def _of_openai(call: Any) -> ToolCall | None:
    kind, function = _field(call, "type"), _field(call, "function")
    if function is not None:
        return _parsed(_field(call, "id"), _field(function, "name"), _field(function, "arguments"))
    if kind == "function_call":
        read = _parsed(_field(call, "call_id"), _field(call, "name"), _field(call, "arguments"))
        return attrs.evolve(read, is_item=True)
    return None


def _of_anthropic(block: Any) -> ToolCall | None:
    if _field(block, "type") != "tool_use":
        return None
    return _parsed(_field(block, "id"), _field(block, "name"), _field(block, "input"))


def _of_gemini(part: Any) -> ToolCall | None:
    call = _field(part, "functionCall") or _field(part, "function_call") or part
    if _field(call, "name") is None or _field(call, "response") is not None:
        return None
    return _parsed(_field(call, "id"), _field(call, "name"), _field(call, "args"))


def _of_mcp(params: Any) -> ToolCall | None:
    params = _field(params, "params") or params
    return _parsed(_field(params, "id"), _field(params, "name"), _field(params, "arguments"))


_READERS: Final[Mapping[str, Callable[[Any], ToolCall | None]]] = {
    "openai": _of_openai,
    "openai-responses": _of_openai,
    "anthropic": _of_anthropic,
    "gemini": _of_gemini,
    "mcp": _of_mcp,
}


def _parsed(number: Any, name: Any, arguments: Any) -> ToolCall:
    problem = ""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            arguments, problem = {}, f"The arguments are not JSON: {error}."
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        arguments, problem = {}, "The arguments must be a JSON object of named values."
    return ToolCall(str(number or ""), str(name or ""), cast("Mapping[str, Any]", arguments), problem)


def _field(thing: Any, name: str) -> Any:
    """A field of a dict, or of an object of an SDK."""
    if isinstance(thing, Mapping):
        return cast("Mapping[str, Any]", thing).get(name)
    return getattr(thing, name, None)


# ---- writing ---------------------------------------------------------------------------------------------------------
def _is_shown(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "image" and block.get("mimeType") in _IMAGES and bool(block.get("data"))


def _text_of(block: Mapping[str, Any]) -> str:
    if block.get("type") == "image":
        return f"[an image of type {block.get('mimeType')}, which cannot be shown]"
    return str(block.get("text") or "")


def _to_openai(told: ToolCallAnswer) -> dict[str, Any]:
    if told.call.is_item:
        return {"type": "function_call_output", "call_id": told.call.id, "output": told.text}
    return {"role": "tool", "tool_call_id": told.call.id, "content": told.text}


def _images_apart(told: ToolCallAnswer) -> dict[str, Any]:
    """A message of the user with the images of a result."""
    urls = [f"data:{image['mimeType']};base64,{image['data']}" for image in told.images]
    text = f"Images from the result of {told.call.name} ({told.call.id}):"
    if told.call.is_item:
        shown = [{"type": "input_image", "image_url": url} for url in urls]
        return {"role": "user", "content": [{"type": "input_text", "text": text}, *shown]}
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [{"type": "text", "text": text}, *shown]}


def _to_anthropic(told: ToolCallAnswer) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": told.text}] if told.text else []
    for image in told.images:
        source = {"type": "base64", "media_type": image["mimeType"], "data": image["data"]}
        content.append({"type": "image", "source": source})
    answer = {"type": "tool_result", "tool_use_id": told.call.id, "content": content}
    return {**answer, "is_error": True} if told.is_error else answer


def _to_item(told: ToolCallAnswer) -> dict[str, Any]:
    """The answer to a call of OpenAI's responses, images included."""
    urls = [f"data:{image['mimeType']};base64,{image['data']}" for image in told.images]
    output: Any = told.text
    if urls:
        text = [{"type": "input_text", "text": told.text}] if told.text else []
        output = [*text, *({"type": "input_image", "image_url": url, "detail": "auto"} for url in urls)]
    return {"type": "function_call_output", "call_id": told.call.id, "output": output}


def _to_gemini(told: ToolCallAnswer) -> dict[str, Any]:
    key = "error" if told.is_error else "output"
    answer: dict[str, Any] = {"name": told.call.name, "response": {key: told.text}}
    if told.call.id:
        answer["id"] = told.call.id
    if told.images:
        blobs = [{"mimeType": image["mimeType"], "data": image["data"]} for image in told.images]
        answer["parts"] = [{"inlineData": blob} for blob in blobs]
    return {"functionResponse": answer}


def _to_mcp(told: ToolCallAnswer) -> dict[str, Any]:
    return {"content": [dict(block) for block in told.blocks], "isError": told.is_error}
