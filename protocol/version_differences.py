"""Puts what an older version of the protocol does not know into a form that it knows. This is the one place for it, for
results, lists, notifications and questions.

Peers of an older version check what they are sent against their version's types, and throw away the whole of it for one
part that they do not know. New members of an object they pass over, so these stay. What is left is few things:

| | since | before that |
|---|---|---|
| an output schema that is not of an object | 2026-07-28 | that of an object with it as the member `result` |
| `structuredContent` that is no object, or of such a schema | 2026-07-28 | the member `result` of an object |
| no `structuredContent` where its schema allows null | 2026-07-28 | null, so wrapped: SDKs leave null out |
| `structuredContent: null` of an older server | | left out: there it means that there is none |
| `resultType`, caching fields | 2026-07-28 | left out (`jsonrpc.outgoing.for_handshake`) |
| several blocks in one message of sampling | 2025-11-25 | one message for each; of an answer, its text |
| choices with titles in a form (`oneOf`), several of them | 2025-11-25 | `enum` and `enumNames`; one of them, as text |
| `notifications/elicitation/complete`, `notifications/tasks/status` | 2025-11-25 | not sent |
| a block `resource_link` | 2025-06-18 | a text with its URI |
| a block `audio` | 2025-03-26 | a text that names its type |

A result has the form that its tool is listed with: where the schema allows an object or something else, an object is
wrapped, too. (FastMCP does the same; its clients unwrap what has its mark in the schema.) A schema that describes an
object without saying `"type": "object"` gets that type. Rejected: to leave schema and structure out. Programs read only
the structure, so for them the answer was lost after the tool had run.

What a client has to declare (elicitation by URL, tools in sampling, tasks) is refused before (`actors.host.lacking`).

A task keeps its result in the newest form (`newest_result`), whoever began it: it is adapted when it is fetched, to the
version of whoever fetches it.

Results stay the bytes that their server sent, unless one of these words is in them; of a large one only the kind of
`structuredContent` is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from .bounds import LARGE_MESSAGE
from .jsonrpc.encoding import UNREADABLE, encode
from .jsonrpc.incoming import ABSENT, ResultMembers, is_true, read_members, result_parts
from .jsonrpc.terms import HANDSHAKE_VERSIONS, MODERN_VERSIONS
from .long_text import holds, places

Block = dict[str, Any]
Schema = Mapping[str, Any]
_2025_MARCH, _2025_JUNE, _2025_NOVEMBER = HANDSHAKE_VERSIONS[1:]
STRUCTURED_LISTS: Final = MODERN_VERSIONS[0]
_FORMS_WITH_TITLES: Final = _2025_NOVEMBER
_SEVERAL_BLOCKS: Final = _2025_NOVEMBER
_NOTIFICATIONS: Final[Mapping[str, str]] = {
    "notifications/elicitation/complete": _2025_NOVEMBER,
    "notifications/tasks/status": _2025_NOVEMBER,
}
_BLOCKS: Final[Mapping[str, str]] = {"audio": _2025_MARCH, "resource_link": _2025_JUNE}
ANYTHING: Final[
    Schema
] = {}  # the output schema of a tool that `wraps_results`, where it is not known any more
_STRUCTURED: Final = b'"structuredContent"'
_OBJECT: Final = "object"
_RESULT: Final = "result"
_WRAPPED_MARK: Final = "x-fastmcp-wrap-result"  # clients of FastMCP unwrap by it
_OF_THE_ROOT: Final = frozenset({"$defs", "definitions", "$schema"})
_TO_DEFINITIONS: Final = ("#/$defs/", "#/definitions/")
_OF_NAMES: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_DATA: Final = frozenset(
    {"const", "default", "enum", "examples"}
)  # what looks like a reference in them is none
# By version: the words by which a result shows that it may have blocks that are new to it.
_NEW_WORDS: Final[Mapping[str, Sequence[bytes]]] = {
    version: tuple(f'"{kind}"'.encode() for kind, since in _BLOCKS.items() if since > version)
    for version in HANDSHAKE_VERSIONS
}


def knows_notification(method: str, version: str) -> bool:
    """Whether a peer of this version knows the notification."""
    return version >= _NOTIFICATIONS.get(method, "")


# ---- lists -----------------------------------------------------------------------------------------------------------
def wraps_results(schema: object) -> bool:
    """Whether what this output schema describes may be no object: then older clients get it as the member `result` of
    one. They are shown a schema of such an object, and nothing else."""
    return isinstance(schema, Mapping) and not _is_of_object(cast("Schema", schema))


def older_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool for clients up to 2025-11-25: there an output schema describes an object."""
    schema = tool.get("outputSchema")
    if not isinstance(schema, Mapping):
        return tool
    said = cast("Schema", schema)
    if said.get("type") == _OBJECT:
        return tool
    return {**tool, "outputSchema": _wrapped(said) if wraps_results(said) else {**said, "type": _OBJECT}}


