"""Content: a server's result as blocks that a model can take, and no more of it than fits.

These are two pure steps for the `mcp` tool; the other doors pass results on unchanged. `to_blocks` turns every kind of
block into text or an image. Images and text stay the same objects that the server sent, without members for which
clients refuse a whole result. Other known kinds are described in words, and unknown ones are shown as JSON, not
dropped; nor is content that is no list, or a result that has other members instead of content.
`structuredContent` is shown as JSON too, unless the text already has the same content. The protocol asks servers to
send both, but some leave one of the two half empty, and a client shows only one.

`guard` then plans what to keep of a text that is too long. Neither step writes a file. The caller gets the full text
(`BoundedBlocks.spill`), writes it, and reports the outcome, because the shown text must name the file and still fit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from .bounds import is_too_deep
from .errors import BadArguments, CallError, RemoteError, ToolFailed
from .jsonrpc.terms import METHOD_NOT_FOUND, NOT_ON_TAPE
from .safe_text import counted, unhidden
from .value_count import takes_long_to_decode

Block = dict[str, Any]
MAX_BYTES: Final = 51_200
MAX_LINES: Final = 2_000
_NO_BOUND: Final = sys.maxsize
_DECODER: Final = json.JSONDecoder()
_OF_RESULTS: Final = {"content", "structuredContent", "isError", "resultType", "_meta"}
_ABOUT: Final = ("annotations", "_meta")
_TOO_DEEP: Final = "(content nested too deeply to show)"


# ---- the content of a result -----------------------------------------------------------------------------
def to_blocks(result: Mapping[str, Any]) -> list[Block]:
    """The blocks of a tools/call result, and its `structuredContent` unless their text has the same content. A line
    names the type of binary data."""
    structured = result.get("structuredContent")
    blocks = [_block(block) for block in _content(result.get("content"))]
    if structured is None or (blocks and structured in ({}, [])):
        return blocks or [_text(_others(result))]
    texts = [block["text"] for block in blocks if _is_text(block)]
    return blocks if _is_said(structured, texts) else [*blocks, _text(_laid_out(structured))]


def _content(said: object) -> list[object]:
    """The content of a result; one block or one text that is in no list, too."""
    if said is None:
        return []
    return cast("list[object]", said) if isinstance(said, list) else [said]


def _others(result: Mapping[str, Any]) -> str:
    """What the server sent instead of content, in members that the protocol does not have."""
    others = {key: value for key, value in result.items() if key not in _OF_RESULTS}
    return _laid_out(others) if others else "(empty result)"


def to_resource_blocks(result: Mapping[str, Any]) -> list[Block]:
    """The blocks of a resources/read result: text unchanged, binary data as a line about it."""
    contents = _content(result.get("contents"))
    return [_text(_contents(one)) for one in contents] or [_text("(empty resource)")]


def text_of(blocks: Iterable[Mapping[str, Any]]) -> str:
    """All the text of `blocks`, joined by newlines."""
    return "\n".join(block["text"] for block in blocks if _is_text(block))


def _block(block: object) -> Block:
    if not isinstance(block, dict):
        return _text(block if isinstance(block, str) else _json(block))
    said = cast("Block", block)
    match said:
        case {"type": "text", "text": str()}:
            return _acceptable(said)
        case {"type": "image", "data": str()}:
            has_type = isinstance(said.get("mimeType"), str)
            return _acceptable(said if has_type else {**said, "mimeType": "image/png"})
        case {"type": "audio"}:
            return _text(f"[Audio content: {_string(said, 'mimeType') or 'audio/*'}]")
        case {"type": "resource", "resource": dict()}:
            return _text(_resource(said["resource"]))
        case {"type": "resource_link"}:
            uri = _string(said, "uri")
            return _text(f"[Resource Link: {_string(said, 'name') or uri}]\nURI: {uri}")
        case _:
            return _text(_json(said))


def _acceptable(block: Block) -> Block:
    """The block without members for which the SDKs of clients refuse the whole result: they are about the words, which
    count more."""
    wrong = [key for key in _ABOUT if key in block and not _is_about(key, block[key])]
    return {key: value for key, value in block.items() if key not in wrong} if wrong else block


def _is_about(key: str, said: object) -> bool:
    match key, said:
        case "_meta", dict():
            return True
        case "annotations", dict():
            notes = cast("Block", said)
        case _:
            return False
    audience, priority = notes.get("audience", []), notes.get("priority", 0)
    is_number = isinstance(priority, int | float) and not isinstance(priority, bool)
    return (
        isinstance(audience, list)
        and all(one in ("user", "assistant") for one in cast("list[object]", audience))
        and is_number
        and 0 <= priority <= 1
        and isinstance(notes.get("lastModified", ""), str)
    )


def _resource(resource: Block) -> str:
    uri = _string(resource, "uri")
    match resource:
        case {"text": str(text)}:
            return f"[Resource: {uri}]\n{text}"
        case {"blob": str()}:
            return f"[Resource: {uri}]\n{_binary(resource)}"
        case _:
            return _json(resource)


def _contents(contents: object) -> str:
    """The block for one content of a read resource. The caller knows its URI."""
    match contents:
        case {"text": str(text)}:
            return text
        case {"blob": str()}:
            return _binary(cast("Block", contents))
        case _:
            return _json(contents)


def _binary(resource: Block) -> str:
    return f"[Binary data: {_string(resource, 'mimeType') or 'application/octet-stream'}]"


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _is_text(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _string(block: Mapping[str, Any], key: str) -> str:
    value = block.get(key)
    return value if isinstance(value, str) else ""


def _is_said(value: object, texts: Sequence[str]) -> bool:
    """Whether `texts` have the content of `value` in one of these forms: as JSON, with other text around it or not; as
    the plain value, if an object with one key wraps it; or as a list with one text for each item. So at every size: a
    result that takes long to decode is not shown in blocks, and a text that does is no JSON of the same content."""
    if not texts:
        return False
    try:
        said = json.loads(bytes(value)) if isinstance(value, Raw) else value
        values = [said]
        if isinstance(said, dict) and len(cast("Block", said)) == 1:
            values += cast("Block", said).values()
        read = [_read(text) for text in texts]
        return any(one in (read, list(texts)) or one in read or one in texts for one in values)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        return False


def _read(text: str) -> object:
    """The JSON that the text is, or the first object in it, or else the text itself, which it also is if it takes long
    to decode."""
    if len(text) > MAX_BYTES and takes_long_to_decode(_encode(text)):
        return text
    try:
        return json.loads(text)
    except ValueError:
        pass
    at = text.find("{")
    try:
        return _DECODER.raw_decode(text, at)[0] if at >= 0 else text
    except ValueError:
        return text


def _laid_out(value: object) -> str:
    """`value` as indented JSON; on one line when it is long or deep, because indenting a megabyte takes a fifth of a
    second. One that is still JSON stays as it is."""
    if isinstance(value, Raw):
        return bytes(value).decode()
    text = _json(value)
    stays = len(text) > MAX_BYTES or is_too_deep(text.encode(errors="replace"), value)
    return text if stays or text is _TOO_DEEP else _json(value, indent=2)


def _json(value: object, indent: int | None = None) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except RecursionError:
        return _TOO_DEEP


# ---- how much of it fits ---------------------------------------------------------------------------------
class Stats(msgspec.Struct, frozen=True):
    """What the guard did, in bytes of UTF-8 and lines."""

    truncated: bool
    original_bytes: int
    original_lines: int
    returned_bytes: int
    returned_lines: int
    images: int  # passed through untouched


class BoundedBlocks(msgspec.Struct, frozen=True, eq=False):
    """Blocks within bounds, or the plan for those that are not.

    When `spill` is None, `blocks` are the answer. Otherwise write `spill` to a file and take `cut` instead.
    """

    blocks: list[Block]
    stats: Stats
    spill: str | None = None
    _max_bytes: int = 0
    _max_lines: int = 0

    def cut(
        self, *, path: str | None = None, error: str = "", more: Callable[[int], str] | None = None
    ) -> BoundedBlocks:
        """The answer. `path`: where the full text was saved, and `more`: what to call for the part that begins at a
        byte. `error`: why it could not be saved. None of them: it should not be saved.

        It is one text block, with the head that fits and the notice, and then the images. UTF-8 is never split. The
        notice is always complete, even if it alone is over the bounds.
        """
        assert self.spill is not None, "nothing was cut"
        most = self.stats.original_bytes  # has as many digits as the place where the rest begins, or more
        tail = _notice(self.stats, path, error, _next_page(more, most))
        head = _head(self.spill, self._max_bytes, self._max_lines, f"\n\n{tail}")
        notice = _notice(self.stats, path, error, _next_page(more, len(_encode(head))))
        text = f"{head}\n\n{notice}" if head else notice
        images = [block for block in self.blocks if not _is_text(block)]
        size, lines = _measure(text)
        stats = replace(self.stats, returned_bytes=size, returned_lines=lines)
        return BoundedBlocks([_text(text), *images], stats)


def guard(
    blocks: Sequence[Block], *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES
) -> BoundedBlocks:
    """Keep all text of `blocks` together within `max_bytes` of UTF-8 and `max_lines`; 0 turns a bound off."""
    joined = text_of(blocks)
    size, lines = _measure(joined)
    images = sum(not _is_text(block) for block in blocks)
    over = (0 < max_bytes < size) or (0 < max_lines < lines)
    stats = Stats(over, size, lines, size, lines, images)
    if not over:
        return BoundedBlocks(list(blocks), stats)
    return BoundedBlocks(
        list(blocks), stats, _encode(joined).decode(), max_bytes or _NO_BOUND, max_lines or _NO_BOUND
    )


def _next_page(more: Callable[[int], str] | None, offset: int) -> str:
    return f" Next part: {more(offset)}." if more else ""


def _notice(stats: Stats, path: str | None, error: str, more: str) -> str:
    what = f"original {counted(stats.original_lines, 'line')} / {stats.original_bytes / 1024:.1f} KiB"
    if path is None and not error:
        return f"[MCP text output truncated: {what}.]"
    if path is None:
        return f"[MCP text output truncated: {what}. Full output could not be saved: {error}]"
    hint = "use read with offset/limit or grep to inspect."
    return f"[MCP text output truncated: {what}. Full text saved to: {path} — {hint}{more}]"


def _head(text: str, max_bytes: int, max_lines: int, tail: str) -> str:
    """The beginning of `text` that leaves room for `tail`."""
    size, breaks = len(_encode(tail)), tail.count("\n")
    room = max(0, max_bytes - size)
    text = text[:room]  # each character has a byte at least
    lines = text.split("\n", max(0, max_lines - breaks))[: max(0, max_lines - breaks)]
    return _encode("\n".join(lines))[:room].decode(errors="ignore")


def _measure(text: str) -> tuple[int, int]:
    return len(_encode(text)), text.count("\n") + 1 if text else 0


def _encode(text: str) -> bytes:
    """The text as UTF-8; half a surrogate pair, which no encoder accepts, becomes `?`."""
    return text.encode(errors="replace")


# ---- Schemas as text: what a tool expects, in lines a model and a person both read ----------------------------------
#
# One line a property, in the schema's own order:
#
#     name (type) *required* - description [minLength: 1] [default: "x"]
#
# A person reads `name (type, required)`. Models know the mark, and so do prompts and tests of agents.
#
# Inner parts (properties, items, alternatives with parts of their own) are indented by two more. A schema comes from a
# server and may be any JSON. Parts that make no sense are left out and never an error. References within the schema are
# followed, since most generators use them for nested objects. Text and work are bounded: nesting, alternatives and
# references have limits, a reference is not opened inside itself, and after `MAX_LINES` the text says that there is
# more. Without these bounds, twenty lines of schema can refer to each other a million times.

MAX_DEPTH: Final = 6
MAX_SCHEMA_LINES: Final = 400
MAX_BRANCHES: Final = 20  # alternatives looked at
MAX_REFERENCES: Final = 32  # opened one inside the other
Schema = Mapping[str, Any]
_NO_SCHEMA: Schema = {}
_CONSTRAINTS: Final = (
    *("minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum"),
    *(
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
    ),
    "default",
)
_OPEN: Final = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "additionalProperties", "if", "not")


class SchemaLine(msgspec.Struct, frozen=True):
    """A line of a schema as text: a property, or a remark in place of properties."""

    depth: int  # how many others it is inside
    name: str
    kind: str = ""
    is_required: bool = False
    more: Sequence[str] = ()  # its description and constraints

    def text(self, *, for_people: bool = False) -> str:
        """The line as a model reads it, or a person."""
        kind = f"({self.kind})" if self.kind else ""
        if self.is_required and for_people:
            kind = f"({self.kind}, required)" if self.kind else "(required)"
        elif self.is_required:
            kind = f"{kind} *required*".lstrip()
        return "  " * self.depth + " ".join(filter(None, (self.name, kind, *self.more)))


def parameters_text(schema: object, indent: str = "", *, for_people: bool = False) -> str:
    """The text below `Parameters:`, each line with `indent` in front. Never raises, whatever `schema` is.

    `(no schema)` if it is not a schema, `(no parameters)` if it has no properties, `(complex schema)` if it describes
    the parameters in another way.
    """
    return "\n".join(indent + line.text(for_people=for_people) for line in schema_lines(schema))


def schema_lines(schema: object) -> list[SchemaLine]:
    """The lines of `parameters_text`: one at least."""
    if not isinstance(schema, Mapping):
        return [SchemaLine(0, "(no schema)")]
    root = cast("Schema", schema)
    whole = _resolve(root, root, frozenset())[0]
    lines = list(islice(_properties(whole, root, frozenset(), 0), MAX_SCHEMA_LINES + 1))
    if len(lines) > MAX_SCHEMA_LINES:
        lines[MAX_SCHEMA_LINES:] = [
            SchemaLine(0, f"(more than {MAX_SCHEMA_LINES} lines, the rest is left out)")
        ]
    return lines or [SchemaLine(0, _without_properties(whole))]


def _without_properties(schema: Schema) -> str:
    closed = schema.get("type", "object") == "object" and not any(schema.get(key) for key in _OPEN)
    return "(no parameters)" if closed else "(complex schema)"


def _properties(schema: Schema, root: Schema, seen: frozenset[str], depth: int) -> Iterator[SchemaLine]:
    required = _schema_list(schema, "required")
    for name, inner in _map(schema, "properties").items():
        yield from _property(name, inner, name in required, root, seen, depth)


def _property(
    name: str, said: object, required: bool, root: Schema, seen: frozenset[str], depth: int
) -> Iterator[SchemaLine]:
    """The line of one property, then what is inside it."""
    schema, seen = _resolve(_schema(said), root, seen)
    description = schema.get("description")
    more = [
        f"- {_one_line(description)}" if isinstance(description, str) and description.strip() else "",
        *(f"[{key}: {_schema_json(schema[key])}]" for key in _CONSTRAINTS if key in schema),
    ]
    yield SchemaLine(depth, _one_line(name), _type(schema, root, seen, 0), required, more)
    if depth < MAX_DEPTH:
        yield from _inside(schema, root, seen, depth + 1)


def _inside(schema: Schema, root: Schema, seen: frozenset[str], depth: int) -> Iterator[SchemaLine]:
    yield from _properties(schema, root, seen, depth)
    if isinstance(schema.get("items"), Mapping):
        yield from _property("items", schema["items"], False, root, seen, depth)
    for key in ("anyOf", "oneOf"):
        for branch in _schema_list(schema, key)[:MAX_BRANCHES]:
            inner, deeper = _resolve(_schema(branch), root, seen)
            if _has_inside(inner):
                yield from _property(key, inner, False, root, deeper, depth)


def _has_inside(schema: Schema) -> bool:
    return any(key in schema for key in ("properties", "items", "anyOf", "oneOf"))


def _type(schema: Schema, root: Schema, seen: frozenset[str], depth: int) -> str:
    """`const …`, `enum: …`, `a | b`, or the type; empty where the schema does not say."""
    if "const" in schema:
        return f"const {_schema_json(schema['const'])}"
    values = _schema_list(schema, "enum")
    if values:
        return f"enum: {', '.join(map(_schema_json, values))}"
    stated = schema.get("type")
    if isinstance(stated, str):
        return _one_line(stated)
    names = [_one_line(name) for name in _schema_list(schema, "type") if isinstance(name, str)]
    for key in ("anyOf", "oneOf") if depth < 2 else ():
        for branch in _schema_list(schema, key)[:MAX_BRANCHES]:
            inner, deeper = _resolve(_schema(branch), root, seen)
            names.append(_type(inner, root, deeper, depth + 1))
    return " | ".join(dict.fromkeys(filter(None, names)))


def _resolve(schema: Schema, root: Schema, seen: frozenset[str]) -> tuple[Schema, frozenset[str]]:
    """`schema` with its local reference, if any, replaced by what it means; and the references opened."""
    while isinstance(reference := schema.get("$ref"), str):
        if reference in seen or len(seen) >= MAX_REFERENCES:
            break
        seen |= {reference}
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**_pointed(root, reference), **beside}
    return schema, seen


def _pointed(root: Schema, reference: str) -> Schema:
    """What a local reference (`#/$defs/Name`) points at; nothing for any other."""
    path, *keys = reference.split("/")
    found: object = root if path == "#" else None
    for key in keys:
        found = _schema(found).get(key.replace("~1", "/").replace("~0", "~"))
    return _schema(found)


def _schema(value: object) -> Schema:
    return cast("Schema", value) if isinstance(value, Mapping) else _NO_SCHEMA


def _map(schema: Schema, key: str) -> Schema:
    return _schema(schema.get(key))


def _schema_list(schema: Schema, key: str) -> Sequence[Any]:
    value = schema.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _schema_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(deeply nested)"


# ---- What a model is shown of a result -------------------------------------------------------------------------------
#
# Its content as text and images, and no more than fits. If the tool reports an error, also the parameters that it
# expects. The `mcp` tool and `ToolResult.for_model` share this rule.

_EXPECTED: Final = "\n\nExpected parameters:\n"


class CalledTool(Protocol):
    """The tool that was called, or the resource that was read as one: a `Target` of the catalogue, a room above this
    one."""

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
    target: CalledTool | None,
    *,
    max_bytes: int = MAX_BYTES,
    max_lines: int = MAX_LINES,
    for_people: bool = False,
) -> BoundedBlocks:
    """The blocks that a model is shown of a result, or a person at a command line (`for_people`). `target`: the tool
    that was called, if known. `max_bytes` and `max_lines` bound the text; 0 = no bound."""
    blocks = to_resource_blocks(result) if _is_read(target, result) else to_blocks(result)
    if result.get("isError") is True:
        blocks = _as_error(blocks, target, for_people=for_people)
    return guard(blocks, max_bytes=max_bytes, max_lines=max_lines)


def expected_parameters(target: CalledTool | None, message: str = "", *, for_people: bool = False) -> str:
    """The parameters that the tool expects: the end of the text of a failed call whose arguments may be at fault. Empty
    if `message` has them already, as the error of a gateway behind this one does."""
    if target is None or _EXPECTED in message:
        return ""
    if target.kind == "resource":
        return f"{_EXPECTED}(no parameters)"
    return _EXPECTED + unhidden(parameters_text(target.input_schema, for_people=for_people))


def arguments_may_be_at_fault(error: CallError) -> bool:
    """Whether other arguments may help. A server may refuse arguments with any code but that of a method it lacks; a
    tape has the arguments of the calls that were recorded."""
    if isinstance(error, RemoteError):
        return error.rpc_code not in (METHOD_NOT_FOUND, NOT_ON_TAPE)
    return isinstance(error, BadArguments | ToolFailed) or error.code == "invalid_args"


def _is_read(target: CalledTool | None, result: Mapping[str, Any]) -> bool:
    """Whether a resource was read as a tool. If the target is not known, the shape of the result shows it."""
    return "contents" in result and "content" not in result if target is None else target.kind == "resource"


def _as_error(
    blocks: Sequence[Mapping[str, Any]], target: CalledTool | None, *, for_people: bool
) -> list[dict[str, Any]]:
    """The blocks of a failed call: `Error: …` (said once) with the expected parameters, then everything else that the
    tool sent."""
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    message = "\n".join(texts).strip()
    if not message or message == "(empty result)":
        message = "Tool execution failed"
    if target is not None:
        message = target.in_caller_names(message)
    said = message if message.startswith("Error:") else f"Error: {message}"
    text = said + expected_parameters(target, message, for_people=for_people)
    others = [dict(block) for block in blocks if block.get("type") != "text"]
    return [{"type": "text", "text": text}, *others]
