"""What `tools_for` gives and `run` answers, held against the types of the packages of the models' APIs.

Each format is taken through the same scene: tools with odd names and schemas, strict and deferred where the API has
that, calls as the package's own objects, an image, an error, a tool that is not there. Whatever is given must be what
the types say, and no more: what a type does not name is lost when it is validated, and then the two differ. The answer
is one line of JSON on stdout: how much of each format was held against its types, and its problems.
"""

import base64
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anthropic.types
import anyio
import google.genai.types
import mcp.types
import openai.types.chat
import openai.types.responses
from pydantic import BaseModel, TypeAdapter

from greenroom import Greenroom
from greenroom.testing import FakeServer, fake_connectors, tool

PNG = base64.b64encode(b"a picture").decode()
DEEP = {
    "type": "object",
    "properties": {
        "$top": {"type": "integer", "minimum": 1},
        "kind": {"enum": ["a", "b"]},
        "where": {"$ref": "#/$defs/place"},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
    },
    "required": ["kind"],
    "$defs": {"place": {"type": "object", "properties": {"in": {"$ref": "#/$defs/place"}}}},
}
EITHER = {
    "oneOf": [
        {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
        {"type": "object"},
    ]
}
TOOLS = [
    tool("plain", "Says it back", inputSchema={"type": "object", "properties": {"n": {"type": "integer"}}}),
    tool("odd.name", "Has a name that no API takes", inputSchema=DEEP),
    tool("x" * 80, "Has a long one", inputSchema=EITHER),
    tool("nothing"),
    tool("fails", "Never works"),
]


def answer(call):
    if call.tool == "fails":
        return {"content": [{"type": "text", "text": "I would rather not"}], "isError": True}
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    return {"content": [{"type": "text", "text": json.dumps(dict(call))}, image]}


def openai_calls(names):
    functions = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in names
    ]
    message = openai.types.chat.ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": functions}
    )
    return message.tool_calls


def response_calls(names):
    of = TypeAdapter(openai.types.responses.ResponseOutputItem)
    said = [
        {"type": "function_call", "call_id": f"c{n}", "name": name, "arguments": "{}"} for n, name in names
    ]
    return [of.validate_python(one) for one in said]


def anthropic_calls(names):
    of = TypeAdapter(anthropic.types.ContentBlock)
    said = [{"type": "tool_use", "id": f"c{n}", "name": name, "input": {}} for n, name in names]
    return [of.validate_python(one) for one in said]


def gemini_calls(names):
    said = [{"functionCall": {"id": f"c{n}", "name": name, "args": {}}} for n, name in names]
    return google.genai.types.Content.model_validate({"role": "model", "parts": said}).parts


def mcp_calls(names):
    return [{"name": name, "arguments": {}} for _, name in names]


@dataclass
class Held:
    """A format: what its definitions and answers must be, and the calls of a model."""

    definition: Any
    answer: Any
    calls: Any
    options: list = field(default_factory=list)  # beside none


BOTH = [{"strict": True}, {"defer_loading": True}]
HELD: Mapping[str, Held] = {
    "openai": Held(
        openai.types.chat.ChatCompletionToolUnionParam,
        {  # by the role: in the union of all, what can be read once is read to find the type
            "tool": openai.types.chat.ChatCompletionToolMessageParam,
            "user": openai.types.chat.ChatCompletionUserMessageParam,
        },
        openai_calls,
        BOTH[:1],
    ),
    "openai-responses": Held(
        openai.types.responses.ToolParam, openai.types.responses.ResponseInputItemParam, response_calls, BOTH
    ),
    "anthropic": Held(anthropic.types.ToolUnionParam, anthropic.types.MessageParam, anthropic_calls, BOTH),
    "gemini": Held(google.genai.types.FunctionDeclaration, google.genai.types.Content, gemini_calls),
    "mcp": Held(mcp.types.Tool, mcp.types.CallToolResult, mcp_calls),
}


def lost_in(type_: Any, given: Any) -> Any:
    """The value as the type has it, without what it does not name. Raises `ValidationError`."""
    if isinstance(type_, type) and issubclass(type_, BaseModel):
        found = type_.model_validate(given)
        return found.model_dump(mode="json", by_alias=True, exclude_unset=True)
    of = TypeAdapter(type_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an iterable that was validated is dumped as one
        return json.loads(of.dump_json(of.validate_python(given), exclude_unset=True))


def problem_of(what: str, type_: Any, given: Any) -> list[str]:
    try:
        kept = lost_in(type_, given)
    except Exception as error:
        return [f"{what}: {str(error)[:300]}"]
    return [] if kept == given else [f"{what}: {json.dumps(given)[:200]} became {json.dumps(kept)[:200]}"]


async def scene():
    """Of each format, how much was held against its types, and the problems."""
    said = {}
    server = FakeServer(tools=TOOLS, handler=answer)
    config = {"mcpServers": {"a": {"command": "fake"}}}
    connectors = fake_connectors({"a": server})
    async with Greenroom.open(config, cache_path=":memory:", connectors=connectors, bootstrap=False) as room:
        await room.connect("a")
        for name, one in HELD.items():
            count, problems = 0, list[str]()
            for options in ({}, *one.options):
                tools: Any = room.tools_for(name, **options)
                for definition in tools.definitions:
                    problems += problem_of(f"{options}: a definition", one.definition, definition)
                    count += 1
            names = [*enumerate(tools.names), (99, "a_nobody")]
            answers = await tools.run(one.calls(names))
            if not answers:
                problems.append("no answer")
            for each in answers:
                type_ = one.answer[each["role"]] if isinstance(one.answer, Mapping) else one.answer
                problems += problem_of("an answer", type_, each)
                count += 1
            for word in ("I would rather not", "a_nobody", PNG):
                if word not in json.dumps(answers):
                    problems.append(f"no answer has {word!r}")
            if not problem_of(name, one.definition, {**tools.definitions[0], "unheard_of": 1}):
                problems.append("what no type names is not noticed")
            said[name] = [count, problems]
    return said


print("\n" + json.dumps(anyio.run(scene)))