def _is_of_object(schema: Schema) -> bool:
    """Whether it describes objects only; one with `properties` and no type is taken to mean that, as most do."""
    root, seen = schema, set[str]()
    while "type" not in schema and "properties" not in schema:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or reference in seen:
            return False
        seen.add(reference)
        found = _referred(root, reference)
        if found is None:
            return False
        schema = found
    return schema.get("type", _OBJECT) == _OBJECT


def _allows_null(schema: Schema, root: Schema, known: dict[str, bool]) -> bool:
    """Whether null may be what this schema describes. `known`: by reference, what was found; each is followed once."""

    def allow(key: str) -> list[bool]:
        return [
            each is True or (isinstance(each, Mapping) and _allows_null(cast("Schema", each), root, known))
            for each in cast("Sequence[Any]", schema.get(key) or ())
        ]

    kind, reference = schema.get("type", "null"), schema.get("$ref")
    if kind != "null" and not (isinstance(kind, list) and "null" in kind):
        return False
    if schema.get("const") is not None or None not in schema.get("enum", [None]):
        return False
    if any(not any(allow(key)) for key in ("anyOf", "oneOf") if key in schema) or not all(allow("allOf")):
        return False
    if not isinstance(reference, str):
        return True
    if reference not in known:
        known[reference] = False  # one that only leads back to itself describes nothing
        found = root if reference == "#" else _referred(root, reference)
        known[reference] = found is not None and _allows_null(found, root, known)
    return known[reference]


def _referred(root: Schema, reference: str) -> Schema | None:
    """What a reference inside a schema points to."""
    found: Any = root if reference.startswith("#/") else None
    for step in reference.split("/")[1:]:
        found = (
            cast("Schema", found).get(step.replace("~1", "/").replace("~0", "~"))
            if isinstance(found, Mapping)
            else None
        )
    return cast("Schema", found) if isinstance(found, Mapping) else None


def _wrapped(schema: Schema) -> Schema:
    """The schema of an object with what `schema` describes as its member `result`. Definitions go to the top, where
    references look for them; other references from the root are led to where it is now. A schema with an `$id` is a
    root of its own wherever it stands."""
    inner, top = schema, dict[str, Any]()
    if not isinstance(schema.get("$id"), str):
        moved = {key: value for key, value in schema.items() if key in _OF_THE_ROOT}
        top = _led(moved)
        inner = _led({key: value for key, value in schema.items() if key not in moved})
    return {
        "type": _OBJECT,
        "properties": {_RESULT: inner},
        "required": [_RESULT],
        _WRAPPED_MARK: True,
        **top,
    }


def _led(said: Any, *, of_names: bool = False) -> Any:
    """A part of a schema, with its references from the root led to the member `result`. `of_names`: its keys are names
    of the schema's author, and no words of JSON Schema."""
    if isinstance(said, list):
        return [_led(each) for each in cast("list[Any]", said)]
    if not isinstance(said, Mapping):
        return said
    part = cast("Schema", said)
    if of_names:
        return {key: _led(value) for key, value in part.items()}
    if isinstance(part.get("$id"), str):
        return part
    led = {
        key: value if key in _DATA else _led(value, of_names=key in _OF_NAMES) for key, value in part.items()
    }
    reference = led.get("$ref")
    if not isinstance(reference, str) or reference.startswith(_TO_DEFINITIONS):
        return led
    if reference == "#" or reference.startswith("#/"):
        led["$ref"] = f"#/properties/{_RESULT}{reference[1:]}"
    return led


# ---- results ---------------------------------------------------------------------------------------------------------
def older_result(result: bytes, version: str, *, newer: bool = False, wrapped: Schema | None = None) -> bytes:
    """The result of a tool, a prompt or a resource for a client of this version. `newer`: its server speaks 2026-07-28.
    `wrapped`: the output schema of its tool, if that `wraps_results`."""
    if version >= STRUCTURED_LISTS:
        return result
    words = _NEW_WORDS.get(version, ())
    if not words and wrapped is None and not holds(result, _STRUCTURED):
        return result  # as nearly every result
    new_blocks = len(result) < LARGE_MESSAGE and any(result.find(word) >= 0 for word in words)
    if not new_blocks and wrapped is None and not _may_hold_list(result):
        return result
    try:
        return _without_newer(result, version, newer=newer, wrapped=wrapped, new_blocks=new_blocks)
    except UNREADABLE:
        return result


def newest_result(result: bytes, *, newer: bool, wrapped: Schema | None) -> bytes:
    """The result of a tool as whoever does not know its schema can adapt it later, with `ANYTHING` for that schema: a
    null that is left out is said. `newer`, `wrapped`: see `older_result`."""
    if not newer or wrapped is None:
        return result
    try:
        members = read_members(result)
        parts = result_parts(result, members) if _has_left_out_null(members, wrapped) else None
    except UNREADABLE:
        return result
    return result if parts is None else encode({**parts, "structuredContent": None})


def _has_left_out_null(members: ResultMembers, wrapped: Schema) -> bool:
    is_absent = members.structured is ABSENT and not is_true(members.is_error)
    return is_absent and _allows_null(wrapped, wrapped, {})


def _may_hold_list(result: bytes) -> bool:
    """Whether a `structuredContent` in the result may be no object."""
    for at in places(result, _STRUCTURED):
        value = result[at + len(_STRUCTURED) : at + len(_STRUCTURED) + 16].lstrip(b" \t\r\n:")
        if value[:1] != b"{":
            return True
    return False


def _without_newer(
    result: bytes, version: str, *, newer: bool, wrapped: Schema | None, new_blocks: bool
) -> bytes:
    members = read_members(result)
    structured = members.structured
    if structured is not ABSENT:
        is_list = wrapped is not None or bytes(memoryview(structured)[:1]) != b"{"
    else:
        is_list = newer and wrapped is not None and _has_left_out_null(members, wrapped)
    parts: dict[str, Any] | None = result_parts(result, members)
    if parts is None or not (is_list or new_blocks):
        return result
    if is_list:
        value = parts.pop("structuredContent", None)
        if newer or wrapped is not None or bytes(value) != b"null":
            parts["structuredContent"] = {_RESULT: value}
    if new_blocks:
        for key, older in (("content", _older_content), ("messages", _older_messages)):
            if isinstance(parts.get(key), msgspec.Raw):
                parts[key] = older(msgspec.json.decode(parts[key]), version)
    return encode(parts)


def _older_content(content: Any, version: str) -> Any:
    if isinstance(content, list):
        return [_older_block(block, version) for block in cast("list[Any]", content)]
    return _older_block(content, version)


def _older_block(block: Any, version: str) -> Any:
    said: Block = cast("Block", block) if isinstance(block, dict) else {}
    since = _BLOCKS.get(str(said.get("type")))
    if since is None or version >= since:
        return cast("Any", block)
    from .content import to_blocks

    kept = {"annotations": said["annotations"]} if "annotations" in said else {}
    return {**to_blocks({"content": [said]})[0], **kept}


def _older_messages(messages: Any, version: str) -> Any:
    if not isinstance(messages, list):
        return messages
    return [
        {**cast("Block", each), "content": _older_content(each["content"], version)}
        if isinstance(each, dict) and "content" in each
        else each
        for each in cast("list[Any]", messages)
    ]


# ---- questions, and their answers ------------------------------------------------------------------------------------
def older_question(method: str, params: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    """What a server asks, for a client of this version."""
    older = _QUESTIONS.get(method)
    return params if older is None else older(params, version)


def _older_sampling(params: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    messages = params.get("messages")
    if not isinstance(messages, list) or version >= _SEVERAL_BLOCKS:
        return params
    found: list[Any] = []
    for message in cast("list[Any]", messages):
        content = cast("Block", message).get("content") if isinstance(message, dict) else None
        several = cast("list[Any]", content) if isinstance(content, list) else [content]
        found += (
            [{**message, "content": _older_block(each, version)} for each in several]
            if content
            else [message]
        )
    return params if found == messages else {**params, "messages": found}


def _older_form(params: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    schema = params.get("requestedSchema")
    properties = cast("Block", schema).get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or version >= _FORMS_WITH_TITLES:
        return params
    fields = cast("Mapping[str, Any]", properties)
    older = {name: _older_field(field) for name, field in fields.items()}
    if all(older[name] is field for name, field in fields.items()):
        return params
    return {**params, "requestedSchema": {**cast("Block", schema), "properties": older}}


def _older_field(field: Any) -> Any:
    """A field of a form. Several choices at once cannot be said: they are written into a text."""
    if not isinstance(field, Mapping):
        return field
    said = cast("Mapping[str, Any]", field)
    if said.get("type") == "array":
        items = cast("Block", said["items"]) if isinstance(said.get("items"), Mapping) else {}
        values = items.get("enum") or [
            value for value, _ in _titled(items.get("anyOf") or items.get("oneOf"))
        ]
        words = f"(one or more of: {', '.join(map(str, values))})"
        kept = {key: said[key] for key in ("title",) if key in said}
        return {**kept, "type": "string", "description": f"{said.get('description', '')} {words}".strip()}
    choices = _titled(said.get("oneOf"))
    if not choices:
        return said
    rest = {key: value for key, value in said.items() if key != "oneOf"}
    return {**rest, "enum": [value for value, _ in choices], "enumNames": [title for _, title in choices]}


def _titled(choices: Any) -> list[tuple[Any, Any]]:
    listed = cast("list[Any]", choices) if isinstance(choices, list) else []
    found = [cast("Block", each) for each in listed if isinstance(each, dict) and "const" in each]
    return [(each["const"], each.get("title", each["const"])) for each in found]


_QUESTIONS: Final[Mapping[str, Callable[[Mapping[str, Any], str], Mapping[str, Any]]]] = {
    "sampling/createMessage": _older_sampling,
    "elicitation/create": _older_form,
}


def older_answer(method: str, answer: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    """What a client has answered, for a server of this version: one block, where it knows no more."""
    content = answer.get("content")
    if method != "sampling/createMessage" or version >= _SEVERAL_BLOCKS or not isinstance(content, list):
        return answer
    blocks = [_older_block(each, version) for each in cast("list[Any]", content)]
    if len(blocks) == 1:
        return {**answer, "content": blocks[0]}
    from .content import to_blocks

    texts = [each["text"] for each in to_blocks({"content": blocks}) if each.get("type") == "text"]
    return {**answer, "content": {"type": "text", "text": "\n".join(texts)}}
